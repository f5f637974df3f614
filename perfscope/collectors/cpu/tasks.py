"""What threads of the ranks waited for a CPU, and how often they were switched.

Only per-thread files know (those of the process count its main thread alone), and reading one costs 8 to
25 µs. So a bounded number of threads is read each second, in turn, and what each has gained since its last
turn is added up. Main threads, which drive the training, are read every time, and by a collector of their
own as often as the sampler ticks: what they waited is what a step waited.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache

from perfscope.collectors.base import SECOND_NS, BaseCollector, Capability, Reading, words_of
from perfscope.collectors.context import Context, KeptFile
from perfscope.rundir.metrics import COUNTER, DERIVED, GAUGE, Metric, Series
from perfscope.vocabulary.host_activity import ASLEEP, WAIT_CHANNELS, HostActivity

TASKS_PER_SAMPLE = 24
MAIN_PER_SAMPLE = 16
_LIST_NS = 5 * SECOND_NS  # between listings of a rank's threads
WAIT = Metric(
    name="rank_runqueue_wait",
    unit="ns",
    kind=COUNTER,
    source="/proc/PID/task/TID/schedstat",
    description="time threads of a rank were ready to run and waited for a CPU, since the sampler began",
)
MAIN_WAIT = Metric(
    name="rank_main_thread_wait",
    unit="ns",
    kind=COUNTER,
    source="/proc/PID/task/PID/schedstat",
    description="time the main thread of a rank was ready to run and waited for a CPU",
)
MAIN_STATE = Metric(
    name="rank_main_thread_state",
    unit="code",
    kind=GAUGE,
    source="/proc/PID/{wchan,stat}",
    description="what the main thread of a rank sleeps in: 0 = it does not sleep, else its place in ASLEEP",
)
SWITCHES = Metric(
    name="context_switches",
    unit="events",
    kind=COUNTER,
    source="/proc/PID/task/TID/status",
    description="context switches of a rank's threads, since the sampler began",
)
_KINDS = ("voluntary", "nonvoluntary")
_ALLOW = "run the sampler as the same user as the ranks"
_NO_SCHEDSTAT = "no /proc/PID/schedstat: the kernel is built without CONFIG_SCHED_INFO"


@dataclass(slots=True)
class _Rank:
    pid: int
    listed_ns: int = 0
    listings: int = 0
    tasks: dict[int, list[int] | None] = field(
        default_factory=dict
    )  # tid -> last raw values; None: not read yet
    turn: list[int] = field(default_factory=list)  # all but the main thread, the next to be read first
    totals: list[int] = field(default_factory=lambda: [0, 0, 0])  # waited ns, voluntary, nonvoluntary
    series: list[Series] = field(default_factory=list)


class TaskTimes(BaseCollector):
    """Run queue waiting and context switches of each rank, summed over its threads."""

    name = "cpu.tasks"
    slow = True
    min_interval_ns = 2 * SECOND_NS

    def __init__(self) -> None:
        super().__init__()
        self._ranks: dict[int, _Rank] = {}
        self._refused: set[int] = set()

    def probe(self, ctx: Context) -> Capability:
        if reason := _why_not(ctx):
            return self.capability(reason=reason)
        return self.capability(
            metrics=(WAIT, SWITCHES),
            source="/proc/PID/task/TID/{schedstat,status}",
            detail=f"up to {TASKS_PER_SAMPLE} threads each time, in turn",
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx

    def sample(self) -> Sequence[Reading]:
        pids = self._ctx.pids()
        for pid in [pid for pid in self._ranks if pid not in pids]:
            del self._ranks[pid]
        for pid in pids:
            if pid not in self._ranks and pid not in self._refused:
                self._ranks[pid] = _rank(pid)
        readings: list[Reading] = []
        share = max(TASKS_PER_SAMPLE // max(len(self._ranks), 1), 2)
        for rank in tuple(self._ranks.values()):
            readings += self._sample_rank(rank, share)
        return readings

    def _sample_rank(self, rank: _Rank, share: int) -> list[Reading]:
        begin = self._ctx.clock()
        if begin - rank.listed_ns >= _LIST_NS or not rank.listed_ns:
            self._list(rank, begin)
        chosen = self._choose(rank, share)
        try:
            read = [self._advance(rank, tid) for tid in chosen]
        except (PermissionError, ValueError, IndexError) as error:
            del self._ranks[rank.pid]
            self._refused.add(rank.pid)
            remedy = f"; {_ALLOW}" if isinstance(error, PermissionError) else ""
            self.stopped("schedstat", {"pid": str(rank.pid)}, words_of(error) + remedy)
            return []
        if not any(read):
            return []
        quality = DERIVED if len(rank.tasks) > len(chosen) else None
        end = self._ctx.clock()
        return [
            Reading(series, total, begin, end, quality)
            for series, total in zip(rank.series, rank.totals, strict=True)
        ]

    def _list(self, rank: _Rank, now: int) -> None:
        """Threads that are there. What a new one gained since it began counts, but for the first listing."""
        names = self._ctx.glob(f"/proc/{rank.pid}/task/[0-9]*")
        tids = [int(name.rpartition("/")[2]) for name in names]
        fresh: list[int] | None = [0, 0, 0] if rank.listings else None
        known_tasks = rank.tasks
        rank.tasks = {tid: known_tasks.get(tid, fresh) for tid in tids}
        rank.turn = [tid for tid in rank.turn if tid in rank.tasks]
        rank.turn += [tid for tid in tids if tid != rank.pid and tid not in known_tasks]
        rank.listed_ns, rank.listings = now, rank.listings + 1

    def _choose(self, rank: _Rank, share: int) -> list[int]:
        """The main thread, and the next ones in turn."""
        chosen = rank.turn[: share - 1]
        rank.turn = rank.turn[share - 1 :] + chosen
        return [rank.pid, *chosen]

    def _advance(self, rank: _Rank, tid: int) -> bool:
        """Add what a thread has gained since its last turn; False when it has ended.

        Raises:
            PermissionError, ValueError, IndexError: cannot be read.
        """
        folder = f"/proc/{rank.pid}/task/{tid}"
        try:
            schedstat, status = self._read(f"{folder}/schedstat"), self._read(f"{folder}/status")
        except PermissionError:
            raise
        except OSError:
            rank.tasks.pop(tid, None)
            rank.turn = [other for other in rank.turn if other != tid]
            return False
        now = [int(schedstat.split()[1]), *_switches(status)]
        before = rank.tasks.get(tid)
        rank.tasks[tid] = now
        if before is not None:
            for index, (new, old) in enumerate(zip(now, before, strict=True)):
                rank.totals[index] += max(new - old, 0)
        return True

    def _read(self, name: str) -> bytes:
        """A short file, without the layers of a text file: hundreds are read here. Raises OSError."""
        file = self._ctx.keep(name)
        try:
            return file.read()
        finally:
            file.close()


class _MainThread:
    """The files of a rank's main thread. Raises OSError where the kernel does not show its run queue's."""

    def __init__(self, ctx: Context, pid: int) -> None:
        labels = {"pid": str(pid)}
        self._wait, self._state = Series(MAIN_WAIT, labels), Series(MAIN_STATE, labels)
        self._ctx = ctx
        self._schedstat = ctx.keep(f"/proc/{pid}/task/{pid}/schedstat")
        self._rest: list[KeptFile] = []
        with suppress(OSError):  # then only what it sleeps in is not known
            self._rest.append(ctx.keep(f"/proc/{pid}/stat"))
            self._rest.append(ctx.keep(f"/proc/{pid}/wchan"))

    def read(self) -> list[Reading]:
        """Raises OSError, ValueError, IndexError."""
        begin = self._ctx.clock()
        waited = int(self._schedstat.read().split()[1])
        readings = [Reading(self._wait, waited, begin, self._ctx.clock())]
        if len(self._rest) == 2:
            stat, wchan = self._rest
            begin = self._ctx.clock()
            code = _asleep_in(wchan.read(), stat)
            readings.append(Reading(self._state, code, begin, self._ctx.clock()))
        return readings

    def close(self) -> None:
        for file in (self._schedstat, *self._rest):
            file.close()


@lru_cache(maxsize=256)
def _activity(wchan: bytes) -> HostActivity:
    name = wchan.decode(errors="replace")
    return next(
        (activity for pattern, activity in WAIT_CHANNELS if re.search(pattern, name)), HostActivity.BLOCKED
    )


def _asleep_in(wchan: bytes, stat: KeptFile) -> int:
    """A code of MAIN_STATE. The kernel names no function for a running thread, nor for some that wait for a
    disk; nor for anyone where it may not be seen.
    """
    if wchan.strip(b"\0\n") not in (b"", b"0"):
        return 1 + ASLEEP.index(_activity(wchan))
    line = stat.read()
    state = line[line.rindex(b")") + 2 :][:1]
    asleep = {b"S": HostActivity.BLOCKED, b"D": HostActivity.FILES}.get(state)
    return 0 if asleep is None else 1 + ASLEEP.index(asleep)


class MainThreads(BaseCollector):
    """Run queue waiting of each rank's main thread and what it sleeps in: at most MAIN_PER_SAMPLE of them
    each time, in turn.
    """

    name = "cpu.main_threads"

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[int, _MainThread] = {}  # the next to be read first
        self._refused: set[int] = set()

    def probe(self, ctx: Context) -> Capability:
        if reason := _why_not(ctx):
            return self.capability(reason=reason)
        detail = f"up to {MAIN_PER_SAMPLE} ranks each time, in turn"
        source = "/proc/PID/{task/PID/schedstat,wchan,stat}"
        return self.capability(metrics=(MAIN_WAIT, MAIN_STATE), source=source, detail=detail)

    def open(self, ctx: Context) -> None:
        self._ctx = ctx

    def sample(self) -> Sequence[Reading]:
        pids = self._ctx.pids()
        for pid in [pid for pid in self._files if pid not in pids]:
            self._files.pop(pid).close()
        for pid in pids:
            if pid not in self._files and pid not in self._refused:
                self._add(pid)
        readings: list[Reading] = []
        for pid in list(self._files)[:MAIN_PER_SAMPLE]:
            files = self._files.pop(pid)
            try:
                readings += files.read()
            except (OSError, ValueError, IndexError) as error:
                files.close()
                self._give_up(pid, error)
                continue
            self._files[pid] = files
        return readings

    def close(self) -> None:
        for files in self._files.values():
            files.close()
        self._files.clear()

    def _add(self, pid: int) -> None:
        try:
            self._files[pid] = _MainThread(self._ctx, pid)
        except OSError as error:
            self._give_up(pid, error)

    def _give_up(self, pid: int, error: Exception) -> None:
        self._refused.add(pid)
        if isinstance(error, (PermissionError, ValueError, IndexError)):  # else the rank has ended
            remedy = f"; {_ALLOW}" if isinstance(error, PermissionError) else ""
            self.stopped("schedstat", {"pid": str(pid)}, words_of(error) + remedy)


def _why_not(ctx: Context) -> str:
    """Why no thread's waiting can be read; "" where it can."""
    names = [str(pid) for pid in ctx.pids()] or (["self"] if ctx.live else [])
    if any(ctx.exists(f"/proc/{name}/schedstat") for name in names):
        return ""
    return _NO_SCHEDSTAT if names else "no training process is known"


def _rank(pid: int) -> _Rank:
    labels = {"pid": str(pid)}
    series = [Series(WAIT, labels), *(Series(SWITCHES, {**labels, "kind": kind}) for kind in _KINDS)]
    return _Rank(pid, series=series)


def _switches(status: bytes) -> list[int]:
    """Voluntary and other context switches; the last lines of a thread's status. Raises ValueError."""
    switches = []
    for kind in _KINDS:
        key = b"\n%s_ctxt_switches:" % kind.encode()
        at = status.index(key) + len(key)
        end = status.find(b"\n", at)
        switches.append(int(status[at : end if end >= 0 else None]))
    return switches
