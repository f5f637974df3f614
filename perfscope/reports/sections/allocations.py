"""Section "Memory", by allocator events: curves of traced windows with their peaks, and what ran then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfscope import units
from perfscope.analysis.allocations import AllocatorWindow
from perfscope.reports.display import visible
from perfscope.reports.model import (
    Block,
    Column,
    CounterChart,
    CounterLine,
    Counters,
    Table,
    TimeLabel,
    Unit,
    Value,
)
from perfscope.rundir.window_records import HOST_DEVICE

MOST_DRAWN = 4  # curves; the table has all
_LONGEST = 120


def allocation_blocks(allocations: Sequence[AllocatorWindow]) -> Iterator[Block]:
    """A chart for each of the first devices, then a table of the peaks; nothing where there are no events."""
    for window in allocations[:MOST_DRAWN]:
        if window.t_ns[-1] > 0:
            yield _chart(window)
    if allocations:
        yield _table(allocations)


def allocation_lead(allocations: Sequence[AllocatorWindow]) -> str:
    """The highest peak, whose it was and what ran then; "" where there are no events."""
    if not allocations:
        return ""
    window = max(allocations, key=lambda entry: entry.peak_allocated_bytes)
    ran = _running(window)
    return (
        f"In the traced windows tensors took at most {units.format_bytes(window.peak_allocated_bytes)} "
        f"({_device(window)} of rank {window.rank}){f', in {ran}' if ran else ''}."
    )


def _device(window: AllocatorWindow) -> str:
    return "host" if window.device == HOST_DEVICE else f"device {window.device}"


def _chart(window: AllocatorWindow) -> Counters:
    span = window.t_ns[-1]
    lines = [_line("allocated", window.t_ns, window.allocated_bytes, window.peak_allocated_bytes)]
    if window.reserved_bytes:
        most = window.peak_reserved_bytes or max(window.reserved_bytes)
        lines.append(_line("reserved", window.t_ns, window.reserved_bytes, most))
    name = f"memory-allocator-{window.rank}-{'host' if window.device == HOST_DEVICE else window.device}"
    width = span // 250  # wide enough to be seen
    start = max(window.peak_at_ns - width // 2, 0)
    peak = TimeLabel(start_ns=start, end_ns=start + width, title="peak")
    return Counters(
        id=name,
        title=f"Allocator of rank {window.rank}, {_device(window)}, window {window.window}",
        span_ns=span,
        charts=(
            CounterChart(
                id=f"{name}-bytes", title="Tensors and reserved memory", unit=Unit.BYTES, lines=tuple(lines)
            ),
        ),
        windows=(peak,),
        windows_title="peak of allocated memory",
        caption=_caption(window),
    )


def _line(label: str, times: tuple[int, ...], values: tuple[int, ...], most: int) -> CounterLine:
    figures = tuple(float(value) for value in values)
    note = f"at most {units.format_bytes(most)}"
    return CounterLine(label=label, t_ns=times, mean=figures, low=figures, high=figures, note=note)


def _caption(window: AllocatorWindow) -> str:
    ran = _running(window)
    peak = f"Peak: {units.format_bytes(window.peak_allocated_bytes)} at {units.format_ns(window.peak_at_ns)}"
    caption = f"{peak}, in {ran}." if ran else f"{peak}; no operator ran on the thread that allocated."
    if window.device == HOST_DEVICE:
        caption += " Of the host, what was allocated before the trace began is not counted."
    return caption


def _running(window: AllocatorWindow) -> str:
    """``aten::conv2d of layer features.3 (forward)``; "" where nothing is known."""
    parts = [visible(window.peak_operator, _LONGEST)] if window.peak_operator else []
    if window.peak_layer:
        parts.append(f"{'of ' if parts else ''}layer {visible(window.peak_layer, _LONGEST)}")
    if parts and window.peak_phase and window.peak_phase != "other":
        parts.append(f"({visible(window.peak_phase, 30)})")
    return " ".join(parts)


def _table(allocations: Sequence[AllocatorWindow]) -> Table:
    rows: list[tuple[Value, ...]] = [
        (
            window.rank,
            _device(window),
            window.window,
            window.peak_allocated_bytes,
            window.peak_reserved_bytes,
            window.peak_at_ns,
            visible(window.peak_layer, _LONGEST) or None,
            visible(window.peak_operator, _LONGEST) or None,
            window.num_events,
        )
        for window in allocations
    ]
    return Table(
        id="memory-allocator",
        title="Peaks by the allocator's events",
        columns=(
            Column(key="rank", title="Rank", unit=Unit.COUNT, primary=True),
            Column(key="device", title="Of", primary=True),
            Column(key="window", title="Window", unit=Unit.COUNT),
            Column(key="allocated", title="Peak allocated", unit=Unit.BYTES, primary=True),
            Column(key="reserved", title="Peak reserved", unit=Unit.BYTES, hint="by the allocator"),
            Column(key="at", title="At", unit=Unit.TIME, hint="since the first event"),
            Column(key="layer", title="Layer", unit=Unit.CODE, primary=True, hint="at the peak"),
            Column(key="operator", title="Operator", unit=Unit.CODE, hint="at the peak"),
            Column(key="events", title="Events", unit=Unit.COUNT, hint="allocations and frees"),
        ),
        rows=tuple(rows),
        caption="Of each rank and device the traced window with the highest peak, and what ran then.",
        print_rows=8,
    )
