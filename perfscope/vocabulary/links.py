"""Classes of links that a training's bytes go over."""

from __future__ import annotations

from enum import Enum


class LinkClass(str, Enum):
    """What a link is, nearest to the cores first. The value is the name in records and in the JSON report."""

    MEMORY = "memory"
    INTRA_NUMA = "intra_numa"
    CROSS_NUMA = "cross_numa"
    PCIE = "pcie"
    GPU_LINK = "gpu_link"
    FABRIC = "fabric"
    ETHERNET = "ethernet"
    LOOPBACK = "loopback"

    __str__ = str.__str__  # Python 3.11 and 3.12 differ in how they format a mixed-in enum


class NoLink(str, Enum):
    """Why the class of the links between the ranks of a group is not known."""

    NO_MEMBERS = "no_members"  # the trace does not list the group's ranks
    NO_HOSTS = "no_hosts"  # the host of a rank is not known
    BETWEEN_DEVICES = "between_devices"  # of one host: no topology with both is recorded, or pairs differ
    BETWEEN_HOSTS = "between_hosts"  # over an interface that is not recorded

    __str__ = str.__str__


# Links that lead from host to host.
BETWEEN_HOSTS = (LinkClass.ETHERNET, LinkClass.FABRIC)


class Transport(str, Enum):
    """What carried the calls of a measurement of links. The value is the code in records."""

    TCP = "tcp"
    GLOO = "gloo"
    MPI = "mpi"
    NCCL = "nccl"
    RDMA = "rdma"  # writes, between ports of one host
    COPY = "copy"  # of a device, by its runtime

    __str__ = str.__str__
