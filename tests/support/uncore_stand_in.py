"""Memory controllers for tests: a kernel that records, trees to order, and PMUs that any VM has."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfscope.collectors.base import Reading
from perfscope.collectors.context import Context, captured_context
from perfscope.collectors.memory.uncore import PMUS, READ, UncoreEvent, UncoreMap, encode, read_formats


class Kernel:
    """Records what is opened, and gives pipes in place of counters."""

    def __init__(self, refuse: dict[int, int] | None = None) -> None:
        self.opened: list[tuple[int, int, int, int, int]] = []
        self.writers: list[int] = []
        self.refuse = refuse or {}  # type of the PMU -> errno

    def perf_event_open(self, kind: int, config: int, cpu: int, *, config1: int = 0, config2: int = 0) -> int:
        if kind in self.refuse:
            raise OSError(self.refuse[kind], os.strerror(self.refuse[kind]))
        self.opened.append((kind, config, cpu, config1, config2))
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.writers.append(writer)
        return reader

    def move_pages(self, pid: int, addresses: Sequence[int]) -> list[int]:
        raise OSError(errno.ENOSYS, "not here")

    def count(self, *records: tuple[int, int, int]) -> None:
        """Give the last counters these values: (value, enabled, running)."""
        for writer, record in zip(self.writers[-len(records) :], records, strict=True):
            os.write(writer, struct.pack("=QQQ", *record))

    def close(self) -> None:
        for writer in self.writers:
            os.close(writer)


def context(root: Path, kernel: Kernel, **changes: object) -> Context:
    return captured_context(root, syscalls=kernel, **changes)


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / name.lstrip("/")).write_text(text)


def pmu(root: Path, name: str, kind: int, cpus: str = "0", **files: str) -> None:
    put(root, {f"{PMUS}/{name}/type": f"{kind}\n", f"{PMUS}/{name}/cpumask": f"{cpus}\n"})
    put(root, {f"{PMUS}/{name}/format/{field}": place + "\n" for field, place in files.items()})


def cpu(root: Path, vendor: str, family: int, model: int, flags: str = "") -> None:
    lines = f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nflags\t\t: {flags}\n"
    put(root, {"/proc/cpuinfo": f"processor\t: 0\n{lines}"})


INTEL = {"event": "config:0-7", "umask": "config:8-15"}


def msr_counters(ctx: Context) -> UncoreMap:
    """The time stamp counter through the same door: a real dynamic PMU that virtual machines have, too."""
    kind = ctx.read_int(f"{PMUS}/msr/type")
    terms = ctx.read_or(f"{PMUS}/msr/events/tsc")
    cpus = tuple(sorted(os.sched_getaffinity(0)))[:2]
    if kind is None or not terms:
        pytest.skip("this kernel has no msr PMU")
    config, config1, config2 = encode(terms, read_formats(ctx, "msr"))
    event = UncoreEvent(
        metric=READ,
        pmu="msr",
        channel="0",
        kind=kind,
        config=config,
        config1=config1,
        config2=config2,
        bytes_per_count=64.0,
        cpus=cpus,
        how=terms,
    )
    return UncoreMap(events=(event,), sockets={cpu: "0" for cpu in cpus})


def software_counters(ctx: Context) -> UncoreMap:
    """PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK: ns, on any Linux."""
    cpus = (min(os.sched_getaffinity(0)),)
    event = UncoreEvent(
        metric=READ,
        pmu="software",
        channel="0",
        kind=1,
        config=0,
        bytes_per_count=1.0,
        cpus=cpus,
        how="config=0",
    )
    return UncoreMap(events=(event,), sockets={cpus[0]: "0"})


def rates(first: list[Reading], second: list[Reading]) -> list[float]:
    return [
        (int(b.value or 0) - int(a.value or 0)) / (b.t_begin_ns - a.t_begin_ns)
        for a, b in zip(first, second, strict=True)
    ]
