"""Plays small programs of several ranks, so that lines and matched calls have a known truth.

A program is a list of steps, a step a list of operations:

    ("compute", layer, phase, ns)   ("idle", ns)   ("input_wait", ns)   ("optimizer", ns)   ("copy", ns)
    ("call", group, transfer_ns)    the main line waits for it
    ("queue", group, transfer_ns)   in the background, one after the other
    ("wait",)                       for everything queued
    ("send", peer, transfer_ns)     ("recv", peer, transfer_ns)   the main line waits for it

All members leave a call `transfer_ns` after the last has entered it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.collective_waits import JudgedCalls, judge
from perfscope.analysis.comm_record import GroupKey
from perfscope.analysis.mainline import LINE_PARTS, NO_LAYER, LineRecord, MainLine
from perfscope.analysis.matching import MatchedCalls
from perfscope.analysis.spans import StepSpan
from perfscope.rundir.schema import PHASES

EPOCH = 1_780_000_000_000_000_000
Step = Sequence[tuple[Any, ...]]


@dataclass
class _Call:
    transfer: int
    launch: dict[int, int] = field(default_factory=dict)
    enter: dict[int, int] = field(default_factory=dict)
    step: dict[int, int] = field(default_factory=dict)
    leave: int | None = None


@dataclass
class _Rank:
    ops: list[tuple[Any, ...]]
    now: int
    free: int = 0  # when the backend has done what it was given
    at: int = 0
    step: int = -1
    made: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    open_: list[_Call] = field(default_factory=list)  # not waited for yet
    segments: list[tuple[int, int, str, int, int, int]] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)

    def spend(self, part: str, until: int, layer: int = NO_LAYER, phase: int = -1) -> None:
        if until > self.now:
            self.segments.append((self.now, until, part, layer, phase, self.step))
            self.now = until


@dataclass
class Played:
    """What a set of programs gives."""

    lines: LineRecord
    matches: list[JudgedCalls]
    clocks: ClockFit
    hosts: dict[int, str]
    leave: dict[int, int]  # rank -> when it ended, its own clock


def play(
    programs: Mapping[int, Sequence[Step]],
    groups: Mapping[str, Sequence[int]],
    *,
    hosts: Mapping[int, str] | None = None,
    start: Mapping[int, int] | None = None,
    clocks: ClockFit | None = None,
    window: int = 0,
) -> Played:
    """Lines and calls of one window.

    Args:
        programs: rank -> its steps.
        groups: process group -> ranks.
        hosts: rank -> host; all on one by default.
        start: rank -> when it begins, ns after the others.
        clocks: the hosts' clocks; offsets are put into the times.
    """
    hosts = dict(hosts or dict.fromkeys(programs, "node0"))
    ranks = {
        rank: _Rank([op for step in steps for op in (("step",), *step)], (start or {}).get(rank, 0))
        for rank, steps in programs.items()
    }
    calls: dict[str, list[_Call]] = defaultdict(list)
    members = {name: tuple(own) for name, own in groups.items()}
    progress = True
    while progress:
        progress = False
        for rank, state in sorted(ranks.items()):
            while state.at < len(state.ops) and _advance(rank, state, calls, members):
                progress = True
    stuck = [rank for rank, state in ranks.items() if state.at < len(state.ops)]
    assert not stuck, f"ranks {stuck} wait for ever"
    clocks = clocks or _same_clock(hosts)
    shift = {rank: EPOCH + clocks.offset_ns.get(host, 0) for rank, host in hosts.items()}
    record, codes = LineRecord(), _layer_codes(programs)
    record.codes.update(codes)
    for rank, state in ranks.items():
        record.lines.setdefault(window, {})[rank] = _line(
            rank, state, hosts[rank], window, shift[rank], codes
        )
    return Played(
        lines=record,
        matches=[
            judge(_key(name, members[name]), window, _matched(members[name], own, shift), hosts, clocks)
            for name, own in sorted(calls.items())
        ],
        clocks=clocks,
        hosts=hosts,
        leave={rank: state.now for rank, state in ranks.items()},
    )


def _same_clock(hosts: Mapping[int, str]) -> ClockFit:
    zero = dict.fromkeys(hosts.values(), 0)
    return ClockFit(reference=next(iter(zero)), offset_ns=zero, residual_ns=zero)


def _advance(
    rank: int, state: _Rank, calls: dict[str, list[_Call]], members: dict[str, tuple[int, ...]]
) -> bool:
    """Runs one operation; False where it has to wait for other ranks."""
    op = state.ops[state.at]
    if op[0] == "step":
        state.step += 1
        state.steps.append((state.step, state.now))
    elif op[0] == "compute":
        state.spend("compute", state.now + op[3], op[1], PHASES.index(op[2]))
    elif op[0] == "wait":
        if any(call.leave is None for call in state.open_):
            return False
        state.spend("exposed_comm", max((call.leave or 0 for call in state.open_), default=state.now))
        state.open_.clear()
    elif op[0] in {"call", "queue", "send", "recv"}:
        return _communicate(rank, state, op, calls, members)
    else:
        state.spend(op[0], state.now + op[1])
    state.at += 1
    return True


def _communicate(
    rank: int,
    state: _Rank,
    op: tuple[Any, ...],
    calls: dict[str, list[_Call]],
    members: dict[str, tuple[int, ...]],
) -> bool:
    name = op[1]
    if op[0] in {"send", "recv"}:
        pair = (rank, op[1]) if op[0] == "send" else (op[1], rank)
        name = f"p2p {pair[0]} {pair[1]}"
        members[name] = pair
    if op[0] == "queue" and any(call.leave is None for call in state.open_):
        return False  # when the backend is free for this one is not known yet
    state.free = max((call.leave or 0 for call in state.open_), default=state.free)
    number = state.made[name]
    while len(calls[name]) <= number:
        calls[name].append(_Call(op[2]))
    call = calls[name][number]
    if rank not in call.launch:
        call.launch[rank], call.step[rank] = state.now, state.step
        call.enter[rank] = max(state.now, state.free) if op[0] == "queue" else state.now
        _settle(call, members[name])
    if op[0] == "queue":
        state.open_.append(call)
    else:
        if call.leave is None:
            return False
        state.spend("exposed_comm", call.leave)
    state.made[name] += 1
    state.at += 1
    return True


def _settle(call: _Call, ranks: tuple[int, ...]) -> None:
    if all(rank in call.launch for rank in ranks):
        call.leave = max(call.enter.values()) + call.transfer


def _layer_codes(programs: Mapping[int, Sequence[Step]]) -> dict[str, int]:
    names = {op[1] for steps in programs.values() for step in steps for op in step if op[0] == "compute"}
    return {name: code for code, name in enumerate(sorted(names))}


def _line(rank: int, state: _Rank, host: str, window: int, shift: int, codes: Mapping[str, int]) -> MainLine:
    columns = list(zip(*state.segments, strict=True))
    whole = [np.array(column) for column in (columns[0], columns[1], columns[4], columns[5])]
    ends = [begin for _, begin in state.steps[1:]] + [state.now]
    none = np.empty(0, dtype=np.int64)
    return MainLine(
        rank=rank,
        window=window,
        host=host,
        start=whole[0].astype(np.int64) + shift,
        end=whole[1].astype(np.int64) + shift,
        part=np.array([LINE_PARTS.index(part) for part in columns[2]], dtype=np.int8),
        layer=np.array([codes.get(name, NO_LAYER) for name in columns[3]], dtype=np.int32),
        phase=whole[2].astype(np.int8),
        step=whole[3].astype(np.int64),
        steps=tuple(
            StepSpan(step=number, start_ns=begin + shift, end_ns=end + shift)
            for (number, begin), end in zip(state.steps, ends, strict=True)
        ),
        has_device=False,
        kernel_launch=none,
        kernel_end=none,
    )


def _key(name: str, ranks: tuple[int, ...]) -> GroupKey:
    if name.startswith("p2p "):
        return GroupKey("send", "default", ())
    return GroupKey("all_reduce", name, tuple(ranks))


def _matched(ranks: tuple[int, ...], calls: Sequence[_Call], shift: Mapping[int, int]) -> MatchedCalls:
    def rows(column: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        values = [[getattr(call, column)[rank] + shift[rank] for call in calls] for rank in ranks]
        return np.array(values, dtype=np.int64)

    num = len(calls)
    return MatchedCalls(
        ranks=ranks,
        enter=rows("enter"),
        exit=np.array(
            [[(call.leave or 0) + shift[rank] for call in calls] for rank in ranks], dtype=np.int64
        ),
        size=np.full(num, 4096, dtype=np.int64),
        seq=np.arange(num, dtype=np.int64),
        step=np.array([[call.step[rank] for call in calls] for rank in ranks], dtype=np.int64),
        launch=rows("launch"),
        lane=np.zeros((len(ranks), num), dtype=np.int64),
        num_unmatched=0,
    )
