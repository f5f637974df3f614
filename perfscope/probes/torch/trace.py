"""torch's own profiler (Kineto), driven at the level that costs least.

`torch.profiler.profile.start()` imports the compiler stack on first use (measured: 1.6 s inside the
training step), and `events()` builds Python objects for every operator (10x a step). Neither is
needed to get the trace: the autograd profiler starts in under a millisecond and Kineto writes its
JSON from C++.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from typing import Any, Callable, Dict, Optional

from ...rundir import layout
from ..files import check_process_name, check_writable
from ..frames import around
from ..framework_probe import Trace
from ..ranks import identify
from .c_stderr import without_cerr, without_line

_IMPORTER = threading.get_ident()  # this is imported with torch
# Shapes of operators' inputs are almost half of what a traced step costs more. In a process that does not
# communicate they serve FLOPs and bytes alone, which few windows tell as well; elsewhere they size calls.
_SHAPES_EVERY = 4  # windows
_KINETO_LINE = b"External init callback must run in same thread"


def profiler_busy() -> bool:
    """True when a session is open: of this thread, or begun in Python by any."""
    torch = sys.modules["torch"]
    begun = getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
    return bool(begun or torch._C._autograd._profiler_enabled())


class TorchTrace(Trace):
    """Start, stop and save Kineto; one instance per process.

    A session is its thread's: stopped in another one, or open when its thread ends, it crashes the process.
    So outside the main thread all threads are traced, as one session of the process; and a session of the
    main thread that is to end while another thread trains stays open, unused, until the main thread comes by.
    """

    suffix = layout.KINETO
    _initialized = False

    def __init__(self, allocations: bool = False) -> None:
        """`allocations`: whether the allocator's events are recorded, too."""
        self._allocations = allocations
        self._profile: Optional[Any] = None
        self._thread: Optional[int] = None  # the only one that may stop the session; None: any
        self._device: Optional[str] = None  # whose kernels the session records
        self._left: Optional[int] = None  # the thread that has an unused session to stop
        self._used_by: Optional[int] = None  # pid
        self._starting = False
        self._yields = False
        self._num_sessions = 0
        torch = sys.modules["torch"]
        fast = getattr(torch._C._profiler, "_RecordFunctionFast", None)
        self.mark_type = fast if fast is not None else torch.autograd.profiler.record_function

    def new_mark(self, name: str) -> Any:
        return self.mark_type(name)

    def start(self) -> bool:
        """Begin a trace of CPU and, where there is one in use, GPU activity.

        Returns:
            False when the training itself holds the profiler, or this thread's sessions would not be safe.
        """
        self.come_by()
        if self._left is not None or profiler_busy():
            return False
        torch = sys.modules["torch"]
        device = "cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else None
        profiler = torch.autograd.profiler
        shapes = _has_peers() or self._num_sessions % _SHAPES_EVERY == 0
        options: Dict[str, Any] = {
            "record_shapes": shapes,
            "profile_memory": self._allocations,
            "use_kineto": True,
        }
        self._device = device
        self._thread = threading.get_ident()
        if self._thread != threading.main_thread().ident:
            try:
                config = torch._C._profiler._ExperimentalConfig
                options["experimental_config"] = config(profile_all_threads=True)
            except (AttributeError, TypeError):
                return False  # this torch has no such sessions
            self._thread = None
        try:
            profile = profiler.profile(use_cpu=True, use_device=device, **options)
        except TypeError:  # torch < 2.2 names the device by a flag
            profile = profiler.profile(use_cuda=device is not None, **options)
        self._starting = True
        self._used_by = os.getpid()
        try:
            self._prepare(profile)
            profile._start_trace()
        finally:
            self._starting = False
        self._profile = profile
        self._num_sessions += 1
        self._describe(torch, shapes)
        return True

    @staticmethod
    def _prepare(profile: Any) -> None:
        """Kineto wants to be initialized by the thread that imported torch, and says so where it is not. It
        records all the same; at import would be too early (CUDA's own libraries would be loaded by it).
        """
        if TorchTrace._initialized or threading.get_ident() == _IMPORTER:
            profile._prepare_trace()
        else:
            with without_line(_KINETO_LINE):
                profile._prepare_trace()
        TorchTrace._initialized = True

    @staticmethod
    def _describe(torch: Any, shapes: bool) -> None:
        add = getattr(torch.autograd, "_add_metadata_json", None)
        if add is None:
            return
        add("record_shapes", str(int(shapes)))
        dist = torch.distributed
        if dist.is_available() and dist.is_initialized():
            info = {
                "backend": dist.get_backend(),
                "rank": dist.get_rank(),
                "world_size": dist.get_world_size(),
            }
            groups = getattr(dist.distributed_c10d, "_get_all_pg_configs", None)
            if groups is not None:
                info["pg_config"] = groups()
                info["pg_count"] = len(info["pg_config"])
            add("distributedInfo", json.dumps(info))

    def yield_to_training(self, step_aside: Callable[[], None]) -> None:
        """From now on call `step_aside` before the training starts a profiler of its own.

        There is one profiler session in a process: the one who ends it second gets nothing, or crashes.
        """
        if self._yields:
            return
        self._yields = True
        kind = sys.modules["torch"].autograd.profiler.profile
        original = kind._prepare_trace

        @around(original)
        def _prepare_trace(profile: Any, *args: Any, **kwargs: Any) -> Any:
            if self._profile is not None and not self._starting:
                step_aside()
            return original(profile, *args, **kwargs)

        kind._prepare_trace = _prepare_trace

    def stop(self, path: str) -> bool:
        """End the trace and write it to `path` as Chrome JSON.

        Returns:
            False when the session is gone: the training has ended it, and there is nothing to write.

        Raises:
            OSError: the file could not be written, or not whole; or the session is another thread's.
        """
        if not self._is_here():
            if self._left is not None:
                raise OSError(errno.EPERM, "the training went on in another thread")
            return False
        try:
            check_writable(path)  # Kineto complains on stderr where it cannot open a file
        except OSError:
            self.abandon()
            raise
        profile, self._profile = self._profile, None
        torch = sys.modules["torch"]
        if getattr(profile, "use_device", None) == "cuda" or getattr(profile, "use_cuda", False):
            torch.cuda.synchronize()  # or the last kernels are missing from the trace
        _disabled().save(path)
        _check_whole(path)
        return True

    def sees(self, device: str) -> bool:
        """Whether the session records what the calling thread has done on a device of this type.

        Kernels are recorded for every thread, operators only of the session's thread and of those that work
        for it.
        """
        return (
            self._thread is None
            or device == self._device
            or bool(sys.modules["torch"]._C._autograd._profiler_enabled())
        )

    def abandon(self) -> None:
        """Switch the profiler off and throw the trace away: the probe is being disabled."""
        if self._is_here():
            self._profile = None
            _disabled()

    def _is_here(self) -> bool:
        """Whether there is a session that this thread may stop. One that it may not is left to its thread."""
        if self._profile is None:
            return False
        if self._thread not in (None, threading.get_ident()):
            self._profile, self._left = None, self._thread
        elif not profiler_busy():
            self._profile = None
        return self._profile is not None

    def come_by(self) -> None:
        """If this is the thread whose session was left, end that."""
        if self._left is not None and self._left == threading.get_ident():
            self._left = None
            if profiler_busy():
                _disabled()

    def forget(self) -> None:
        """In a forked child: the session is the parent's."""
        self._profile = self._left = None
        if self._used_by not in (None, os.getpid()):
            _exit_without_destructors()


def _has_peers() -> bool:
    """Whether this process communicates, by torch or by what started it."""
    identity = identify()
    return identity.source == "torch.distributed" or (identity.world_size or 1) > 1


def _check_whole(path: str) -> None:
    """Kineto does not tell when it could not write: its file is whole if the JSON is closed."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 64))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(errno.EIO, "its trace could not be written whole")


def _disabled() -> Any:
    """The results of the profiler, which is off then. Kineto reads the process's name for them, and complains
    where a full table of descriptors or a root directory without /proc forbids it.
    """
    autograd = sys.modules["torch"].autograd
    disable = autograd._disable_profiler
    try:
        check_process_name()
    except OSError:
        with without_cerr():
            results = disable()
    else:
        results = disable()
    if hasattr(autograd.profiler, "_run_on_profiler_stop"):
        autograd.profiler._run_on_profiler_stop()  # else compiled code would go on to mark what it runs
    return results


def _exit_without_destructors() -> None:
    """When this forked child exits, leave once Python is done and C's streams are flushed; keep the status.

    Kineto keeps threads. A child has none of them, but it has their owners: when it exits, their destructors
    wait for the threads without end, or abort the process. Handlers that are registered from now on still
    run. Does nothing where the C library has no `on_exit`.
    """
    import ctypes  # not at the top: few trainings fork

    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit") and hasattr(libc, "__cxa_atexit"):
        libc.on_exit(libc._exit, None)  # glibc hands the status on
        libc["__cxa_atexit"](libc.fflush, None, None)
