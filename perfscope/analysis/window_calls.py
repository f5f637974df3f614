"""The calls of communication in one window: what each moves, when, and its time exposed and hidden."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from perfscope.analysis import intervals as iv
from perfscope.analysis.breakdown import Activity, bounds_of
from perfscope.analysis.comm_record import payload
from perfscope.analysis.group_axes import NAMELESS, CommGroup
from perfscope.analysis.intervals import Int64, distinct, distinct_pairs, one_of
from perfscope.analysis.recorded_buckets import RecordedBuckets, recorded_buckets
from perfscope.analysis.served_layers import ServedLayers, served_layers
from perfscope.analysis.spans import (
    BACKWARD,
    COMM,
    FORWARD,
    Mask,
    Spans,
    StepSpan,
    owning_step,
    waited_from,
    whole_numbers,
    words,
)
from perfscope.analysis.windows import Windows
from perfscope.vocabulary.communication import DEFAULT_GROUP

_ELEMENT_BYTES = (
    (8, ("double", "float64", "int64", "long")),
    (2, ("half", "bfloat16", "float16", "int16", "short")),
    (1, ("float8", "int8", "char", "byte", "bool")),
    (4, ("float", "int")),
)
_UNIT_RANGES = ("FSDP::all_gather", "FullyShardedDataParallel.")  # of FSDP2 and FSDP1
POINT_TO_POINT = ("send", "recv")


class WindowCalls(Struct, frozen=True, eq=False):
    """Communication of one window; every field has shape (n,)."""

    row: NDArray[np.int64]  # of its window
    collective: NDArray[np.str_]
    group: NDArray[np.int64]  # index into the window's groups
    layer: NDArray[np.int32]  # -1 = none
    phase: NDArray[np.int32]
    exposed: NDArray[np.float64]  # ns
    hidden: NDArray[np.float64]  # ns
    elements: Int64  # -1 = not known
    integer: Mask
    bytewise: Mask  # of bytes
    size: Int64  # bytes, -1 = not known
    in_bytes: Int64  # of the input, likewise
    step: Int64  # -1 = begun outside of the steps
    start: Int64
    asked: Int64  # when it was queued or launched; where the trace does not say, its start
    peer: Int64
    reduction: Int64  # index into the window's all-reduces of gradients; -1 = none of them
    served: Int64  # index into the window's shares of layers; -1 = none
    queued: Mask  # whether the trace says when, and so in which layer, it was asked for
    early: Mask  # asked for before the backward pass of its step: it has no gradients

    def at(self, rows: NDArray[np.int64] | slice) -> WindowCalls:
        """Those rows."""
        return WindowCalls(*(getattr(self, name)[rows] for name in self.__struct_fields__))

    def where(self, chosen: Mask) -> WindowCalls:
        """The chosen rows, shape (n,); mostly these are all."""
        return self if chosen.all() else self.at(np.flatnonzero(chosen))


class WindowComm(Struct, frozen=True, kw_only=True, eq=False):
    """Communication of one window, and what is needed to say what it is of.

    Attributes:
        calls: during the steps.
        groups: that calls are on, by number.
        layers: by number.
        has_layers: the trace of this window names any.
        has_units: FSDP was at work.
    """

    calls: WindowCalls
    groups: Sequence[CommGroup]
    layers: Sequence[str]
    recorded: RecordedBuckets
    served: ServedLayers
    has_layers: bool
    has_units: bool


def calls_of_windows(
    windows: Windows, spans: Spans, act: Activity, steps: Sequence[Sequence[StepSpan]], in_steps: Mask
) -> list[WindowComm | None]:
    """The communication of each window.

    Args:
        windows: `communication.COMMUNICATION_COLUMNS`.
        spans: the same rows.
        act: what they were spent on.
        steps: analyzed steps of each window, on the line.
        in_steps: shape (n,), spans that belong to one of them.

    Returns:
        None: there is none.
    """
    rows = _rows_of(windows, spans, steps)
    if not len(rows):
        return [None] * len(windows.parts)
    table = windows.table
    window = windows.window_of_row[rows]
    groups, group_of = _groups_of(windows, rows, window)
    layer, layers = words(table, "layer")
    recorded, served = recorded_buckets(table, spans), served_layers(table, spans)
    calls = _calls_of(windows, spans, act, steps, in_steps, rows, group_of, layer, recorded, served)
    chosen = np.flatnonzero((calls.exposed > 0) | (calls.hidden > 0) | (calls.step >= 0))
    calls = calls.at(chosen)
    ends = np.searchsorted(window[chosen], np.arange(len(groups) + 1)).tolist()
    has_layers, has_units = windows.with_any(layer >= 0).tolist(), _have_units(windows)
    of_windows: list[WindowComm | None] = []
    for index, (begin, end) in enumerate(pairwise(ends)):
        if not groups[index]:
            of_windows.append(None)
            continue
        on_axes, of_window = _with_axes(groups[index], calls.at(slice(begin, end)), served)
        comm = WindowComm(
            calls=of_window,
            groups=on_axes,
            layers=layers,
            recorded=recorded,
            served=served,
            has_layers=has_layers[index],
            has_units=has_units[index],
        )
        of_windows.append(comm)
    return of_windows


def _have_units(windows: Windows) -> list[bool]:
    code, names = words(windows.table, "name")
    is_unit = np.array([*(name.startswith(_UNIT_RANGES) for name in names), False])
    if not is_unit.any():
        return [False] * len(windows.parts)
    has_units: list[bool] = windows.with_any(is_unit[code]).tolist()
    return has_units


def _before_backward(spans: Spans, steps: Sequence[Sequence[StepSpan]], asked: Int64, in_layer: Mask) -> Mask:
    """Which calls were asked for in a step's forward pass: its layers run, its backward pass has not begun.

    A step that is cut at a backward pass, for want of an optimizer, begins with the update of the one before.
    """
    on_host = spans.device < 0
    forward = np.sort(spans.start[on_host & (spans.phase == FORWARD) & in_layer])
    backward = np.sort(spans.start[on_host & (spans.phase == BACKWARD)])
    ends = [(step.start_ns, step.end_ns) for of_window in steps for step in of_window]
    begin, end = np.array(ends, np.int64).reshape(-1, 2).T
    begins, first = np.searchsorted(forward, begin), np.searchsorted(backward, begin)
    has = (first < np.searchsorted(backward, end)) & (begins < len(forward))
    before = iv.union(forward[begins[has]], backward[first[has]])
    index = np.searchsorted(before.ravel(), asked, side="right")
    early: Mask = index % 2 == 1
    return early


def _rows_of(windows: Windows, spans: Spans, steps: Sequence[Sequence[StepSpan]]) -> NDArray[np.int64]:
    """Communication during the steps: the devices' where the trace has devices, else the host's."""
    comm = spans.kind == COMM
    if (spans.device >= 0).any():
        comm &= spans.device >= 0
    rows = np.flatnonzero(comm)
    ever = np.iinfo(np.int64)
    begin = np.array([min((step.start_ns for step in of), default=ever.min) for of in steps], np.int64)
    end = np.array([max((step.end_ns for step in of), default=ever.max) for of in steps], np.int64)
    window = windows.window_of_row[rows]
    return rows[(spans.start[rows] < end[window]) & (spans.end[rows] > begin[window])]


def _groups_of(
    windows: Windows, rows: NDArray[np.int64], window: NDArray[np.int64]
) -> tuple[list[list[CommGroup]], NDArray[np.int64]]:
    """The groups of each window, and which is whose, shape (len(rows),)."""
    code, names = words(windows.table, "group")
    cells, cell_of = distinct_pairs(window, code[rows])
    sizes = np.full(len(cells), -1)
    np.maximum.at(sizes, cell_of, whole_numbers(windows.table, "group_size")[rows])
    groups: list[list[CommGroup]] = [[] for _ in windows.parts]
    number_of = []
    for (index, number), size in zip(cells.tolist(), sizes.tolist(), strict=True):
        name = names[number] if number >= 0 else DEFAULT_GROUP
        ranks = windows.parts[index].members.get(name, ())
        number_of.append(len(groups[index]))
        groups[index].append(CommGroup(name, ranks, max(size, len(ranks), 0)))
    return groups, np.array(number_of, np.int64)[cell_of]


def _with_axes(
    groups: Sequence[CommGroup], calls: WindowCalls, served: ServedLayers
) -> tuple[Sequence[CommGroup], WindowCalls]:
    """Calls of an axis that the program says have a group of their own."""
    if not any(served.axes):
        return groups, calls
    result, group = [*groups], calls.group.copy()
    has_axis = np.array([bool(axis) for axis in (*served.axes, "")])[calls.served]
    for of_group, index in distinct_pairs(group[has_axis], calls.served[has_axis])[0].tolist():
        named = groups[of_group]._replace(axis=served.axes[index])
        if named not in result:
            result.append(named)
        group[(calls.group == of_group) & (calls.served == index)] = result.index(named)
    return result, replace(calls, group=group)


def _calls_of(
    windows: Windows,
    spans: Spans,
    act: Activity,
    steps: Sequence[Sequence[StepSpan]],
    in_steps: Mask,
    rows: NDArray[np.int64],
    group_of: NDArray[np.int64],
    layer: NDArray[np.int32],
    recorded: RecordedBuckets,
    served: ServedLayers,
) -> WindowCalls:
    table, begins = windows.table, windows.line.begin[1:]
    comm = iv.intersect(act.comm, bounds_of(steps))
    exposed, hidden = iv.subtract(comm, act.useful), iv.intersect(comm, act.useful)
    start, end = spans.start[rows], spans.end[rows]
    code, names = words(table, "collective")
    collective = np.array([*names, NAMELESS])[code[rows]]
    in_bytes, out_bytes = (whole_numbers(table, column)[rows] for column in ("in_bytes", "out_bytes"))
    group_size = whole_numbers(table, "group_size")[rows]
    size = np.full(len(rows), -1, dtype=np.int64)
    for name, ranks in {*zip(collective.tolist(), group_size.tolist(), strict=True)}:
        alike = (collective == name) & (group_size == ranks)
        size[alike] = payload(name, in_bytes[alike], out_bytes[alike], ranks)
    dtype, dtypes = words(table, "dtype")
    width = np.array([*map(_element_bytes, dtypes), 0], dtype=np.int64)[dtype[rows]]
    is_integer = np.array([*(text.lower().startswith(("int", "long")) for text in dtypes), False])
    launch = whole_numbers(table, "launch_ns")[rows]
    asked = np.where(launch >= 0, launch, start)
    has_elements = (in_bytes >= 0) & (width > 0)
    is_message = one_of(collective, POINT_TO_POINT) & (spans.device[rows] < 0)
    thread = np.where(is_message, spans.lane[rows], -1)
    call, begin, stop = _pieces(start, end, thread)
    hidden_parts = iv.shares_of(hidden, begin, stop, begins)
    waited, begin, stop = _pieces(waited_from(spans)[rows], end, thread)
    exposed_parts = iv.shares_of(exposed, begin, stop, begins)
    return WindowCalls(
        row=rows - windows.rows[windows.window_of_row[rows]],
        collective=collective,
        group=group_of,
        layer=layer[rows],
        phase=spans.phase[rows],
        exposed=_summed(waited, exposed_parts, len(rows)),
        hidden=_summed(call, hidden_parts, len(rows)),
        elements=np.where(has_elements, in_bytes // np.maximum(width, 1), -1),
        integer=is_integer[dtype[rows]],
        bytewise=(width == 1) & ~is_integer[dtype[rows]],
        size=size,
        step=np.where(in_steps[rows], np.maximum(owning_step(table)[rows], 0), -1),
        start=start,
        asked=asked,
        peer=whole_numbers(table, "peer")[rows],
        reduction=recorded.of(launch),
        served=served.of(launch, start, spans.lane[rows]),
        in_bytes=in_bytes,
        queued=(spans.device[rows] >= 0) | (launch >= 0),
        early=_before_backward(spans, steps, asked, layer >= 0),
    )


def _element_bytes(dtype: str) -> int:
    lowered = dtype.lower()
    return next((size for size, names in _ELEMENT_BYTES if any(name in lowered for name in names)), 0)


def _pieces(start: Int64, end: Int64, thread: Int64) -> tuple[Int64, Int64, Int64]:
    """Call, start and end of the times that calls have a part in.

    A CPU backend's span of a message ends when the thread has waited for it, perhaps long after it was sent.
    So of the messages of a thread that are under way at once, the thread waits for the one that ends first.

    Args:
        start, end: of the calls, shape (calls,).
        thread: of messages of CPU backends; -1 = any other call.
    """
    threadless = np.flatnonzero(thread < 0)
    parts: list[tuple[Int64, Int64, Int64]] = [(threadless, start[threadless], end[threadless])]
    for number in distinct(thread[thread >= 0]).tolist():
        calls = np.flatnonzero(thread == number)
        index, begins, ends = iv.first_ending(start[calls], end[calls])
        parts.append((calls[index], begins, ends))
    call, begin, stop = (np.concatenate([part[column] for part in parts]) for column in range(3))
    return call, begin, stop


def _summed(call: Int64, parts: NDArray[np.float64], num_calls: int) -> NDArray[np.float64]:
    """Parts of calls, by call."""
    return np.bincount(call, parts, num_calls).astype(np.float64)
