"""Where a rank's step went (METRICS §1), and what its devices did.

Per window, on unions of spans clipped to the traced steps, each instant counted once, in this order:

    compute       operators outside the optimizer (device: every kernel that is not communication or a copy)
    optimizer     operators inside the optimizer phase (CPU only; on a device they are kernels like others)
    exposed_comm  communication under neither of the two: useful work hides communication
    copy          copies under none of the above
    input_wait    main thread blocked in the data loader, under none of the above
    optimizer     what is left of the optimizer's own spans on the main thread, without closures
    idle          the rest of the step

With a device timeline, the device decides compute, communication and copies, the host the others. Without
one, operators of the main, autograd and executor threads (other frameworks' pools) decide compute, and
communication is wherever the trace saw it
(the backend's threads); operators that the main thread runs inside the data loader (collating a batch) are
input, not compute. It cannot see work of threads that the trace does not show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa
from msgspec import Struct

from perfscope.analysis import intervals as iv
from perfscope.analysis.intervals import Int64, Intervals, one_of
from perfscope.analysis.results import Breakdown, DeviceBreakdown
from perfscope.analysis.spans import (
    ANNOTATION,
    BACKWARD,
    COMM,
    COMPUTE,
    COPY,
    FORWARD,
    INPUT,
    OPTIMIZER,
    OPTIMIZER_PHASE,
    WAIT,
    Mask,
    Spans,
    StepSpan,
    WindowFacts,
    owning_step,
    spans_of,
    waited_from,
    whole_numbers,
)
from perfscope.analysis.windows import ONE_WINDOW, Line

DEVICE_COLUMNS = ("start_ns", "dur_ns", "device", "lane", "kind", "phase", "launch_ns", "launch_step")
KERNEL_WAIT_NS = 30_000  # METRICS §1: a shorter gap is the device's own launch latency


class StepTotals(Struct, frozen=True, kw_only=True):
    """The parts of `Breakdown`, summed over a window's analyzed steps (ns)."""

    num_steps: int
    compute: int
    exposed_comm: int
    copy: int
    input_wait: int
    optimizer: int
    idle: int
    comm: int
    idle_host_wait: (
        int | None
    )  # part of idle in which the device waited for the host to launch; None: no device


class Threads(Protocol):
    """Whose threads have roles (satisfied by WindowFacts and Windows)."""

    def lanes_with(self, *roles: str) -> list[int]: ...


class Activity(Struct, frozen=True, kw_only=True, eq=False):
    """The unions a window's figures are made of, not clipped to steps."""

    compute: Intervals  # outside the optimizer phase
    optimizer_ops: Intervals
    comm: Intervals
    copy: Intervals
    input: Intervals
    optimizer: Intervals  # the optimizer's own spans on the host

    def by_precedence(self) -> tuple[tuple[str, Intervals], ...]:
        """(part of the step, its time): an instant counts for the first that has it, for idle if none has."""
        return (
            ("compute", self.compute),
            ("optimizer", self.optimizer_ops),
            ("exposed_comm", self.comm),
            ("copy", self.copy),
            ("input_wait", self.input),
            ("optimizer", self.optimizer),
        )

    @property
    def useful(self) -> Intervals:
        """All operators: what communication can hide under."""
        return iv.merge(self.compute, self.optimizer_ops)


def analyzed_steps(spans: Spans, facts: WindowFacts) -> tuple[StepSpan, ...]:
    """The window's steps; the whole table as one where the trace has no step marks.

    With a device, that is from its first event to its last one: what the host does before it launches
    anything, and after everything has run, is not idle time of a step.
    """
    if facts.steps and not facts.whole_file:
        return facts.steps
    on_device = (spans.device >= 0) & one_of(spans.kind, (COMPUTE, COMM, COPY))
    rows = on_device if on_device.any() else np.ones(len(spans.start), dtype=bool)
    if not len(spans.start) or (facts.steps and not on_device.any()):
        return facts.steps
    step = facts.steps[0].step if facts.steps else -1
    start, end = int(spans.start[rows].min()), int(spans.end[rows].max())
    if facts.ends_early and facts.steps:
        end = max(start, min(end, facts.steps[-1].end_ns))
    return (StepSpan(step=step, start_ns=start, end_ns=end),)


def in_steps(table: pa.Table, facts: WindowFacts) -> Mask:
    """Spans that belong to a step, shape (n,); all of a window without step marks.

    Args:
        table: as `owning_step` wants it.
        facts: of the window.
    """
    marked = bool(facts.steps) and not facts.whole_file
    result: Mask = owning_step(table) >= 0 if marked else np.ones(table.num_rows, dtype=bool)
    return result


def activity(spans: Spans, facts: Threads) -> Activity:
    """Sorts the spans of windows into what the step was spent on."""
    on_device = spans.device >= 0
    host_compute = ~on_device & (spans.kind == COMPUTE)
    main = _in_lanes(spans, facts.lanes_with("main"))
    loading = spans.union(~on_device & (spans.kind == INPUT) & main)
    if on_device.any():
        compute = on_device & (spans.kind == COMPUTE)
        optimizer_ops = np.zeros_like(compute)
        comm = on_device & (spans.kind == COMM)
        copy = on_device & (spans.kind == COPY)
        executor = np.zeros_like(compute)
    else:
        model_compute = host_compute & _in_lanes(spans, facts.lanes_with("main", "autograd", "executor"))
        optimizer_ops = model_compute & (spans.phase == OPTIMIZER_PHASE)
        compute = model_compute & ~optimizer_ops
        comm = spans.kind == COMM
        executor = one_of(spans.lane, facts.lanes_with("executor"))
        copy = (spans.kind == COPY) & (main | executor)
    elsewhere = on_device if on_device.any() else executor  # goes on while the main thread is in the loader
    own_compute = iv.subtract(spans.union(compute & ~elsewhere), loading)
    all_compute = iv.merge(own_compute, spans.union(compute & elsewhere))
    optimizer_work = spans.union(optimizer_ops)
    return Activity(
        compute=all_compute,
        optimizer_ops=optimizer_work,
        comm=_communication(spans, comm, iv.merge(all_compute, optimizer_work)),
        copy=spans.union(copy),
        input=loading,
        optimizer=_own_optimizer(spans, ~on_device & main),
    )


def _communication(spans: Spans, comm: Mask, useful: Intervals) -> Intervals:
    """A message that no thread waits for costs nothing, but it is under way while the thread computes."""
    in_flight = spans.union(comm)
    if not (spans.kind == WAIT).any():
        return in_flight
    awaited = iv.union(waited_from(spans)[comm], spans.end[comm])
    return iv.merge(awaited, iv.intersect(in_flight, useful))


def _own_optimizer(spans: Spans, on_main: Mask) -> Intervals:
    """Time in optimizers' own spans, less what they call of the model: `Optimizer.step(closure)`.

    Args:
        on_main: which spans are of the main thread.
    """
    optimizer_spans = spans.union(on_main & (spans.kind == OPTIMIZER))
    if not len(optimizer_spans):
        return optimizer_spans
    of_model = on_main & (spans.kind == ANNOTATION) & one_of(spans.phase, (FORWARD, BACKWARD))
    # The mark of the whole step is around the optimizer, not in it.
    index = np.searchsorted(optimizer_spans[:, 0], spans.start, side="right") - 1
    of_model &= (index >= 0) & (spans.start < optimizer_spans[np.maximum(index, 0), 1])
    return iv.subtract(optimizer_spans, spans.union(of_model))


def step_totals(
    act: Activity,
    steps: Sequence[Sequence[StepSpan]],
    host_wait: Intervals | None,
    line: Line = ONE_WINDOW,
) -> list[StepTotals]:
    """Splits the time of each window's steps into the parts, each instant counted once.

    Args:
        act: what the windows' time was spent on.
        steps: analyzed steps of each window, on the line.
        host_wait: device gaps that waited for the host (`device_gaps`), or None without a device.
        line: where the windows are.
    """
    left = bounds_of(steps)
    lengths = [line.lengths(left)]
    comm = line.lengths(iv.intersect(act.comm, left))
    for _, part in act.by_precedence():
        left = iv.subtract(left, part)
        lengths.append(line.lengths(left))
    waits = [None] * len(steps) if host_wait is None else line.lengths(iv.intersect(left, host_wait))
    totals = []
    for of_window, *of_lengths, in_comm, waited in zip(steps, *lengths, comm, waits, strict=True):
        taken = [before - after for before, after in pairwise(of_lengths)]
        compute, optimizer_ops, exposed_comm, copy, input_wait, optimizer = taken
        totals.append(
            StepTotals(
                num_steps=len(of_window),
                compute=compute,
                exposed_comm=exposed_comm,
                copy=copy,
                input_wait=input_wait,
                optimizer=optimizer_ops + optimizer,
                idle=of_lengths[-1],
                comm=in_comm,
                idle_host_wait=waited,
            )
        )
    return totals


def bounds_of(steps: Sequence[Sequence[StepSpan]]) -> Intervals:
    """The time of all steps."""
    ends = [(step.start_ns, step.end_ns) for of_window in steps for step in of_window]
    bounds = np.array(ends, dtype=np.int64).reshape(-1, 2)
    return iv.union(bounds[:, 0], bounds[:, 1])


def mean_breakdown(windows: Iterable[StepTotals]) -> Breakdown | None:
    """The mean analyzed step over all windows; its parts add up to `step` exactly. None without steps."""
    totals = list(windows)
    num_steps = sum(total.num_steps for total in totals)
    if num_steps == 0:
        return None
    sums = [sum(getattr(total, part) for total in totals) for part in Breakdown.PARTS]
    means = iv.apportion(sums, num_steps)
    parts = dict(zip(Breakdown.PARTS, means, strict=True))
    return Breakdown(step=sum(means), num_steps=num_steps, **parts)


def every_gpu_event(table: pa.Table) -> Mask:
    """All kernels, copies and sets of the file. Shape (n,)."""
    kind = spans_of(table).kind
    result: Mask = (whole_numbers(table, "device") >= 0) & one_of(kind, (COMPUTE, COMM, COPY))
    return result


def device_breakdown(table: pa.Table, mask: Mask) -> DeviceBreakdown | None:
    """What the devices of one rank did over the selected events; None when nothing is selected.

    Args:
        table: DEVICE_COLUMNS of one rank and window.
        mask: shape (n,), as `every_gpu_event` gives it.
    """
    if not mask.any():
        return None
    spans = spans_of(table)
    compute = spans.union(mask & (spans.kind == COMPUTE))
    comm = spans.union(mask & (spans.kind == COMM))
    copy = spans.union(mask & (spans.kind == COPY))
    busy = spans.union(mask)
    waits = device_gaps(spans, whole_numbers(table, "launch_ns"), mask)
    span = int(busy[-1, 1] - busy[0, 0])
    exposed_comm = iv.subtract(comm, compute)
    comm_ns, exposed_ns = iv.length(comm), iv.length(exposed_comm)
    return DeviceBreakdown(
        num_events=int(mask.sum()),
        span=span,
        compute=iv.length(compute),
        comm=comm_ns,
        exposed_comm=exposed_ns,
        copy=iv.length(iv.subtract(iv.subtract(copy, compute), comm)),
        idle=span - iv.length(busy),
        idle_host_wait=iv.length(waits.host_wait),
        idle_kernel_wait=iv.length(waits.kernel_wait),
        idle_other=iv.length(waits.other),
        overlap_ratio=(comm_ns - exposed_ns) / comm_ns if comm_ns else None,
    )


def add_devices(windows: Iterable[DeviceBreakdown | None]) -> DeviceBreakdown | None:
    """Totals over windows; the time between windows belongs to none."""
    parts = [window for window in windows if window is not None]
    if not parts:
        return None
    if len(parts) == 1:
        return parts[0]
    names = [name for name in DeviceBreakdown.__struct_fields__ if name != "overlap_ratio"]
    sums = {name: sum(getattr(part, name) for part in parts) for name in names}
    overlap = (sums["comm"] - sums["exposed_comm"]) / sums["comm"] if sums["comm"] else None
    return DeviceBreakdown(overlap_ratio=overlap, **sums)


class DeviceGaps(Struct, frozen=True, kw_only=True, eq=False):
    """The gaps in a device timeline, by cause; together they are its idle time."""

    host_wait: Intervals  # what ends the gap was launched after the gap began
    kernel_wait: Intervals  # launched before, and the gap is below KERNEL_WAIT_NS
    other: Intervals


def device_gaps(spans: Spans, launch_ns: Int64, mask: Mask) -> DeviceGaps:
    """Sorts the gaps between the selected device events by cause.

    Args:
        spans: one rank and window.
        launch_ns: shape (n,), start of the launching host call; -1 = not in the file.
        mask: shape (n,), the device events to look at.
    """
    busy = spans.union(mask)
    gaps = np.stack((busy[:-1, 1], busy[1:, 0]), axis=1) if len(busy) else iv.empty()
    order = np.argsort(spans.start[mask], kind="stable")
    start, launch = spans.start[mask][order], launch_ns[mask][order]
    # Several events can end a gap at the same instant; one launched in time means the host was not late.
    first = np.searchsorted(start, gaps[:, 1], side="left")
    bounds = np.stack((first, np.searchsorted(start, gaps[:, 1], side="right")), axis=1).ravel()
    earliest = np.minimum.reduceat(np.append(launch, 0), bounds)[::2] if len(gaps) else launch[:0]
    late = (earliest >= 0) & (earliest > gaps[:, 0])
    short = ~late & (gaps[:, 1] - gaps[:, 0] < KERNEL_WAIT_NS)
    return DeviceGaps(host_wait=gaps[late], kernel_wait=gaps[short], other=gaps[~late & ~short])


def _in_lanes(spans: Spans, lanes: list[int]) -> Mask:
    """Host spans of these threads; every host span where ingest could tell no thread's role."""
    host = spans.device < 0
    result: Mask = host & one_of(spans.lane, lanes) if lanes else host
    return result
