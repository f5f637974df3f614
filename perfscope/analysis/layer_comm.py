"""Exposed communication by layer: what can be given to a layer, what belongs to none, and what is left over.

A call is given to layers where its size says whose tensors it carries: all-reduces of a step that are
gradient buckets (`buckets` can tell), split by the parameters that layers have in them, and broadcasts as
large as the buffers of the normalization layers. A barrier, and an all-reduce of a single number beside
buckets that hold every parameter, carries no layer's tensors; neither does a broadcast of other integers than
counts of batches, with which DistributedDataParallel agrees on new buckets. Of every other call the layer
cannot be determined; then no layer has a figure, because the time left over may be any layer's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from numpy.typing import NDArray

from perfscope.analysis import intervals as iv
from perfscope.analysis.breakdown import Activity
from perfscope.analysis.buckets import LayerParams, match_buckets
from perfscope.analysis.intervals import Int64
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.results import LayerComm
from perfscope.analysis.spans import COMM, Mask, Spans, StepSpan, owning_step, whole_numbers, words
from perfscope.messages import collectives as reasons_of
from perfscope.messages.lists import joined
from perfscope.units import format_ns
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure

_ELEMENT_BYTES = (
    (8, ("double", "float64", "int64", "long")),
    (2, ("half", "bfloat16", "float16", "int16", "short")),
    (1, ("float8", "int8", "char", "byte", "bool")),
    (4, ("float", "int")),
)
_EARLY = -1


class CommShares(Struct):
    """Exposed communication of one rank over its windows, or of several ranks per mean step; ns."""

    given: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # by layer
    outside: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # by collective
    unassigned: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # by collective
    reasons: set[str] = set()  # why calls are unassigned
    num_buckets: int = 0

    @property
    def is_told(self) -> bool:
        """Whether each layer's share is known."""
        return self.num_buckets > 0 and not self.unassigned

    def take(self, other: CommShares, num_steps: int) -> None:
        """Adds another rank's mean per step."""
        for mine, their_times in (
            (self.given, other.given),
            (self.outside, other.outside),
            (self.unassigned, other.unassigned),
        ):
            for key, time in their_times.items():
                mine[key] += time / num_steps
        self.reasons |= other.reasons
        self.num_buckets += other.num_buckets


class ModelParams(Struct, frozen=True, kw_only=True):
    """What of a model tells whose tensors a call carries.

    Attributes:
        orders: of layers and their parameters, in which gradients may become ready.
        norm: layers that keep running statistics, and their features.
    """

    orders: Sequence[Sequence[LayerParams]]
    norm: Mapping[str, int]


class _Calls(Struct, frozen=True, eq=False):
    """Communication of one window; every field has shape (n,)."""

    name: NDArray[np.str_]  # collective, "communication" where the trace does not name it
    exposed: Int64  # ns
    elements: Int64  # -1 = not known
    integer: Mask
    step: Int64  # _EARLY = begun before the traced steps
    start: Int64

    def at(self, rows: NDArray[np.int64]) -> _Calls:
        """Those rows."""
        return _Calls(
            self.name[rows],
            self.exposed[rows],
            self.elements[rows],
            self.integer[rows],
            self.step[rows],
            self.start[rows],
        )


def add_window(
    shares: CommShares,
    table: pa.Table,
    spans: Spans,
    act: Activity,
    steps: Sequence[StepSpan],
    in_steps: Mask,
    model: ModelParams,
) -> None:
    """Divides the exposed communication of one rank and window.

    Args:
        shares: of the rank; added to.
        table: LAYER_COLUMNS.
        spans: the same rows.
        act: the window's activity.
        steps: analyzed steps.
        in_steps: shape (n,), spans that belong to one of them.
        model: of the rank.
    """
    calls = _calls(table, spans, act, steps, in_steps)
    _leave(shares, calls.at(np.flatnonzero(calls.step == _EARLY)), reasons_of.BEGAN_EARLY)
    for step in np.unique(calls.step[calls.step != _EARLY]).tolist():
        at = np.flatnonzero(calls.step == step)
        _divide(shares, calls.at(at[np.argsort(calls.start[at], kind="stable")]), model)


def _divide(shares: CommShares, calls: _Calls, model: ModelParams) -> None:
    """The calls of one step, in the order in which they began."""
    reduces = np.flatnonzero(calls.name == "all_reduce")
    sizes = calls.elements[reduces]
    buckets = None
    if not len(reduces):
        reason = reasons_of.NO_REDUCE
    elif (sizes < 0).any():
        reason = reasons_of.NO_SIZES
    elif not model.orders[0]:
        reason = reasons_of.NO_PARAMS
    else:
        buckets = match_buckets(model.orders, sizes.tolist())
        reason = reasons_of.OTHER_CALLS if buckets is not None else reasons_of.NO_FIT
    left = np.ones(len(calls.name), dtype=bool)
    for row, bucket in zip(reduces.tolist(), buckets or (), strict=False):
        if bucket is not None:
            _give(shares, bucket, float(calls.exposed[row]))
            shares.num_buckets += 1
            left[row] = False
    outside = left & (calls.name == "barrier")
    if buckets is not None:
        outside |= left & (calls.name == "all_reduce") & (calls.elements == 1)
        for row in np.flatnonzero(left & _carries_buffers(calls, model)).tolist():
            _give(shares, model.norm, float(calls.exposed[row]))
            left[row] = False
        outside |= left & (calls.name == "broadcast") & calls.integer
    for row in np.flatnonzero(outside).tolist():
        if calls.exposed[row]:
            shares.outside[str(calls.name[row])] += float(calls.exposed[row])
    _leave(shares, calls.at(np.flatnonzero(left & ~outside)), reason)


def _give(shares: CommShares, weights: Mapping[str, int], time: float) -> None:
    total = sum(weights.values())
    for layer, weight in weights.items():
        shares.given[layer] += time * weight / total


def _leave(shares: CommShares, calls: _Calls, reason: str) -> None:
    for name, time in zip(calls.name.tolist(), calls.exposed.tolist(), strict=True):
        if time:
            shares.unassigned[name] += time
            shares.reasons.add(reason)


def _carries_buffers(calls: _Calls, model: ModelParams) -> Mask:
    """Broadcasts of all running means and variances at once, or of all counts of batches."""
    if not model.norm:
        return np.zeros(len(calls.name), dtype=bool)
    sizes = (2 * sum(model.norm.values()), len(model.norm))
    result: Mask = (calls.name == "broadcast") & np.isin(calls.elements, sizes)
    return result


def _calls(table: pa.Table, spans: Spans, act: Activity, steps: Sequence[StepSpan], in_steps: Mask) -> _Calls:
    """The device's calls where it has any, else the host's, each cut to the steps."""
    comm = spans.kind == COMM
    on_device = bool((comm & (spans.device >= 0)).any())
    bounds = np.array([[step.start_ns, step.end_ns] for step in steps], dtype=np.int64).reshape(-1, 2)
    within = iv.union(bounds[:, 0], bounds[:, 1])
    if on_device:  # a device's call belongs to the step that launched it, however late it runs
        comm &= (spans.device >= 0) & in_steps
    elif len(within):
        comm &= (spans.start < within[-1, 1]) & (spans.end > within[0, 0])
    rows = np.flatnonzero(comm)
    start, end = iv.disjoint_parts(spans.start[rows], spans.end[rows])
    exposed = end - start - iv.overlap_each(act.useful, start, end)
    if not on_device:
        useful = iv.intersect(act.useful, within)
        exposed = iv.overlap_each(within, start, end) - iv.overlap_each(useful, start, end)
    code, names = words(table, "collective")
    return _Calls(
        name=np.array([*names, "communication"])[code[rows]],
        exposed=exposed,
        elements=_elements(table)[rows],
        integer=_is_integer(table)[rows],
        step=np.where(in_steps[rows], np.maximum(owning_step(table)[rows], 0), _EARLY),
        start=spans.start[rows],
    )


def _elements(table: pa.Table) -> Int64:
    """Element count of each row, shape (n,); -1 where its size or type is unknown."""
    in_bytes = whole_numbers(table, "in_bytes")
    code, names = words(table, "dtype")
    width = np.array([*(_element_bytes(name) for name in names), 0], dtype=np.int64)[code]
    result: Int64 = np.where((in_bytes >= 0) & (width > 0), in_bytes // np.maximum(width, 1), -1)
    return result


def _is_integer(table: pa.Table) -> Mask:
    code, names = words(table, "dtype")
    result: Mask = np.array([*(name.lower().startswith(("int", "long")) for name in names), False])[code]
    return result


def _element_bytes(dtype: str) -> int:
    lowered = dtype.lower()
    return next((size for size, names in _ELEMENT_BYTES if any(name in lowered for name in names)), 0)


def comm_of_layers(shares: CommShares, num_ranks: int) -> LayerComm:
    """Of the mean rank.

    Args:
        shares: sums over ranks of their mean steps.
        num_ranks: that were traced.
    """
    outside = {name: time / num_ranks for name, time in shares.outside.items()}
    unassigned = {name: time / num_ranks for name, time in shares.unassigned.items()}
    given = sum(shares.given.values()) / num_ranks
    total = given + sum(outside.values()) + sum(unassigned.values())
    return LayerComm(total_ns=total, outside=outside, unassigned=unassigned)


def missing_of(comm: LayerComm, reasons: set[str]) -> tuple[Missing, ...]:
    """What could not be given to layers, named with its time, and why."""
    missing = []
    if comm.unassigned:
        entry = missing_figure(
            Figure.LAYER_COMM,
            Cause.LAYERS_NOT_DETERMINED,
            calls=_listed(comm.unassigned),
            time_ns=sum(comm.unassigned.values()),
            total_ns=comm.total_ns,
            reasons="; ".join(sorted(reasons)),
        )
        missing.append(entry)
    if comm.outside:
        calls = _listed(comm.outside)
        missing.append(missing_figure(Figure.COMM_OUTSIDE_LAYERS, Cause.NO_LAYER_TENSORS, calls=calls))
    return tuple(missing)


def _listed(times: Mapping[str, float]) -> str:
    """``all_gather (27.1 ms) and send (3.2 ms)``, the longest first."""
    order = sorted(times, key=lambda name: (-times[name], name))
    return joined(f"{name} ({format_ns(times[name])})" for name in order)
