"""Nothing stays behind: a launcher and a guard above it; each ends everything when the other is gone.

The guard is the process that the user sees and may kill. The launcher below it starts the ranks. Both adopt
orphans, so that whatever a rank has started can still be found when the rank has ended. Below `perfscope
bench run` the guard ends with that, too; below anything else it goes on, as any command of the user does.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from perfscope.runners.starting import kernel
from perfscope.runners.starting.endings import say

STOPPING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
ENV_BENCH = "PERFSCOPE_BENCH_RUN"  # PID@HOST of the `perfscope bench run` that this process ends with
WATCHED = frozenset({*STOPPING, signal.SIGCHLD})
REST_S = 5.0  # for what ranks have started, once they have ended: the sampler writes its last line
_LOOK_S = 0.02


def run_guarded(launch: Callable[[frozenset[int]], int]) -> int:
    """Run `launch` in a child and pass signals on to it; the code to exit with.

    `launch` is given the signal mask that this process had. In it WATCHED are held back; it may lift that.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would lose the exit codes
    mask = kernel.block(WATCHED)
    guard = os.getpid()
    end_with_bench()
    kernel.adopt_orphans()

    def guarded() -> int:
        kernel.die_with_parent(signal.SIGTERM, guard)
        kernel.adopt_orphans()
        code = launch(mask)
        end_descendants(REST_S if os.getppid() == guard else 0.0)
        return code

    code = _watch(kernel.run_as_child(guarded))
    end_descendants(0.0)
    return code


def bench_mark() -> dict[str, str]:
    """What `perfscope bench run` sets for its command, so that nothing outlives it."""
    return {ENV_BENCH: f"{os.getpid()}@{os.uname().nodename}"}


def end_with_bench(*, through_others: bool = False) -> None:
    """Have this process sent SIGTERM when its `perfscope bench run` ends, however that ends.

    Nothing happens where another command has started us: a launcher of ours that a user runs outlives the
    wrapper around it.

    Args:
        through_others: also where a process between us and it would live on (mpiexec): takes a thread.
    """
    word, _, host = os.environ.get(ENV_BENCH, "").partition("@")
    if not word.isdigit() or host != os.uname().nodename or int(word) == os.getpid():
        return
    bench = int(word)
    if os.getppid() == bench:
        kernel.die_with_parent(signal.SIGTERM, bench)
    elif not _is_alive(bench):
        os.kill(os.getpid(), signal.SIGTERM)
    elif through_others:
        with suppress(OSError):  # a kernel older than 5.3
            descriptor = os.pidfd_open(bench)
            threading.Thread(
                target=_end_after, args=(descriptor,), name="perfscope-bench-end", daemon=True
            ).start()


def end_descendants(patience_s: float) -> None:
    """Let what is below this process end by itself for a while, then kill it."""
    deadline = time.monotonic() + patience_s
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = descendants(os.getpid())
        if not left:
            return
        if time.monotonic() >= deadline:
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= deadline + REST_S:  # in the kernel's hands (a dead file server): not to be had
            return
        time.sleep(_LOOK_S)


def descendants(ancestor: int) -> list[int]:
    """Pids of all processes below `ancestor` that have not ended."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError, IndexError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if fields[0] not in ("Z", "X"):
                    parents[int(folder.name)] = int(fields[1])
    pids: list[int] = []
    layer = {ancestor}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer}
        pids += layer
    return pids


def _end_after(descriptor: int) -> None:
    select.select([descriptor], [], [])  # readable once the process has ended
    os.kill(os.getpid(), signal.SIGTERM)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


def _watch(child: int) -> int:
    while True:
        received = signal.sigwaitinfo(WATCHED)
        # What the kernel sent (Ctrl-C) went to every process of the terminal, so to the launcher, too.
        if received.si_signo in STOPPING and received.si_code <= 0:
            with suppress(ProcessLookupError):
                os.kill(child, received.si_signo)
        with suppress(ChildProcessError):
            reaped, status = os.waitpid(child, os.WNOHANG)
            if reaped == child:
                code = os.waitstatus_to_exitcode(status)
                if code < 0 and -code not in STOPPING:
                    say(f"the launcher was killed by signal {-code}; all ranks are ended")
                return 128 - code if code < 0 else code
