"""MXNet's own profiler, as windows drive it.

The profiler is one per process: once the training configures or starts it, it is the training's, and no
window is opened any more. The file's name must always be one of ours: `set_config` deletes the file it is
given.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Callable

from ...rundir import layout
from ..framework_probe import Trace
from ..process import Process

_DOMAIN = "perfscope"
_SCRATCH = "mxnet-profile.json"
MARK_THREAD = "perfscope.thread:"  # + thread id : number of CPU devices; on the thread that trains
MARK_COMM = "perfscope.comm:"  # + collective:group:size:in_bytes:out_bytes:dtype:calls, of the step it is in


class MxnetTrace(Trace):
    """Switches the profiler on and off.

    Args:
        process: whose rank directory holds what the profiler writes.
        cut: ends the open window; called when the training turns to the profiler.

    Attributes:
        running: a trace of ours is being taken.
    """

    suffix = layout.MXNET

    def __init__(self, process: Process, cut: Callable[[], None]) -> None:
        self._process = process
        self._cut = cut
        self._taken = os.environ.get("MXNET_PROFILER_AUTOSTART", "0") not in ("", "0")
        self._domain: Any = None
        self.running = False

    def install(self, profiler: Any) -> None:
        """Look at what the training asks of the profiler."""
        self._profiler = profiler
        self._set_config, self._set_state = profiler.set_config, profiler.set_state
        trace = self

        def set_config(**kwargs: Any) -> Any:
            trace._taken_over(configured=True)
            return trace._set_config(**kwargs)

        def set_state(state: str = "stop", profile_process: str = "worker") -> Any:
            if state == "run" and profile_process == "worker":
                trace._taken_over(configured=False)
            return trace._set_state(state, profile_process)

        set_config.__doc__, set_state.__doc__ = profiler.set_config.__doc__, profiler.set_state.__doc__
        profiler.set_config, profiler.set_state = set_config, set_state

    def _taken_over(self, configured: bool) -> None:
        self._cut()
        if not (configured or self._taken) and self._domain is not None:
            # MXNet's own settings, which our windows have replaced.
            self._set_config(filename="profile.json", continuous_dump=False)
        self._taken = True

    # -- as windows call it -----------------------------------------------------------------------------

    def start(self) -> bool:
        if self._taken or self._process.recorder is None:
            return False
        if self._domain is None:
            self._domain = self._profiler.Domain(_DOMAIN)
        # aggregate_stats, or the engine runs many operators as one `ImperativeBulk`.
        self._configure(self._scratch(), aggregate_stats=True, profile_memory=False)
        self._set_state("run")
        self.running = True
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self.tell("%s%d:%d" % (MARK_THREAD, threading.get_native_id(), cpus or 1))
        return True

    def stop(self, path: str) -> bool:
        if not self.running:
            return False
        self.running = False
        try:
            self._set_state("stop")
            self._configure(path, aggregate_stats=True, profile_memory=False)
            self._profiler.dump(True)
        finally:
            self._restore()
        return os.path.exists(path)

    def abandon(self) -> None:
        if self.running:
            self.running = False
            self._set_state("stop")
            self._profiler.dump(True)  # into the scratch file: what is left would be written at exit
            self._restore()

    def new_mark(self, name: str) -> Any:
        return _Mark(self._profiler.Task(self._domain, name))

    def tell(self, text: str) -> None:
        """Leave a text of up to 127 characters in the trace, at this moment on this thread."""
        with self.new_mark(text):
            pass

    def forget(self) -> None:
        """This is a forked child: the parent's profiler is none of ours."""
        self.running = False
        self._domain = None

    # -- inside -----------------------------------------------------------------------------------------

    def _configure(self, filename: str, **more: Any) -> None:
        # Not profile_api: three records for every call into the library, most of them questions about shapes.
        wanted = {"profile_symbolic": True, "profile_imperative": True, "profile_api": False}
        self._set_config(filename=filename, continuous_dump=False, **wanted, **more)

    def _restore(self) -> None:
        scratch = self._scratch()
        self._configure(scratch, profile_memory=True)  # frees the statistics
        if os.path.exists(scratch):
            os.unlink(scratch)

    def _scratch(self) -> str:
        recorder = self._process.recorder
        assert recorder is not None
        folder = os.path.join(recorder.path, layout.WINDOWS)
        os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, _SCRATCH)


class _Mark:
    """A span of our domain in the trace."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def __enter__(self) -> None:
        self._task.start()

    def __exit__(self, *exc: object) -> None:
        self._task.stop()


def profiler_of(mxnet: Any) -> Any:
    """MXNet's profiler module; None where this MXNet has another kind of it."""
    profiler = getattr(mxnet, "profiler", None) or sys.modules.get("mxnet.profiler")
    wanted = ("set_config", "set_state", "dump", "Domain", "Task")
    return profiler if all(hasattr(profiler, name) for name in wanted) else None
