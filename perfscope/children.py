"""A run as a child process that ends when we do: waiting with a limit, and passing signals on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

GRACE_S = 20.0  # for a child that was asked to end
_REST_S = 5.0  # for what a child has started, once it has ended itself
_LOOK_S = 0.02
_VERSION_LIMIT_S = 10.0


def ask_version(command: str) -> str:
    """First lines of `COMMAND --version`; "" where it cannot be had in time."""
    try:
        answer = subprocess.run(
            [command, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (answer.stdout + answer.stderr)[:4096].decode("utf-8", "replace")


def is_open_mpi(version: str) -> bool:
    """Whether `mpiexec --version` says that it is Open MPI's."""
    return any(name in version for name in ("Open MPI", "OpenRTE", "PRRTE"))


@contextmanager
def without_main() -> Iterator[None]:
    """Processes that multiprocessing spawns meanwhile do not run the program's script again.

    They need nothing of it, and a script that reads a run need not guard itself by ``__name__``.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def await_child(process: subprocess.Popen[bytes], timeout_s: float | None) -> tuple[bytes, bool]:
    """(stdout where it is a pipe, whether the child had to be ended because it took too long).

    The child must lead a process group of its own (start_new_session).
    """
    try:
        return process.communicate(timeout=timeout_s)[0] or b"", False
    except subprocess.TimeoutExpired:
        return end_child(process), True


def end_child(process: subprocess.Popen[bytes]) -> bytes:
    """Asks the child's group to end as Ctrl-C would, and kills what does not; returns its stdout."""
    tree = Tree(process.pid)
    for number in (signal.SIGINT, signal.SIGTERM):
        tree.look()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            output = process.communicate(timeout=GRACE_S)[0] or b""
            tree.kill(_REST_S)
            return output
    tree.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=GRACE_S)[0] or b""
    return b""


class Tree:
    """A process that leads a session, and all below it: torchrun's workers lead sessions of their own.

    Once their parents are gone nothing tells whose these were, so `look` comes before each signal.

    Args:
        pid: a child of ours that has not been waited for.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._seen: dict[int, str] = {}  # pid -> when it started: pids are used again
        self.look()

    def look(self) -> list[int]:
        """Remembers what is there now; returns the pids of all that was ever seen and has not ended."""
        alive = _processes()
        layer = {pid for pid, process in alive.items() if pid == self.pid or process.session == self.pid}
        if self._seen and self.pid in alive and alive[self.pid].started != self._seen.get(self.pid):
            layer = set()  # another process has got the number
        layer |= {pid for pid, process in alive.items() if self._seen.get(pid) == process.started}
        while layer:
            self._seen |= {pid: alive[pid].started for pid in layer}
            layer = {
                pid for pid, process in alive.items() if process.parent in layer and pid not in self._seen
            }
        return [pid for pid, process in alive.items() if self._seen.get(pid) == process.started]

    def kill(self, patience_s: float = 0.0) -> None:
        """Everything that has not ended by itself after a while."""
        began = time.monotonic()
        while left := self.look():
            waited = time.monotonic() - began
            if waited >= patience_s:
                for pid in left:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
            if waited > patience_s + _REST_S:  # in the kernel's hands (a dead file server): not to be had
                return
            time.sleep(_LOOK_S)


class _Process(NamedTuple):
    parent: int
    session: int
    started: str


def _processes() -> dict[int, _Process]:
    """Every process that has not ended, by pid; nothing where there is no /proc."""
    processes = {}
    with suppress(OSError):
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(OSError, IndexError):
                    fields = (folder / "stat").read_text("ascii", "replace").rpartition(")")[2].split()
                    if fields[0] not in ("Z", "X"):
                        processes[int(folder.name)] = _Process(int(fields[1]), int(fields[3]), fields[19])
    return processes


class Signals:
    """SIGINT, SIGTERM and SIGHUP end the current child, a second one kills it and all below it.

    A further SIGHUP does not: a terminal that goes away sends several.

    Attributes:
        received: the last one, or 0.
    """

    def __init__(self) -> None:
        self.received = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._tree: Tree | None = None

    def handle(self, number: int, frame: object) -> None:
        again = bool(self.received)
        self.received = number
        process = self._process
        if process is None or process.poll() is not None:
            return
        if not again or self._tree is None:
            self._end(process)
        elif number != signal.SIGHUP:
            self._tree.kill()

    @contextmanager
    def passed_to(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """While inside, signals go to the child's group. No child that got one outlives the block."""
        self._process = process
        if self.received:  # it came between the check and the start
            self._end(process)
        try:
            yield
        finally:
            self._process = None
            if self._tree is not None:
                self._tree.kill(_REST_S)
                self._tree = None

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._tree = Tree(process.pid)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)


@contextmanager
def held_signals() -> Iterator[Signals]:
    """SIGINT, SIGTERM and SIGHUP (unless `nohup` has it ignored) go to a `Signals` until the block ends."""
    handler = Signals()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handler.handle) for number in numbers}
    try:
        yield handler
    finally:
        for number, old in before.items():
            signal.signal(number, old)
