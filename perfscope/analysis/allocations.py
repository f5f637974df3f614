"""Memory by the allocator's own events: curves of traced windows, and what ran when most was allocated."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.source import RunSource
from perfscope.analysis.spans import whole_numbers
from perfscope.errors import RunDirectoryError
from perfscope.rundir import layout
from perfscope.rundir.window_records import HOST_DEVICE, AllocatorCurve, WindowSummary
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure

MOST_CURVES = 16  # those with the highest peaks
_COLUMNS = ("start_ns", "dur_ns", "device", "lane", "depth", "name", "layer", "phase")


class AllocatorWindow(Struct, frozen=True, kw_only=True):
    """The allocator of one device during one window of a rank, the window with its highest peak.

    Attributes:
        device: number of the device; -1: memory of the host, counted from the trace's start.
        num_events: allocations and frees.
        t_ns: of the points of the curves, since the first one.
        allocated_bytes: in tensors.
        reserved_bytes: by the allocator, tensors included; (): it keeps nothing back.
        peak_at_ns: when most was allocated, since the first point.
        peak_allocated_bytes: in tensors.
        peak_reserved_bytes: most that was reserved at any time; None: as `reserved_bytes`.
        peak_operator: the innermost operator that ran then on the thread that allocated; "": none.
        peak_layer: its layer; "": none.
        peak_phase: of the step; "": not known.
    """

    rank: int
    window: int
    device: int
    num_events: int
    t_ns: tuple[int, ...]
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]
    peak_at_ns: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    peak_operator: str
    peak_layer: str
    peak_phase: str


def allocations_of(source: RunSource) -> tuple[tuple[AllocatorWindow, ...], tuple[Missing, ...]]:
    """By rank and device, and why there are none where a device was traced.

    Memory of the host is left out where a device has some: only small tensors are there.
    """
    summaries = source.summaries()
    highest: dict[tuple[int, int], tuple[WindowSummary, AllocatorCurve]] = {}
    for summary in summaries:
        for curve in summary.allocations:
            if not curve.t_ns or len(curve.allocated) != len(curve.t_ns):
                continue
            known = highest.get((summary.rank, curve.device))
            if known is None or curve.peak_allocated > known[1].peak_allocated:
                highest[summary.rank, curve.device] = (summary, curve)
    if any(curve.device != HOST_DEVICE for _, curve in highest.values()):  # the host's are scalars then
        highest = {key: entry for key, entry in highest.items() if key[1] != HOST_DEVICE}
    drawn = sorted(highest.values(), key=lambda entry: -entry[1].peak_allocated)[:MOST_CURVES]
    windows = tuple(_window(source, summary, curve) for summary, curve in drawn)
    in_order = sorted(windows, key=lambda window: (window.rank, window.device))
    return tuple(in_order), () if windows else _missing(summaries)


def _missing(summaries: Iterable[WindowSummary]) -> tuple[Missing, ...]:
    """Where Kineto traced a device; other formats have no such events, and the host's memory is sampled."""
    ranks = sorted(
        {
            summary.rank
            for summary in summaries
            if summary.has_device and summary.source.path.removesuffix(".gz").endswith(layout.KINETO)
        }
    )
    if not ranks:
        return ()
    return (missing_figure(Figure.ALLOCATIONS, Cause.NO_ALLOCATOR_EVENTS, affects=("allocations",)),)


def _window(source: RunSource, summary: WindowSummary, curve: AllocatorCurve) -> AllocatorWindow:
    operator, layer, phase = _running(source, summary, curve)
    first = curve.t_ns[0]
    return AllocatorWindow(
        rank=summary.rank,
        window=summary.window,
        device=curve.device,
        num_events=curve.num_events,
        t_ns=tuple(time - first for time in curve.t_ns),
        allocated_bytes=curve.allocated,
        reserved_bytes=curve.reserved if len(curve.reserved) == len(curve.t_ns) else (),
        peak_at_ns=curve.peak_ns - first,
        peak_allocated_bytes=curve.peak_allocated,
        peak_reserved_bytes=curve.peak_reserved,
        peak_operator=operator,
        peak_layer=layer,
        peak_phase=phase,
    )


def _running(source: RunSource, summary: WindowSummary, curve: AllocatorCurve) -> tuple[str, str, str]:
    """Operator, layer and phase of the thread that allocated most, at that time; "" where there is none."""
    try:
        table = source.timeline(summary.rank, summary.window, _COLUMNS)
    except RunDirectoryError:
        return "", "", ""  # analyze_run names it among what is missing
    start = whole_numbers(table, "start_ns")
    is_host = whole_numbers(table, "device") < 0
    is_own = is_host & (whole_numbers(table, "lane") == curve.peak_thread)
    runs = (start <= curve.peak_ns) & (curve.peak_ns < start + whole_numbers(table, "dur_ns"))
    at = np.flatnonzero(is_own & runs)
    at = at[np.argsort(whole_numbers(table, "depth", null=0)[at], kind="stable")][::-1]
    rows = table.take(at).to_pylist()  # innermost first, few
    if not rows:
        return "", "", ""
    layer = next((row["layer"] for row in rows if row["layer"]), "")
    return rows[0]["name"] or "", layer, rows[0]["phase"] or ""
