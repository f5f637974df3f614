"""TensorFlow's own profiler, one session for each window.

It writes `LOGDIR/plugins/profile/<time>/<host>.xplane.pb`, named by host: each rank has a log directory of
its own, and of its contents only that file is kept.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
import tempfile
from typing import Any, Callable, Optional

from ...rundir import layout
from ..frames import hidden
from ..framework_probe import Trace
from .stderr_filter import without_lines

_PROFILER = "tensorflow.python.profiler.profiler_v2"
# Files of TensorFlow that log a line at INFO for every session; the training's stderr is to stay as it was.
_CHATTER = (b"profiler_session.cc", b"/profiler/", b"profiler.cc", b"xplane", b"cupti")


class TensorFlowTrace(Trace):
    """Start, stop and save `tf.profiler.experimental`; one instance per process.

    Args:
        step_aside: called before the training starts the profiler itself while a window is open: there is one
            session in a process, and a second one is refused.
    """

    suffix = layout.TENSORFLOW

    def __init__(self, step_aside: Callable[[], None]) -> None:
        self._step_aside = step_aside
        self._logdir: Optional[str] = None
        self._undo: list = []

    def start(self) -> bool:
        """Begin a trace; False when the training itself is profiling."""
        module: Any = sys.modules[_PROFILER]
        if getattr(module, "_profiler", None) is not None:
            return False
        start = module.start
        logdir = tempfile.mkdtemp(prefix="perfscope-tf-")
        try:
            with without_lines(_CHATTER):
                start(logdir)
        except Exception as error:
            shutil.rmtree(logdir, ignore_errors=True)
            if (
                type(error).__name__ == "AlreadyExistsError"
            ):  # a session of C++: the profiler's server, or JAX
                module._profiler = None
                return False
            raise
        self._logdir = logdir
        self._watch(module, start)
        return True

    def _watch(self, module: Any, start: Callable[..., Any]) -> None:
        """While the window is open, step aside before the training starts a session of its own."""

        @hidden
        def start_of_training(*args: Any, **kwargs: Any) -> Any:
            if self._logdir is not None:
                self._step_aside()
            return start(*args, **kwargs)

        public = sys.modules["tensorflow"].profiler.experimental
        for owner in (module, public):
            if getattr(owner, "start", None) is start:
                owner.start = start_of_training
                self._undo.append(lambda owner=owner: setattr(owner, "start", start))

    def _unwatch(self) -> None:
        undo, self._undo = self._undo, []
        for restore in undo:
            restore()

    def stop(self, path: str) -> bool:
        """End the trace and move it to `path`; False when the training has ended it."""
        logdir, self._logdir = self._logdir, None
        self._unwatch()
        if logdir is None:
            return False
        try:
            module: Any = sys.modules[_PROFILER]
            if getattr(module, "_profiler", None) is None:
                return False
            with without_lines(_CHATTER):
                module.stop()
            files = glob.glob(os.path.join(logdir, "**", "*.xplane.pb"), recursive=True)
            if not files:
                return False
            shutil.move(max(files, key=os.path.getsize), path)
            return True
        finally:
            shutil.rmtree(logdir, ignore_errors=True)

    def abandon(self) -> None:
        """Switch the profiler off and throw its trace away."""
        logdir, self._logdir = self._logdir, None
        self._unwatch()
        if logdir is None:
            return
        shutil.rmtree(logdir, ignore_errors=True)
        module: Any = sys.modules[_PROFILER]
        if getattr(module, "_profiler", None) is not None:
            with without_lines(_CHATTER):
                module.stop(save=False)

    def forget(self) -> None:
        """In a forked child: the session and its directory are the parent's."""
        self._logdir = None
        self._unwatch()

    def new_mark(self, name: str) -> Any:
        """A context manager that puts a span of this name into the trace."""
        return sys.modules["tensorflow"].profiler.experimental.Trace(name)
