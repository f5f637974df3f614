"""The table of theoretical peaks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perfscope.collectors.gpu.registry import gpu_peaks
from perfscope.collectors.machine.pci import lane_bytes_per_s
from perfscope.collectors.machine.peaks import dram_peak, port_peak, theoretical_peaks

ALL = [
    "Tesla V100-SXM2-16GB",
    "Tesla V100-PCIE-32GB",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA A100-PCIE-40GB",
    "NVIDIA A100 80GB PCIe",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H100 PCIe",
    "NVIDIA H100 NVL",
    "NVIDIA H200",
    "NVIDIA B200",
]


def value(name: str, what: str, dtype: str = "", tensor: bool = False) -> float | None:
    return next(
        (p.value for p in gpu_peaks(name) if (p.what, p.dtype, p.tensor) == (what, dtype, tensor)), None
    )


@pytest.mark.parametrize(
    ("name", "memory", "half"),
    [
        ("Tesla V100-SXM2-16GB", 900e9, 125e12),
        ("Tesla V100-PCIE-32GB", 900e9, 112e12),
        ("NVIDIA A100-SXM4-40GB", 1555e9, 312e12),
        ("NVIDIA A100-SXM4-80GB", 2039e9, 312e12),
        ("NVIDIA A100-PCIE-40GB", 1555e9, 312e12),
        ("NVIDIA A100 80GB PCIe", 1935e9, 312e12),
        ("NVIDIA H100 80GB HBM3", 3350e9, 989.4e12),
        ("NVIDIA H100 PCIe", 2000e9, 756e12),
        ("NVIDIA H100 NVL", 3938e9, 835e12),
        ("NVIDIA H200", 4800e9, 989.4e12),
        ("NVIDIA B200", 8000e9, 2250e12),
    ],
)
def test_gpus_by_the_names_that_nvml_gives(name: str, memory: float, half: float) -> None:
    assert value(name, "memory") == memory
    assert value(name, "arithmetic", "float16", tensor=True) == half


@pytest.mark.parametrize(
    ("name", "sms", "per_sm", "mega_hertz"),
    [
        # An independent way to the same figure: multiprocessors x operations per clock x boost clock.
        ("Tesla V100-SXM2-16GB", 80, 1024, 1530),
        ("NVIDIA A100-SXM4-80GB", 108, 2048, 1410),
        ("NVIDIA H100 80GB HBM3", 132, 4096, 1830),
    ],
)
def test_dense_figures_agree_with_clock_and_units(
    name: str, sms: int, per_sm: int, mega_hertz: float
) -> None:
    dense = value(name, "arithmetic", "float16", tensor=True)
    assert dense == pytest.approx(sms * per_sm * mega_hertz * 1e6, rel=0.01)


@pytest.mark.parametrize(
    ("name", "mega_hertz", "bits"),
    [
        ("Tesla V100-SXM2-16GB", 877, 4096),
        ("NVIDIA A100-SXM4-80GB", 1593, 5120),
        ("NVIDIA H100 80GB HBM3", 2619, 5120),
    ],
)
def test_memory_agrees_with_clock_and_width(name: str, mega_hertz: float, bits: int) -> None:
    assert value(name, "memory") == pytest.approx(2 * mega_hertz * 1e6 * bits / 8, rel=0.01)


def test_names_that_are_only_like_another_have_no_peak() -> None:
    for name in (
        *("NVIDIA H100 MIG 1g.10gb", "NVIDIA GH200 480GB", "NVIDIA H20", "NVIDIA H800", "NVIDIA A10"),
        *("Tesla V100S-PCIE-32GB", "NVIDIA GB200", "NVIDIA H200 NVL", "", "AMD Instinct MI300A"),
    ):
        assert gpu_peaks(name) == (), name
    assert gpu_peaks(None) == ()


def test_every_row_names_its_source_and_no_figure_is_sparse() -> None:
    for name in ALL:
        peaks = gpu_peaks(name)
        assert all(peak.source for peak in peaks), name
        sources = [peak.source for peak in peaks if peak.tensor or peak.what == "memory"]
        assert all(source.startswith("https://") for source in sources), name
        # Per unit of time no type is faster than twice the next wider one: a doubled figure would show.
        assert (value(name, "arithmetic", "float8", True) or 0) <= 2.01 * (
            value(name, "arithmetic", "float16", True) or 0
        )
    assert value("NVIDIA H100 80GB HBM3", "arithmetic", "tf32", True) == 494.7e12
    assert value("NVIDIA H100 80GB HBM3", "NVLink") == 450e9  # per direction


@pytest.mark.parametrize(
    ("model", "giga_bytes"),
    [
        ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", 128.0),
        ("Intel(R) Xeon(R) Platinum 8280 CPU @ 2.70GHz", 140.8),
        ("Intel(R) Xeon(R) Platinum 8360Y CPU @ 2.40GHz", 204.8),
        ("Intel(R) Xeon(R) Platinum 8480+", 307.2),
        ("Intel(R) Xeon Phi(TM) CPU 7250 @ 1.40GHz", 115.2),
        ("AMD EPYC 7742 64-Core Processor", 204.8),
        ("AMD EPYC 7763 64-Core Processor", 204.8),
        ("AMD EPYC 7V13 64-Core Processor", 204.8),
        ("AMD EPYC 9654 96-Core Processor", 460.8),
        ("AMD EPYC", None),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", None),
        ("Intel(R) Xeon(R) Silver 4110 CPU @ 2.10GHz", None),
        ("AMD EPYC 7601 32-Core Processor", None),
        ("QEMU TCG CPU version 2.5+", None),
        (None, None),
    ],
)
def test_dram_of_a_socket(model: str | None, giga_bytes: float | None) -> None:
    peak = dram_peak(model)
    assert (peak.value / 1e9 if peak else None) == (pytest.approx(giga_bytes) if giga_bytes else None)


@pytest.mark.parametrize(
    ("kind", "rate", "giga_bytes"),
    [
        ("infiniband", 40e9, 4.0),  # QDR: 8b/10b
        ("infiniband", 56e9, 6.8175),  # FDR: 64b/66b
        ("infiniband", 100e9, 12.5),
        ("infiniband", 200e9, 25.0),
        ("infiniband", 400e9, 50.0),
        ("omnipath", 100e9, 12.5),
        ("roce", 40e9, 5.0),
    ],
)
def test_fabric_ports_by_their_data_rate(kind: str, rate: float, giga_bytes: float) -> None:
    peak = port_peak(kind, rate)
    assert peak is not None
    assert peak.value == pytest.approx(giga_bytes * 1e9)


def test_a_port_without_a_known_rate_has_no_peak() -> None:
    assert port_peak("rxe", None) is None


@pytest.mark.parametrize(
    ("gt_s", "giga_bytes"), [(2.5, 4.0), (8.0, 15.75), (16.0, 31.5), (32.0, 63.0), (64.0, 121.0)]
)
def test_sixteen_lanes_of_pcie(gt_s: float, giga_bytes: float) -> None:
    assert 16 * lane_bytes_per_s(gt_s) / 1e9 == pytest.approx(giga_bytes, rel=0.001)


def test_entries_for_what_a_topology_names() -> None:
    topology: dict[str, Any] = {
        "cpu_model": "AMD EPYC 9654 96-Core Processor",
        "packages": [{"package": 0}, {"package": 1}],
        "gpus": [
            {"id": "gpu:0", "name": "NVIDIA H100 PCIe", "pcie": {"peak_bytes_per_s": 63_015_384_615}},
            {"id": "gpu:1", "name": "unheard of", "pcie": None},
        ],
        "fabric_ports": [
            {"id": "port:mlx5_0/1", "kind": "infiniband", "rate_bits_per_s": 200_000_000_000},
            {"id": "port:rxe0/1", "kind": "rxe", "rate_bits_per_s": None},
        ],
    }
    entries: list[dict[str, Any]] = json.loads(json.dumps(theoretical_peaks(topology)))
    found = {(entry["what"], entry["where"]): entry["value"] for entry in entries}
    assert found["DRAM", "socket 0"] == found["DRAM", "socket 1"] == pytest.approx(460.8e9)
    assert found["device memory", "gpu:0"] == 2000e9
    assert found["PCIe", "gpu:0"] == 63_015_384_615
    assert found["link", "port:mlx5_0/1"] == 25e9
    assert found["bfloat16 matrix arithmetic", "gpu:0"] == 756e12
    assert {entry["where"] for entry in entries} == {"socket 0", "socket 1", "gpu:0", "port:mlx5_0/1"}
    assert all(entry["source"] and entry["unit"] in ("bytes_per_s", "flops_per_s") for entry in entries)


def test_a_topology_that_names_nothing() -> None:
    assert theoretical_peaks({}) == []
    assert theoretical_peaks({"cpu_model": None, "gpus": "x", "packages": [3]}) == []
