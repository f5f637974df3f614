"""System calls that Python has no names for. A Context carries them, so that tests can replace them."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

# Numbers by machine; None elsewhere, which reads as "not here".
_NUMBERS = {
    "x86_64": {"perf_event_open": 298, "move_pages": 279},
    "aarch64": {"perf_event_open": 241, "move_pages": 239},
}


class Syscalls(Protocol):
    """Raises OSError with the kernel's errno; ENOSYS where there is no such call."""

    def perf_event_open(self, kind: int, config: int, cpu: int, *, config1: int = 0, config2: int = 0) -> int:
        """Open a counter for everything on `cpu` (pid -1). Gives a file descriptor whose reads are 24 bytes:
        value, time enabled, time running (u64 each)."""
        ...

    def move_pages(self, pid: int, addresses: Sequence[int]) -> list[int]:
        """The NUMA node of each page, or a negative errno (-14 not mapped, -2 not present)."""
        ...


@dataclass(frozen=True)
class _NotHere:
    def perf_event_open(self, kind: int, config: int, cpu: int, *, config1: int = 0, config2: int = 0) -> int:
        raise OSError(errno.ENOSYS, "a captured tree has no system calls")

    def move_pages(self, pid: int, addresses: Sequence[int]) -> list[int]:
        raise OSError(errno.ENOSYS, "a captured tree has no system calls")


def no_syscalls() -> Syscalls:
    """For captured trees."""
    return _NotHere()


class _PerfEventAttr(ctypes.Structure):
    """struct perf_event_attr up to config3 (PERF_ATTR_SIZE_VER8); linux/perf_event.h."""

    _fields_ = [
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_events", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("config1", ctypes.c_uint64),
        ("config2", ctypes.c_uint64),
        ("branch_sample_type", ctypes.c_uint64),
        ("sample_regs_user", ctypes.c_uint64),
        ("sample_stack_user", ctypes.c_uint32),
        ("clockid", ctypes.c_int32),
        ("sample_regs_intr", ctypes.c_uint64),
        ("aux_watermark", ctypes.c_uint32),
        ("sample_max_stack", ctypes.c_uint16),
        ("reserved_2", ctypes.c_uint16),
    ]


_ENABLED_AND_RUNNING = 3  # PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING
_FLAG_FD_CLOEXEC = 8


class _Linux:
    def __init__(self, numbers: dict[str, int]) -> None:
        self._numbers = numbers
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.syscall.restype = ctypes.c_long

    def _call(self, name: str, *arguments: object) -> int:
        result: int = self._libc.syscall(ctypes.c_long(self._numbers[name]), *arguments)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), name)
        return result

    def perf_event_open(self, kind: int, config: int, cpu: int, *, config1: int = 0, config2: int = 0) -> int:
        attr = _PerfEventAttr(
            type=kind,
            size=ctypes.sizeof(_PerfEventAttr),
            config=config,
            read_format=_ENABLED_AND_RUNNING,
            config1=config1,
            config2=config2,
        )
        return self._call(
            "perf_event_open",
            ctypes.byref(attr),
            ctypes.c_int(-1),
            ctypes.c_int(cpu),
            ctypes.c_int(-1),
            ctypes.c_ulong(_FLAG_FD_CLOEXEC),
        )

    def move_pages(self, pid: int, addresses: Sequence[int]) -> list[int]:
        count = len(addresses)
        pages, status = (ctypes.c_void_p * count)(*addresses), (ctypes.c_int * count)()
        self._call(
            "move_pages", ctypes.c_int(pid), ctypes.c_ulong(count), pages, None, status, ctypes.c_int(0)
        )
        return list(status)


def real_syscalls() -> Syscalls:
    """This machine's; "not here" on an architecture whose numbers are not known."""
    numbers = _NUMBERS.get(platform.machine())
    return (
        _Linux(numbers) if numbers and os.name == "posix" and os.uname().sysname == "Linux" else no_syscalls()
    )
