"""Counters of a thread: against /proc and getrusage on this kernel, and against kernels that refuse."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfscope.collectors.syscalls import _PerfEventAttr
from perfscope.probes import perf_events
from perfscope.probes.perf_events import SOFTWARE, Closed, Kernel, ThreadCounters
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.layer_counters import HARDWARE, HARDWARE_ENABLED, HARDWARE_RUNNING, LayerCounter

PAGE = mmap.PAGESIZE


@pytest.fixture
def counters() -> Iterator[ThreadCounters]:
    opened = ThreadCounters()
    yield opened
    opened.close()


@pytest.fixture
def getrusage() -> Iterator[ThreadCounters]:
    opened = ThreadCounters(FakeKernel({True: errno.EACCES, False: errno.EACCES}))
    assert opened.software_source == "getrusage"
    yield opened
    opened.close()


@pytest.fixture(params=["kernel", "getrusage"])
def either(request: pytest.FixtureRequest) -> ThreadCounters:
    """The best source of this machine, and the one that is left where perf_event_open is forbidden."""
    found: ThreadCounters = request.getfixturevalue("counters" if request.param == "kernel" else "getrusage")
    return found


class Delta:
    """What was counted within the `with`, by counter."""

    def __init__(self, counters: ThreadCounters) -> None:
        self._counters = counters

    def __enter__(self) -> Delta:
        self._before = self._counters.decode(self._counters.read())
        return self

    def __exit__(self, *_: object) -> None:
        after = self._counters.decode(self._counters.read())
        deltas = (b - a for a, b in zip(self._before, after, strict=True))
        self.values = dict(zip(self._counters.columns, deltas, strict=True))

    def __getitem__(self, counter: LayerCounter) -> int:
        return self.values[counter.value]


def touch(pages: int) -> mmap.mmap:
    area = mmap.mmap(-1, pages * PAGE)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, pages * PAGE, PAGE):
        area[at] = 1
    return area


def test_new_pages_are_as_many_faults(either: ThreadCounters) -> None:
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    with Delta(either) as delta:
        area = touch(500)
    told = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    area.close()
    assert 500 <= delta[LayerCounter.MINOR_FAULTS] <= 520
    assert abs(delta[LayerCounter.MINOR_FAULTS] - told) <= 20


def switches_of_thread() -> int:
    lines = Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


def test_sleeps_are_context_switches(either: ThreadCounters) -> None:
    before = switches_of_thread()
    with Delta(either) as delta:
        for _ in range(5):
            time.sleep(0.001)
    told = switches_of_thread() - before
    assert 5 <= delta[LayerCounter.CONTEXT_SWITCHES] <= told


def test_cpu_time_and_queue_wait_are_those_of_proc(either: ThreadCounters) -> None:
    schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    waited, began = int(schedstat.read_text().split()[1]), time.monotonic_ns()
    with Delta(either) as delta:
        until = time.thread_time_ns() + 30_000_000
        while time.thread_time_ns() < until:
            pass
        time.sleep(0.001)  # a switch: what was waited for before is in schedstat
    # Not the thread's CPU time: unlike that clock, perf's counts interrupts and time stolen from the machine.
    passed = time.monotonic_ns() - began
    assert 29_700_000 <= delta[LayerCounter.TASK_CLOCK] <= passed
    told = int(schedstat.read_text().split()[1]) - waited
    assert 0 <= delta[LayerCounter.RUN_QUEUE_WAIT] <= told


def test_other_threads_are_not_counted(either: ThreadCounters) -> None:
    with Delta(either) as delta:
        worker = threading.Thread(target=touch, args=(800,))
        worker.start()
        worker.join()
    assert delta[LayerCounter.MINOR_FAULTS] < 200


def descriptors() -> set[int]:
    """Of this process; the one that lists them is closed again."""
    return {int(path.name) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


def test_descriptors_are_out_of_the_way_not_inherited_and_given_back() -> None:
    before = descriptors()
    counters = ThreadCounters()
    mine = descriptors() - before
    assert mine
    assert all(number >= 500 and not os.get_inheritable(number) for number in mine)
    counters.close()
    assert descriptors() == before


def needs_perf(counters: ThreadCounters) -> Any:
    if counters.software_source != "perf_event_open":
        pytest.skip("perf_event_open is not permitted here")
    return counters._software


def test_a_descriptor_that_became_a_pipe_is_neither_read_nor_closed(counters: ThreadCounters) -> None:
    leader = needs_perf(counters)._events[0][0]
    reading, writing = os.pipe()
    os.write(writing, b"the training's own")
    os.dup2(reading, leader)
    with pytest.raises(Closed):
        counters.read()
    counters.close()
    assert os.read(leader, 100) == b"the training's own"
    for descriptor in (leader, reading, writing):
        os.close(descriptor)


def test_a_training_that_closes_everything_ends_the_readings(counters: ThreadCounters) -> None:
    for descriptor, _ in needs_perf(counters)._events:
        os.close(descriptor)
    with pytest.raises(Closed):
        counters.read()


def test_where_there_are_no_descriptors_left_that_is_the_reason() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before) + 1, hard))
    holes = []
    try:
        with contextlib.suppress(OSError):
            while True:
                holes.append(os.dup(0))
        counters = ThreadCounters()
        refused = dict(counters.refused)
        counters.read()
        counters.close()
    finally:
        for descriptor in holes:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert refused[LayerCounter.RUN_QUEUE_WAIT].cause is Cause.NO_DESCRIPTORS
    assert refused[LayerCounter.CPU_MIGRATIONS].cause is Cause.NO_DESCRIPTORS
    assert LayerCounter.MINOR_FAULTS not in refused  # getrusage needs none
    assert descriptors() == before


def test_the_structure_is_that_of_the_kernels_header() -> None:
    """The head of `struct perf_event_attr`, written down twice: here as the collectors know it."""
    values = {"type": 1, "size": 64, "config": 2, "read_format": 11, "flags": 0x60}
    packed = perf_events._ATTRIBUTES.pack(1, 64, 2, 0, 0, 11, 0x60, 0, 0, 0)
    assert len(packed) == 64 == _PerfEventAttr.config2.offset  # PERF_ATTR_SIZE_VER0 ends with config1
    assert packed == bytes(_PerfEventAttr(**values))[:64]


class FakeKernel(Kernel):
    """Descriptors of events that count as told.

    Args:
        refuse: `user_only` -> errno with which events of either mode are refused.
        absent: configurations of hardware events that the PMU lacks.
    """

    def __init__(self, refuse: dict[bool, int] | None = None, absent: tuple[int, ...] = ()) -> None:
        self.refuse, self.absent = refuse or {}, absent
        self.events: dict[int, tuple[int, int, int]] = {}  # descriptor -> kind, config, leader
        self.modes: dict[int, bool] = {}
        self.values: dict[tuple[int, int], int] = {}
        self.times = (1000, 1000)
        self.closed: list[int] = []
        self.enabled: set[int] = set()

    def open(self, kind: int, config: int, group: int, user_only: bool) -> int:
        if user_only in self.refuse:
            raise OSError(self.refuse[user_only], os.strerror(self.refuse[user_only]))
        if kind == 0 and config in self.absent:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        number = 9000 + len(self.events)
        self.events[number] = (kind, config, group)
        self.modes[number] = user_only
        return number

    def enable(self, leader: int) -> None:
        self.enabled.add(leader)

    def event_id(self, descriptor: int) -> bytes:
        if descriptor in self.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return struct.pack("=Q", descriptor)

    def read(self, descriptor: int, size: int) -> bytes:
        members = [
            self.events[number][:2]
            for number in self.events
            if number == descriptor or self.events[number][2] == descriptor
        ]
        data = struct.pack("=3Q", len(members), *self.times)
        return data + b"".join(struct.pack("=Q", self.values.get(member, 0)) for member in members)

    def close(self, descriptor: int) -> None:
        self.closed.append(descriptor)


def test_hardware_counters_are_one_group_with_its_times() -> None:
    kernel = FakeKernel()
    kernel.values = {(0, 1): 5_000, (0, 0): 2_500, (0, 3): 7}
    kernel.times = (4_000, 1_000)
    counters = ThreadCounters(kernel)
    values = dict(zip(counters.columns, counters.decode(counters.read()), strict=True))
    assert {name: values[name] for name in (*HARDWARE, HARDWARE_ENABLED, HARDWARE_RUNNING)} == {
        **{"instructions": 5_000, "cycles": 2_500, "llc_misses": 7},
        **{"hardware_enabled_ns": 4_000, "hardware_running_ns": 1_000},
    }
    assert not counters.refused and not counters.user_only
    leaders = {group for _, _, group in kernel.events.values() if group >= 0}
    assert leaders == kernel.enabled == {9000, 9000 + len(SOFTWARE)}  # of the software and the hardware group
    counters.close()
    assert sorted(kernel.closed) == sorted(kernel.events)


def test_without_a_pmu_software_events_are_left() -> None:
    counters = ThreadCounters(FakeKernel(absent=(0, 1, 3)))
    assert {counter: reason.cause for counter, reason in counters.refused.items()} == dict.fromkeys(
        HARDWARE, Cause.NO_PMU
    )
    assert set(SOFTWARE) <= set(counters.columns) and not set(HARDWARE) & set(counters.columns)
    counters.close()


def test_an_event_that_the_pmu_lacks_leaves_the_others() -> None:
    counters = ThreadCounters(FakeKernel(absent=(3,)))
    assert list(counters.refused) == [LayerCounter.LLC_MISSES]
    assert {"instructions", "cycles"} <= set(counters.columns)
    counters.close()


def test_where_the_kernel_may_not_be_counted_hardware_events_are_of_user_space() -> None:
    kernel = FakeKernel({False: errno.EACCES})
    counters = ThreadCounters(kernel)
    assert counters.user_only and all(kernel.modes.values())
    assert counters.software_source == "getrusage"
    assert set(HARDWARE) <= set(counters.columns)
    assert {name: reason.cause for name, reason in counters.refused.items()} == {
        LayerCounter.CPU_MIGRATIONS: Cause.NOT_PERMITTED
    }
    counters.close()


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (errno.EACCES, Cause.NOT_PERMITTED),
        (errno.EPERM, Cause.NOT_PERMITTED),
        (errno.ENOSYS, Cause.NOT_IN_KERNEL),
    ],
)
def test_where_perf_is_forbidden_getrusage_is_left(number: int, cause: Cause) -> None:
    counters = ThreadCounters(FakeKernel({False: number, True: number}))
    assert {name: reason.cause for name, reason in counters.refused.items()} == dict.fromkeys(
        (*HARDWARE, LayerCounter.CPU_MIGRATIONS), cause
    )
    assert LayerCounter.CONTEXT_SWITCHES in counters.columns
    counters.close()


def test_a_group_that_runs_out_of_descriptors_gives_back_what_it_has() -> None:
    class Few(FakeKernel):
        def open(self, kind: int, config: int, group: int, user_only: bool) -> int:
            if len(self.events) >= 2:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().open(kind, config, group, user_only)

    kernel = Few()
    counters = ThreadCounters(kernel)
    assert counters.software_source == "getrusage" and sorted(kernel.closed) == [9000, 9001]
    assert counters.refused[LayerCounter.INSTRUCTIONS].cause is Cause.NO_DESCRIPTORS
    counters.close()
