"""Readings of NVML collectors against a library that answers from a description."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.collectors.base import Fact, Reading
from perfscope.collectors.context import Context
from perfscope.collectors.gpu.nvidia.counters import NvmlDevices
from perfscope.collectors.gpu.nvidia.gpm import NvmlGpm
from perfscope.collectors.gpu.nvidia.links import NvmlLinks, NvmlPcieRate
from perfscope.collectors.gpu.nvidia.parts import NvmlCollector
from perfscope.collectors.gpu.nvidia.processes import NvmlProcesses
from perfscope.collectors.library import this_machines
from tests.support.nvml_stand_in import StandIn, hopper, installed, machine, volta

ALL: tuple[type[NvmlCollector], ...] = (NvmlDevices, NvmlLinks, NvmlPcieRate, NvmlGpm, NvmlProcesses)
FAKE_LIBRARY = Path(__file__).parents[1] / "data" / "hardware" / "fake_nvml.c"
RECORDED = sorted((Path(__file__).parents[1] / "data" / "hardware").glob("nvml-*.json"))


class Clock:
    """Monotonic ns that pass only when told to."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def __call__(self) -> int:
        return self.now

    def pass_ms(self, ms: float) -> None:
        self.now += int(ms * 1e6)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def four() -> Iterator[StandIn]:
    """Four Hopper GPUs behind NVSwitch."""
    stand_in = StandIn(machine(*(hopper(index) for index in range(4))))
    with installed(stand_in):
        yield stand_in


@pytest.fixture
def two() -> Iterator[StandIn]:
    """A Hopper and a Volta GPU."""
    stand_in = StandIn(machine(hopper(0), volta(1), ancestor=30))
    with installed(stand_in):
        yield stand_in


def context(clock: Clock, root: Path = Path("/nonexistent"), ranks: Sequence[int] = ()) -> Context:
    return Context(root=root, library=this_machines, clock=clock, pids=lambda: ranks)


def opened(kind: type[NvmlCollector], clock: Clock, **more: Any) -> NvmlCollector:
    collector = kind()
    ctx = context(clock, **more)
    assert collector.probe(ctx).available
    collector.open(ctx)
    return collector


def values(readings: Sequence[Reading], metric: str, **labels: str) -> list[int | float | None]:
    return [
        reading.value
        for reading in readings
        if reading.series.metric.name == metric
        and all(reading.series.labels.get(key) == value for key, value in labels.items())
    ]


def scaled(readings: Sequence[Reading], metric: str, **labels: str) -> float:
    (value,) = values(readings, metric, **labels)
    (scale,) = {r.series.metric.scale for r in readings if r.series.metric.name == metric}
    assert value is not None
    return value * scale


def stopped(facts: Sequence[Fact]) -> list[tuple[str, dict[str, str], str]]:
    return [
        (str(fact.value["what"]), fact.labels, str(fact.value["reason"]))
        for fact in facts
        if fact.name == "stopped"
    ]
