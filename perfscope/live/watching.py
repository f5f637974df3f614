"""The thread of `perfscope run` that watches its run: hangs, a line now and then, a file of metrics."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from perfscope.analysis.live import LiveRun, RunWatch
from perfscope.live.hangs import HangWatch
from perfscope.live.options import WatchOptions
from perfscope.reports.display import visible
from perfscope.rundir import layout
from perfscope.rundir.files import replacing

_LONGEST_LOOK_S = 5.0
_NICE = 10
_LONGEST = 2000  # characters of a line
_NEVER = float("inf")


def watch_run(
    host_dir: Path, over: threading.Event, options: WatchOptions, say: Callable[[str], None]
) -> None:
    """Watch the run until `over` is set.

    Args:
        host_dir: hosts/<host> of this host in the run.
        over: the command has ended.
        options: what to watch.
        say: prints one line for the user.
    """
    with suppress(OSError):  # behind the training, where CPUs are few
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    if not options.is_needed:
        return
    mark = host_dir / layout.WATCHING
    with suppress(OSError):  # a full disk: the others watch our ranks, too
        mark.touch()
    try:
        _Watching(host_dir, options, say).go_on(over)
    finally:
        with suppress(OSError):
            mark.unlink()


class _Watching:
    """What is watched of one run."""

    def __init__(self, host_dir: Path, options: WatchOptions, say: Callable[[str], None]) -> None:
        floor_s = options.hang_after_s or _NEVER
        self._host_dir, self._options = host_dir, options
        self._say: Callable[[str], None] = lambda text: say(visible(text, _LONGEST))
        self._floor_s = floor_s
        self._watch: RunWatch | None = None
        self._hangs: HangWatch | None = None
        self._run: LiveRun | None = None  # as it was in the latest look
        self._line = _Due(options.live_every_s)
        self._metrics = _Due(options.metrics_every_s if options.metrics_file is not None else None)
        self._interval_s = min(
            _LONGEST_LOOK_S,
            floor_s / 10,
            options.live_every_s or _NEVER,
            options.metrics_every_s if options.metrics_file is not None else _NEVER,
        )
        self._said: set[str] = set()  # problems that were said

    def go_on(self, over: threading.Event) -> None:
        """Until the command has ended."""
        try:
            looked_s = time.time()
            while not over.wait(self._interval_s):
                now_s = time.time()
                gap_s = now_s - looked_s
                # Stopped (Ctrl-Z), asleep, or the clock was set.
                is_new = not 0 <= gap_s < 3 * self._interval_s + 1
                self._try(functools.partial(self._look, now_s, is_new=is_new))
                looked_s = time.time()  # a look may take long
        finally:
            if self._metrics.every_s is not None:
                self._try(self._look_at_the_end)
                if self._run is not None:
                    self._write(self._run, is_running=False)

    def _try(self, look: Callable[[], None]) -> None:
        """A look that fails is said once, and the next one is made."""
        try:
            look()
        except Exception as error:  # noqa: BLE001 - whatever it is, the training and the other looks go on
            self._say_once(f"the run could not be watched for a moment: {error or type(error).__name__}")

    def _say_once(self, problem: str) -> None:
        if problem not in self._said:
            self._said.add(problem)
            self._say(problem)

    def _opened(self) -> RunWatch:
        if self._watch is None:
            host_dir = self._host_dir
            self._watch = RunWatch(
                str(host_dir.parent.parent), self._floor_s, lambda host: _is_ours(host_dir, host)
            )
            self._hangs = HangWatch(self._watch, host_dir, self._say)
        return self._watch

    def _look_at_the_end(self) -> None:
        self._run = self._opened().look(time.time(), with_hosts=False)

    def _look(self, now_s: float, *, is_new: bool) -> None:
        is_line, is_metrics = self._line.is_due(now_s), self._metrics.is_due(now_s)
        watch = self._opened()
        if is_new:
            watch.forgive(now_s)
        self._run = run = watch.look(now_s, with_hosts=is_line or is_metrics)
        if run.unreadable:
            from perfscope.reports.live import unreadable_text

            self._say_once(unreadable_text(run.unreadable))
        if self._options.hang_after_s is not None:
            self._try(functools.partial(self._look_for_hangs, run, now_s))
        if is_line:
            from perfscope.reports.live import live_line

            self._say(live_line(run, now_s))
        if is_metrics:
            self._write(run, is_running=True)

    def _look_for_hangs(self, run: LiveRun, now_s: float) -> None:
        assert self._hangs is not None
        with suppress(OSError):  # a full disk: it is tried again, and said once it can be written
            self._hangs.look(run, now_s)

    def _write(self, run: LiveRun, *, is_running: bool) -> None:
        from perfscope.reports.live_metrics import render_metrics

        path = self._options.metrics_file
        assert path is not None
        text = render_metrics(run, Path(run.path).name, self._host_dir.name, is_running=is_running)
        try:
            with replacing(path) as file:
                file.write(text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            self._say_once(f"{path} cannot be written: {error.strerror or error}")


class _Due:
    """When something is to be done that is done every so many seconds; `every_s` None: never."""

    def __init__(self, every_s: float | None) -> None:
        self.every_s = every_s
        self._next_s: float | None = None

    def is_due(self, now_s: float) -> bool:
        if self.every_s is None:
            return False
        if self._next_s is None:
            self._next_s = now_s + self.every_s
        if now_s < self._next_s and self._next_s - now_s <= self.every_s:
            return False
        self._next_s = now_s + self.every_s
        return True


def _is_ours(host_dir: Path, host: str) -> bool:
    """Whether this process watches a host's ranks: no `perfscope run` of their own host does."""
    if host == host_dir.name:
        return True
    return not (host_dir.parent / host.replace("/", "_") / layout.WATCHING).exists()
