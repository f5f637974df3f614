"""NVML collectors against a library that answers from a description; pynvml between them is the real one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest

from perfscope.collectors.base import Fact, Reading
from perfscope.collectors.context import Context
from perfscope.collectors.gpu.nvidia.counters import NvmlDevices
from perfscope.collectors.gpu.nvidia.devices import field_value, gpu_links, list_gpus, pci_address
from perfscope.collectors.gpu.nvidia.gpm import NvmlGpm
from perfscope.collectors.gpu.nvidia.library import load_nvml
from perfscope.collectors.gpu.nvidia.links import NvmlLinks, NvmlPcieRate
from perfscope.collectors.gpu.nvidia.parts import MAX_FAILURES, NvmlCollector
from perfscope.collectors.gpu.nvidia.processes import NvmlProcesses
from perfscope.collectors.library import this_machines
from perfscope.collectors.process_table import INITIAL_PID_NAMESPACE
from tests.gpu.record_nvml import record
from tests.support.nvml_stand_in import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    NOT_FOUND,
    NOT_SUPPORTED,
    UNKNOWN,
    StandIn,
    World,
    field_of,
    hopper,
    installed,
    load_world,
    machine,
    volta,
)

ALL: tuple[type[NvmlCollector], ...] = (NvmlDevices, NvmlLinks, NvmlPcieRate, NvmlGpm, NvmlProcesses)
FAKE_LIBRARY = Path(__file__).parents[4] / "data" / "hardware" / "fake_nvml.c"
RECORDED = sorted((Path(__file__).parents[4] / "data" / "hardware").glob("nvml-*.json"))


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


@pytest.mark.parametrize("kind", ALL)
def test_no_driver_is_a_reason(kind: type[NvmlCollector], clock: Clock) -> None:
    stand_in = StandIn(machine(hopper(0)))
    stand_in.init = DRIVER_NOT_LOADED
    with installed(stand_in):
        capability = kind().probe(context(clock))
    assert not capability.available
    assert "not loaded" in capability.reason and "modprobe nvidia" in capability.remedy


@pytest.mark.parametrize("kind", ALL)
def test_no_library_is_a_reason(kind: type[NvmlCollector], clock: Clock) -> None:
    with installed(None):
        capability = kind().probe(context(clock))
    assert not capability.available
    assert "libnvidia-ml.so.1 is not there" in capability.reason
    assert kind().probe(Context()).reason == "a captured tree holds no driver library"


@pytest.mark.parametrize("kind", ALL)
def test_no_gpu_is_a_reason(kind: type[NvmlCollector], clock: Clock) -> None:
    with installed(StandIn(machine())):
        assert kind().probe(context(clock)).reason == "NVML sees no GPU"


@pytest.mark.parametrize("kind", ALL)
def test_a_driver_that_only_fails_never_raises(kind: type[NvmlCollector], clock: Clock) -> None:
    stand_in = StandIn(machine({"calls": {}, "fields": []}, {"calls": {}, "fields": []}))
    with installed(stand_in):
        capability = kind().probe(context(clock))
        assert not capability.available
        assert capability.reason


@pytest.mark.parametrize("kind", ALL)
def test_a_library_that_goes_away_before_opening_is_an_os_error(
    kind: type[NvmlCollector], two: StandIn, clock: Clock
) -> None:
    two.init = DRIVER_NOT_LOADED
    with pytest.raises(OSError, match="not loaded"):
        kind().open(context(clock))


def proc(root: Path, *, container: bool = False, **parents: int) -> Path:
    """A /proc with processes pNUMBER=parent."""
    (root / "proc/self/ns").mkdir(parents=True)
    namespace = 4026532999 if container else INITIAL_PID_NAMESPACE
    (root / "proc/self/ns/pid").symlink_to(f"pid:[{namespace}]")
    for name, parent in parents.items():
        pid = int(name[1:])
        folder = root / f"proc/{pid}"
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (a) b) S {parent} " + " ".join(["0"] * 48))
    return root


def test_a_process_that_is_no_ranks_is_foreign(two: StandIn, clock: Clock, tmp_path: Path) -> None:
    root = proc(tmp_path, p1=0, p100=1, p101=100, p102=101, p900=1)
    two.world["names"] = {"900": "/usr/bin/python3"}
    two.world["gpus"][0]["processes"] = [
        {"pid": 100, "usedGpuMemory": 1},
        {"pid": 102, "usedGpuMemory": 2},  # a grandchild of the rank
        {"pid": 900, "usedGpuMemory": 7 << 30},
        {"pid": 901, "usedGpuMemory": None},  # another container's: not in /proc
    ]
    collector = opened(NvmlProcesses, clock, root=root, ranks=[100])
    readings = collector.sample()
    assert values(readings, "gpu_foreign_processes", gpu="0") == [2]
    assert values(readings, "gpu_foreign_memory", gpu="0") == [7 << 30]
    assert values(readings, "gpu_foreign_processes", gpu="1") == [0]
    collector.sample()
    named = [fact for fact in collector.facts() if fact.name == "neighbour"]
    assert [(fact.labels["kind"], fact.value["pid"], fact.value["name"]) for fact in named] == [
        ("gpu", 900, "python3"),
        ("gpu", 901, ""),
    ]  # each once


def test_memory_of_strangers_may_be_unknown(two: StandIn, clock: Clock, tmp_path: Path) -> None:
    two.world["gpus"][0]["processes"] = [{"pid": 900, "usedGpuMemory": None}]
    collector = opened(NvmlProcesses, clock, root=proc(tmp_path, p100=1), ranks=[100])
    readings = collector.sample()
    assert values(readings, "gpu_foreign_processes", gpu="0") == [1]
    assert values(readings, "gpu_foreign_memory", gpu="0") == [None]


@pytest.mark.parametrize("processes", [{"error": NOT_FOUND}, []])
def test_an_idle_gpu_has_no_strangers(two: StandIn, clock: Clock, tmp_path: Path, processes: Any) -> None:
    two.world["gpus"][0]["processes"] = processes
    collector = opened(NvmlProcesses, clock, root=proc(tmp_path, p100=1), ranks=[100])
    assert values(collector.sample(), "gpu_foreign_processes", gpu="0") == [0]


def test_in_a_container_with_other_pids_nobody_is_called_foreign(
    two: StandIn, clock: Clock, tmp_path: Path
) -> None:
    root = proc(tmp_path, container=True, p1=0, p100=1)
    two.world["gpus"][0]["processes"] = [{"pid": 54321, "usedGpuMemory": 1}]
    collector = opened(NvmlProcesses, clock, root=root, ranks=[100])
    for _ in range(20):
        assert values(collector.sample(), "gpu_foreign_processes", gpu="0") == [None]
    facts = collector.facts()
    assert len(facts) == 1 and "cannot be matched" in str(facts[0].value["text"])
    # A driver that translates pids shows a rank: from then on strangers can be told.
    two.world["gpus"][0]["processes"].append({"pid": 100, "usedGpuMemory": 1})
    assert values(collector.sample(), "gpu_foreign_processes", gpu="0") == [1]


def test_an_old_driver_lists_processes_by_version_2(two: StandIn, clock: Clock, tmp_path: Path) -> None:
    two.missing.add("nvmlDeviceGetComputeRunningProcesses_v3")
    two.world["gpus"][0]["processes"] = [{"pid": 900, "usedGpuMemory": 3}]
    collector = opened(NvmlProcesses, clock, root=proc(tmp_path, p100=1), ranks=[100])
    assert values(collector.sample(), "gpu_foreign_memory", gpu="0") == [3]


def test_pci_addresses_are_those_of_sysfs() -> None:
    assert pci_address("00000000:3B:00.0") == "0000:3b:00.0"
    assert pci_address("00010000:AF:1F.7") == "10000:af:1f.7"


def test_gpus_of_the_topology(four: StandIn, clock: Clock, tmp_path: Path) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    (device / "local_cpulist").write_text("20-39\n")
    (tmp_path / "sys/bus/pci/devices/0000:3c:00.0").mkdir()
    (tmp_path / "sys/bus/pci/devices/0000:3c:00.0/numa_node").write_text("-1\n")
    gpus = list_gpus(load_nvml(), context(clock, root=tmp_path))
    assert [gpu["id"] for gpu in gpus] == ["gpu:0", "gpu:1", "gpu:2", "gpu:3"]
    assert (gpus[0]["pci"], gpus[0]["numa_node"], gpus[0]["cpus"]) == ("0000:3b:00.0", 1, "20-39")
    assert (gpus[1]["numa_node"], gpus[1]["cpus"]) == (1, "8-15")  # NVML's own word where sysfs is silent
    assert gpus[0]["memory_bytes"] == 80 << 30
    assert gpus[0]["nvlink_version"] == "4.0"  # the enum 6
    assert gpus[0]["pcie"] == {
        "speed_gt_s": 2.5,  # idle
        "width": 16,
        "max_speed_gt_s": 32.0,
        "max_width": 16,
        "peak_bytes_per_s": pytest.approx(63.0e9, rel=0.001),
    }
    assert json.loads(json.dumps(gpus)) == gpus


def test_gpus_behind_switches_are_joined_by_all_their_nvlinks(four: StandIn, clock: Clock) -> None:
    links = gpu_links(load_nvml(), context(clock))
    assert [(link["a"], link["b"]) for link in links][:3] == [
        ("gpu:0", "gpu:1"),
        ("gpu:0", "gpu:2"),
        ("gpu:0", "gpu:3"),
    ]
    assert len(links) == 6
    assert {(link["class"], link["path"]) for link in links} == {("gpu_link", "NV18")}
    assert links[0]["peak_bytes_per_s"] == pytest.approx(18 * 26.562e9)
    assert links[0]["p2p"] == {"read": "ok", "write": "ok", "nvlink": "ok", "atomics": "ok"}


def test_gpus_joined_directly_count_the_links_between_them(clock: Clock) -> None:
    world = machine(hopper(0, 4), hopper(1, 4), hopper(2, 4), ancestor=40)
    for index, gpu in enumerate(world["gpus"]):
        gpu["calls"]["nvmlDeviceGetNvLinkRemoteDeviceType"] = 0
        others = [other for other in range(3) if other != index]
        remote = {str(link): f"00000000:{0x3B + others[link // 3]:02X}:00.0" for link in range(4)}
        gpu["arguments"]["nvmlDeviceGetNvLinkRemotePciInfo"] = remote
    with installed(StandIn(world)):
        links = gpu_links(load_nvml(), context(clock))
    assert [(link["a"], link["b"], link["path"]) for link in links] == [
        ("gpu:0", "gpu:1", "NV3"),
        ("gpu:0", "gpu:2", "NV1"),
        ("gpu:1", "gpu:2", "NV1"),
    ]


@pytest.mark.parametrize(
    ("ancestor", "path"), [(0, "INT"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")]
)
def test_gpus_without_nvlink_are_joined_by_pcie(clock: Clock, ancestor: int, path: str) -> None:
    with installed(StandIn(machine(volta(0), hopper(1, 0), ancestor=ancestor))):
        (link,) = gpu_links(load_nvml(), context(clock))
    assert (link["class"], link["path"]) == ("pcie", path)
    assert link["peak_bytes_per_s"] == pytest.approx(15.754e9, rel=0.001)  # the slower end's, generation 3


def test_the_p2p_index_of_pynvml_is_a_tuple_and_would_be_refused(four: StandIn) -> None:
    """The bug that nvml_devices steps around; when pynvml mends it, this fails and the comment can go."""
    assert pynvml.NVML_P2P_CAPS_INDEX_READ == (0,)
    first, second = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
    with pytest.raises(Exception, match="argument 3"):
        pynvml.nvmlDeviceGetP2PStatus(first, second, pynvml.NVML_P2P_CAPS_INDEX_READ)


def test_a_description_survives_its_json(tmp_path: Path, clock: Clock) -> None:
    world = machine(hopper(0), volta(1))
    file = tmp_path / "world.json"
    file.write_text(json.dumps(world))
    again: World = load_world(file)

    def seen(description: World) -> list[tuple[str, str, int | float | None]]:
        with installed(StandIn(description)):
            return [
                (r.series.metric.name, r.series.labels["gpu"], r.value)
                for r in opened(NvmlDevices, clock).sample()
            ]

    assert seen(again) == seen(world)


def test_what_is_recorded_is_replayed_alike(two: StandIn, clock: Clock) -> None:
    """The recorder of tests/gpu, fed by a description: what it writes describes the same GPUs."""

    def seen() -> list[object]:
        ctx = context(clock)
        readings = [
            (r.series.metric.name, dict(r.series.labels), r.value)
            for kind in (NvmlDevices, NvmlLinks, NvmlPcieRate)
            for r in opened(kind, clock).sample()
        ]
        gpus = [{**gpu, "uuid": None} for gpu in list_gpus(load_nvml(), ctx)]
        return [readings, gpus, gpu_links(load_nvml(), ctx), NvmlGpm().probe(ctx).metrics]

    before = seen()
    recorded = json.loads(json.dumps(record(load_nvml(), "again")))
    assert recorded["gpus"][0]["gpm"] == two.world["gpus"][0]["gpm"] and "gpm" not in recorded["gpus"][1]
    with installed(StandIn(recorded)):
        assert seen() == before
    assert two.samples == 0


@pytest.mark.parametrize(
    ("kind", "value"),
    [(0, -2.5), (1, 4_294_967_295), (2, 1 << 40), (3, 1 << 63), (4, -(1 << 40)), (5, -7), (6, 65_535)],
)
def test_fields_of_every_type_are_read(two: StandIn, clock: Clock, kind: int, value: float) -> None:
    field_of(two.world, 0, 186)[3:] = [kind, value]
    assert values(opened(NvmlDevices, clock).sample(), "gpu_power", gpu="0") == [value]
    entries = pynvml.nvmlDeviceGetFieldValues(pynvml.nvmlDeviceGetHandleByIndex(0), [186])
    assert field_value(entries[0]) == value


def test_answers_recorded_on_hardware_are_read(clock: Clock) -> None:
    if not RECORDED:
        pytest.skip("no tests/data/hardware/nvml-*.json: `make test-gpu` writes one where there is a GPU")
    for path in RECORDED:
        world = load_world(path)
        with installed(StandIn(world)):
            readings = opened(NvmlDevices, clock).sample()
            gpus = list_gpus(load_nvml(), context(clock))
        assert len(gpus) == len(world["gpus"])
        for index in range(len(gpus)):
            used, total = (
                values(readings, f"gpu_memory_{what}", gpu=str(index)) for what in ("used", "total")
            )
            assert used[0] is not None and total[0] is not None and 0 < used[0] <= total[0]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not here to compile the fake library")
def test_the_real_loader_finds_a_library_at_the_c_interface(tmp_path: Path) -> None:
    """No object in between: a shared library found by LD_LIBRARY_PATH, in a process of its own."""
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(FAKE_LIBRARY)], check=True)
    script = """
import json
from perfscope.collectors.context import live_context
from perfscope.collectors.gpu.nvidia.counters import NvmlDevices
from perfscope.collectors.gpu.nvidia.devices import list_gpus
from perfscope.collectors.gpu.nvidia.library import load_nvml
collector, ctx = NvmlDevices(), live_context()
capability = collector.probe(ctx)
collector.open(ctx)
first = collector.sample()
second = collector.sample()
told = collector.facts()
print(json.dumps({
    "available": capability.available,
    "absent": sorted(entry.what for entry in capability.absent),
    "names": [gpu["name"] for gpu in list_gpus(ctx.library(load_nvml), ctx)],
    "first": [[r.series.metric.name, r.series.labels["gpu"], r.value] for r in first],
    "second": sorted({r.series.labels["gpu"] for r in second}),
    "stopped": [[fact.labels, fact.value["reason"]] for fact in told if fact.name == "stopped"],
}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"LD_LIBRARY_PATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    seen = json.loads(done.stdout)
    assert seen["available"] and seen["names"] == ["Fake GPU", "Fake GPU"]
    assert ["gpu_utilization", "0", 55] in seen["first"]
    assert ["gpu_power", "1", 301_000] in seen["first"]
    assert ["gpu_energy", "0", 9_000_000_000] in seen["first"]
    assert "gpu_memory_clock" in seen["absent"]  # the function is not in that library
    assert seen["second"] == ["0"]
    assert seen["stopped"] == [[{"gpu": "1"}, "GPU is lost"]]


def test_lost_is_what_nvml_calls_15() -> None:
    assert pynvml.NVML_ERROR_GPU_IS_LOST == GPU_IS_LOST
