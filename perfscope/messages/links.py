"""Classes of links, in English."""

from __future__ import annotations

from perfscope.vocabulary.links import LinkClass, NoLink

# What the link is.
TITLES = {
    LinkClass.MEMORY: "memory",
    LinkClass.INTRA_NUMA: "within a NUMA node",
    LinkClass.CROSS_NUMA: "between NUMA nodes",
    LinkClass.PCIE: "PCIe",
    LinkClass.GPU_LINK: "between GPUs",
    LinkClass.FABRIC: "fabric",
    LinkClass.ETHERNET: "Ethernet",
    LinkClass.LOOPBACK: "loopback",
}
# Between whom a bench run's bytes go over it, by the name in its records.
WHERE: dict[str, str] = {
    LinkClass.ETHERNET: "between hosts",
    LinkClass.LOOPBACK: "inside a host",
    LinkClass.INTRA_NUMA: "inside a NUMA domain",
    LinkClass.CROSS_NUMA: "between NUMA domains",
    LinkClass.PCIE: "between GPUs of a host",
}

# What is known where the class is not.
NO_LINK = {
    NoLink.NO_MEMBERS: "ranks not listed",
    NoLink.NO_HOSTS: "hosts not recorded",
    NoLink.BETWEEN_DEVICES: "between devices of a host",
    NoLink.BETWEEN_HOSTS: "between hosts",
}
