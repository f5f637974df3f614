"""Counters of one thread: `perf_event_open(2)`, schedstat of /proc, or getrusage where that is all.

Software events (faults, switches, migrations, CPU time) are one group, hardware events another, so that a
reading is one system call per group. A hardware group that shares the PMU with others counts only part of the
time; both times are in each reading. Where the kernel's own events may not be counted
(`perf_event_paranoid` 2 and above), software events come from getrusage, because perf would leave out what
happens inside system calls, and hardware events are those of user space alone.

Descriptors of perf events all have the same device and inode, so a descriptor is asked for its event's id
before each read: a training may have closed it, and opened something else under its number.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import resource
import struct
import sys
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..vocabulary.causes import Cause
from ..vocabulary.layer_counters import HARDWARE, HARDWARE_ENABLED, HARDWARE_RUNNING, LayerCounter
from .files import out_of_the_way

_SYSCALLS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "s390x": 331}  # of perf_event_open
_GET_ID = 0x80082407  # PERF_EVENT_IOC_ID = _IOR('$', 7, u64): the same on these machines
_ENABLE = 0x2400  # PERF_EVENT_IOC_ENABLE = _IO('$', 0)
_DISABLED = 1  # the bit disabled
_HARDWARE, _SOFTWARE = 0, 1  # PERF_TYPE_*
_READ_FORMAT = 1 | 2 | 8  # TOTAL_TIME_ENABLED, TOTAL_TIME_RUNNING, GROUP
_EXCLUDE_KERNEL = (1 << 5) | (1 << 6)  # the bits exclude_kernel and exclude_hv
_CLOSE_ON_EXEC = 8  # PERF_FLAG_FD_CLOEXEC
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")  # perf_event_attr up to bp_addr: PERF_ATTR_SIZE_VER0, 64 bytes
_CONFIG = {  # PERF_COUNT_SW_* and PERF_COUNT_HW_* of linux/perf_event.h
    LayerCounter.TASK_CLOCK: 1,
    LayerCounter.MINOR_FAULTS: 5,
    LayerCounter.MAJOR_FAULTS: 6,
    LayerCounter.CONTEXT_SWITCHES: 3,
    LayerCounter.CPU_MIGRATIONS: 4,
    LayerCounter.INSTRUCTIONS: 1,
    LayerCounter.CYCLES: 0,
    LayerCounter.LLC_MISSES: 3,
}
SOFTWARE = tuple(counter for counter in _CONFIG if counter not in HARDWARE)
_CAUSES = {
    errno.EACCES: Cause.NOT_PERMITTED,
    errno.EPERM: Cause.NOT_PERMITTED,  # also what seccomp filters of containers answer
    errno.ENOSYS: Cause.NOT_IN_KERNEL,
    errno.EMFILE: Cause.NO_DESCRIPTORS,
    errno.ENFILE: Cause.NO_DESCRIPTORS,
}


class Closed(OSError):
    """A descriptor is not the counter's any more."""


class Reason(NamedTuple):
    """Why a counter is missing; `detail` is the kernel's word for it."""

    cause: Cause
    detail: str


_NONE = Reason(Cause.NO_PMU, "")


def reason_of(error: OSError) -> Reason:
    """In which way the kernel refuses a counter; a PMU without the event answers in several."""
    return Reason(_CAUSES.get(error.errno or 0, Cause.NO_PMU), os.strerror(error.errno or 0))


class Kernel:
    """The system calls; a test puts its own in their place. All raise OSError."""

    def open(self, kind: int, config: int, group: int, user_only: bool) -> int:
        """Descriptor of a counter of the calling thread; `group`: its leader's descriptor, -1: it leads one.

        A leader does not count before `enable`: members that join one that counts may themselves start only
        with the thread's next context switch (seen on Linux 6.18).
        """
        number = _SYSCALLS.get(platform.machine())
        if number is None or sys.platform != "linux":
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        import ctypes  # not at the top: processes that never trace need it not

        libc = ctypes.CDLL(None, use_errno=True)
        flags = (_EXCLUDE_KERNEL if user_only else 0) | (_DISABLED if group < 0 else 0)
        attributes = ctypes.create_string_buffer(
            _ATTRIBUTES.pack(kind, _ATTRIBUTES.size, config, 0, 0, _READ_FORMAT, flags, 0, 0, 0),
            _ATTRIBUTES.size,
        )
        descriptor: int = libc.syscall(
            ctypes.c_long(number), attributes, 0, -1, group, ctypes.c_ulong(_CLOSE_ON_EXEC)
        )
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return out_of_the_way(descriptor)

    def enable(self, leader: int) -> None:
        """The group of this leader counts from now on."""
        fcntl.ioctl(leader, _ENABLE, 0)

    def event_id(self, descriptor: int) -> bytes:
        """Of the event behind a descriptor; ENOTTY or EBADF where there is none."""
        return fcntl.ioctl(descriptor, _GET_ID, b"\0" * 8)

    def read(self, descriptor: int, size: int) -> bytes:
        return os.read(descriptor, size)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)


class Group:
    """Events that are read together.

    Args:
        kernel: the system calls.
        kind: PERF_TYPE_*.
        counters: wanted; those that cannot be opened are left out, the reasons are in `refused`.
        user_only: leave out what the kernel does for the thread.

    Raises:
        OSError: none can be opened, or there are too few descriptors.
    """

    def __init__(
        self, kernel: Kernel, kind: int, counters: Sequence[LayerCounter], *, user_only: bool
    ) -> None:
        self._kernel = kernel
        self._events: List[Tuple[int, bytes]] = []  # descriptor, id; the leader first
        self.counters: List[LayerCounter] = []
        self.refused: Dict[LayerCounter, Reason] = {}
        self.user_only = user_only
        error: Optional[OSError] = None
        for counter in counters:
            leader = self._events[0][0] if self._events else -1
            try:
                descriptor = kernel.open(kind, _CONFIG[counter], leader, user_only)
                self._events.append((descriptor, self._id_of(descriptor)))
            except OSError as refusal:
                error = refusal
                self.refused[counter] = reason_of(refusal)
                if refusal.errno in (errno.EMFILE, errno.ENFILE):
                    break
            else:
                self.counters.append(counter)
        if error is not None and (not self._events or error.errno in (errno.EMFILE, errno.ENFILE)):
            self.close()
            raise error
        kernel.enable(self._events[0][0])
        self._form = struct.Struct("=%dQ" % (3 + len(self._events)))

    def _id_of(self, descriptor: int) -> bytes:
        try:
            return self._kernel.event_id(descriptor)
        except OSError:
            self._kernel.close(descriptor)
            raise

    def read(self) -> bytes:
        """A reading for `decode`.

        Raises:
            Closed: the training has closed the descriptor.
        """
        leader, identity = self._events[0]
        try:
            if self._kernel.event_id(leader) != identity:
                raise Closed(errno.EBADF, "closed")
            data = self._kernel.read(leader, self._form.size)
        except OSError as error:
            raise Closed(error.errno, "closed") from None
        if len(data) != self._form.size:  # a group in an error state reads as 0 bytes
            raise Closed(errno.EBADF, "closed")
        return data

    def decode(self, data: bytes) -> Tuple[int, int, Tuple[int, ...]]:
        """Time enabled and time running, ns, and the values in order of `counters`."""
        _, enabled, running, *values = self._form.unpack(data)
        return enabled, running, tuple(values)

    def close(self) -> None:
        """Give up what is still ours."""
        events, self._events = self._events, []
        for descriptor, identity in reversed(events):
            self._close(descriptor, identity)

    def _close(self, descriptor: int, identity: bytes) -> None:
        try:
            if self._kernel.event_id(descriptor) == identity:
                self._kernel.close(descriptor)
        except OSError:  # closed by the training
            return


class ThreadCounters:
    """All counters of the calling thread that this machine gives.

    Attributes:
        columns: of `decode`.
        refused: counter -> why it is missing.
        user_only: the hardware counters leave out what the kernel does for the thread.
        software_source: "perf_event_open", or "getrusage".
    """

    def __init__(self, kernel: Optional[Kernel] = None) -> None:
        kernel = kernel or Kernel()
        self.refused: Dict[LayerCounter, Reason] = {}
        self._schedstat = -1
        self._run_queue_wait = b"0 0 0"
        self._last_switches: Any = None
        self._software = self._group(kernel, _SOFTWARE, SOFTWARE, user_only=False)
        self._hardware = self._group(kernel, _HARDWARE, HARDWARE, user_only=False)
        if any(self.refused.get(counter, _NONE).cause is Cause.NOT_PERMITTED for counter in HARDWARE):
            self._hardware = self._group(kernel, _HARDWARE, HARDWARE, user_only=True)
        self.user_only = self._hardware is not None and self._hardware.user_only
        self.software_source = "perf_event_open" if self._software else "getrusage"
        software = list(self._software.counters if self._software else _RUSAGE)
        for counter in software:
            self.refused.pop(counter, None)
        self._switches = self._place_of_switches(software)
        self._open_schedstat()
        self.columns: List[str] = [
            *(counter.value for counter in software),
            *([LayerCounter.RUN_QUEUE_WAIT.value] if self._schedstat >= 0 else ()),
            *(counter.value for counter in (self._hardware.counters if self._hardware else ())),
            *((HARDWARE_ENABLED, HARDWARE_RUNNING) if self._hardware else ()),
        ]

    def _group(
        self, kernel: Kernel, kind: int, counters: Sequence[LayerCounter], *, user_only: bool
    ) -> Optional[Group]:
        try:
            group = Group(kernel, kind, counters, user_only=user_only)
        except OSError as error:
            self.refused.update(dict.fromkeys(counters, reason_of(error)))
            return None
        for counter in counters:
            self.refused.pop(counter, None)
        self.refused.update(group.refused)
        return group

    def _place_of_switches(self, software: List[LayerCounter]) -> Any:
        """Where a reading has the context switches: bytes of a group, an item of getrusage's."""
        if LayerCounter.CONTEXT_SWITCHES not in software:
            return None
        at = software.index(LayerCounter.CONTEXT_SWITCHES)
        return slice(8 * (3 + at), 8 * (4 + at)) if self._software else at

    def _open_schedstat(self) -> None:
        try:
            with open("/proc/self/task/%d/schedstat" % threading.get_native_id(), "rb") as file:
                self._schedstat = out_of_the_way(os.dup(file.fileno()))
            self._identity = os.fstat(self._schedstat)[1:3]
            self._run_queue_wait = os.pread(self._schedstat, 96, 0)
        except OSError as error:
            self.refused[LayerCounter.RUN_QUEUE_WAIT] = reason_of(error)._replace(
                cause=_CAUSES.get(error.errno or 0, Cause.NOT_IN_KERNEL)
            )

    def read(self) -> Tuple[Any, bytes, bytes]:
        """A reading for `decode`.

        Raises:
            Closed: the training has closed a descriptor.
        """
        software = self._software.read() if self._software else _rusage()
        hardware = self._hardware.read() if self._hardware else b""
        switches = software[self._switches] if self._switches is not None else None
        if self._schedstat >= 0 and (switches is None or switches != self._last_switches):
            # Time in the queue ends with a context switch: without one there is nothing new.
            self._last_switches = switches
            try:
                self._run_queue_wait = os.pread(self._schedstat, 96, 0)  # takes nothing from pipes or sockets
            except OSError as error:
                raise Closed(error.errno, "closed") from None
        return software, hardware, self._run_queue_wait

    def decode(self, reading: Tuple[Any, bytes, bytes]) -> List[int]:
        """Values since the counters were opened (of the thread's life: getrusage), by `columns`.

        Raises:
            ValueError: the reading is of something else.
        """
        software, hardware, schedstat = reading
        values = list(self._software.decode(software)[2] if self._software else software)
        if self._schedstat >= 0:
            values.append(int(schedstat.split()[1]))
        if self._hardware:
            enabled, running, counts = self._hardware.decode(hardware)
            values += [*counts, enabled, running]
        return values

    def close(self) -> None:
        """Give up what is still ours; in a forked child, its copies."""
        for group in (self._hardware, self._software):
            if group is not None:
                group.close()
        descriptor, self._schedstat = self._schedstat, -1
        try:
            if descriptor >= 0 and os.fstat(descriptor)[1:3] == self._identity:
                os.close(descriptor)
        except OSError:  # closed by the training
            return


_RUSAGE = (
    (
        LayerCounter.TASK_CLOCK,
        LayerCounter.MINOR_FAULTS,
        LayerCounter.MAJOR_FAULTS,
        LayerCounter.CONTEXT_SWITCHES,
    )
    if hasattr(resource, "RUSAGE_THREAD")
    else ()
)


def _rusage() -> Tuple[int, ...]:
    if not _RUSAGE:
        return ()
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return time.thread_time_ns(), usage.ru_minflt, usage.ru_majflt, usage.ru_nvcsw + usage.ru_nivcsw
