"""Section "Memory": what each rank held over the run, in what, and how much was left below the limits."""

from __future__ import annotations

from msgspec import structs

from perfscope import units
from perfscope.analysis.machine.results import CounterTrack, MachineAnalysis, MemoryLimit
from perfscope.analysis.results import RankResult, RunAnalysis
from perfscope.reports.display import visible
from perfscope.reports.model import Block, Column, Note, Section, Table, Unit, Value
from perfscope.reports.sections.allocations import allocation_blocks, allocation_lead
from perfscope.reports.sections.counters import counters_block, of_memory
from perfscope.reports.sections.machine import origin_ns
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.memory import HOST_MEMORY, LimitOf

MOST_PRINTED = 8
_LIMITS = {LimitOf.HOST: "host", LimitOf.CONTROL_GROUP: "control group", LimitOf.DEVICE: "device"}
_TENSORS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "buffer_bytes")


def memory_section(analysis: RunAnalysis) -> Section | None:
    """None where nothing of it is known."""
    machine = analysis.machine
    chart = None
    if machine is not None:
        chart = counters_block(machine, _drawn(machine), "memory-chart", "Memory over the run")
        if chart is not None:  # what disturbs the training takes time, not memory
            chart = structs.replace(chart, disturbances=())
    tables = (_limits_table(machine), _ranks_table(analysis))
    blocks: list[Block] = [block for block in (chart, *tables) if block is not None]
    blocks += allocation_blocks(analysis.allocations)
    if not blocks:
        return None
    return Section(id="memory", title="Memory", lead=_lead(analysis), blocks=tuple(blocks))


def _drawn(machine: MachineAnalysis) -> list[CounterTrack]:
    """A host's only NUMA node says what the host says: it is left out."""
    tracks = [track for track in machine.tracks if of_memory(track)]
    hosts = {track.host for track in tracks if track.group == HOST_MEMORY}
    nodes = [track for track in tracks if track.group == "memory" and track.peak is not None]
    of_host: dict[str, list[CounterTrack]] = {}
    for track in nodes:
        of_host.setdefault(track.host, []).append(track)
    doubled = {tracks_[0].id for host, tracks_ in of_host.items() if len(tracks_) == 1 and host in hosts}
    return [track for track in tracks if track.id not in doubled]


def _lead(analysis: RunAnalysis) -> str:
    parts = []
    peaks = {rank.rank: peak for rank in analysis.ranks if (peak := rank.peak_rss_bytes) is not None}
    if peaks:
        most = max(peaks, key=lambda rank: peaks[rank])
        parts.append(f"Rank {most} held most: {units.format_bytes(peaks[most])} resident.")
    limits = analysis.machine.memory_limits if analysis.machine is not None else ()
    if limits:
        nearest = min(limits, key=lambda limit: limit.headroom_ratio)
        left, ratio = (
            units.format_bytes(nearest.headroom_bytes),
            units.format_ratio(nearest.headroom_ratio, 0),
        )
        size = units.format_bytes(nearest.limit_bytes)
        parts.append(f"Least headroom: {_name(nearest)}, {left} of {size} ({ratio}) were never used.")
    return " ".join(filter(None, (*parts, allocation_lead(analysis.allocations))))


def _name(limit: MemoryLimit) -> str:
    host = visible(limit.host, 30)
    if limit.of is LimitOf.HOST:
        return f"host {host}"
    return f"{_LIMITS[limit.of]} {visible(limit.name, 60)} of {host}"


def _limits_table(machine: MachineAnalysis | None) -> Table | None:
    if machine is None or not machine.memory_limits:
        return None
    origin = origin_ns(machine)
    rows: list[tuple[Value, ...]] = [
        (
            _name(limit),
            limit.limit_bytes,
            limit.peak_bytes,
            limit.peak_at_ns - origin,
            limit.headroom_bytes,
            limit.headroom_ratio,
        )
        for limit in sorted(machine.memory_limits, key=lambda limit: limit.headroom_ratio)
    ]
    return Table(
        id="memory-limits",
        title="Headroom",
        columns=(
            Column(key="of", title="Memory of", primary=True),
            Column(key="limit", title="Limit", unit=Unit.BYTES),
            Column(key="peak", title="Peak in use", unit=Unit.BYTES, primary=True, hint="by all processes"),
            Column(key="at", title="At", unit=Unit.TIME, hint="since the first sample"),
            Column(key="headroom", title="Headroom", unit=Unit.BYTES, primary=True),
            Column(key="ratio", title="Of limit", unit=Unit.RATIO, primary=True),
        ),
        rows=tuple(rows),
        caption="In use: without page cache that the kernel can take back.",
        sorted_by=("ratio", False),
        print_rows=MOST_PRINTED,
    )


# With tensors' memory or without.
_RANKS_CAPTION = {
    True: "Tensors: measured when the optimizer's third update began. Process memory also holds the "
    "framework and its libraries.",
    False: "Process memory also holds the framework and its libraries.",
}


def growth_notices(analysis: RunAnalysis) -> tuple[Note, ...]:
    """A process that holds ever more memory ends some day, however fast it trains."""
    growing = [finding for finding in analysis.findings[1:] if finding.id is FindingKind.MEMORY_GROWS]
    return tuple(Note(text=finding.text.title, tone="caution") for finding in growing)


def _ranks_table(analysis: RunAnalysis) -> Table | None:
    machine = analysis.machine
    sampled = {} if machine is None else {memory.rank: memory for memory in machine.rank_memory}
    rows: list[tuple[Value, ...]] = []
    for rank in analysis.ranks:
        memory = sampled.get(rank.rank)
        growth = None
        if memory is not None and memory.first_bytes is not None and memory.last_bytes is not None:
            growth = memory.last_bytes - memory.first_bytes
        peaks = (rank.peak_rss_bytes, None if memory is None else memory.peak_bytes)
        resident = max((peak for peak in peaks if peak is not None), default=None)
        shared = memory.shared_bytes if memory is not None else None
        cells = (resident, shared, growth, rank.peak_device_bytes, rank.peak_reserved_bytes)
        tensors = tuple(getattr(rank, name) for name in _TENSORS)
        other = _other(rank)
        if any(cell is not None for cell in (*cells, *tensors)):
            rows.append((rank.rank, visible(rank.host, 30), *cells, *tensors, other))
    if not rows:
        return None
    return Table(
        id="memory-ranks",
        title="Memory of each rank",
        columns=_rank_columns(),
        rows=tuple(rows),
        caption=_RANKS_CAPTION[any(getattr(rank, name) for rank in analysis.ranks for name in _TENSORS)],
        print_rows=MOST_PRINTED,
    )


def _rank_columns() -> tuple[Column, ...]:
    size = Unit.BYTES
    return (
        Column(key="rank", title="Rank", unit=Unit.COUNT, primary=True),
        Column(key="host", title="Host"),
        Column(key="peak_rss", title="Peak resident", unit=size, primary=True, hint="of the process"),
        Column(key="shared", title="Shared", unit=size, hint="of the largest sample: files, shared memory"),
        Column(key="growth", title="Growth", unit=size, signed=True, hint="first to last sample in steps"),
        Column(key="peak_device", title="Peak on device", unit=size, primary=True, hint="allocated tensors"),
        Column(key="reserved", title="Peak reserved", unit=size, hint="on the device, by the allocator"),
        Column(key="parameters", title="Parameters", unit=size),
        Column(key="gradients", title="Gradients", unit=size),
        Column(key="optimizer", title="Optimizer state", unit=size),
        Column(key="buffers", title="Buffers", unit=size),
        Column(
            key="other",
            title="Activations and other",
            unit=size,
            hint="peak on the device without the tensors to the left",
        ),
    )


def _other(rank: RankResult) -> int | None:
    """What else the device held at its peak; None without a device, or where tensors lie elsewhere, too."""
    tensors = [getattr(rank, name) for name in _TENSORS]
    if rank.peak_device_bytes is None or None in tensors:
        return None
    left = rank.peak_device_bytes - sum(tensors)
    return left if left >= 0 else None
