"""Pipelines whose every time is known: orders of work by schedule, simulated on ranks and links."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from perfscope.analysis.intervals import Intervals
from perfscope.analysis.pipeline.record import StageSpan
from perfscope.vocabulary.pipelines import StageWork

F, B = StageWork.FORWARD, StageWork.BACKWARD
Action = tuple[int, int, StageWork]  # stage, microbatch, work


def gpipe(p: int, m: int) -> list[list[Action]]:
    """Each rank's actions in order."""
    return [[*((s, k, F) for k in range(m)), *((s, k, B) for k in range(m))] for s in range(p)]


def one_f_one_b(p: int, m: int) -> list[list[Action]]:
    """As Schedule1F1B runs it: p - s forward passes, then one backward and one forward in turn."""
    ranks = []
    for stage in range(p):
        warm = min(m, p - stage)
        order = [(stage, k, F) for k in range(warm)]
        for k in range(m):
            order.append((stage, k, B))
            if warm + k < m:
                order.append((stage, warm + k, F))
        ranks.append(order)
    return ranks


def interleaved(p: int, m: int, v: int) -> list[list[Action]]:
    """Narayanan et al. 2021, for m a multiple of p: stage i is on rank i mod p."""

    def forward(rank: int, turn: int) -> Action:
        chunk, within = divmod(turn % (p * v), p)
        return rank + chunk * p, turn // (p * v) * p + within, F

    def backward(rank: int, turn: int) -> Action:
        chunk, within = divmod(turn % (p * v), p)
        return rank + (v - 1 - chunk) * p, turn // (p * v) * p + within, B

    ranks = []
    for rank in range(p):
        warm = min(m * v, 2 * (p - 1 - rank) + (v - 1) * p)
        order = [forward(rank, turn) for turn in range(warm)]
        for turn in range(m * v):
            if warm + turn < m * v:
                order.append(forward(rank, warm + turn))
            order.append(backward(rank, turn))
        ranks.append(order)
    return ranks


@dataclass(slots=True)
class Simulated:
    """What every rank did, and when it waited in communication."""

    ranks: list[list[StageSpan]]
    exposed: list[Intervals] = field(default_factory=list)

    @property
    def active_ns(self) -> int:
        ends = [span.end_ns for rank in self.ranks for span in rank]
        return max(ends) - min(span.start_ns for rank in self.ranks for span in rank)


def _inputs(orders: list[list[Action]]) -> dict[Action, Action | None]:
    """Which action of another stage each one waits for."""
    actions = [action for order in orders for action in order]
    last_stage = max(action[0] for action in actions)
    by_name = {
        (stage, k, work is not F): (stage, k, work)
        for stage, k, work in actions
        if work is not StageWork.WEIGHT_BACKWARD
    }
    made: dict[Action, Action | None] = {}
    for stage, k, work in actions:
        source = (stage - 1, k, False) if work is F else (stage + 1, k, True)
        made[stage, k, work] = None if work is StageWork.WEIGHT_BACKWARD else by_name.get(source)
        if stage == last_stage and work is not F:
            made[stage, k, work] = None
    return made


def simulated(
    orders: list[list[Action]],
    duration: Callable[[Action], int],
    *,
    link_ns: int = 0,
    pause: Callable[[Action], int] = lambda action: 0,
    begin: int = 1_000_000,
    step: int = 0,
) -> Simulated:
    """Runs the orders: no action begins before its input has come over the link; then the rank pauses.

    Times are raised until every dependence holds, which is slow and simple.
    """
    made = _inputs(orders)
    rank_of = {action[0]: number for number, order in enumerate(orders) for action in order}
    start = dict.fromkeys(made, begin)
    arrived = dict.fromkeys(made, begin)
    changed = True
    while changed:
        changed = False
        for order in orders:
            free = begin
            for action in order:
                source = made[action]
                here = begin
                if source is not None:
                    link = link_ns if rank_of[source[0]] != rank_of[action[0]] else 0
                    here = start[source] + duration(source) + link
                at = max(free, here) + pause(action)
                if at != start[action]:
                    start[action], changed = at, True
                arrived[action] = max(here, free)
                free = at + duration(action)
    ranks = [
        [
            StageSpan(step, s, k, work, start[s, k, work], start[s, k, work] + duration((s, k, work)))
            for s, k, work in order
        ]
        for order in orders
    ]
    exposed = []
    for order in orders:
        free, waits = begin, []
        for action in order:
            if arrived[action] > free:
                waits.append((free, arrived[action]))
            free = start[action] + duration(action)
        exposed.append(np.array(waits, dtype=np.int64).reshape(-1, 2))
    return Simulated(ranks, exposed)
