"""NVML's readings of each GPU: units, fallbacks, lost GPUs and readings that fail."""

from __future__ import annotations

import pynvml
import pytest

from perfscope.collectors.context import Context
from perfscope.collectors.gpu.nvidia.counters import NvmlDevices
from perfscope.collectors.gpu.nvidia.devices import list_gpus
from perfscope.collectors.gpu.nvidia.gpm import NvmlGpm
from perfscope.collectors.gpu.nvidia.links import NvmlLinks
from perfscope.collectors.gpu.nvidia.parts import MAX_FAILURES, NvmlCollector
from perfscope.collectors.library import this_machines
from tests.support.nvml_readings import Clock, clock, context, four, opened, scaled, stopped, two, values
from tests.support.nvml_stand_in import NOT_SUPPORTED, UNKNOWN, StandIn, field_of

__all__ = ["clock", "four", "two"]


def test_figures_come_through_in_base_units(four: StandIn, clock: Clock) -> None:
    readings = opened(NvmlDevices, clock).sample()
    assert scaled(readings, "gpu_utilization", gpu="2") == pytest.approx(0.97)
    assert scaled(readings, "gpu_memory_utilization", gpu="2") == pytest.approx(0.41)
    assert scaled(readings, "gpu_memory_used", gpu="3") == 5 << 30  # version 2: without the driver's own
    assert scaled(readings, "gpu_memory_total", gpu="3") == 80 << 30
    assert scaled(readings, "gpu_clock", gpu="0") == pytest.approx(1.98e9)
    assert scaled(readings, "gpu_memory_clock", gpu="0") == pytest.approx(2.619e9)
    assert scaled(readings, "gpu_throttle_reasons", gpu="0") == 4
    assert scaled(readings, "gpu_temperature", gpu="0") == 61
    assert scaled(readings, "gpu_power", gpu="0") == pytest.approx(415.25)
    assert scaled(readings, "gpu_energy", gpu="0") == pytest.approx(123_456.789)
    assert scaled(readings, "gpu_throttle_time", gpu="0", reason="power_cap") == 5e9
    assert values(readings, "gpu_throttle_time", gpu="0", reason="power_brake") == [3]
    assert {reading.series.labels["gpu"] for reading in readings} == {"0", "1", "2", "3"}


def test_readings_that_were_read_together_share_their_times(four: StandIn) -> None:
    ticks = iter(range(1_000_000))
    collector = NvmlDevices()
    ctx = Context(library=this_machines, clock=lambda: next(ticks))
    collector.open(ctx)
    spans = {(reading.t_begin_ns, reading.t_end_ns) for reading in collector.sample()}
    assert len(spans) == 4 * 2  # per GPU: the calls, and the fields


def test_handles_are_fetched_once(four: StandIn, clock: Clock) -> None:
    collectors = [opened(kind, clock) for kind in (NvmlDevices, NvmlLinks)]
    fetched = four.calls["nvmlDeviceGetHandleByIndex_v2"]
    for _ in range(5):
        for collector in collectors:
            collector.sample()
    assert four.calls["nvmlDeviceGetHandleByIndex_v2"] == fetched


def test_fields_of_a_gpu_take_one_call(four: StandIn, clock: Clock) -> None:
    collector = opened(NvmlLinks, clock)
    four.calls.clear()
    readings = collector.sample()
    assert four.calls == {"nvmlDeviceGetFieldValues": 4 * 2}  # PCIe, NVLink
    assert len(values(readings, "gpu_link_tx_bytes")) == 4 * 18


def test_one_metric_that_is_not_supported_leaves_the_others(two: StandIn, clock: Clock) -> None:
    two.world["gpus"][0]["calls"]["nvmlDeviceGetUtilizationRates"] = {"error": NOT_SUPPORTED}  # MIG
    collector = NvmlDevices()
    capability = collector.probe(context(clock))
    absent = {entry.what: entry.reason for entry in capability.absent}
    assert absent["gpu_utilization"] == "not supported (GPU 0)"
    assert "gpu_throttle_time" in absent  # the Volta knows two of five reasons
    collector.open(context(clock))
    readings = collector.sample()
    assert values(readings, "gpu_utilization", gpu="0") == []
    assert values(readings, "gpu_utilization", gpu="1") == [97]
    assert values(readings, "gpu_temperature", gpu="0") == [61]
    facts = collector.facts()
    assert any("gpu_utilization" in str(fact.value["text"]) for fact in facts if fact.name == "note")
    two.calls.clear()
    collector.sample()
    assert two.calls["nvmlDeviceGetUtilizationRates"] == 1  # the Hopper is not asked again
    assert collector.facts() == []


def test_power_and_energy_fall_back_on_their_own_calls(two: StandIn, clock: Clock) -> None:
    readings = opened(NvmlDevices, clock).sample()
    by_source = {
        reading.series.metric.source: reading.value
        for reading in readings
        if reading.series.labels == {"gpu": "1"} and reading.series.metric.name in ("gpu_power", "gpu_energy")
    }
    assert by_source == {
        "nvmlDeviceGetPowerUsage": 412_000,
        "nvmlDeviceGetTotalEnergyConsumption": 123_456_789,
    }
    assert scaled(readings, "gpu_power", gpu="0") == pytest.approx(415.25)


def test_an_old_driver_without_newer_calls_is_read_by_the_older_ones(two: StandIn, clock: Clock) -> None:
    two.missing |= {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons"}
    for gpu in two.world["gpus"]:
        gpu["calls"]["nvmlDeviceGetCurrentClocksThrottleReasons"] = 0x20
    readings = opened(NvmlDevices, clock).sample()
    assert values(readings, "gpu_memory_used", gpu="0") == [(5 << 30) + (600 << 20)]
    assert values(readings, "gpu_throttle_reasons") == [0x20, 0x20]


@pytest.mark.parametrize("kind", [NvmlDevices, NvmlLinks, NvmlGpm])
def test_a_lost_gpu_ends_its_own_series_only(kind: type[NvmlCollector], four: StandIn, clock: Clock) -> None:
    collector = opened(kind, clock)
    collector.sample()
    collector.facts()
    four.lost.add(2)
    for _ in range(3):
        clock.pass_ms(100)
        readings = collector.sample()
        assert {reading.series.labels["gpu"] for reading in readings} == {"0", "1", "3"}
        assert all(reading.value is not None for reading in readings)
    assert stopped(collector.facts()) == [("everything read of this GPU", {"gpu": "2"}, "GPU is lost")]


def test_a_gpu_that_was_lost_before_is_left_out(four: StandIn, clock: Clock) -> None:
    four.lost.add(0)
    readings = opened(NvmlDevices, clock).sample()
    assert {reading.series.labels["gpu"] for reading in readings} == {"1", "2", "3"}
    assert [gpu["index"] for gpu in list_gpus(pynvml, context(clock))] == [1, 2, 3]


def test_unknown_errors_are_tried_again_and_end_a_series_at_last(four: StandIn, clock: Clock) -> None:
    collector = opened(NvmlDevices, clock)
    collector.facts()
    temperature = four.world["gpus"][1]["arguments"]["nvmlDeviceGetTemperature"]
    temperature["0"] = {"error": UNKNOWN}
    for _ in range(MAX_FAILURES - 1):
        assert values(collector.sample(), "gpu_temperature", gpu="1") == [None]
    temperature["0"] = 62
    assert values(collector.sample(), "gpu_temperature", gpu="1") == [62]
    assert collector.facts() == []
    temperature["0"] = {"error": UNKNOWN}
    for _ in range(MAX_FAILURES):
        collector.sample()
    assert stopped(collector.facts()) == [
        ("gpu_temperature", {"gpu": "1"}, "unknown error (10 times in a row)")
    ]
    temperature["0"] = 62
    assert values(collector.sample(), "gpu_temperature", gpu="1") == []
    assert values(collector.sample(), "gpu_temperature", gpu="0") == [61]


def test_a_field_that_fails_later_ends_without_its_siblings(four: StandIn, clock: Clock) -> None:
    collector = opened(NvmlDevices, clock)
    collector.facts()
    field_of(four.world, 0, 271)[2] = 4
    readings = collector.sample()
    assert values(readings, "gpu_throttle_time", gpu="0", reason="power_brake") == []
    assert stopped(collector.facts()) == [
        (
            "gpu_throttle_time",
            {"gpu": "0", "reason": "power_brake", "name": "HW power brake"},
            "insufficient permissions",
        )
    ]
    readings = collector.sample()
    assert values(readings, "gpu_throttle_time", gpu="0", name="HW thermal") == [2]
    assert scaled(readings, "gpu_power", gpu="0") == pytest.approx(415.25)
