"""/proc/*/stat as a table, and who descends from whom.

Times are in clock ticks; `reaped` is what waited-for children used in
their whole lives, so CPU time of a child that came and went between two scans is not lost.
"""

from __future__ import annotations

import os
import pwd
import resource
from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from perfscope.collectors.context import Context
from perfscope.rundir import layout

_MAX_KEPT = 1024  # files
_LINE = 1024
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD, include/linux/sched.h
INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h


class ProcessEntry(NamedTuple):
    """One line of the table. `start` (ticks since boot) tells a process from a later one of the same pid."""

    pid: int
    parent: int
    name: str
    cpu_ticks: int  # utime + stime
    reaped: int  # cutime + cstime
    start: int
    kernel: bool


Key = tuple[int, int]  # pid, start


def parse_stat(text: bytes) -> ProcessEntry | None:
    """A /proc/PID/stat line; None when it is none. The name may hold blanks and brackets."""
    head, closed, tail = text.rpartition(b")")
    pid, opened, name = head.partition(b"(")
    fields = tail.split()
    if not closed or not opened or len(fields) < 20:
        return None
    try:
        return ProcessEntry(
            int(pid),
            int(fields[1]),
            name.decode("utf-8", "replace"),
            int(fields[11]) + int(fields[12]),
            int(fields[13]) + int(fields[14]),
            int(fields[19]),
            bool(int(fields[6]) & _KERNEL_THREAD),
        )
    except ValueError:
        return None


def read_process(ctx: Context, pid: int) -> ProcessEntry | None:
    """One process; None when it is gone or hidden."""
    try:
        descriptor = os.open(ctx.path(f"/proc/{pid}/stat"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return parse_stat(os.read(descriptor, 4096))
    except OSError:
        return None
    finally:
        os.close(descriptor)


class ProcessTable:
    """Every process that can be seen, again and again.

    Files are kept open, which halves the cost (a kept one belongs to its process: it never shows a later one
    of the same pid), and a line that has not changed is not parsed again.
    """

    def __init__(self, ctx: Context) -> None:
        self._base = str(ctx.path("/proc"))
        self._kept: dict[str, tuple[int, bytes, ProcessEntry | None]] = {}
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._room = min(_MAX_KEPT, max(soft, 0) // 4)

    def scan(self) -> dict[Key, ProcessEntry]:
        """The processes of now. Raises OSError when /proc cannot be listed."""
        processes: dict[Key, ProcessEntry] = {}
        kept = self._kept
        names = [name for name in os.listdir(self._base) if name.isdigit()]  # noqa: PTH208 - no objects
        for name in names:
            process = self._read(name, kept.get(name))
            if process is not None:
                processes[process.pid, process.start] = process
        if len(kept) > len(processes):
            for name in kept.keys() - set(names):
                os.close(kept.pop(name)[0])
        return processes

    def _read(self, name: str, cached: tuple[int, bytes, ProcessEntry | None] | None) -> ProcessEntry | None:
        if cached is not None:
            descriptor, before, process = cached
            try:
                text = os.pread(descriptor, _LINE, 0)
            except OSError:  # it has ended; the name may be another's by now
                os.close(descriptor)
                del self._kept[name]
            else:
                if text != before:
                    process = parse_stat(text)
                    self._kept[name] = (descriptor, text, process)
                return process
        try:
            descriptor = os.open(f"{self._base}/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # ended since, or hidden
            return None
        return self._read_new(name, descriptor)

    def _read_new(self, name: str, descriptor: int) -> ProcessEntry | None:
        try:
            text = os.pread(descriptor, _LINE, 0)
        except OSError:
            os.close(descriptor)
            return None
        process = parse_stat(text)
        if len(self._kept) < self._room:
            self._kept[name] = (descriptor, text, process)
        else:
            os.close(descriptor)
        return process

    def close(self) -> None:
        for descriptor, _, _ in self._kept.values():
            os.close(descriptor)
        self._kept = {}


def descends(ctx: Context, pid: int, ancestors: Iterable[int]) -> bool:
    """Whether `pid` is one of `ancestors` or below one."""
    wanted = set(ancestors)
    for _ in range(64):
        if pid in wanted:
            return True
        process = read_process(ctx, pid)
        if process is None or process.parent <= 0:
            return False
        pid = process.parent
    return False


def increments(before: Mapping[Key, ProcessEntry], now: Mapping[Key, ProcessEntry]) -> dict[Key, int]:
    """Ticks used since `before` by each process of `now` and by its children that have ended meanwhile.

    A parent's `reaped` grows by a child's whole life when it is waited for; what that child had used by the
    time of `before` was counted then and is taken off. A process that is new counts with all it has used.
    """
    ended = _heirs(before, now)
    used: dict[Key, int] = {}
    for key, process in now.items():
        old = before.get(key)
        if old is process:
            used[key] = 0
        elif old is None:
            used[key] = process.cpu_ticks + process.reaped
        else:
            children = process.reaped - old.reaped - ended.get(key, 0)
            used[key] = max(process.cpu_ticks - old.cpu_ticks, 0) + max(children, 0)
    return used


def _heirs(before: Mapping[Key, ProcessEntry], now: Mapping[Key, ProcessEntry]) -> dict[Key, int]:
    """Nearest ancestor that lives -> what its descendants that have ended since had used before."""
    gone = before.keys() - now.keys()
    by_pid = {process.pid: key for key, process in before.items()} if gone else {}
    ended: dict[Key, int] = {}
    for key in gone:
        process = before[key]
        heir = by_pid.get(process.parent)
        while heir is not None and heir not in now:
            heir = by_pid.get(before[heir].parent)
        if heir is not None:
            ended[heir] = ended.get(heir, 0) + process.cpu_ticks + process.reaped
    return ended


def unclaimed(before: Mapping[Key, ProcessEntry], now: Mapping[Key, ProcessEntry], mine: Set[Key]) -> bool:
    """Whether one of `mine` has ended whose last CPU time no living relative among `mine` has taken over."""
    gone = (before.keys() - now.keys()) & mine
    by_pid = {process.pid: key for key, process in before.items()} if gone else {}
    for key in gone:
        process = before[key]
        heir = by_pid.get(process.parent)
        if heir is None or heir not in now or heir not in mine:
            return True
        if now[heir].reaped - before[heir].reaped < process.cpu_ticks + process.reaped:
            return True  # its parent does not wait for children (SIGCHLD ignored)
    return False


def run_marks(ctx: Context) -> set[bytes]:
    """Entries of an environment that mark a process as this run's."""
    marks = {os.environ.get(layout.ENV_RUN_DIR, "")} if ctx.live else set()
    if ctx.out_dir is not None and len(ctx.out_dir.parents) > 1:  # <run>/hosts/<host>
        marks |= {str(ctx.out_dir.parents[1]), str(ctx.out_dir.absolute().parents[1])}
    return {f"{layout.ENV_RUN_DIR}={name}".encode() for name in marks if name}


def is_marked(ctx: Context, pid: int, marks: set[bytes]) -> bool:
    """Whether a process was started with one of `marks` in its environment; False when it may not be read."""
    if not marks:
        return False
    try:
        with ctx.path(f"/proc/{pid}/environ").open("rb") as file:
            return not marks.isdisjoint(file.read(1 << 18).split(b"\0"))
    except OSError:
        return False


def user_of(ctx: Context, pid: int) -> str:
    """Who runs a process: the name, the number where it has none, "" when the process is gone."""
    try:
        uid = ctx.path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def in_container(ctx: Context) -> bool:
    """Whether /proc shows another PID namespace than the machine's first."""
    try:
        link = str(ctx.path("/proc/self/ns/pid").readlink())
    except OSError:
        return False
    return link != f"pid:[{INITIAL_PID_NAMESPACE}]"
