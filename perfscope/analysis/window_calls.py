"""The calls of communication in one window: what each moves, when, and its time exposed and hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from perfscope.analysis import intervals as iv
from perfscope.analysis.breakdown import Activity
from perfscope.analysis.call_pieces import pieces, summed
from perfscope.analysis.comm_record import payload
from perfscope.analysis.group_axes import NAMELESS, CommGroup
from perfscope.analysis.intervals import Int64, distinct_pairs, one_of
from perfscope.analysis.recorded_buckets import RecordedBuckets
from perfscope.analysis.served_layers import ServedLayers
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
from perfscope.vocabulary.communication import DEFAULT_GROUP

_ELEMENT_BYTES = (
    (8, ("double", "float64", "int64", "long")),
    (2, ("half", "bfloat16", "float16", "int16", "short")),
    (1, ("float8", "int8", "char", "byte", "bool")),
    (4, ("float", "int")),
)
POINT_TO_POINT = ("send", "recv")


class WindowCalls(Struct, frozen=True, eq=False):
    """Communication of one window; every field has shape (n,)."""

    row: NDArray[np.int64]
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

    def at(self, rows: NDArray[np.int64]) -> WindowCalls:
        """Those rows."""
        return WindowCalls(*(getattr(self, name)[rows] for name in self.__struct_fields__))


def _before_backward(spans: Spans, steps: Sequence[StepSpan], asked: Int64, in_layer: Mask) -> Mask:
    """Which calls were asked for in a step's forward pass: its layers run, its backward pass has not begun.

    A step that is cut at a backward pass, for want of an optimizer, begins with the update of the one before.
    """
    on_host = spans.device < 0
    forward = np.sort(spans.start[on_host & (spans.phase == FORWARD) & in_layer])
    backward = np.sort(spans.start[on_host & (spans.phase == BACKWARD)])
    early = np.zeros(len(asked), np.bool_)
    for step in steps:
        begins, first, last = (
            *np.searchsorted(forward, (step.start_ns,)),
            *np.searchsorted(backward, (step.start_ns, step.end_ns)),
        )
        if first < last and begins < len(forward):
            early |= (asked >= forward[begins]) & (asked < backward[first])
    return early


def rows_of(spans: Spans, steps: Sequence[StepSpan]) -> NDArray[np.int64]:
    """Communication during the steps: the devices' where the trace has devices, else the host's."""
    comm = spans.kind == COMM
    if (spans.device >= 0).any():
        comm &= spans.device >= 0
    if steps:
        begin, end = min(step.start_ns for step in steps), max(step.end_ns for step in steps)
        comm &= (spans.start < end) & (spans.end > begin)
    return np.flatnonzero(comm)


def groups_of(
    table: pa.Table, rows: NDArray[np.int64], members: Mapping[str, tuple[int, ...]]
) -> tuple[list[CommGroup], NDArray[np.int64]]:
    """The groups of the rows, and which is whose, shape (len(rows),)."""
    code, names = words(table, "group")
    code, sizes = code[rows].astype(np.int64), whole_numbers(table, "group_size")[rows]
    present, group_of = iv.numbered(code)
    groups = []
    for index, number in enumerate(present.tolist()):
        name = names[number] if number >= 0 else DEFAULT_GROUP
        ranks = members.get(name, ())
        size = max(int(sizes[group_of == index].max()), len(ranks), 0)
        groups.append(CommGroup(name, ranks, size))
    return groups, group_of.astype(np.int64)


def with_axes(
    groups: Sequence[CommGroup], calls: WindowCalls, served: ServedLayers
) -> tuple[list[CommGroup], WindowCalls]:
    """Calls of an axis that the program says have a group of their own."""
    result, group = [*groups], calls.group.copy()
    has_axis = np.array([bool(axis) for axis in (*served.axes, "")])[calls.served]
    for of_group, index in distinct_pairs(group[has_axis], calls.served[has_axis])[0].tolist():
        named = groups[of_group]._replace(axis=served.axes[index])
        if named not in result:
            result.append(named)
        group[(calls.group == of_group) & (calls.served == index)] = result.index(named)
    return result, replace(calls, group=group)


def calls_of(
    table: pa.Table,
    spans: Spans,
    act: Activity,
    steps: Sequence[StepSpan],
    in_steps: Mask,
    rows: NDArray[np.int64],
    group_of: NDArray[np.int64],
    layer: NDArray[np.int32],
    recorded: RecordedBuckets,
    served: ServedLayers,
) -> WindowCalls:
    bounds = np.array([[step.start_ns, step.end_ns] for step in steps], dtype=np.int64).reshape(-1, 2)
    comm = iv.intersect(act.comm, iv.union(bounds[:, 0], bounds[:, 1]))
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
    call, *times = pieces(start, end, thread)
    waited, *waits = pieces(waited_from(spans)[rows], end, thread)
    return WindowCalls(
        row=rows,
        collective=collective,
        group=group_of,
        layer=layer[rows],
        phase=spans.phase[rows],
        exposed=summed(waited, iv.shares_of(exposed, *waits), len(rows)),
        hidden=summed(call, iv.shares_of(hidden, *times), len(rows)),
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
