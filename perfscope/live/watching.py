"""The thread of `perfscope run` that watches its run: it notices hangs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from perfscope.analysis.live import RunWatch
from perfscope.live.hangs import HangWatch
from perfscope.live.options import WatchOptions
from perfscope.rundir import layout

_LONGEST_LOOK_S = 5.0
_NICE = 10


def watch_run(
    host_dir: Path, over: threading.Event, options: WatchOptions, say: Callable[[str], None]
) -> None:
    """Watch the run until `over` is set. Never raises: what cannot be watched is not.

    Args:
        host_dir: hosts/<host> of this host in the run.
        over: the command has ended.
        options: what to watch.
        say: prints one line for the user.
    """
    with suppress(OSError):  # behind the training, where CPUs are few
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    floor_s = options.hang_after_s
    if floor_s is None:
        return
    watch = RunWatch(str(host_dir.parent.parent), floor_s, lambda host: _is_ours(host_dir, host))
    hangs = HangWatch(watch, host_dir, say)
    interval_s = min(_LONGEST_LOOK_S, floor_s / 10)
    looked_s = time.time()
    while not over.wait(interval_s):
        now_s = time.time()
        if not 0 <= now_s - looked_s < 3 * interval_s + 1:  # stopped (Ctrl-Z), asleep, or the clock was set
            watch.forgive(now_s)
        looked_s = now_s
        with suppress(OSError):  # a full disk: it is tried again, and said once it can be written
            hangs.look(watch.look(now_s, with_hosts=False), now_s)


def _is_ours(host_dir: Path, host: str) -> bool:
    """Whether this process watches a host's ranks: no `perfscope run` of their own host does."""
    if host == host_dir.name:
        return True
    return not (host_dir.parent / host.replace("/", "_") / layout.WATCHER).exists()
