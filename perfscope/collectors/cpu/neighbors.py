"""CPU time that others take from this machine while the run goes on, and who they are.

The figure is a difference: what all processes of the machine used (/proc/stat) less what the run's own used,
so it holds though a neighbor's processes come and go between two looks, or are hidden from us. The names
come from the processes that can be seen.

Of the run are the ranks, everything below them, whatever has this run's PERFSCOPE_RUN_DIR in its
environment with everything below, and the sampler; so are ranks of the run's other hosts that share this
kernel. Their ancestors (a shell, mpirun's daemon) count with their own time only. Threads of the kernel and
interrupts belong to no process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perfscope.collectors.base import SECOND_NS, Absent, BaseCollector, Capability, Fact, Reading, reason_of
from perfscope.collectors.context import Context, KeptFile
from perfscope.collectors.cpu.same_kernel import SameKernel
from perfscope.collectors.process_table import (
    Key,
    ProcessEntry,
    ProcessTable,
    in_container,
    increments,
    is_marked,
    run_marks,
    unclaimed,
    user_of,
)
from perfscope.rundir.metrics import COUNTER, DERIVED, Metric, Series
from perfscope.rundir.redact import redact_argv
from perfscope.vocabulary.disturbances import NEIGHBORS

WORTH_NAMING = 0.1  # CPUs
KERNEL_WORTH_NAMING = 0.5
MAX_NAMED = 5
NAMING_NS = 10 * SECOND_NS  # the same neighbor is named this often,
CHANGED_NS = 3 * SECOND_NS  # or after so long already,
CHANGED = 0.2  # where it uses so many CPUs more or fewer than was reported
COMMAND_LENGTH = 80
MAX_COST_RATIO = 1 / 300  # a scan that takes longer (thousands of processes) is made less often
_DEBT_TICKS_PER_CPU = 2  # by so much the two clocks may disagree, per look
_SHORTEST_NS = SECOND_NS // 5
_STAT = "/proc/stat"
_COMMAND_BYTES = 4096  # of a command line that are looked at


class _Group(NamedTuple):
    """Neighbors of one name and user, reported as one."""

    name: str
    user: str
    kernel: bool


class _Tally:
    """What a group has used since it was named last, or since it appeared."""

    __slots__ = ("command", "named_ns", "pids", "since_ns", "ticks", "told_cpus")

    def __init__(self, since_ns: int, before: _Tally | None = None) -> None:
        self.since_ns = since_ns
        self.named_ns: int | None = before.named_ns if before else None
        self.told_cpus: float = before.told_cpus if before else 0.0  # 0: never named, or it has ended since
        self.command: str = before.command if before else ""
        self.ticks = 0
        self.pids: dict[int, int] = {}

    def is_due(self, cpus: float, worth: float, now_ns: int) -> bool:
        """Whether a group that uses `cpus` is to be named now; a fall is reported however little is left."""
        if self.named_ns is None:
            return cpus >= worth
        age_ns = now_ns - self.named_ns
        changed = abs(cpus - self.told_cpus) > CHANGED
        return (age_ns >= NAMING_NS or (age_ns >= CHANGED_NS and changed)) and (
            cpus >= worth or self.told_cpus - cpus > CHANGED
        )


class Neighbors(BaseCollector):
    """See the module."""

    name = NEIGHBORS
    slow = True
    min_interval_ns = SECOND_NS

    def __init__(self) -> None:
        super().__init__()
        self._ctx = Context()
        self._stat: KeptFile | None = None
        self._series = Series(_metric(100))
        self._table: dict[Key, ProcessEntry] = {}
        self._ours: set[Key] = set()
        self._strangers: set[Key] = set()
        self._processes: ProcessTable | None = None
        self._users: dict[Key, str] = {}
        self._tallies: dict[_Group, _Tally] = {}
        self._busy = 0
        self._num_cpus = 1
        self._ticks = 0  # the counter: what neighbors have used so far
        self._debt = 0
        self._at_ns = 0
        self._next_ns = 0
        self._marks: set[bytes] = set()
        self._same_kernel: SameKernel | None = None

    def probe(self, ctx: Context) -> Capability:
        metric = _metric(ctx.clock_ticks)
        try:
            busy_ticks(ctx.read(_STAT).encode())
        except (OSError, ValueError) as error:
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            return self.capability(source=_STAT, reason=f"{_STAT}: {reason}")
        return self.capability(
            metrics=(metric,),
            source="/proc/stat, /proc/*/stat",
            absent=_hidden(ctx),
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        self._stat = ctx.keep(_STAT)
        self._series = Series(_metric(ctx.clock_ticks))
        self._marks = run_marks(ctx)
        self._same_kernel = SameKernel(ctx)
        self._busy, self._num_cpus = busy_ticks(self._stat.read())
        self._processes = ProcessTable(ctx)
        self._table = self._processes.scan()
        self._at_ns = ctx.clock()
        self._sort(self._table, {process.pid: key for key, process in self._table.items()})
        for absent in _hidden(ctx):
            self._facts.append(Fact("note", {}, {"text": f"{absent.what}: {absent.reason}"}))

    def sample(self) -> Sequence[Reading]:
        if self._stat is None or self._processes is None or self._ctx.clock() < self._next_ns:
            return ()
        begin = self._ctx.clock()
        if begin - self._at_ns < _SHORTEST_NS:  # just opened: over so short a time, ticks mean nothing
            return (Reading(self._series, self._ticks, begin, begin),)
        cpu_before = time.thread_time_ns()
        try:
            busy, self._num_cpus = busy_ticks(self._stat.read())
            table = self._processes.scan()
        except (OSError, ValueError) as error:
            self.stopped("neighbour_cpu", {}, str(error))
            self.close()
            return ()
        end = self._ctx.clock()
        self._account(busy, table, begin)
        reading = Reading(self._series, self._ticks, begin, end)
        cost = time.thread_time_ns() - cpu_before
        self._next_ns = begin + int(cost / MAX_COST_RATIO) if cost > MAX_COST_RATIO * SECOND_NS else 0
        return (reading,)

    def _account(self, busy: int, table: dict[Key, ProcessEntry], now_ns: int) -> None:
        """Split what the machine used since the last look."""
        before, spent_ns = self._table, max(now_ns - self._at_ns, 1)
        by_pid = {process.pid: key for key, process in table.items()}
        self._sort(table, by_pid)
        mine, kernel, strangers = 0, 0, {}
        kernel_used: dict[Key, int] = {}
        for key, ticks in increments(before, table).items():
            if not ticks:
                continue
            if key in self._ours:
                mine += ticks
            elif table[key].kernel:
                kernel += ticks
                kernel_used[key] = ticks
            else:
                strangers[key] = ticks
        for ancestor in self._ancestors(table, by_pid).intersection(strangers):
            del strangers[ancestor]
            old = before.get(ancestor)
            mine += max(table[ancestor].cpu_ticks - old.cpu_ticks, 0) if old else 0
        foreign_ticks = busy - self._busy - mine - kernel
        if unclaimed(before, table, self._ours):  # what ours used last is not known: what is seen counts
            foreign_ticks = min(foreign_ticks, sum(strangers.values()))
        self._add(foreign_ticks)
        self._busy, self._table, self._at_ns = busy, table, now_ns
        self._ours &= table.keys()
        self._strangers &= table.keys()
        self._users = {key: user for key, user in self._users.items() if key in table}
        self._name(table, {**strangers, **kernel_used}, now_ns, spent_ns)

    def _add(self, ticks: int) -> None:
        """Let the counter grow. Both clocks have grain, so a small minus is kept and set off later."""
        balance = self._debt + ticks
        self._ticks += max(balance, 0)
        self._debt = max(min(balance, 0), -_DEBT_TICKS_PER_CPU * self._num_cpus)

    def _sort(self, table: Mapping[Key, ProcessEntry], by_pid: Mapping[int, Key]) -> None:
        """Decide of each process, once, whether it is the run's; a child is what its parent is."""
        ranks = {*self._ctx.pids(), os.getpid()} if self._ctx.live else set(self._ctx.pids())
        if self._same_kernel is not None:
            ranks |= self._same_kernel.pids()
        roots = {by_pid[pid] for pid in ranks if pid in by_pid}
        if not roots <= self._ours:  # a new rank: the one who is below it was perhaps taken for a stranger
            self._ours |= roots
            self._strangers.clear()
        new = table.keys() - self._ours - self._strangers
        for key in sorted(new, key=_age):
            process = table[key]
            if process.kernel:
                self._strangers.add(key)
            elif by_pid.get(process.parent) in self._ours or is_marked(self._ctx, key[0], self._marks):
                self._ours.add(key)
            else:
                self._strangers.add(key)

    def _ancestors(self, table: Mapping[Key, ProcessEntry], by_pid: Mapping[int, Key]) -> set[Key]:
        """The one who stands above a process of the run, but for init."""
        ancestors: set[Key] = set()
        for key in self._ours:
            process = table.get(key)
            above = by_pid.get(process.parent) if process is not None else None
            while above is not None and above not in ancestors and above not in self._ours and above[0] != 1:
                ancestors.add(above)
                above = by_pid.get(table[above].parent)
        return ancestors

    def _name(
        self, table: Mapping[Key, ProcessEntry], used: Mapping[Key, int], now_ns: int, spent_ns: int
    ) -> None:
        """Facts about those who use much, of one name and user together, and a last one when they end."""
        active = self._tally(table, used, now_ns - spent_ns)
        rates = [
            (tally.ticks / self._ctx.clock_ticks * 1e9 / max(now_ns - tally.since_ns, 1), group, tally)
            for group, tally in self._tallies.items()
        ]
        due = [
            (cpus, group, tally)
            for cpus, group, tally in rates
            if group in active
            and tally.is_due(cpus, KERNEL_WORTH_NAMING if group.kernel else WORTH_NAMING, now_ns)
        ]
        due.sort(key=lambda entry: -entry[0])
        for cpus, group, tally in due[:MAX_NAMED]:
            self._tell(group, tally, cpus, now_ns)
            tally.told_cpus = cpus
        for cpus, group, tally in rates:
            if tally.told_cpus and group not in active:
                if tally.ticks:
                    self._tell(group, tally, cpus, now_ns)
                tally.told_cpus = 0.0
        self._forget(now_ns)

    def _tally(
        self, table: Mapping[Key, ProcessEntry], used: Mapping[Key, int], appeared_ns: int
    ) -> set[_Group]:
        """Add up what each group has used since the last look. Gives the groups that used anything."""
        active: set[_Group] = set()
        for key, ticks in used.items():
            if ticks:
                process = table[key]
                group = _Group(
                    "kernel threads" if process.kernel else process.name,
                    "" if process.kernel else self._user(key),
                    process.kernel,
                )
                active.add(group)
                tally = self._tallies.setdefault(group, _Tally(appeared_ns))
                tally.ticks += ticks
                tally.pids[process.pid] = tally.pids.get(process.pid, 0) + ticks
        return active

    def _forget(self, now_ns: int) -> None:
        """Begin anew with groups that were reported, or used too little for long; drop those that ended."""
        for group, tally in list(self._tallies.items()):
            if tally.ticks:
                if tally.named_ns == now_ns or now_ns - tally.since_ns >= NAMING_NS:
                    self._tallies[group] = _Tally(now_ns, tally)
            elif not tally.told_cpus:
                tally.since_ns = now_ns  # should it come back, its pause is no part of its time
                if tally.named_ns is None or now_ns - tally.named_ns >= CHANGED_NS:
                    del self._tallies[group]

    def _tell(self, group: _Group, tally: _Tally, cpus: float, now_ns: int) -> None:
        """One fact: what the group used since the last one."""
        largest = max(tally.pids, key=lambda pid: tally.pids[pid])
        if not group.kernel:
            tally.command = command_of(self._ctx, largest) or tally.command
        value: dict[str, object] = {
            "pid": None if group.kernel else largest,
            "name": group.name,
            "user": group.user,
            "cpus": round(cpus, 2),
            "seconds": round((now_ns - tally.since_ns) / 1e9, 2),
            "processes": len(tally.pids),
        }
        if tally.command:
            value["command"] = tally.command
        tally.named_ns = now_ns
        self._facts.append(Fact("neighbour", {"kind": "kernel" if group.kernel else "cpu"}, value))

    def _user(self, key: Key) -> str:
        if key not in self._users:
            self._users[key] = user_of(self._ctx, key[0])
        return self._users[key]

    def close(self) -> None:
        if self._stat is not None:
            self._stat.close()
            self._stat = None
        if self._processes is not None:
            self._processes.close()
            self._processes = None


def _metric(clock_ticks: int) -> Metric:
    return Metric(
        name="neighbour_cpu",
        unit="ns",
        kind=COUNTER,
        source="/proc/stat, /proc/*/stat",
        description="CPU time of processes that are not of this run, since sampling began",
        scale=1e9 / clock_ticks,
        quality=DERIVED,
        resolution="10 ms per CPU",
    )


def busy_ticks(stat: bytes) -> tuple[int, int]:
    """user + nice + system of the whole machine, and the number of CPUs.

    Guests are inside user; interrupts are left out, as they belong to no process.

    Raises:
        ValueError: not a /proc/stat.
    """
    lines = stat.split(b"\n")
    fields = lines[0].split()
    if len(fields) < 5 or fields[0] != b"cpu":
        raise ValueError("not in the format of /proc/stat")
    cpus = 0
    for line in lines[1:]:
        if not line.startswith(b"cpu"):
            break
        cpus += 1
    return int(fields[1]) + int(fields[2]) + int(fields[3]), max(cpus, 1)


def _age(key: Key) -> tuple[int, int]:
    """Parents before children: no process is older than its parent, but for those that were adopted."""
    return key[1], key[0]


def _hidden(ctx: Context) -> tuple[Absent, ...]:
    """What cannot be known about neighbors here."""
    absent = []
    options = [line.split() for line in ctx.read_or("/proc/self/mounts").splitlines()]
    hides = [
        fields[3]
        for fields in options
        if len(fields) > 3 and fields[1] == "/proc" and "hidepid=" in fields[3]
    ]
    hides = [option for option in hides if "hidepid=0" not in option and "hidepid=off" not in option]
    if hides and ctx.euid != 0:
        absent.append(
            Absent(
                what="names of other users' processes",
                reason="/proc is mounted with hidepid: only the sum of their CPU time is known",
                remedy="mount -o remount,hidepid=0 /proc, or run as root",
            )
        )
    if ctx.live and in_container(ctx):
        absent.append(
            Absent(
                what="names of processes outside this container",
                reason="/proc/stat counts the whole host; other processes may be in other containers",
            )
        )
    return tuple(absent)


def command_of(ctx: Context, pid: int) -> str:
    """How a process was started, cut, on one line and without what looks like a secret; "" = not readable."""
    try:
        with ctx.path(f"/proc/{pid}/cmdline").open("rb") as file:
            data = file.read(_COMMAND_BYTES)
    except OSError:
        return ""
    argv = data.rstrip(b"\0").split(b"\0")
    if len(data) == _COMMAND_BYTES and len(argv) > 1:
        argv.pop()  # cut: a part of a secret need not look like one
    line = " ".join(redact_argv(word.decode("utf-8", "surrogateescape") for word in argv))
    return "".join(char for char in " ".join(line.split()) if char.isprintable())[:COMMAND_LENGTH]
