"""Nothing stays behind: a launcher and a guard above it; each ends everything when the other is gone.

The guard is the process that the user sees and may kill. The launcher below it starts the ranks. Both adopt
orphans, so that whatever a rank has started can still be found when the rank has ended.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from perfscope.runners.starting import kernel
from perfscope.runners.starting.endings import say

STOPPING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
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
    found: list[int] = []
    layer = {ancestor}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer}
        found += layer
    return found


def _watch(child: int) -> int:
    while True:
        received = signal.sigwaitinfo(WATCHED)
        # What the kernel sent (Ctrl-C) went to every process of the terminal, so to the launcher, too.
        if received.si_signo in STOPPING and received.si_code <= 0:
            with suppress(ProcessLookupError):
                os.kill(child, received.si_signo)
        with suppress(ChildProcessError):
            found, status = os.waitpid(child, os.WNOHANG)
            if found == child:
                code = os.waitstatus_to_exitcode(status)
                if code < 0 and -code not in STOPPING:
                    say(f"the launcher was killed by signal {-code}; all ranks are ended")
                return 128 - code if code < 0 else code
