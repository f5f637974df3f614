"""AMD GPUs on made-up trees: no real one was at hand. What the files say must arrive, and nothing else."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.collectors.base import Collector
from perfscope.collectors.context import Context, captured_context
from perfscope.collectors.gpu import registry
from perfscope.collectors.gpu.amd.counters import MAX_FAILURES, AmdDevices
from perfscope.collectors.gpu.amd.metrics_table import REVISIONS, UnknownTableError, layout_of, read_table
from perfscope.collectors.gpu.amd.pcie_rate import AmdPcieRate, parse_pcie_bw
from perfscope.collectors.gpu.amd.processes import AmdProcesses
from perfscope.collectors.machine.peaks import theoretical_peaks
from perfscope.collectors.machine.topology import read_topology
from tests.support import hardware
from tests.support.amd_machine import (
    KFD,
    Table,
    TableV1_3,
    TableV1_5,
    TableV1_7,
    TableV2_4,
    busy,
    card_folder,
    pci_address,
    table,
    write,
    write_gpu,
    write_machine,
)
from tests.support.nvml_readings import Clock

SECOND = 1_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_machine(tmp_path)


def opened(collector: Collector, root: Path, **changes: Any) -> Collector:
    collector.open(captured_context(root, **changes))
    return collector


def read(collector: Collector) -> dict[str, float | int | None]:
    return hardware.by_series(collector.sample())


@pytest.mark.parametrize("kind", [TableV1_3, TableV1_5, TableV1_7, TableV2_4])
def test_layouts_are_those_of_the_kernels_header(kind: Table) -> None:
    layout = layout_of(kind.revision)
    place = 4
    for name, count, code in layout.fields:
        size = {"B": 1, "H": 2, "I": 4, "Q": 8}[code]
        place += -place % size
        declared = getattr(kind, name)
        assert (declared.offset, declared.size) == (place, size * count), name
        place += size * count
    assert layout.struct.size <= ctypes.sizeof(kind)


def test_sizes_follow_from_the_kernels_declarations() -> None:
    # Without the padding at the end; of 1.6 to 1.8 what stands before the partitions.
    sizes = {
        (1, 1): 96,
        (1, 2): 104,
        (1, 3): 120,
        (1, 4): 284,
        (1, 5): 356,
        (1, 6): 308,
        (1, 7): 340,
        (1, 8): 340,
    }
    sizes |= {(2, 1): 120, (2, 2): 128, (2, 3): 152, (2, 4): 164}
    assert {key: layout_of(key).struct.size for key in REVISIONS if key in sizes} == sizes
    assert ctypes.sizeof(TableV1_7) == 2208


def test_a_field_of_ones_is_no_value_and_an_unknown_table_is_refused() -> None:
    found = read_table(table(TableV1_3, temperature_edge=40, energy_accumulator=7))
    assert (found.one("temperature_edge"), found.one("temperature_hotspot")) == (40, None)
    assert found.one("energy_accumulator") == 7 and found.array("temperature_hbm") == (None,) * 4
    for damaged in (b"", b"\x08\x00", bytes([8, 0, 9, 9]), table(TableV1_3)[:60], bytes([4, 0, 1, 3]) * 30):
        with pytest.raises(UnknownTableError):
            read_table(damaged)


def test_a_busy_card_gives_everything_that_the_report_draws(root: Path) -> None:
    found = read(opened(AmdDevices(), root))
    expected = {
        "gpu_utilization{gpu=0}": 0.97,
        "gpu_memory_utilization{gpu=0}": 0.43,
        "gpu_clock{gpu=0}": 2.05e9,
        "gpu_memory_clock{gpu=0}": 1.3e9,
        "gpu_temperature{gpu=0}": 71,
        "gpu_memory_temperature{gpu=0}": 58,
        "gpu_power{gpu=0}": 612,
        "gpu_energy{gpu=0}": 16.0,  # 2**20 x 2**-16 J
        "gpu_pcie_rate{gpu=0}": 3e9,
        "gpu_memory_used{gpu=0}": 17 << 30,
        "gpu_memory_total{gpu=0}": 192 << 30,
        "gpu_link_tx_bytes{gpu=0,kind=XGMI,link=1}": 1000 * 1024,
        "gpu_link_rx_bytes{gpu=0,kind=XGMI,link=1}": 2000 * 1024,
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    links = {key for key in found if "gpu_link" in key}
    assert links == {
        key.replace("gpu=0", f"gpu={gpu}") for key in expected if "gpu_link" in key for gpu in (0, 1)
    }


def test_what_the_table_lacks_comes_from_files(tmp_path: Path) -> None:
    root = write_machine(tmp_path, 1, table(TableV1_3, temperature_edge=44))
    (root / card_folder(0) / "mem_busy_percent").unlink()
    capability = AmdDevices().probe(captured_context(root))
    found = read(opened(AmdDevices(), root))
    assert found["gpu_temperature{gpu=0}"] == 44  # the die's, where the hot spot is not known
    assert found["gpu_utilization{gpu=0}"] == pytest.approx(0.96)
    assert found["gpu_power{gpu=0}"] == pytest.approx(598)
    assert found["gpu_clock{gpu=0}"] == pytest.approx(1.733e9)  # the level in use
    assert found["gpu_memory_clock{gpu=0}"] == 1.3e9
    absent = {one.what: one.reason for one in capability.absent}
    assert absent["gpu_memory_utilization"] == "the driver does not give it"
    assert "gpu_energy" in absent and not any("gpu_energy" in key for key in found)


def test_no_table_at_all_leaves_the_files(root: Path) -> None:
    for index in range(2):
        (root / card_folder(index) / "gpu_metrics").write_bytes(bytes([200, 0, 7, 7]) + bytes(196))
    capability = AmdDevices().probe(captured_context(root))
    assert ("gpu_metrics", "gpu_metrics 7.7 is not known to this perfscope") in [
        (one.what, one.reason) for one in capability.absent
    ]
    found = read(opened(AmdDevices(), root))
    assert found["gpu_temperature{gpu=1}"] == 69 and found["gpu_power{gpu=1}"] == pytest.approx(598)


def test_units_of_processors_are_those_of_revision_2_4_only(tmp_path: Path) -> None:
    fields = {"temperature_gfx": 5150, "average_gfx_activity": 3300, "average_socket_power": 15_000}
    root = write_machine(tmp_path, 1, table(TableV2_4, **fields))
    found = read(opened(AmdDevices(), root))
    assert found["gpu_temperature{gpu=0}"] == pytest.approx(51.5)
    assert found["gpu_utilization{gpu=0}"] == pytest.approx(0.33)
    assert found["gpu_power{gpu=0}"] == pytest.approx(15)
    assert "gpu_memory_clock{gpu=0}" in found


def test_throttle_time_is_the_share_of_the_firmwares_own_ticks(root: Path) -> None:
    clock = Clock()
    collector = opened(AmdDevices(), root, clock=clock)
    metrics = root / card_folder(0) / "gpu_metrics"
    thermal, cap = (
        "gpu_throttle_time{gpu=0,name=socket thermal,reason=thermal}",
        "gpu_throttle_time{gpu=0,name=PPT,reason=power_cap}",
    )
    first = read(collector)
    assert (first[thermal], first[cap]) == (0, 0)
    metrics.write_bytes(busy(ticks=1400, socket_thm_residency_acc=100, ppt_residency_acc=400))
    clock.pass_ms(1000)
    second = read(collector)
    assert (second[thermal], second[cap]) == (SECOND // 4, SECOND)
    clock.pass_ms(1000)  # the firmware has not counted on: nothing is known of this second
    assert read(collector)[thermal] == SECOND // 4
    metrics.write_bytes(busy(ticks=100, socket_thm_residency_acc=100 + 324))  # 32 bits: began again at 0
    clock.pass_ms(1000)
    wrapped = (1 << 32) - 1400 + 100
    assert read(collector)[thermal] == pytest.approx(SECOND // 4 + 2 * SECOND * 324 / wrapped, abs=1)


def test_status_bits_keep_the_vendors_names(tmp_path: Path) -> None:
    root = write_machine(tmp_path, 1, table(TableV1_3, indep_throttle_status=1 << 36))
    collector = opened(AmdDevices(), root)
    (reading,) = [one for one in collector.sample() if one.series.metric.name == "gpu_throttle_reasons"]
    assert reading.value == 1 << 36
    bits = {mask: (reason, name) for mask, reason, name in reading.series.as_dict()["bits"]}  # type: ignore[attr-defined]
    assert bits[1 << 36] == ("thermal", "TEMP_HOTSPOT") and bits[1] == ("power_cap", "PPT0")
    assert bits[1 << 16] == ("current", "TDC_GFX")


def test_a_card_that_falls_off_the_bus_ends_alone(root: Path) -> None:
    ctx = hardware.FaultyContext(root=root)
    collector = AmdDevices()
    collector.open(ctx)
    for name in ("gpu_metrics", "mem_info_vram_used", "mem_info_vram_total"):
        ctx.fail(f"/sys/bus/pci/devices/{pci_address(0)}/{name}", "ENODEV")
    assert {one.value for one in collector.sample() if one.series.labels["gpu"] == "0"} <= {None}
    reasons = [str(fact.value["reason"]) for fact in collector.facts()]
    assert len(reasons) == 3 and all("No such device" in reason for reason in reasons)
    assert {one.series.labels["gpu"] for one in collector.sample()} == {"1"}


def test_a_sensor_that_fails_for_a_while_is_tried_again(root: Path) -> None:
    ctx = hardware.FaultyContext(root=root)
    collector = AmdDevices()
    collector.open(ctx)
    path = f"/sys/bus/pci/devices/{pci_address(0)}/gpu_metrics"
    ctx.fail(path, "EPERM")  # suspended
    for _ in range(MAX_FAILURES - 1):
        assert read(collector)["gpu_power{gpu=0}"] is None
    ctx.failing.clear()
    assert read(collector)["gpu_power{gpu=0}"] == 612
    assert not collector.facts()


def test_topology_has_identity_memory_pcie_and_xgmi(root: Path) -> None:
    found: dict[str, Any] = read_topology(captured_context(root), "node0")
    first, second = found["gpus"]
    assert (first["id"], first["vendor"], first["name"]) == ("gpu:0", "AMD", "AMD Instinct MI300X")
    assert (first["pci"], first["uuid"], first["memory_bytes"]) == (
        "0000:0c:00.0",
        "GPU-a1b2c3d4e5f60000",
        192 << 30,
    )
    assert (first["numa_node"], first["pcie"]["max_speed_gt_s"], first["pcie"]["width"]) == (0, 32.0, 16)
    assert second["id"] == "gpu:1"
    link = {"a": "gpu:0", "b": "gpu:1", "class": "gpu_link", "kind": "XGMI", "path": "XGMI"}
    assert found["links"] == [{**link, "peak_bytes_per_s": 50e9}]
    peaks = {(one["what"], one["where"]): one["value"] for one in theoretical_peaks(found)}
    assert peaks["device memory", "gpu:0"] == 5.3e12 and peaks["XGMI", "gpu:1"] == 448e9
    assert json.loads(json.dumps(found)) == found


def test_a_card_without_amdkfd_is_still_a_gpu(tmp_path: Path) -> None:
    write_gpu(tmp_path, 0, busy(), name="")
    (gpu,) = registry.devices(captured_context(tmp_path), [])
    assert (gpu["pci"], gpu["uuid"], gpu["name"]) == ("0000:0c:00.0", "GPU-a1b2c3d4e5f60000", None)
    assert read(opened(AmdDevices(), tmp_path))["gpu_power{gpu=0}"] == 612
    assert not registry.has_gpu(captured_context(tmp_path))  # nothing that computes


def test_a_name_that_the_driver_lacks_comes_from_amd_smi(tmp_path: Path) -> None:
    write_gpu(tmp_path, 0, busy(), name="")
    smi = SimpleNamespace(
        AmdSmiException=RuntimeError,
        amdsmi_get_processor_handles=lambda: ["handle"],
        amdsmi_get_gpu_device_bdf=lambda _handle: "0000:0C:00.0",
        amdsmi_get_gpu_asic_info=lambda _handle: {"market_name": "AMD Instinct MI325X"},
        amdsmi_shut_down=lambda: None,
    )
    (gpu,) = registry.devices(captured_context(tmp_path, library=lambda _load: smi), [])
    assert gpu["name"] == "AMD Instinct MI325X"


def test_gpus_of_two_vendors_are_numbered_through(root: Path) -> None:
    write(root, "proc/driver/nvidia/gpus/0000:50:00.0/information", "Model: \t NVIDIA H100\n")
    ctx = captured_context(root)
    gpus = registry.devices(ctx, [])
    assert [(gpu["id"], gpu["vendor"]) for gpu in gpus] == [
        ("gpu:0", "NVIDIA"),
        ("gpu:1", "AMD"),
        ("gpu:2", "AMD"),
    ]
    assert [(link["a"], link["b"]) for link in registry.links(ctx, gpus, [])] == [("gpu:1", "gpu:2")]
    assert "gpu_power{gpu=2}" in read(opened(AmdDevices(), root))


def test_a_vendor_that_cannot_be_read_leaves_the_others(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[Any]:
        raise RuntimeError("driver in a bad state")

    monkeypatch.setattr("perfscope.collectors.gpu.nvidia.vendor.Nvidia.devices", fail)
    monkeypatch.setattr("perfscope.collectors.gpu.nvidia.vendor.Nvidia.driver_devices", fail)
    notes: list[str] = []
    assert [gpu["id"] for gpu in registry.devices(captured_context(root), notes)] == ["gpu:0", "gpu:1"]
    assert "GPUs of NVIDIA: not read (RuntimeError: driver in a bad state)" in notes


def test_partitions_of_a_gpu_are_read_once(root: Path) -> None:
    facts = (root / KFD / "topology/nodes/1/properties").read_text()
    write(root, f"{KFD}/topology/nodes/3/properties", facts)
    notes: list[str] = []
    assert len(registry.devices(captured_context(root), notes)) == 3
    assert notes == ["AMD GPUs are partitioned: what is read of one has the number of its first partition"]
    assert {key for key in read(opened(AmdDevices(), root)) if "gpu_power" in key} == {
        "gpu_power{gpu=0}",
        "gpu_power{gpu=1}",
    }


@pytest.mark.parametrize(
    ("environment", "visible"),
    [
        ({}, [0, 1, 2, 3]),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "1"}, [3]),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-a1b2c3d4e5f60003"}, [3]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_visible_gpus_are_those_of_the_runtime(
    tmp_path: Path, environment: dict[str, str], visible: list[int]
) -> None:
    ctx = captured_context(write_machine(tmp_path, 4))
    assert [gpu["index"] for gpu in registry.visible_devices(ctx, environment)] == visible
    assert registry.num_visible(ctx, environment) == len(visible)
    assert registry.has_gpu(ctx)


def test_a_container_without_the_device_files_has_no_gpu(root: Path) -> None:
    (root / "dev/kfd").unlink()
    assert registry.num_visible(captured_context(root), {}) == 0


def test_processes_that_hold_memory_of_a_gpu_are_neighbours(root: Path) -> None:
    for pid, taken in ((100, 7 << 30), (900, 3 << 30), (901, 0)):
        write(root, f"{KFD}/proc/{pid}/vram_5000", f"{taken}\n")
        write(root, f"{KFD}/proc/{pid}/vram_5001", "0\n")
        write(root, f"proc/{pid}/comm", f"program{pid}\n")
        write(root, f"proc/{pid}/stat", f"{pid} (program) S 1 1 1 0 -1 0\n")
    collector = opened(AmdProcesses(), root, pids=lambda: (100,))
    found = read(collector)
    assert found["gpu_foreign_processes{gpu=0}"] == 1 and found["gpu_foreign_memory{gpu=0}"] == 3 << 30
    assert found["gpu_foreign_processes{gpu=1}"] == 0
    (fact,) = collector.facts()
    assert (fact.value["pid"], fact.value["name"], fact.value["gpu"]) == (900, "program900", 0)


def test_the_estimate_of_pcie_traffic_is_packets_times_the_largest_payload(root: Path) -> None:
    assert parse_pcie_bw("10 20 256\n") == (20 * 256, 10 * 256)
    assert parse_pcie_bw("N/A") == (None, None)
    assert not AmdPcieRate().probe(captured_context(root)).available
    write(root, f"{card_folder(1)}/pcie_bw", "1000 2000 128\n")
    found = read(opened(AmdPcieRate(), root))
    assert found == {"pcie_tx_rate{gpu=1}": 256_000, "pcie_rx_rate{gpu=1}": 128_000}


@pytest.mark.parametrize("kind", [AmdDevices, AmdPcieRate, AmdProcesses])
def test_a_machine_without_amd_gpus_says_so(kind: type, tmp_path: Path) -> None:
    capability = kind().probe(Context(root=tmp_path))
    assert not capability.available
    assert capability.reason == "no AMD GPU: neither amdkfd nor amdgpu shows one"
    kind().close()
