"""GPM's metrics between two samples."""

from __future__ import annotations

import pytest

from perfscope.collectors.gpu.nvidia.gpm import NvmlGpm
from tests.support.nvml_readings import Clock, clock, context, four, opened, scaled, stopped, two, values
from tests.support.nvml_stand_in import StandIn

__all__ = ["clock", "four", "two"]


def test_gpm_reads_the_time_between_two_samples(four: StandIn, clock: Clock) -> None:
    collector = opened(NvmlGpm, clock)
    began = clock.now
    assert collector.sample() == []
    clock.pass_ms(40)
    assert collector.sample() == []  # too soon
    clock.pass_ms(60)
    readings = collector.sample()
    assert scaled(readings, "gpu_dram_activity", gpu="0") == pytest.approx(0.625)
    assert scaled(readings, "gpu_link_tx_rate", gpu="0") == 40 * (1 << 20)
    assert {(r.t_begin_ns, r.t_end_ns) for r in readings} == {(began, clock.now)}
    assert four.samples == 8
    collector.close()
    collector.close()
    assert four.samples == 0


def test_gpm_leaves_nothing_allocated_by_probing(four: StandIn, clock: Clock) -> None:
    NvmlGpm().probe(context(clock))
    assert four.samples == 0


def test_gpm_metric_without_support_ends_alone(four: StandIn, clock: Clock) -> None:
    for name in ("60", "61"):  # a PCIe card without NVLink
        del four.world["gpus"][0]["gpm"][name]
    collector = opened(NvmlGpm, clock)
    collector.sample()
    clock.pass_ms(100)
    readings = collector.sample()
    assert values(readings, "gpu_link_tx_rate", gpu="0") == []
    assert values(readings, "gpu_compute_activity", gpu="0") == [91.5]
    assert [(what, labels["gpu"]) for what, labels, _ in stopped(collector.facts())] == [
        ("gpu_link_rx_rate", "0"),
        ("gpu_link_tx_rate", "0"),
    ]
    clock.pass_ms(100)
    assert values(collector.sample(), "gpu_dram_activity", gpu="0") == [62.5]


def test_gpm_that_is_not_a_number_is_no_reading(four: StandIn, clock: Clock) -> None:
    four.world["gpus"][0]["gpm"]["5"] = float("nan")
    collector = opened(NvmlGpm, clock)
    collector.sample()
    clock.pass_ms(100)
    assert values(collector.sample(), "gpu_matrix_activity", gpu="0") == [None]


def test_gpm_says_why_it_is_not_there(two: StandIn, clock: Clock) -> None:
    two.world["gpus"][0]["calls"]["nvmlDeviceGetMigMode"] = 1
    capability = NvmlGpm().probe(context(clock))
    assert not capability.available
    assert "MIG is on" in capability.reason and "needs a Hopper" in capability.reason
