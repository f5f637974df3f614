"""A machine's topology as data: sockets, memory, devices and what joins them."""

from __future__ import annotations

from msgspec import Struct

from perfscope.vocabulary.links import LinkClass


class Device(Struct, frozen=True, kw_only=True):
    """A GPU, a network interface or a fabric port. `lines` are its figures, most telling first."""

    id: str
    kind: str  # gpu, nic, port
    title: str
    lines: tuple[str, ...] = ()


class MemoryNode(Struct, frozen=True, kw_only=True):
    """One NUMA node; `near` are nodes without CPUs that lie closest to it."""

    title: str
    kind: str  # cpu, memory_only, mcdram, fast
    lines: tuple[str, ...] = ()
    near: tuple[MemoryNode, ...] = ()
    devices: tuple[Device, ...] = ()


class Socket(Struct, frozen=True, kw_only=True):
    title: str
    nodes: tuple[MemoryNode, ...]


class Rail(Struct, frozen=True, kw_only=True):
    """Devices joined by links of one class, drawn as one bar that all hang on."""

    title: str
    link_class: LinkClass
    members: tuple[str, ...]  # device ids


class Machine(Struct, frozen=True, kw_only=True):
    """One host, or several alike."""

    title: str
    summary: str  # one sentence: what a text report says instead of the picture
    sockets: tuple[Socket, ...]
    rails: tuple[Rail, ...] = ()
    between: str = ""  # what lies between the sockets
    loose: tuple[Device, ...] = ()  # devices whose NUMA node is not known


class TopologyPicture(Struct, frozen=True, kw_only=True):
    """Topology, one picture per kind of host."""

    id: str
    title: str
    machines: tuple[Machine, ...]
    caption: str = ""
