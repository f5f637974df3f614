"""Section "Device time": what the devices did, what the host did while they idled, how launches waited."""

from __future__ import annotations

from perfscope import units
from perfscope.analysis.results import DeviceBreakdown, DeviceIdle, RankResult, RunAnalysis
from perfscope.messages.host_activity import TITLES
from perfscope.reports.display import visible
from perfscope.reports.model import (
    Bar,
    Block,
    ChartPart,
    Column,
    Section,
    StackedBars,
    Table,
    Unit,
    Value,
)
from perfscope.reports.sections.steps import MOST_BARS
from perfscope.vocabulary.host_activity import HostActivity

DEVICE_PARTS = (
    ChartPart.of_step("compute"),
    ChartPart.of_step("exposed_comm"),
    ChartPart.of_step("copy"),
    ChartPart(
        key="idle_host_wait",
        title="Idle: host",
        hint="the next kernel was launched only after this one ended",
    ),
    ChartPart(
        key="idle_kernel_wait", title="Idle: short gap", hint="a gap shorter than 30 µs between kernels"
    ),
    ChartPart(key="idle_other", title="Idle: other", hint="waiting for another stream or for an event"),
)


def device_section(analysis: RunAnalysis) -> Section | None:
    """Device time over every device event in the files; None where no rank has a device timeline."""
    devices = [(rank, rank.device_ns) for rank in analysis.ranks if rank.device_ns is not None]
    if not devices:
        return None
    bars = tuple(_device_bar(rank, device) for rank, device in devices[:MOST_BARS])
    chart = StackedBars(
        id="device-chart",
        title="First to last device event of each rank",
        parts=DEVICE_PARTS,
        bars=bars,
        caption="Over every kernel, copy and set in the files; totals, not per step.",
    )
    columns = (
        Column(key="rank", title="Rank", unit=Unit.COUNT, primary=True),
        Column(key="events", title="Events", unit=Unit.COUNT),
        Column(key="span", title="Span", unit=Unit.TIME, primary=True),
        *(Column(key=part.key, title=part.title, unit=Unit.TIME, hint=part.hint) for part in DEVICE_PARTS),
        Column(key="comm", title="Total communication", unit=Unit.TIME),
        Column(key="overlap", title="Overlap", unit=Unit.RATIO),
    )
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (
            rank.rank,
            device.num_events,
            device.span,
            *(getattr(device, part.key) for part in DEVICE_PARTS),
            device.comm,
            device.overlap_ratio,
        )
        for rank, device in devices
    )
    table = Table(
        id="device-table",
        title="Device time, per rank",
        columns=columns,
        rows=rows,
        sorted_by=("rank", False),
    )
    idle = sum(device.idle for _, device in devices)
    span = sum(device.span for _, device in devices)
    lead = f"The devices were idle for {units.format_ratio(idle / span)} of the traced span." if span else ""
    blocks: list[Block] = [chart, table, *_idle_table(analysis), *_streams_table(analysis)]
    return Section(id="devices", title="Device time", lead=lead, blocks=tuple(blocks))


def _idle_table(analysis: RunAnalysis) -> tuple[Table, ...]:
    """Idle time of all devices by what the host was in; () where there is none."""
    sums: dict[tuple[HostActivity, str | None], list[int]] = {}
    knows_queue = True
    longest: dict[tuple[HostActivity, str | None], DeviceIdle] = {}
    for entry in (entry for rank in analysis.ranks for entry in rank.device_idle or ()):
        key = entry.kind, entry.name
        total = sums.setdefault(key, [0, 0, 0])
        total[0] += entry.ns
        total[1] += entry.calls
        total[2] += entry.queue_empty_ns or 0
        knows_queue &= entry.queue_empty_ns is not None
        longest[key] = max(longest.get(key, entry), entry, key=lambda entry: entry.ns)
    idle = sum(ns for ns, *_ in sums.values())
    if not idle:
        return ()
    columns = (
        Column(key="activity", title="The host was in", primary=True),
        Column(key="name", title="Name", unit=Unit.CODE, primary=True),
        Column(key="time", title="Idle time", unit=Unit.TIME, bar="idle", primary=True),
        Column(key="share", title="Of idle time", unit=Unit.RATIO, primary=True),
        Column(key="empty", title="Nothing queued", unit=Unit.TIME, hint="of it: nothing launched waited"),
        Column(key="calls", title="Calls", unit=Unit.COUNT, hint="that cover idle time"),
        Column(key="operator", title="In operator", unit=Unit.CODE),
        Column(key="range", title="In range", unit=Unit.CODE),
        Column(key="layer", title="In layer", unit=Unit.CODE),
    )
    rows: list[tuple[Value, ...]] = []
    for key in sorted(sums, key=lambda key: (-sums[key][0], key[0], key[1] or "")):
        ns, calls, empty = sums[key]
        at = longest[key]
        names = (visible(text) if text is not None else None for text in (at.operator, at.range, at.layer))
        unnamed = "" if key[0] is HostActivity.UNTRACED else "(others)"
        name = visible(key[1]) if key[1] is not None else unnamed
        rows.append(
            (TITLES[key[0]], name, ns, ns / idle, empty if knows_queue else None, calls or None, *names)
        )
    return (
        Table(
            id="device-idle",
            title="Idle time of the devices by what the host was in",
            columns=columns,
            rows=tuple(rows),
            terminal_rows=6,
            caption="Sum over ranks; each instant counts once: runtime calls before operators, these before "
            "Python. Operator, range and layer: where more than half of a blocking call's time was.",
        ),
    )


def _streams_table(analysis: RunAnalysis) -> tuple[Table, ...]:
    """Launch delay and queue length of each stream, those with most launches first."""
    streams = [(rank.rank, stream) for rank in analysis.ranks for stream in rank.streams]
    if not streams:
        return ()
    columns = (
        Column(key="rank", title="Rank", unit=Unit.COUNT, primary=True),
        Column(key="device", title="Device", unit=Unit.COUNT),
        Column(key="stream", title="Stream", unit=Unit.COUNT, primary=True),
        Column(key="launches", title="Launches", unit=Unit.COUNT, primary=True),
        Column(key="delay", title="Median delay", unit=Unit.TIME, primary=True),
        Column(key="longest", title="Longest delay", unit=Unit.TIME),
        Column(key="queue", title="Median queue", unit=Unit.NUMBER, primary=True),
        Column(key="most", title="Longest queue", unit=Unit.COUNT),
        Column(
            key="empty", title="Found it empty", unit=Unit.RATIO, hint="launches before which nothing waited"
        ),
    )
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (
            *(rank, stream.device, stream.stream, stream.launches, stream.delay_median_ns),
            *(stream.delay_max_ns, stream.queue_median, stream.queue_max, stream.empty_ratio),
        )
        for rank, stream in sorted(streams, key=lambda pair: (-pair[1].launches, pair[0]))
    )
    return (
        Table(
            id="device-streams",
            title="Launch delay and queue length, per stream",
            columns=columns,
            rows=rows,
            terminal_rows=4,
            terminal_title=True,
            caption="Delay: from the end of the launching call to the start on the device. Queue: launched "
            "and not begun, at each launch. Where both are short, the device waits for the host.",
        ),
    )


def _device_bar(rank: RankResult, device: DeviceBreakdown) -> Bar:
    return Bar(
        label=f"rank {rank.rank}",
        values=tuple(getattr(device, part.key) for part in DEVICE_PARTS),
        note=f"{units.format_count(device.num_events)} device events",
    )
