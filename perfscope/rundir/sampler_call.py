"""How the sampler process is called. Standard library only: ranks start it where no `perfscope run` does.

It runs under perfscope's own Python and packages, whatever the training's environment says about Python.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Dict, List, Mapping, Optional

from . import layout

_DROPPED = ("LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT")
# For `python -S`: the packages of that Python are there, and the user's own sitecustomize does not run in it.
QUIET_SITE = (
    "import sys, site; sys.modules['sitecustomize'] = sys.modules['usercustomize'] = sys; site.main(); "
)
# The first argument is where perfscope and its dependencies are: often that Python has them only through a
# PYTHONPATH (modules of a cluster, `pip install --target`), and ours is dropped. What keeps it from starting
# is written to the second, for the report.
_BOOT = (
    QUIET_SITE
    + """
import os
first = sys.argv.pop(1).split(os.pathsep)
failed = sys.argv.pop(1)
sys.path[:] = first + [path for path in sys.path[1:] if path not in first]
try:
    from perfscope.collectors.sampler import main
    main(sys.argv[1:])
except Exception as error:
    with open(failed, "w") as file:
        file.write("%s: %s" % (type(error).__name__, error))
    os._exit(1)
os._exit(0)
"""
)


def python_path() -> str:
    """Where this Python finds packages, without the folder of its program; to be given to `sampler_argv`."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    folders = [os.path.abspath(path) for path in sys.path[1:] if path and os.path.isdir(path)]
    return os.pathsep.join(dict.fromkeys([*folders, package]))


def sampler_argv(
    python: str, path: str, run_dir: str, host: str, pid: int, sampling: Mapping[str, object]
) -> List[str]:
    """The command line: a sampler of `host` whose first rank is `pid`.

    Args:
        python: perfscope's.
        path: `python_path` of a process of that Python.
        run_dir: the run directory.
        host: the folder's name below hosts/.
        pid: of the first rank.
        sampling: as in PERFSCOPE_CONFIG.
    """
    interval = sampling.get("interval_ms")
    options = {
        "interval_ns": int(float(str(interval)) * 1_000_000) if interval else None,
        "collectors": {"stacks": bool(sampling.get("stacks"))},
    }
    return [
        python,
        "-E",
        "-S",
        "-c",
        _BOOT,
        path,
        os.path.join(run_dir, layout.HOSTS, host, layout.SAMPLER_ERROR),
        run_dir,
        host,
        str(pid),
        json.dumps(options),
    ]


def sampler_environment(environment: Mapping[str, str]) -> Dict[str, str]:
    """The training's environment without what would change another Python."""
    return {name: value for name, value in environment.items() if name not in _DROPPED}


def pid_namespace() -> str:
    """Which process numbers are ours; "" where nothing says."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def mark_watched(path: str) -> None:
    """Say at `path` (hosts/<host>/watcher) that this process starts the sampler of the host.

    Raises:
        OSError: it cannot be written.
    """
    with open(path, "w") as file:
        file.write("%d %s\n" % (os.getpid(), pid_namespace()))


def watcher(path: str) -> Optional[int]:
    """Pid of the process that said so, while it lives."""
    try:
        with open(path) as file:
            pid, _, namespace = file.read().strip().partition(" ")
        if not pid.isdigit() or namespace != pid_namespace():
            return None
        return int(pid) if is_alive(int(pid)) else None
    except OSError:
        return None


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    return _state(pid) not in ("", "Z", "X")


def has_ended(pid: Optional[int]) -> bool:
    """Whether a process is known to have ended; one of another user, that /proc may hide, is not."""
    if pid is None or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return _state(pid) in ("Z", "X")


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by SIGSTOP, or by a debugger."""
    return _state(pid) in ("T", "t")


def _state(pid: int) -> str:
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
