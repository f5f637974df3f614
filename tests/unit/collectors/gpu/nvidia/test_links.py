"""Bytes over NVLink and PCIe: units, fallbacks, and counters that wrap."""

from __future__ import annotations

from perfscope.collectors.gpu.nvidia.links import NvmlLinks, NvmlPcieRate
from tests.support.nvml_readings import Clock, clock, context, four, opened, scaled, two, values
from tests.support.nvml_stand_in import StandIn, field_of, hopper, installed, machine

__all__ = ["clock", "four", "two"]


def test_nvlink_counts_kib_per_link(four: StandIn, clock: Clock) -> None:
    readings = opened(NvmlLinks, clock).sample()
    assert scaled(readings, "gpu_link_tx_bytes", gpu="1", link="5") == 5007 * 1024
    assert scaled(readings, "gpu_link_rx_bytes", gpu="1", link="17") == 34_009 * 1024


def test_nvlink_falls_back_on_byte_counters(clock: Clock) -> None:
    world = machine(hopper(0, links=2))
    kept = [entry for entry in world["gpus"][0]["fields"] if entry[0] not in (138, 139)]
    for link in range(2):
        kept += [[202, link, 0, 3, 10 + link], [204, link, 0, 3, 20 + link]]
    world["gpus"][0]["fields"] = kept
    stand_in = StandIn(world)
    with installed(stand_in):
        collector = opened(NvmlLinks, clock)
        stand_in.calls.clear()
        readings = collector.sample()
    assert scaled(readings, "gpu_link_tx_bytes", link="1") == 11
    assert scaled(readings, "gpu_link_rx_bytes", link="0") == 20
    assert stand_in.calls == {"nvmlDeviceGetFieldValues": 2}


def test_pcie_bytes_wrap_at_32_bits(four: StandIn, clock: Clock) -> None:
    collector = opened(NvmlLinks, clock)
    counter = field_of(four.world, 0, 197)
    (before,) = [r for r in collector.sample() if r.series.metric.name == "pcie_tx_bytes"][:1]
    counter[4] = 1000
    (after,) = [r for r in collector.sample() if r.series.metric.name == "pcie_tx_bytes"][:1]
    assert before.value is not None and after.value is not None
    limit = after.series.metric.limit
    assert limit == 1 << 32
    assert (after.value - before.value) % limit == 4_294_967_296 - 4_294_000_000 + 1000


def test_pcie_bytes_in_64_bits_keep_their_differences(four: StandIn, clock: Clock) -> None:
    collector = opened(NvmlLinks, clock)
    field_of(four.world, 0, 197)[3:] = [3, (1 << 40) + 5]
    assert values(collector.sample(), "pcie_tx_bytes", gpu="0") == [5]


def test_pcie_readings_too_far_apart_are_ambiguous(two: StandIn, clock: Clock) -> None:
    # Generation 5 x16 turns 2**32 in 68 ms, generation 3 in 273 ms.
    two.world["gpus"][1]["fields"] += [[197, 0, 0, 1, 1], [198, 0, 0, 1, 2]]
    collector = opened(NvmlLinks, clock)

    def qualities(after_ms: float) -> list[str | None]:
        clock.pass_ms(after_ms)
        return [r.quality for r in collector.sample() if r.series.metric.name == "pcie_tx_bytes"]

    assert qualities(0) == [None, None]  # the first: nothing to lose a turn since
    assert qualities(60) == [None, None]
    assert qualities(100) == ["ambiguous", None]
    assert qualities(300) == ["ambiguous", "ambiguous"]


def test_pcie_rate_is_asked_for_only_where_bytes_are_not_counted(two: StandIn, clock: Clock) -> None:
    collector = opened(NvmlPcieRate, clock)
    assert collector.slow and collector.min_interval_ns >= 1_000_000_000  # a call blocks 20 ms
    two.calls.clear()
    readings = collector.sample()
    assert [(r.series.labels["gpu"], r.series.metric.name) for r in readings] == [
        ("1", "pcie_tx_rate"),
        ("1", "pcie_rx_rate"),
    ]
    assert scaled(readings, "pcie_rx_rate") == 2_500_000
    assert two.calls == {"nvmlDeviceGetPcieThroughput": 2}


def test_pcie_rate_is_not_available_where_all_gpus_count_bytes(four: StandIn, clock: Clock) -> None:
    capability = NvmlPcieRate().probe(context(clock))
    assert not capability.available
    assert capability.reason == "not needed: PCIe bytes are counted"
