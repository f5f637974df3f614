"""Sees to it that this host has a sampler: one process beside the training that reads hardware counters.

Called once, when the process proves that it trains. Every rank leaves its pid. Where a `perfscope run` lives
on this host, it sees the pid and starts the sampler. Elsewhere (mpirun to other hosts) local rank 0, or a
rank that does not know its place, starts it, and the sampler's lock settles the rest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any, Dict, List, Optional

from ..rundir import layout
from ..rundir.sampler_call import sampler_argv, sampler_environment, watcher
from ..vocabulary.notes import NO_COUNTERS_OF_HOST

_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = -1


def start(run_dir: str, config: Dict[str, Any], local_rank: Optional[int]) -> Optional[str]:
    """Leave our pid; start the sampler if that is ours to do.

    Returns:
        A note for rank.json when this host will have no sampler, else None.

    Raises:
        OSError: the run directory cannot be written.
    """
    sampling = config.get("sampling")
    if not isinstance(sampling, dict):
        return None
    folder = os.path.join(run_dir, layout.HOSTS, layout.host_name())
    pids = os.path.join(folder, layout.PIDS)
    os.makedirs(pids, exist_ok=True)
    with open(os.path.join(pids, str(os.getpid())), "w"):
        pass
    if sampling.get("stacks"):
        _allow_reading_stacks()
    if local_rank not in (None, 0) or watcher(os.path.join(folder, layout.WATCHER)) is not None:
        return None
    python = os.environ.get(layout.ENV_PYTHON, "")
    if not os.access(python, os.X_OK):
        return NO_COUNTERS_OF_HOST + "perfscope's Python (%s) is not here" % (python or "unknown")
    path = os.environ.get(layout.ENV_PYTHON_PATH, "")
    code = _spawn(sampler_argv(python, path, run_dir, layout.host_name(), os.getpid(), sampling))
    return NO_COUNTERS_OF_HOST + "the sampler was not started (sh: %d)" % code if code else None


def _spawn(command: List[str]) -> int:
    """Start it as an orphan: a shell puts it in the background and ends.

    For some milliseconds that shell is the training's child. A SIGCHLD handler of the training's must not
    meet it (it may call os.wait()), so it is set aside meanwhile and called if another child ended.
    """
    ours = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGCHLD) if ours else None
    if callable(handler):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", '"$@" </dev/null >/dev/null 2>&1 &', "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=True,
            start_new_session=True,  # Ctrl-C is not for it
            env=sampler_environment(os.environ),
            cwd="/",
        )
        return shell.wait()
    finally:
        if callable(handler):
            signal.signal(signal.SIGCHLD, handler)
            _call_again()


def _call_again() -> None:
    """Have the handler called when a child of the training's own ended while it was set aside."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return
    if ended is not None:
        os.kill(os.getpid(), signal.SIGCHLD)


def _allow_reading_stacks() -> None:
    """Yama lets only a process's ancestors read its stack; --stacks asks for the sampler to be let in."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_PR_SET_PTRACER_ANY), 0, 0, 0)
