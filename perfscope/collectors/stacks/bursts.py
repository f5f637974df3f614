"""What the ranks' Python was doing: py-spy, at a low rate and in short bursts. Off unless asked for.

py-spy reads a rank's memory from outside and never stops it (`--nonblocking`), so a burst leaves the
training's output and exit code alone, and killing py-spy at any moment does no harm. Each burst is given
its duration at the start: should the sampler be killed, py-spy still ends by itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perfscope.collectors.base import SECOND_NS, BaseCollector, Capability, Reading, reason_of
from perfscope.collectors.context import Context
from perfscope.collectors.stacks.speedscope import NotSpeedscope, StackMerge
from perfscope.rundir.files import replacing
from perfscope.rundir.layout import STACKS_JSON
from perfscope.rundir.seal import sealed

BURST_S = 2
RATE_HZ = 20
ROUND_NS = 30 * SECOND_NS  # in which every rank of the host has its burst,
SHORTEST_GAP_NS = 8 * SECOND_NS  # unless there are so many that bursts would follow one another at once
AT_ONCE = 4  # ranks of a host that are looked at together
MAX_FAILURES = 3  # bursts in a row that gave nothing, before a rank is left alone
_SLACK_NS = 20 * SECOND_NS  # py-spy may need longer than it was asked to on a crowded machine
_GOODBYE_S = 0.2  # the sampler does not wait longer for its threads
_CAP_SYS_PTRACE = 19
_TORN = re.compile(r"Samples: \d+ Errors: (\d+)")
_NOT_INSTALLED = "py-spy is not installed"
_OPTIONS = ("record", "--nonblocking", "--idle", "--format", "speedscope")


@dataclass
class _Burst:
    """A running py-spy and its two anonymous files, which vanish with us."""

    pid: int  # of the rank
    child: int  # of py-spy
    output: int
    messages: int  # what it says: stdout and stderr
    began_ns: int


class StackBursts(BaseCollector):
    """Python stacks of every rank, summed over bursts, in hosts/<host>/stacks.speedscope.json.

    The file is whole at any time. There are no readings.
    """

    name = "stacks"
    slow = True
    min_interval_ns = SECOND_NS

    def __init__(self) -> None:
        super().__init__()
        self._ctx = Context()
        self._program = ""
        self._merge = StackMerge()
        self._running: list[_Burst] = []
        self._next_ns = 0
        self._turn = 0
        self._left_alone: set[int] = set()
        self._failures: dict[int, int] = {}
        self._off = False
        self._bursts = self._samples = self._torn = self._cpu_ns = 0

    def probe(self, ctx: Context) -> Capability:
        reason, remedy = self._why_not(ctx)
        program = find_py_spy() or "py-spy"
        return self.capability(
            source=f"{program} {' '.join(_OPTIONS[:2])}",
            reason=reason,
            remedy=remedy,
            detail=""
            if reason
            else f"Python stacks: bursts of {BURST_S} s at {RATE_HZ} Hz every {ROUND_NS // SECOND_NS} s",
        )

    def _why_not(self, ctx: Context) -> tuple[str, str]:
        if not ctx.options.get("stacks"):
            return "off unless asked for", "perfscope run --stacks"
        if not ctx.live:
            return "a captured tree has no processes to look into", ""
        program = find_py_spy()
        if program is None:
            return _NOT_INSTALLED, _install()
        return why_no_ptrace(ctx, program)

    def open(self, ctx: Context) -> None:
        program = find_py_spy()
        if program is None:
            raise FileNotFoundError("py-spy is gone")
        self._ctx, self._program = ctx, program

    def sample(self) -> Sequence[Reading]:
        """Start bursts that are due, and take in those that have ended. Never waits."""
        if self._off:
            return ()
        now = self._ctx.clock()
        ended = [burst for burst in self._running if self._has_ended(burst, now)]
        self._take_in(ended)
        if not self._off and not self._running and now >= self._next_ns:
            self._start_bursts(now)
        return ()

    def close(self) -> None:
        """End running bursts; what they saw so far is kept."""
        for burst in self._running:
            # py-spy then writes what it has; it ends by itself when its rank is gone.
            with suppress(OSError):
                os.kill(burst.child, signal.SIGINT)
        deadline = time.monotonic() + _GOODBYE_S
        ended = []
        for burst in self._running:
            while not self._reaped(burst) and time.monotonic() < deadline:
                time.sleep(0.005)
            if burst.child:
                self._kill(burst)
            ended.append(burst)
        self._take_in(ended)

    def _start_bursts(self, now: int) -> None:
        pids = [pid for pid in self._ctx.pids() if pid not in self._left_alone]
        if not pids:
            return
        first = self._turn % len(pids)
        chosen = (pids[first:] + pids[:first])[:AT_ONCE]
        self._turn = first + len(chosen)
        batches = -(-len(pids) // AT_ONCE)
        self._next_ns = now + max(ROUND_NS // batches, SHORTEST_GAP_NS)
        try:
            for pid in chosen:
                self._running.append(self._start(pid, now))
        except OSError as error:
            self._give_up(f"py-spy cannot be started: {reason_of(error)}")

    def _start(self, pid: int, now: int) -> _Burst:
        """Start py-spy on one rank. Raises OSError."""
        output = _anonymous_file()
        try:
            stderr_file = _anonymous_file()
        except OSError:
            os.close(output)
            raise
        argv = [self._program, *_OPTIONS, "--duration", str(BURST_S), "--rate", str(RATE_HZ)]
        try:
            child = os.posix_spawn(
                self._program,
                [*argv, "--output", "/proc/self/fd/3", "--pid", str(pid)],
                {**os.environ, "RUST_BACKTRACE": "0", "LC_ALL": "C"},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, stderr_file, 1),
                    (os.POSIX_SPAWN_DUP2, stderr_file, 2),
                    (os.POSIX_SPAWN_DUP2, output, 3),
                ],
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP],
            )
        except OSError:
            os.close(output)
            os.close(stderr_file)
            raise
        return _Burst(pid, child, output, stderr_file, now)

    def _has_ended(self, burst: _Burst, now: int) -> bool:
        if self._reaped(burst):
            return True
        if now - burst.began_ns > BURST_S * SECOND_NS + _SLACK_NS:
            self._kill(burst)
            return True
        return False

    def _reaped(self, burst: _Burst) -> bool:
        """Whether py-spy has ended; its CPU time is then counted."""
        if not burst.child:
            return True
        try:
            ended, _, usage = os.wait4(burst.child, os.WNOHANG)
        except ChildProcessError:  # another thread has waited for it
            burst.child = 0
            return True
        if not ended:
            return False
        self._cpu_ns += int((usage.ru_utime + usage.ru_stime) * SECOND_NS)
        burst.child = 0
        return True

    def _kill(self, burst: _Burst) -> None:
        with suppress(OSError):
            os.kill(burst.child, signal.SIGKILL)
            os.waitpid(burst.child, 0)
        burst.child = 0

    def _take_in(self, ended: Sequence[_Burst]) -> None:
        """Add what ended bursts saw, and write the file anew."""
        before = self._bursts
        for burst in ended:
            self._running.remove(burst)
            data, stderr_text = _drain(burst.output), _drain(burst.messages).decode("utf-8", "replace")
            try:
                added = self._merge.add(f"rank pid {burst.pid}", json.loads(data), burst.pid)
            except (NotSpeedscope, ValueError, RecursionError):
                added = 0
            if added:
                self._bursts += 1
                self._samples += added
                torn = _TORN.search(stderr_text)
                self._torn += int(torn[1]) if torn else 0
                self._failures.pop(burst.pid, None)
            else:
                self._failed(burst.pid, stderr_text)
        if self._bursts > before:
            self._write()

    def _failed(self, pid: int, stderr_text: str) -> None:
        """A burst gave nothing: the rank has ended, or there is a reason to stop, at once or after some."""
        if pid not in self._ctx.pids() or not self._ctx.exists(f"/proc/{pid}"):
            return
        text = _error_line(stderr_text)
        if "permission denied" in stderr_text.lower() or "operation not permitted" in stderr_text.lower():
            self._give_up(f"py-spy may not look into process {pid}: {text}. {_ptrace_remedy(self._program)}")
            return
        self._failures[pid] = self._failures.get(pid, 0) + 1
        if self._failures[pid] >= MAX_FAILURES:
            self._left_alone.add(pid)
            reason = text or "it gave no stacks"
            self.stopped("stacks", {"pid": str(pid)}, f"py-spy, {MAX_FAILURES} times: {reason}")

    def _give_up(self, reason: str) -> None:
        if not self._off:
            self._off = True
            self.stopped("stacks", {}, reason)

    def _write(self) -> None:
        if self._ctx.out_dir is None:
            return
        facts = {"schema_version": 1, "rate_hz": RATE_HZ, "burst_s": BURST_S, "bursts": self._bursts}
        # Torn: the process went on while its stack was read, so that sample was left out.
        counts = {"samples": self._samples, "torn": self._torn, "cpu_ns": self._cpu_ns}
        document = self._merge.as_document(perfscope={**facts, **counts})
        target = self._ctx.out_dir / STACKS_JSON
        try:
            with replacing(target) as file:
                file.write(sealed(json.dumps(document, separators=(",", ":")), target.name).encode())
        except OSError as error:
            self._give_up(f"{STACKS_JSON} cannot be written: {reason_of(error)}")


def missing_py_spy() -> str | None:
    """Why `perfscope run --stacks` cannot work, with the remedy, in one line; None when py-spy is there."""
    return None if find_py_spy() else f"{_NOT_INSTALLED}: {_install()}"


def _install() -> str:
    """The command that puts py-spy beside the Python that runs us, whatever way perfscope came there."""
    return f"{shlex.quote(sys.executable or 'python3')} -m pip install 'py-spy>=0.4'"


def find_py_spy() -> str | None:
    """The py-spy beside the Python that runs us, else the one on PATH; None without any."""
    beside = Path(sys.executable).with_name("py-spy")
    if sys.executable and os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("py-spy")


def why_no_ptrace(ctx: Context, program: str) -> tuple[str, str]:
    """Why py-spy may not read another process of the same user, and what to do; ("", "") when it may.

    Where there are ranks, one is tried: opening /proc/PID/mem asks the kernel the same question.
    """
    if _has_capabilities(program):
        return "", ""
    remedy = _ptrace_remedy(program)
    own_pid = os.getpid()
    for pid in [pid for pid in ctx.pids() if pid != own_pid][:1]:
        try:
            ctx.keep(f"/proc/{pid}/mem").close()
        except FileNotFoundError:
            break
        except OSError as error:
            return f"process {pid} may not be looked into: {reason_of(error)}", remedy
        return "", ""
    scope = ctx.read_int("/proc/sys/kernel/yama/ptrace_scope") or 0
    if scope >= 3:
        return (
            f"kernel.yama.ptrace_scope is {scope}: no process may be inspected",
            "boot with another value",
        )
    if scope and not _holds_ptrace(ctx):
        return f"kernel.yama.ptrace_scope is {scope}: only a parent may look into a process", remedy
    return "", ""


def _ptrace_remedy(program: str) -> str:
    return (
        f"sudo sysctl kernel.yama.ptrace_scope=0, or sudo setcap cap_sys_ptrace=ep {program}; "
        "containers: --cap-add SYS_PTRACE"
    )


def _holds_ptrace(ctx: Context) -> bool:
    for line in ctx.read_or("/proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            with suppress(ValueError):
                return bool(int(value, 16) >> _CAP_SYS_PTRACE & 1)
    return False


def _has_capabilities(program: str) -> bool:
    """Whether the file itself was granted rights (setcap)."""
    try:
        return bool(os.getxattr(os.path.realpath(program), "security.capability"))
    except OSError:
        return False


def _anonymous_file() -> int:
    """A file in memory whose number is none of those that py-spy is given. Raises OSError."""
    descriptor = os.memfd_create("perfscope-stacks")
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    finally:
        os.close(descriptor)


def _drain(descriptor: int) -> bytes:
    """All of an anonymous file, which is closed."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def _error_line(stderr_text: str) -> str:
    """py-spy's own words on what failed, without its stack trace and its advice."""
    for line in stderr_text.splitlines():
        text = line.strip().removeprefix("Error: ")
        if text and not text.startswith("py-spy>"):
            return text.partition(": Try running again")[0][:200]
    return ""
