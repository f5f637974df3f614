"""What a host's folder says of the machine, typed: topology.json, ceilings.json and the sampled stacks."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perfscope.rundir import old_gpu_words
from perfscope.rundir.typed import Count, Figure, PartialRow, Record, WholeLists


class MeasuredCeiling(Record, frozen=True):
    """A peak that was measured.

    Attributes:
        kind: of CeilingKind; another version's may be none of them.
        device: "cpu" or "cuda:0"; None = "cpu".
        node: NUMA node; None = all of them together.
        threads: that measured it.
        value: 0 = none; in `unit`: bytes_per_s or flops_per_s.
        spread_ratio: how far apart the repetitions are, as a share.
        runs: measurements of which this is the best.
    """

    kind: str = ""
    device: str | None = None
    node: int | None = None
    threads: int | None = None
    dtype: str | None = None
    value: float = 0.0
    unit: str = ""
    spread_ratio: float | None = None
    runs: int | None = None

    @property
    def is_of_cpus(self) -> bool:
        return self.device in (None, "cpu")


class TheoreticalCeiling(Record, frozen=True):
    """A peak by the data sheet; `source` names the sheet."""

    what: str = ""
    where: str = ""
    value: float = 0.0
    unit: str = ""
    dtype: str | None = None
    source: str = ""


class MissingCeiling(Record, frozen=True):
    """A peak that was not measured, and why.

    `kind`: of CeilingKind; None: all of them, or recorded by an earlier version, which wrote `what` only.
    """

    kind: str | None = None
    what: str = ""
    reason: str = ""


class PressureShares(Record, frozen=True):
    """Share of the time of the measurement that something waited for CPUs."""

    cpu_some_ratio: float | None = None


class LinkCall(PartialRow, frozen=True):
    """Calls of one kind and size that a measurement of links made.

    Attributes:
        transport: of Transport.
        what: of a copy: its devices and direction, in words; "" of the others.
        collective: canonical name; "send": one message, or one copy.
        hosts: of every rank, in the order of ranks.
        interfaces: of the two ends of a message between hosts, by name.
        device, peer: of a copy, by PyTorch's number among the devices that it saw.
        uuid, pci: which device that is; "" in records of earlier versions, or where PyTorch does not tell.
        direction: of a copy: h2d, d2h, d2d (bytes read and written) or p2p.
        memory: of the host in a copy: pinned or pageable.
        link_class: of LinkClass.
        bytes: S of one call, as perfscope.volumes defines it.
        seconds: of one call, by repetition.
    """

    transport: str = ""
    what: str = ""
    collective: str = ""
    num_ranks: Count = 0
    hosts: tuple[str, ...] = ()
    interfaces: tuple[str | None, ...] = ()
    device: str = ""
    uuid: str = ""
    pci: str = ""
    peer: str = ""
    direction: str = ""
    memory: str = ""
    link_class: str = ""
    bytes: Count = 0
    seconds: tuple[Figure, ...] = ()


class NumaCell(PartialRow, frozen=True):
    """What CPUs of one NUMA node get from the memory of one; None = not measured."""

    cpu_node: Count = 0
    memory_node: Count = 0
    threads: Count | None = None
    bytes_per_s: Figure | None = None
    latency_s: Figure | None = None


class LinksRecord(Record, frozen=True):
    """What `perfscope doctor --links` measured on a set of hosts.

    Attributes:
        host: that wrote it; `numa` and calls inside a host are its own.
        hosts: that took part.
        emulated: the emulated cluster they belong to; "" = real ones.
    """

    host: str = ""
    hosts: tuple[str, ...] = ()
    emulated: str = ""
    measured_unix_ns: int | None = None
    took_ns: int | None = None
    how: str = ""
    cached: bool = False
    calls: tuple[LinkCall, ...] = ()
    numa: tuple[NumaCell, ...] = ()
    missing: tuple[MissingCeiling, ...] = ()


class CeilingsRecord(Record, frozen=True):
    """ceilings.json.

    Attributes:
        links: measured before by `perfscope doctor --links`, of every set of hosts that this one belongs to.
        how: what measured, in words.
        measured_unix_ns: None where an earlier version did not record it.
        cached: the figures were there from an earlier measurement.
    """

    entries: tuple[MeasuredCeiling, ...] = ()
    theoretical: tuple[TheoreticalCeiling, ...] = ()
    missing: tuple[MissingCeiling, ...] = ()
    links: tuple[LinksRecord, ...] = ()
    pressure: PressureShares = PressureShares()
    how: str = ""
    measured_unix_ns: int | None = None
    cached: bool = False

    @property
    def is_empty(self) -> bool:
        """Nothing was measured, nor why not."""
        return self == CeilingsRecord()


class RecordedFrame(Record, frozen=True):
    """A Python frame of the stacks."""

    name: str = ""
    file: str = ""
    line: int | None = None


class Frames(WholeLists, frozen=True):
    """Frames of all profiles; samples refer to them by index."""

    frames: tuple[RecordedFrame, ...] = ()


class Profile(WholeLists, frozen=True):
    """Sampled stacks of a process: indices of frames, outermost first; weights beside them, or none."""

    type: str = ""
    samples: tuple[tuple[int, ...], ...] = ()
    weights: tuple[float, ...] = ()


class StacksRecord(WholeLists, frozen=True):
    """A host's stacks, a speedscope document."""

    shared: Frames = Frames()
    profiles: tuple[Profile, ...] = ()


class Hmat(Record, frozen=True):
    """What the firmware says of a node's memory."""

    read_bandwidth_bytes_per_s: Figure | None = None


class NodeRow(PartialRow, frozen=True):
    """A NUMA node.

    Attributes:
        cpus: a list as the kernel writes it.
        kind: cpu, memory_only, mcdram or fast.
        distances: by the firmware's table, to the nodes in `distance_nodes`: 10 is a node's own memory.
    """

    node: int | None = None
    cpus: str = ""
    kind: str = ""
    memory_bytes: Count | None = None
    package: int | None = None
    distance_nodes: tuple[int, ...] = ()
    distances: tuple[Figure, ...] = ()
    hmat: Hmat = Hmat()


class PackageRow(PartialRow, frozen=True):
    """A socket and its NUMA nodes; `cpus` is a list as the kernel writes it."""

    package: int | None = None
    cpus: str = ""
    nodes: tuple[int, ...] = ()


class PcieRow(Record, frozen=True):
    """A PCIe link; the peak is per direction, speeds are of a lane."""

    peak_bytes_per_s: Figure | None = None
    speed_gt_s: Figure | None = None
    max_speed_gt_s: Figure | None = None
    width: Count | None = None
    max_width: Count | None = None


class GpuRow(PartialRow, frozen=True):
    """A GPU.

    Attributes:
        numa_node: -1 where the kernel does not know.
        visibility: environment variables that select GPUs: stages, each by the first that is set.
    """

    id: str = ""
    index: int | None = None
    pci: str = ""
    uuid: str = ""
    name: str = ""
    vendor: str = ""
    numa_node: int | None = None
    memory_bytes: Count | None = None
    pcie: PcieRow = PcieRow()
    visibility: tuple[tuple[str, ...], ...] = ()


class NicRow(PartialRow, frozen=True):
    """A network interface."""

    id: str = ""
    name: str = ""
    numa_node: int | None = None
    speed_bits_per_s: Figure | None = None
    state: str = ""
    virtual: bool = False


class PortRow(PartialRow, frozen=True):
    """A port of a fabric adapter; `kind` is infiniband, omnipath, roce, rxe or iwarp."""

    id: str = ""
    device: str = ""
    port: int | str | None = None
    kind: str = ""
    numa_node: int | None = None
    rate_bits_per_s: Figure | None = None
    netdev: str = ""
    state: str = ""


class LinkRow(PartialRow, frozen=True):
    """A link between the devices `a` and `b`, by their ids.

    Attributes:
        kind: the vendor's name of the link.
        path: the way between them as the vendor's tools name it.
    """

    a: str = ""
    b: str = ""
    link_class: str = msgspec.field(default="", name="class")
    kind: str = ""
    path: str = ""
    num_links: Count | None = None
    switch: bool = False
    peak_bytes_per_s: Figure | None = None


class CacheRow(PartialRow, frozen=True):
    """A cache that is shared by `cpus`; `type` is Data, Instruction or Unified."""

    level: Count | None = None
    type: str = ""
    size_bytes: Count | None = None
    cpus: str = ""


class TopologyRecord(Record, frozen=True):
    """topology.json.

    Attributes:
        online_cpus: a list as the kernel writes it.
        cpu_limit: CPUs that the cgroup grants; None = no limit.
        document: as it was read, in today's words.
    """

    cpu_model: str = ""
    kernel: str = ""
    logical_cpus: Count | None = None
    online_cpus: str = ""
    cpu_limit: Figure | None = None
    sockets: Count | None = None
    memory_bytes: Count | None = None
    numa_nodes: tuple[NodeRow, ...] = ()
    packages: tuple[PackageRow, ...] = ()
    gpus: tuple[GpuRow, ...] = ()
    nics: tuple[NicRow, ...] = ()
    fabric_ports: tuple[PortRow, ...] = ()
    links: tuple[LinkRow, ...] = ()
    caches: tuple[CacheRow, ...] = ()
    notes: tuple[str, ...] = ()
    document: dict[str, object] = msgspec.field(default_factory=dict)


def with_document(topology: Mapping[str, object]) -> dict[str, object]:
    """What TopologyRecord is decoded from: topology.json in today's words, with itself as `document`."""
    today = old_gpu_words.topology(dict(topology))
    return {**today, "document": today}
