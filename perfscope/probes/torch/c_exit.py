"""A forked child that can exit although the profiler has run in its parent.

Kineto keeps threads. A child has none of them, but it has their owners. When it exits, their destructors wait
for the threads without end, or abort the process.
"""

from __future__ import annotations


def exit_without_destructors() -> None:
    """When this process exits, with whatever status, leave once Python is done and C's streams are flushed.

    Handlers that are registered from now on still run. Does nothing where the C library has no `on_exit`.
    """
    import ctypes  # not at the top: few trainings fork

    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit") and hasattr(libc, "__cxa_atexit"):
        libc.on_exit(libc._exit, None)  # glibc hands the status on
        libc["__cxa_atexit"](libc.fflush, None, None)
