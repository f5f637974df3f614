"""Main lines and matched calls made up from a list of what each rank does, for tests of the replay.

A rank is a list of steps; a step is a list of actions:

    ("work", ns), ("work", ns, layer), ("input", ns), ("idle", ns), ("optimizer", ns)
    ("call", name, group)                    blocking: the rank waits until it is over
    ("start", name, group), ("wait", name)   in the background, on the rank's communication lane

`simulate` runs them on a network that takes `transfer[name]` ns per call and writes down what a trace would
show. It is a small event loop of its own, so that the replay is compared with something other than itself.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.collective_waits import JudgedCalls, judge
from perfscope.analysis.comm_record import GroupKey
from perfscope.analysis.mainline import (
    LINE_COMPUTE,
    LINE_EXPOSED,
    LINE_IDLE,
    LINE_INPUT,
    LINE_OPTIMIZER,
    NO_LAYER,
    MainLine,
)
from perfscope.analysis.matching import MatchedCalls
from perfscope.analysis.spans import StepSpan

FIRST_STEP = 7  # windows begin in the middle of a training
EPOCH = 1_780_000_000_000_000_000
Action = tuple[Any, ...]
_PARTS = {
    "work": LINE_COMPUTE,
    "input": LINE_INPUT,
    "idle": LINE_IDLE,
    "optimizer": LINE_OPTIMIZER,
}


_Call = tuple[str, str, int]  # name, group, k-th


@dataclass(slots=True)
class _Rank:
    steps: list[list[Action]]
    begin: int
    now: int = 0
    lane_free: int = 0
    action: int = 0
    awaits: _Call | None = None
    segments: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # start end part layer step
    step_ends: list[int] = field(default_factory=list)
    pending: dict[str, _Call] = field(default_factory=dict)
    queue: deque[tuple[_Call, int]] = field(default_factory=deque)  # (call, when it was started)

    def __post_init__(self) -> None:
        self.now = self.lane_free = self.begin

    @property
    def done(self) -> bool:
        return len(self.step_ends) >= len(self.steps)

    def spend(self, until: int, part: int, layer: int) -> None:
        self.segments.append((self.now, until, part, layer, len(self.step_ends)))
        self.now = until


@dataclass(frozen=True, slots=True)
class Recorded:
    lines: dict[int, MainLine]
    matches: list[JudgedCalls]
    clocks: ClockFit
    wall_ns: int
    layers: tuple[str, ...]


def simulate(
    ranks: Sequence[Sequence[Sequence[Action]]],
    groups: Mapping[str, Sequence[int]],
    transfer: Mapping[str, int],
    *,
    hosts: Sequence[str] | None = None,
    late: Sequence[int] | None = None,
    written_late_ns: int = 0,
) -> Recorded:
    """Runs all ranks and records them. The k-th call of a name on a group is the same on all its members.

    Background calls of a rank run one after the other, in the order in which it started them. Their ends are
    written down `written_late_ns` after they let their ranks go on.
    """
    job = _Job(ranks, groups, transfer, late or [0] * len(ranks))
    while any([job.advance(rank) for rank in range(len(ranks))]):
        pass
    assert all(state.done for state in job.states), "deadlock in the test's own program"
    names = list(hosts or ["node0"] * len(ranks))
    clocks = ClockFit(
        reference=names[0], offset_ns=dict.fromkeys(names, 0), residual_ns=dict.fromkeys(names, 0)
    )
    return Recorded(
        lines={rank: _line(rank, state, names[rank]) for rank, state in enumerate(job.states)},
        matches=_matches(job, names, clocks, written_late_ns),
        clocks=clocks,
        wall_ns=max(state.now for state in job.states) - min(state.begin for state in job.states),
        layers=tuple(job.layers),
    )


class _Job:
    def __init__(
        self,
        ranks: Sequence[Sequence[Sequence[Action]]],
        groups: Mapping[str, Sequence[int]],
        transfer: Mapping[str, int],
        late: Sequence[int],
    ) -> None:
        self.groups, self.transfer = groups, transfer
        self.layers: dict[str, int] = {}
        self.states = [
            _Rank([list(step) for step in steps], begin) for steps, begin in zip(ranks, late, strict=True)
        ]
        self.entered: dict[tuple[str, str], list[dict[int, tuple[int, int]]]] = defaultdict(list)
        self.ended: dict[_Call, int] = {}
        self.count: dict[tuple[int, str, str], int] = defaultdict(int)

    def advance(self, rank: int) -> bool:
        """Goes on with a rank until it must wait for another one; whether it got anywhere."""
        state, moved = self.states[rank], False
        while not state.done and self._woken(state):
            moved = True
            actions = state.steps[len(state.step_ends)]
            if state.action >= len(actions):
                state.step_ends.append(state.now)
                state.action = 0
                continue
            kind, *rest = actions[state.action]
            state.action += 1
            if kind in _PARTS:
                layer = self.layers.setdefault(rest[1], len(self.layers)) if len(rest) > 1 else NO_LAYER
                state.spend(state.now + rest[0], _PARTS[kind], layer)
            elif kind == "wait":
                state.awaits = state.pending[rest[0]]
            else:
                state.awaits = self._start(rank, *rest) if kind == "call" else None
                if kind == "start":
                    self._start(rank, *rest)
        return moved

    def _woken(self, state: _Rank) -> bool:
        if state.awaits is None:
            return True
        end = self.ended.get(state.awaits)
        if end is None:
            return False
        state.awaits = None
        if end > state.now:
            state.spend(end, LINE_EXPOSED, NO_LAYER)
        return True

    def _start(self, rank: int, name: str, group: str) -> _Call:
        state = self.states[rank]
        number = self.count[rank, name, group]
        self.count[rank, name, group] += 1
        key = (name, group, number)
        state.pending[name] = key
        state.queue.append((key, state.now))
        calls = self.entered[name, group]
        calls += [{} for _ in range(number + 1 - len(calls))]
        self._drain()
        return key

    def _drain(self) -> None:
        """Lets calls at the head of every member's queue begin and end, in whatever order that allows."""
        moved = True
        while moved:
            moved = False
            for state in self.states:
                if not state.queue:
                    continue
                key, _ = state.queue[0]
                members = [self.states[rank] for rank in self.groups[key[1]]]
                if any(not member.queue or member.queue[0][0] != key for member in members):
                    continue
                for rank, member in zip(self.groups[key[1]], members, strict=True):
                    launched = member.queue.popleft()[1]
                    self.entered[key[0], key[1]][key[2]][rank] = (launched, max(launched, member.lane_free))
                last = max(enter for _, enter in self.entered[key[0], key[1]][key[2]].values())
                self.ended[key] = last + self.transfer[key[0]]
                for member in members:
                    member.lane_free = self.ended[key]
                moved = True


def _line(rank: int, state: _Rank, host: str) -> MainLine:
    table = np.array(state.segments, dtype=np.int64).reshape(-1, 5)
    starts = [state.begin, *state.step_ends[:-1]]
    steps = tuple(
        StepSpan(step=FIRST_STEP + number, start_ns=EPOCH + start, end_ns=EPOCH + end)
        for number, (start, end) in enumerate(zip(starts, state.step_ends, strict=True))
    )
    return MainLine(
        rank=rank,
        window=0,
        host=host,
        start=EPOCH + table[:, 0],
        end=EPOCH + table[:, 1],
        part=table[:, 2].astype(np.int8),
        layer=table[:, 3].astype(np.int32),
        phase=np.full(len(table), -1, dtype=np.int8),
        step=FIRST_STEP + table[:, 4],
        steps=steps,
        has_device=False,
        kernel_launch=np.empty(0, dtype=np.int64),
        kernel_end=np.empty(0, dtype=np.int64),
    )


def _matches(job: _Job, hosts: Sequence[str], clocks: ClockFit, written_late_ns: int) -> list[JudgedCalls]:
    found = []
    for (name, group), calls in job.entered.items():
        members = tuple(sorted(job.groups[group]))
        launch = np.array([[call[rank][0] for call in calls] for rank in members], dtype=np.int64)
        enter = np.array([[call[rank][1] for call in calls] for rank in members], dtype=np.int64)
        ended = [job.ended[name, group, k] + written_late_ns for k in range(len(calls))]
        leave = np.array([ended] * len(members), dtype=np.int64)
        step_ends = [np.array(job.states[rank].step_ends) for rank in members]
        matched = MatchedCalls(
            ranks=members,
            enter=EPOCH + enter,
            exit=EPOCH + leave,
            size=np.full(len(calls), 1_000_000, dtype=np.int64),
            seq=np.arange(len(calls), dtype=np.int64),
            step=np.stack(
                [
                    np.searchsorted(ends, row, side="right")
                    for ends, row in zip(step_ends, launch, strict=True)
                ]
            ),
            launch=EPOCH + launch,
            lane=np.full(enter.shape, 200, dtype=np.int64),
            num_unmatched=0,
        )
        key = GroupKey(collective="all_reduce", group=f"{group}/{name}", members=members)
        found.append(judge(key, 0, matched, dict(enumerate(hosts)), clocks))
    return found
