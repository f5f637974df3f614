"""Reads from each rank's windows which stage worked on which microbatch when.

The probe marks the work itself (`perfscope.stage:0F3`). Traces without these marks may have torch's ranges
around the actions of a schedule: `PP:0F3`, or `Forward 3` and `Backward 3` of schedules with one stage per
rank. These also cover the wait for the input, so their work is from the first to the last computation in
them. On devices the work of a mark is what was launched in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis import intervals as iv
from perfscope.analysis.breakdown import Activity
from perfscope.analysis.intervals import Int64, Intervals
from perfscope.analysis.spans import ANNOTATION, COMM, COMPUTE, FORWARD, Spans, StepSpan, whole_numbers, words
from perfscope.rundir import layout
from perfscope.vocabulary.pipelines import StageWork

UNKNOWN_STAGE = -1  # the trace does not number stages: each rank has one
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
_TORCH_ACTION = "PP:"
_TORCH_RANGE = re.compile(r"(Forward|Backward) (\d+)")


class StageSpan(NamedTuple):
    """One stage's work on one microbatch, ns of the rank's own clock."""

    step: int
    stage: int
    microbatch: int
    work: StageWork
    start_ns: int
    end_ns: int


class RankPipeline(Struct, frozen=True, kw_only=True, eq=False):
    """One rank and window: its work in order of time, and when it communicated without computing."""

    spans: tuple[StageSpan, ...]
    exposed: Intervals
    first_step: int  # of the window; what the rank did before it is not in the trace


class PipelineRecord(Struct):
    """Every rank's windows so far: window -> rank -> its work. Ranks without marks are left out."""

    windows: dict[int, dict[int, RankPipeline]] = {}

    def add(
        self,
        table: pa.Table,
        spans: Spans,
        act: Activity,
        steps: Sequence[StepSpan],
        rank: int,
        window: int,
    ) -> None:
        """Takes in one window.

        Args:
            table: layer, name and launch_ns of schema.TIMELINE.
            spans: the same rows.
            act: what they were spent on.
            steps: the window's analyzed steps, in order.
            rank, window: whose.
        """
        marks, is_own = _marks(table, spans)
        if not marks or not steps:
            return
        works = _Works(table, spans)
        placed = [span for mark in marks if (span := _placed(mark, steps)) is not None]
        worked = [span for mark in placed if (span := _worked(mark, works, is_own=is_own)) is not None]
        first = _first_forward(placed, works, steps[0], spans) if is_own else None
        ordered = sorted([*([first] if first else []), *worked], key=lambda span: span.start_ns)
        self.windows.setdefault(window, {})[rank] = RankPipeline(
            spans=tuple(ordered),
            exposed=iv.subtract(act.comm, act.useful),
            first_step=steps[0].step,
        )

    def merge(self, later: PipelineRecord) -> None:
        """Takes in the windows of later ranks."""
        for window, ranks in later.windows.items():
            self.windows.setdefault(window, {}).update(ranks)


def marks_of_stages(table: pa.Table, spans: Spans) -> NDArray[np.bool_]:
    """Ranges of the host that name work of a stage. Shape (n,)."""
    code, names = words(table, "name")
    says = np.array([*(any(_parsed(name, *rule) is not None for rule in _RULES) for name in names), False])
    result: NDArray[np.bool_] = (spans.kind == ANNOTATION) & (spans.device < 0) & says[code]
    return result


class _Works:
    """When what was launched (on devices) or ran (on the host) computed, in order of launch."""

    def __init__(self, table: pa.Table, spans: Spans) -> None:
        computes = spans.kind == COMPUTE
        on_device = computes & (spans.device >= 0)
        self.has_device = bool(on_device.any())
        rows = np.flatnonzero(on_device if self.has_device else computes)
        at = whole_numbers(table, "launch_ns")[rows] if self.has_device else spans.start[rows]
        rows, at = rows[at >= 0], at[at >= 0]
        order = np.argsort(at, kind="stable")
        self.at: Int64 = at[order]
        self.start: Int64 = spans.start[rows][order]
        self.end: Int64 = spans.end[rows][order]
        layer, _ = words(table, "layer")
        self.in_forward: NDArray[np.bool_] = ((spans.phase[rows] == FORWARD) & (layer[rows] >= 0))[order]

    def extent(self, begin: int, end: int, *, forward: bool = False) -> tuple[int, int] | None:
        """(start, end) of what was launched from `begin` to `end`; `forward`: of layers' forward passes."""
        at = np.arange(*np.searchsorted(self.at, (begin, end)))
        at = at[self.in_forward[at]] if forward else at
        return (int(self.start[at].min()), int(self.end[at].max())) if len(at) else None


def _marks(table: pa.Table, spans: Spans) -> tuple[list[StageSpan], bool]:
    """(ranges of the host that name work of a stage, whether they are the probe's)."""
    code, names = words(table, "name")
    is_mark = (spans.kind == ANNOTATION) & (spans.device < 0)
    for prefix, parse in _RULES:
        parsed = {
            number: work
            for number, name in enumerate(names)
            if (work := _parsed(name, prefix, parse)) is not None
        }
        rows = np.flatnonzero(is_mark & np.isin(code, list(parsed)))
        if len(rows):
            marks = [
                StageSpan(-1, *parsed[int(code[row])], int(spans.start[row]), int(spans.end[row]))
                for row in rows
            ]
            return marks, prefix == layout.MARK_STAGE
    return [], False


def _action(text: str) -> tuple[int, int, StageWork] | None:
    """(stage, microbatch, work) of `0F3`."""
    match = _ACTION.fullmatch(text)
    return (int(match[1]), int(match[3]), StageWork(match[2])) if match else None


def _range(text: str) -> tuple[int, int, StageWork] | None:
    """The same of `Forward 3`."""
    match = _TORCH_RANGE.fullmatch(text)
    if match is None:
        return None
    return UNKNOWN_STAGE, int(match[2]), StageWork.FORWARD if match[1] == "Forward" else StageWork.BACKWARD


_Action = tuple[int, int, StageWork]
_RULES: tuple[tuple[str, Callable[[str], _Action | None]], ...] = (
    (layout.MARK_STAGE, _action),
    (_TORCH_ACTION, _action),
    ("", _range),
)


def _parsed(name: str, prefix: str, parse: Callable[[str], _Action | None]) -> _Action | None:
    return parse(name[len(prefix) :]) if name.startswith(prefix) else None


def _worked(mark: StageSpan, works: _Works, *, is_own: bool) -> StageSpan | None:
    if is_own and not works.has_device:
        return mark
    extent = works.extent(mark.start_ns, mark.end_ns)
    return mark._replace(start_ns=extent[0], end_ns=extent[1]) if extent else None


def _first_forward(
    marks: Sequence[StageSpan], works: _Works, step: StepSpan, spans: Spans
) -> StageSpan | None:
    """The forward pass that opened the window: its mark would have begun before the trace.

    It ends before the rank communicates or begins its next marked work.
    """
    stage = min((mark.stage for mark in marks), default=UNKNOWN_STAGE)
    in_step = [mark for mark in marks if mark.step == step.step]
    has_first = any(mark[1:4] == (stage, 0, StageWork.FORWARD) for mark in in_step)
    if has_first or not in_step:
        return None
    comm = spans.start[(spans.kind == COMM) & (spans.device < 0) & (spans.start >= step.start_ns)]
    cutoff = min(*(mark.start_ns for mark in in_step), int(comm.min(initial=step.end_ns)), step.end_ns)
    extent = works.extent(step.start_ns, cutoff, forward=True)
    if extent is None:
        return None
    begin = extent[0] if works.has_device else step.start_ns
    return StageSpan(step.step, stage, 0, StageWork.FORWARD, begin, extent[1])


def _placed(span: StageSpan, steps: Sequence[StepSpan]) -> StageSpan | None:
    """With its step. A step begins inside its first forward pass, which belongs to it however long the thread
    took from the beginning of the pass to that of the step; for other works their middle counts.
    """
    at = (span.start_ns + span.end_ns) // 2
    if span.work is StageWork.FORWARD:
        begins = (*(step.start_ns for step in steps), steps[-1].end_ns)
        at = next((begin for begin in begins if span.start_ns < begin < span.end_ns), at)
    step = next((step for step in steps if step.start_ns <= at < step.end_ns), None)
    return span._replace(step=step.step) if step is not None else None
