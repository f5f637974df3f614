"""Why the stages of a pipeline waited, in one step: the same work replayed with one cause after the other.

A rank does its actions in the recorded order. An action begins when the one before it on its rank and the one
that makes its input have ended, and some time later (its lag):

    start(a) = max(end(a before it on its rank), end(input of a)) + lag(a)

The bubble of a step is what is left of `ranks x (last end - first start)` beside the work. It is taken from
four replays, each of which adds one cause:

    1. every action takes the mean of its kind, no lags: the schedule itself. Its idle time until the first
       backward pass of each rank fills the pipeline, that after it drains the pipeline;
    2. actions take as long as they did, no lags: what this adds is imbalance;
    3. lags in which the rank communicated: what this adds are late sends;
    4. as measured: what this adds is other time (Python between actions, the loss).

So the parts add up to the measured bubble exactly. A part that would exceed what was measured is cut to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
from msgspec import Struct

from perfscope.analysis import intervals as iv
from perfscope.analysis.intervals import Intervals
from perfscope.analysis.pipeline.record import StageSpan
from perfscope.vocabulary.pipelines import StageWork

_Key = TypeVar("_Key")
_BACKWARDS = (StageWork.BACKWARD, StageWork.INPUT_BACKWARD)


class Bubble(Struct, frozen=True, kw_only=True):
    """Of all ranks of a pipeline in one step, summed over ranks; ns. The parts add up to `measured_ns`.

    Attributes:
        active_ns: ranks x time between the first start and the last end.
        balanced_ns: active time that the schedule would take with equal stages and no lags.
        equal_stages_ns: active time with equal stages: each takes the mean for each kind of work, lags as
            measured.
    """

    active_ns: int
    measured_ns: int
    fill_ns: int
    drain_ns: int
    imbalance_ns: int
    late_sends_ns: int
    other_ns: int
    balanced_ns: int
    equal_stages_ns: int


def decompose(
    ranks: Sequence[Sequence[StageSpan]],
    exposed: Sequence[Intervals],
    *,
    begins_with_window: bool = False,
) -> Bubble | None:
    """The bubble of one step.

    Args:
        ranks: each rank's actions in order, on one clock.
        exposed: when each rank communicated without computing, on the same clock.
        begins_with_window: what ranks did before their first action is not in the trace: the lag of these
            is taken for communication.

    Returns:
        None where the actions wait for each other in a circle: they are not what they seem to be.
    """
    graph = _Graph(ranks)
    lags, sends = graph.lags(exposed, begins_with_window=begins_with_window)
    measured, none = graph.durations, [0.0] * len(lags)
    schedule = graph.replay(_mean_of_kind(graph), none)
    unequal, late = graph.replay(measured, none), graph.replay(measured, sends)
    equal = graph.replay(_equal_stages(graph), lags)
    if schedule is None or unequal is None or late is None or equal is None:
        return None
    active = len(ranks) * (graph.end_ns - graph.begin_ns)
    total = active - round(sum(measured))
    reached, parts = 0, []
    for replayed in (schedule, unequal, late):
        idle = len(ranks) * max(replayed.ends) - sum(replayed.work)
        upto = min(max(round(idle), reached), total)
        parts.append(upto - reached)
        reached = upto
    fill, drain = graph.fill_and_drain(schedule)
    share = parts[0] / (fill + drain) if fill + drain > 0 else 0.0
    fill_ns, drain_ns = iv.rounded_to([fill * share, drain * share], parts[0])
    return Bubble(
        active_ns=active,
        measured_ns=total,
        fill_ns=fill_ns,
        drain_ns=drain_ns,
        imbalance_ns=parts[1],
        late_sends_ns=parts[2],
        other_ns=total - reached,
        balanced_ns=round(len(ranks) * max(schedule.ends)),
        equal_stages_ns=round(len(ranks) * max(equal.ends)),
    )


def _mean_of_kind(graph: _Graph) -> list[float]:
    """Every action's duration if all stages and microbatches took the same for a kind of work, ns."""
    means = _means([span.work for span in graph.spans], graph.durations)
    return [means[span.work] for span in graph.spans]


def _equal_stages(graph: _Graph) -> list[float]:
    """Every action's duration if all stages took the same for a kind of work, ns; microbatches may differ."""
    of_kind = _means([span.work for span in graph.spans], graph.durations)
    of_stage = _means([(span.stage, span.work) for span in graph.spans], graph.durations)
    return [
        duration * of_kind[span.work] / of_stage[span.stage, span.work]
        if of_stage[span.stage, span.work]
        else of_kind[span.work]
        for span, duration in zip(graph.spans, graph.durations, strict=True)
    ]


def _means(keys: Sequence[_Key], values: Sequence[float]) -> dict[_Key, float]:
    by_key: dict[_Key, list[float]] = defaultdict(list)
    for key, value in zip(keys, values, strict=True):
        by_key[key].append(value)
    return {key: sum(of_key) / len(of_key) for key, of_key in by_key.items()}


class _Replayed(Struct, frozen=True):
    starts: list[float]
    ends: list[float]
    work: list[float]


class _Graph:
    """Actions of all ranks, numbered one rank after the other, and which waits for which."""

    def __init__(self, ranks: Sequence[Sequence[StageSpan]]) -> None:
        self.spans = [span for rank in ranks for span in rank]
        self.rank = [number for number, rank in enumerate(ranks) for _ in rank]
        self.first = list(
            accumulate((len(rank) for rank in ranks), initial=0)
        )  # action of each rank, and the end
        makes: dict[tuple[int, int, bool], int] = {}
        for number, span in enumerate(self.spans):
            if span.work != StageWork.WEIGHT_BACKWARD:
                makes[span.stage, span.microbatch, span.work in _BACKWARDS] = number
        self.before = [
            number - 1 if number and self.rank[number - 1] == rank else -1
            for number, rank in enumerate(self.rank)
        ]
        self.input = [self._input(span, makes) for span in self.spans]
        self.durations = [float(span.end_ns - span.start_ns) for span in self.spans]
        self.begin_ns = min(span.start_ns for span in self.spans)
        self.end_ns = max(span.end_ns for span in self.spans)

    @staticmethod
    def _input(span: StageSpan, makes: Mapping[tuple[int, int, bool], int]) -> int:
        """The action of another stage (of the last one: its own forward pass) that this one waits for."""
        stage, microbatch = span.stage, span.microbatch
        if span.work == StageWork.FORWARD:
            return makes.get((stage - 1, microbatch, False), -1)
        if span.work == StageWork.WEIGHT_BACKWARD:
            return -1
        return makes.get((stage + 1, microbatch, True), makes.get((stage, microbatch, False), -1))

    def lags(
        self, exposed: Sequence[Intervals], *, begins_with_window: bool
    ) -> tuple[list[float], list[float]]:
        """(lag of each action, part of it in which its rank communicated)."""
        lags, sends = [], []
        for number, span in enumerate(self.spans):
            before, made = self.before[number], self.input[number]
            could = max(
                self.begin_ns if before < 0 else self.spans[before].end_ns,
                self.begin_ns if made < 0 else self.spans[made].end_ns,
            )
            lags.append(float(span.start_ns - could))
            if before < 0 and made >= 0 and begins_with_window:
                sends.append(max(lags[-1], 0.0))
                continue
            window = np.array([could]), np.array([max(span.start_ns, could)])
            sends.append(float(iv.overlap_each(exposed[self.rank[number]], *window)[0]))
        return lags, sends

    def replay(self, durations: Sequence[float], lags: Sequence[float]) -> _Replayed | None:
        """Times since the first start; None where actions wait for each other in a circle."""
        num = len(self.spans)
        starts, ends = [0.0] * num, [-1.0] * num
        at, num_done, has_moved = self.first[:-1], 0, True
        while has_moved:
            has_moved = False
            for rank, last in enumerate(self.first[1:]):
                while at[rank] < last:
                    number = at[rank]
                    made, before = self.input[number], self.before[number]
                    if made >= 0 and ends[made] < 0:
                        break
                    ready = max(ends[before] if before >= 0 else 0.0, ends[made] if made >= 0 else 0.0)
                    starts[number] = ready + lags[number]
                    ends[number] = starts[number] + durations[number]
                    at[rank], num_done, has_moved = number + 1, num_done + 1, True
        return _Replayed(starts, ends, list(durations)) if num_done == num else None

    def fill_and_drain(self, replayed: _Replayed) -> tuple[float, float]:
        """Idle time of all ranks until their first backward passes (without any: last works), and after."""
        fill = drain = 0.0
        end = max(replayed.ends)
        for first, last in pairwise(self.first):
            turn = next((n for n in range(first, last) if self.spans[n].work in _BACKWARDS), last)
            until = replayed.starts[turn] if turn < last else replayed.ends[last - 1]
            fill += until - sum(replayed.work[first:turn])
            drain += end - until - sum(replayed.work[turn:last])
        return fill, drain
