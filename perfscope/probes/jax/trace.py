"""JAX's own profiler, driven at the level that costs least.

`jax.profiler.stop_trace()` also makes a trace viewer's JSON of what it has: many times the work of the
profile itself. The session underneath hands over the XPlane profile as bytes, and nothing else is needed.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Optional

from ...rundir import layout
from ..files import write_whole
from ..frames import around
from ..framework_probe import Trace

HOST_LEVEL = 2  # XLA's thunks and transfers; 3 adds what only XLA's own authors want
MARK_DEVICES = "perfscope.devices:"  # + "device=process,..." (ingest/formats/jax.py)
MAX_DEVICES = 4096


def _profiler() -> Any:
    return sys.modules["jax._src.profiler"]


class JaxTrace(Trace):
    """Start, stop and save a profiler session of JAX; one instance per process.

    It needs no JaxProbe: what trains by JAX under another name (Keras) may use it.
    """

    suffix = layout.JAX

    def __init__(self) -> None:
        self._session: Optional[Any] = None

    @staticmethod
    def known() -> bool:
        """Whether this version of JAX has the session that is driven here."""
        profiler = sys.modules.get("jax._src.profiler")
        library = getattr(profiler, "_profiler", None)
        return (
            hasattr(getattr(library, "ProfilerSession", None), "stop")
            and hasattr(library, "ProfileOptions")
            and hasattr(getattr(profiler, "_profile_state", None), "profile_session")
        )

    def start(self) -> bool:
        """Begin a trace; False when the training itself is profiling, or no device is in use yet."""
        profiler = _profiler()
        bridge = sys.modules.get("jax._src.xla_bridge")
        if self._session is not None or profiler._profile_state.profile_session is not None:
            return False
        if not getattr(bridge, "_backends", None):
            return False  # asking would initialize one, perhaps before jax.distributed is
        library = profiler._profiler
        options = library.ProfileOptions()
        for name, level in (("python_tracer_level", 0), ("host_tracer_level", HOST_LEVEL)):
            if hasattr(options, name):
                setattr(options, name, level)
        self._session = library.ProfilerSession(options)
        self._mark_devices()
        return True

    def _mark_devices(self) -> None:
        """Which process has which device, as a mark in the trace: collectives name devices."""
        devices = sys.modules["jax"].devices()
        if len(devices) <= MAX_DEVICES:
            pairs = ",".join("%d=%d" % (device.id, device.process_index) for device in devices)
            with self.new_mark(MARK_DEVICES + pairs):
                pass

    def stop(self, path: str) -> bool:
        """End the trace and write it to `path`, an XSpace message.

        Returns:
            False when there is no session any more.

        Raises:
            OSError: the file cannot be written.
            TypeError: this version of JAX hands over something else than bytes.
        """
        session, self._session = self._session, None
        if session is None:
            return False
        data = session.stop()
        if not isinstance(data, bytes):
            raise TypeError("this JAX's profiler returns %s, not bytes" % type(data).__name__)
        write_whole(path, data)
        return True

    def abandon(self) -> None:
        """Switch the profiler off and throw the trace away."""
        session, self._session = self._session, None
        if session is not None:
            session.stop()

    def new_mark(self, name: str) -> Any:
        """A span of this name in the trace."""
        return _profiler().TraceAnnotation(name)

    def forget(self) -> None:
        """In a forked child: the session is the parent's."""
        self._session = None

    def yield_to_training(self, step_aside: Callable[[], None]) -> None:
        """From now on call `step_aside` before the training starts a profiler of its own.

        There is one session in a process: of two the second gets nothing.
        """
        profiler = _profiler()
        original = profiler.start_trace

        @around(original)
        def start_trace(*args: Any, **kwargs: Any) -> Any:
            if self._session is not None:
                step_aside()
            return original(*args, **kwargs)

        changed: Dict[str, Any] = {
            "jax._src.profiler": profiler,
            "jax.profiler": sys.modules.get("jax.profiler"),
        }
        for module in changed.values():
            if getattr(module, "start_trace", None) is original:
                module.start_trace = start_trace
