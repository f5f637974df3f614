"""Keeps known lines of C and C++ libraries out of the training's stderr, and touches no descriptor for it."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Iterator


@contextlib.contextmanager
def without_line(mark: bytes) -> Iterator[None]:
    """Meanwhile C's `stderr` is a stream in memory; in the end what was written to it follows, less the lines
    that hold `mark`.

    Descriptor 2 stays as it is, so that Python and C++ streams of other threads write where they always do.
    For calls of a millisecond, made once. Only with glibc, where `stderr` is a variable; elsewhere the line
    shows.
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    import ctypes  # not at the top: few trainings come here

    stderr = ctypes.c_void_p.in_dll(libc, "stderr")
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    libc.open_memstream.restype = ctypes.c_void_p
    memory = libc.open_memstream(ctypes.byref(text), ctypes.byref(size))
    if not memory:
        yield
        return
    before, stderr.value = stderr.value, memory
    try:
        yield
    finally:
        stderr.value = before
        # Never closed: another thread may have taken the stream just before and write to it just now.
        libc.fflush(ctypes.c_void_p(memory))
        data = ctypes.string_at(text.value, size.value) if text.value else b""
        remaining = b"".join(line for line in data.splitlines(True) if mark not in line)
        if remaining:
            libc.fwrite(
                remaining, ctypes.c_size_t(1), ctypes.c_size_t(len(remaining)), ctypes.c_void_p(before)
            )


@contextlib.contextmanager
def without_cerr() -> Iterator[None]:
    """Meanwhile C++'s `std::cerr` has no buffer: what any thread writes to it is lost.

    Only for a call that is known to complain there. Only with libstdc++; elsewhere the lines show.
    """
    import ctypes

    try:
        library = ctypes.CDLL("libstdc++.so.6")  # loaded with torch
        cerr = ctypes.c_void_p.in_dll(library, "_ZSt4cerr")
        exchange = library["_ZNSt9basic_iosIcSt11char_traitsIcEE5rdbufEPSt15basic_streambufIcS1_E"]
    except (OSError, ValueError, AttributeError):
        yield
        return
    exchange.restype, exchange.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_void_p)
    # Its base class `ios` is a virtual one: the offset stands before the table of virtual functions.
    offset = ctypes.c_ssize_t.from_address((cerr.value or 0) - 3 * ctypes.sizeof(ctypes.c_void_p)).value
    ios = ctypes.addressof(cerr) + offset
    before = exchange(ios, None)
    try:
        yield
    finally:
        exchange(ios, before)


def _glibc() -> Any:
    try:
        if not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return None
        import ctypes

        return ctypes.CDLL(None)
    except (ImportError, OSError, ValueError):  # another C library, or no ctypes
        return None
