"""Starts the sampler of this host: one process beside the training that reads hardware counters.

Called once, when the process proves that it trains. Every rank leaves its pid for the sampler; local rank 0
(or a rank that does not know its place) starts it, and the sampler's lock settles the rest.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any, Dict, Optional

from ..rundir import layout

# The sampler's own Python and packages, whatever the training's environment says about Python.
_DROPPED = ("LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT")
# Two arguments of its own: where perfscope lies, should that Python not have it installed.
_BOOT = (
    "import sys; sys.path[:1] = []; sys.path.append(sys.argv.pop(1)); "
    "from perfscope.collectors.sampler import main; main(sys.argv[1:]); import os; os._exit(0)"
)
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = -1


def host_name() -> str:
    """The name under which launch keeps this host's facts, too."""
    return socket.gethostname().replace("/", "_") or "localhost"


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
    folder = os.path.join(run_dir, layout.HOSTS, host_name())
    pids = os.path.join(folder, layout.PIDS)
    os.makedirs(pids, exist_ok=True)
    with open(os.path.join(pids, str(os.getpid())), "w"):
        pass
    if sampling.get("stacks"):
        _allow_reading_stacks()
    if local_rank not in (None, 0):
        return None
    python = os.environ.get(layout.ENV_PYTHON, "")
    if not os.access(python, os.X_OK):
        return "no hardware counters of this host: perfscope's Python (%s) is not here" % (
            python or "unknown"
        )
    return _spawn(python, run_dir, sampling)


def _spawn(python: str, run_dir: str, sampling: Dict[str, Any]) -> Optional[str]:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    options = {
        "interval_ns": int(sampling.get("interval_ms", 100) * 1_000_000),
        "collectors": {"stacks": bool(sampling.get("stacks"))},
    }
    command = [python, "-E", "-c", _BOOT, os.path.dirname(package)]
    command += [run_dir, host_name(), str(os.getpid()), json.dumps(options)]
    environment = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    # A shell that puts it in the background and ends: the sampler is never the training's child, so no
    # os.wait() and no SIGCHLD handler of the training's meets it. A session of its own keeps Ctrl-C away.
    shell = subprocess.Popen(
        ["/bin/sh", "-c", '"$@" </dev/null >/dev/null 2>&1 &', "sh", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=True,
        start_new_session=True,
        env=environment,
        cwd="/",
    )
    code = shell.wait()
    return "no hardware counters of this host: the sampler was not started (sh: %d)" % code if code else None


def _allow_reading_stacks() -> None:
    """Yama lets only a process's ancestors read its stack; --stacks asks for the sampler to be let in."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_PR_SET_PTRACER_ANY), 0, 0, 0)
