"""Hangs of a run, noticed while it is recorded: each is written once, with where its ranks stand."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from perfscope.analysis.live import LiveRank, LiveRun, RunWatch
from perfscope.messages.hangs import Place, hang_line
from perfscope.rundir import layout
from perfscope.rundir.hangs import ENDED, FROM_MARK, FROM_PY_SPY, GONE, HangingRank
from perfscope.rundir.sampler_call import is_stopped

_MOST_STACKS = 32  # ranks of a host that are looked into
_STACKS_S = 5.0  # for the stacks of all of them, in one look
_TOGETHER = 0.5  # of the time that makes a hang: a rank that has been silent for so long belongs to it


class HangWatch:
    """Finds hangs in what a RunWatch sees, and records them in hosts/<host>/hangs.jsonl.

    Args:
        watch: of the run.
        host_dir: hosts/<host> of the host that watches.
        say: prints one line for the user.
    """

    def __init__(self, watch: RunWatch, host_dir: Path, say: Callable[[str], None]) -> None:
        self._watch, self._say = watch, say
        self._file = host_dir / layout.HANGS_JSONL
        self._num_hangs = 0
        self._open: dict[int, int] = {}  # rank of the hang that goes on -> end of its last step
        self._silent_s = 0.0
        self._excused: set[int] = set()  # ranks that are seen at work which takes long, as long as they hang

    @property
    def hangs(self) -> bool:
        """Whether a hang that was recorded goes on."""
        return bool(self._open)

    def look(self, run: LiveRun, now_s: float) -> None:
        """Record what is new in `run`, as it is at Unix time `now_s`.

        Raises:
            OSError: it cannot be written; nothing was said.
        """
        if self._open:
            self._look_for_resumption(run, now_s)
        if self._open and not self._have_ended(run):
            return
        hanging = [rank for rank in run.hanging if not _is_stopped(rank)]
        self._excused &= {rank.rank for rank in hanging}
        is_long = any((rank.silent_s or 0.0) > self._watch.patience_s for rank in hanging)
        if not hanging or (self._excused and not is_long):
            return
        silent = min(rank.silent_s or 0.0 for rank in hanging)
        together = [
            rank
            for rank in run.ranks
            if rank.hangs or (not rank.finished and (rank.silent_s or 0.0) > _TOGETHER * silent)
        ]
        inspected = look_into(together, now_s)
        if not is_long and any(entry.source == FROM_PY_SPY and entry.part for entry in inspected):
            self._excused = {rank.rank for rank in hanging}  # one compiles, or writes a checkpoint
        elif any(entry.state not in ENDED for entry in inspected):
            self._begin(inspected, together, now_s)

    def _have_ended(self, run: LiveRun) -> bool:
        """Whether all ranks of the hang that goes on are gone: then another one may be noticed.

        It is not closed: ranks that are started anew may still make steps.
        """
        return not any(rank.rank in self._open and not (rank.finished or rank.lost) for rank in run.ranks)

    def _begin(self, inspected: Sequence[HangingRank], ranks: Sequence[LiveRank], now_s: float) -> None:
        number = self._num_hangs + bool(self._open)  # the ranks of the one before are gone
        self._append(
            {
                "hang": number,
                "noticed_unix_ns": int(now_s * 1e9),
                "ranks": [msgspec.to_builtins(entry) for entry in inspected],
            }
        )
        self._num_hangs = number
        self._open = {rank.rank: self._watch.last_end_ns(rank.rank) for rank in ranks}
        self._silent_s = min(rank.silent_s or 0.0 for rank in ranks)
        usual = max((rank.step_ns for rank in ranks if rank.step_ns is not None), default=None)
        self._say(hang_line([(entry.rank, place_of(entry)) for entry in inspected], self._silent_s, usual))

    def _look_for_resumption(self, run: LiveRun, now_s: float) -> None:
        """A rank that goes on makes a step which ends long after its last one.

        What it had not yet written before the hang, and writes when it is ended, does not.
        """
        least_ns = int(self._silent_s / 2 * 1e9)
        goes_on = [
            rank
            for rank in run.ranks
            if rank.rank in self._open
            and not rank.finished
            and self._watch.last_end_ns(rank.rank) - self._open[rank.rank] > least_ns
        ]
        if goes_on:
            since_s = min(rank.age_s or 0.0 for rank in goes_on)
            self._append({"hang": self._num_hangs, "resumed_unix_ns": int((now_s - since_s) * 1e9)})
            self._open = {}
            self._num_hangs += 1

    def _append(self, line: dict[str, object]) -> None:
        """One line in one write, never through a link."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._file, flags, 0o644)
        try:
            os.write(descriptor, (json.dumps(line) + "\n").encode("utf-8", "backslashreplace"))
        finally:
            os.close(descriptor)


def place_of(rank: HangingRank) -> Place:
    """Where a recorded rank stands."""
    return Place(**{name: getattr(rank, name) for name in Place.__struct_fields__})


def _is_stopped(rank: LiveRank) -> bool:
    """By Ctrl-Z or a debugger: that is no hang."""
    return _is_here(rank) and rank.pid is not None and is_stopped(rank.pid)


def look_into(ranks: Sequence[LiveRank], now_s: float) -> list[HangingRank]:
    """Where ranks stand, as far as this host can tell within some seconds.

    Args:
        ranks: that make no step.
        now_s: Unix time, seconds.
    """
    until = time.monotonic() + _STACKS_S
    inspected = [_look_into(rank, now_s, until) for rank in ranks[:_MOST_STACKS]]
    return inspected + [_bare(rank, now_s) for rank in ranks[_MOST_STACKS:]]


def _look_into(rank: LiveRank, now_s: float, until: float) -> HangingRank:
    from perfscope.collectors.stacks.standing import standing, thread_state

    bare = _bare(rank, now_s)
    if rank.pid is None or not _is_here(rank):
        return bare
    bare = replace(bare, state=thread_state(rank.pid) or GONE)
    left_s = until - time.monotonic()
    if bare.state in ENDED or left_s <= 0:
        return bare
    stack = standing(rank.pid, left_s)
    if stack is None or not (stack.file or stack.call):
        return bare
    return replace(
        bare,
        source=FROM_PY_SPY,
        call=stack.call,
        file=stack.file,
        line=stack.line,
        function=stack.function,
        part=stack.work,
        part_ended=False,
    )


def _bare(rank: LiveRank, now_s: float) -> HangingRank:
    """What is known of a rank without looking into it."""
    silent_s = (rank.silent_s or 0.0) if rank.age_s is None else rank.age_s
    return HangingRank(
        rank=rank.rank,
        host=rank.host,
        since_unix_ns=int((now_s - silent_s) * 1e9),
        steps=rank.steps,
        usual_ns=rank.step_ns,
        source=FROM_MARK if rank.part else "",
        part=rank.part,
        part_ended=rank.part_ended,
    )


def _is_here(rank: LiveRank) -> bool:
    return rank.host == socket.gethostname()
