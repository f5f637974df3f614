"""GPUs and the links between them, for the topology."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.collectors.gpu.nvidia.devices import gpu_links, list_gpus, pci_address
from perfscope.collectors.gpu.nvidia.library import load_nvml
from tests.support.nvml_readings import Clock, clock, context, four
from tests.support.nvml_stand_in import StandIn, hopper, installed, machine, volta

__all__ = ["clock", "four"]


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
