"""Made-up /sys trees of machines with AMD GPUs, and a writer of amdgpu's binary table.

The names and formats of files are those of the kernel's documentation (Documentation/gpu/amdgpu, amdkfd's
kfd_topology.c); the figures are invented. The structures of the kernel's kgd_pp_interface.h are declared once
more with ctypes, which lays them out as C does: the reader's own layouts are checked against them.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

_U8, _U16, _U32, _U64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
_HEADER: list[tuple[str, Any]] = [
    ("structure_size", _U16),
    ("format_revision", _U8),
    ("content_revision", _U8),
]
KFD = "sys/class/kfd/kfd"


class TableV1_3(ctypes.Structure):
    """MI200 and Radeon RX 6000 and 7000."""

    revision = (1, 3)
    _fields_ = [
        *_HEADER,
        *((f"temperature_{n}", _U16) for n in ("edge", "hotspot", "mem", "vrgfx", "vrsoc", "vrmem")),
        *((f"average_{n}_activity", _U16) for n in ("gfx", "umc", "mm")),
        ("average_socket_power", _U16),
        ("energy_accumulator", _U64),
        ("system_clock_counter", _U64),
        *(
            (f"average_{n}_frequency", _U16)
            for n in ("gfxclk", "socclk", "uclk", "vclk0", "dclk0", "vclk1", "dclk1")
        ),
        *((f"current_{n}", _U16) for n in ("gfxclk", "socclk", "uclk", "vclk0", "dclk0", "vclk1", "dclk1")),
        ("throttle_status", _U32),
        *((n, _U16) for n in ("current_fan_speed", "pcie_link_width", "pcie_link_speed", "padding")),
        ("gfx_activity_acc", _U32),
        ("mem_activity_acc", _U32),
        ("temperature_hbm", _U16 * 4),
        ("firmware_timestamp", _U64),
        *((n, _U16) for n in ("voltage_soc", "voltage_gfx", "voltage_mem", "padding1")),
        ("indep_throttle_status", _U64),
    ]


_SOCKET: list[tuple[str, Any]] = [
    *((f"temperature_{n}", _U16) for n in ("hotspot", "mem", "vrsoc")),
    *((n, _U16) for n in ("curr_socket_power", "average_gfx_activity", "average_umc_activity")),
]
_PCIE: list[tuple[str, Any]] = [
    *((n, _U16) for n in ("pcie_link_width", "pcie_link_speed", "xgmi_link_width", "xgmi_link_speed")),
    ("gfx_activity_acc", _U32),
    ("mem_activity_acc", _U32),
    *((f"pcie_{n}", _U64) for n in ("bandwidth_acc", "bandwidth_inst", "l0_to_recov_count_acc")),
    *((f"pcie_replay_{n}", _U64) for n in ("count_acc", "rover_count_acc")),
]
_NAKS: list[tuple[str, Any]] = [("pcie_nak_sent_count_acc", _U32), ("pcie_nak_rcvd_count_acc", _U32)]
_XGMI: list[tuple[str, Any]] = [("xgmi_read_data_acc", _U64 * 8), ("xgmi_write_data_acc", _U64 * 8)]
_CLOCKS: list[tuple[str, Any]] = [
    ("firmware_timestamp", _U64),
    ("current_gfxclk", _U16 * 8),
    *((f"current_{n}", _U16 * 4) for n in ("socclk", "vclk0", "dclk0")),
    ("current_uclk", _U16),
]


class TableV1_5(ctypes.Structure):
    """MI300 with earlier firmware."""

    revision = (1, 5)
    _fields_ = [
        *_HEADER,
        *_SOCKET,
        ("vcn_activity", _U16 * 4),
        ("jpeg_activity", _U16 * 32),
        ("energy_accumulator", _U64),
        ("system_clock_counter", _U64),
        ("throttle_status", _U32),
        ("gfxclk_lock_status", _U32),
        *_PCIE,
        *_NAKS,
        *_XGMI,
        *_CLOCKS,
        ("padding", _U16),
    ]


class _Partition(ctypes.Structure):
    """amdgpu_xcp_metrics_v1_1."""

    _fields_ = [
        ("gfx_busy_inst", _U32 * 8),
        ("jpeg_busy", _U16 * 32),
        ("vcn_busy", _U16 * 4),
        ("gfx_busy_acc", _U64 * 8),
        ("gfx_below_host_limit_acc", _U64 * 8),
    ]


class TableV1_7(ctypes.Structure):
    """MI300 and MI325."""

    revision = (1, 7)
    _fields_ = [
        *_HEADER,
        *_SOCKET,
        ("mem_max_bandwidth", _U64),
        ("energy_accumulator", _U64),
        ("system_clock_counter", _U64),
        ("accumulation_counter", _U32),
        *((f"{n}_residency_acc", _U32) for n in ("prochot", "ppt", "socket_thm", "vr_thm", "hbm_thm")),
        ("gfxclk_lock_status", _U32),
        *_PCIE,
        *_NAKS,
        *_XGMI,
        ("xgmi_link_status", _U16 * 8),
        ("padding", _U16),
        *_CLOCKS,
        ("num_partition", _U16),
        ("xcp_stats", _Partition * 8),
        ("pcie_lc_perf_other_end_recovery", _U32),
    ]


class TableV2_4(ctypes.Structure):
    """Processors with graphics."""

    revision = (2, 4)
    _fields_ = [
        *_HEADER,
        ("temperature_gfx", _U16),
        ("temperature_soc", _U16),
        ("temperature_core", _U16 * 8),
        ("temperature_l3", _U16 * 2),
        ("average_gfx_activity", _U16),
        ("average_mm_activity", _U16),
        ("system_clock_counter", _U64),
        *((f"average_{n}_power", _U16) for n in ("socket", "cpu", "soc", "gfx")),
        ("average_core_power", _U16 * 8),
        *((f"average_{n}_frequency", _U16) for n in ("gfxclk", "socclk", "uclk", "fclk", "vclk", "dclk")),
        *((f"current_{n}", _U16) for n in ("gfxclk", "socclk", "uclk", "fclk", "vclk", "dclk")),
        ("current_coreclk", _U16 * 8),
        ("current_l3clk", _U16 * 2),
        ("throttle_status", _U32),
        ("fan_pwm", _U16),
        ("padding", _U16 * 3),
        ("indep_throttle_status", _U64),
        ("average_temperature_gfx", _U16),
        ("average_temperature_soc", _U16),
        ("average_temperature_core", _U16 * 8),
        ("average_temperature_l3", _U16 * 2),
        *((f"average_{n}_voltage", _U16) for n in ("cpu", "soc", "gfx")),
        *((f"average_{n}_current", _U16) for n in ("cpu", "soc", "gfx")),
    ]


Table = type[TableV1_3] | type[TableV1_5] | type[TableV1_7] | type[TableV2_4]


def table(kind: Table, **fields: int | list[int]) -> bytes:
    """The table as the driver writes it: what is not in `fields` is ones."""
    size = ctypes.sizeof(kind)
    made = kind.from_buffer(bytearray(b"\xff" * size))
    made.structure_size, made.format_revision, made.content_revision = size, *kind.revision
    for name, value in fields.items():
        target = getattr(made, name)
        if isinstance(value, list):
            target[: len(value)] = value
        else:
            setattr(made, name, value)
    return bytes(made)


def busy(energy: int = 1 << 20, ticks: int = 1000, **fields: int | list[int]) -> bytes:
    """An MI300X at work, not throttled."""
    usual: dict[str, int | list[int]] = {
        "temperature_hotspot": 71,
        "temperature_mem": 58,
        "curr_socket_power": 612,
        "average_gfx_activity": 97,
        "average_umc_activity": 43,
        "energy_accumulator": energy,
        "accumulation_counter": ticks,
        **{f"{name}_residency_acc": 0 for name in ("prochot", "ppt", "socket_thm", "vr_thm", "hbm_thm")},
        "pcie_bandwidth_inst": 3,
        "xgmi_link_width": 16,
        "xgmi_link_speed": 25,
        "xgmi_read_data_acc": [0, 2000],
        "xgmi_write_data_acc": [0, 1000],
        "xgmi_link_status": [0, 1, 0, 0, 0, 0, 0, 0],
        "current_gfxclk": [2100, 2100, 2000, 2000, 2100, 2100, 2000, 2000],
        "current_uclk": 1300,
    }
    return table(TableV1_7, **{**usual, **fields})


def write(root: Path, name: str, content: str | bytes) -> None:
    """A file of the tree."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def pci_address(index: int) -> str:
    """Of the machine's GPU `index`."""
    return f"0000:{0x0C + 0x10 * index:02x}:00.0"


def card_folder(index: int) -> str:
    """Where amdgpu's files of GPU `index` are, below the root."""
    return f"sys/devices/pci0000:{index:02x}/{pci_address(index)}"


def write_gpu(root: Path, index: int, metrics: bytes | None, *, name: str = "AMD Instinct MI300X") -> None:
    """One card: its PCI device with amdgpu's files and sensors, and its card in /sys/class/drm."""
    folder = card_folder(index)
    files = {
        "vendor": "0x1002\n",
        "class": "0x120000\n",
        "numa_node": f"{index // 4}\n",
        "local_cpulist": "0-3\n",
        "unique_id": f"a1b2c3d4e5f6000{index}\n",
        "current_link_speed": "32.0 GT/s PCIe\n",
        "max_link_speed": "32.0 GT/s PCIe\n",
        "current_link_width": "16\n",
        "max_link_width": "16\n",
        "mem_info_vram_total": f"{192 << 30}\n",
        "mem_info_vram_used": f"{17 << 30}\n",
        "gpu_busy_percent": "96\n",
        "mem_busy_percent": "40\n",
        "pp_dpm_sclk": "0: 132Mhz\n1: 1733Mhz *\n2: 2100Mhz\n",
        "hwmon/hwmon4/temp1_input": "45000\n",
        "hwmon/hwmon4/temp2_input": "69000\n",
        "hwmon/hwmon4/temp3_input": "57000\n",
        "hwmon/hwmon4/power1_average": "598000000\n",
        "hwmon/hwmon4/freq2_input": "1300000000\n",
    }
    if name:
        files["product_name"] = f"{name}\n"
    for file, content in files.items():
        write(root, f"{folder}/{file}", content)
    if metrics is not None:
        write(root, f"{folder}/gpu_metrics", metrics)
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True, exist_ok=True)
    (devices / pci_address(index)).symlink_to(f"../../../../{folder}")
    drm = root / f"sys/class/drm/card{index}"
    drm.mkdir(parents=True)
    (drm / "device").symlink_to(f"../../../../{folder}")


def write_machine(root: Path, num_gpus: int = 2, metrics: bytes | None = None) -> Path:
    """A machine whose GPUs are joined all to all by XGMI. amdkfd's node 0 is the CPU."""
    nodes = f"{KFD}/topology/nodes"
    write(root, f"{nodes}/0/properties", "cpu_cores_count 64\nsimd_count 0\n")
    write(root, f"{nodes}/0/gpu_id", "0\n")
    for index in range(num_gpus):
        write_gpu(root, index, busy() if metrics is None else metrics)
        node, bus = index + 1, 0x0C + 0x10 * index
        facts = {
            "cpu_cores_count": 0,
            "simd_count": 1216,
            "vendor_id": 0x1002,
            "location_id": bus << 8,
            "domain": 0,
            "drm_render_minor": 128 + index,
            "unique_id": 0xA1B2C3D4E5F60000 + index,
        }
        write(root, f"{nodes}/{node}/properties", "".join(f"{key} {value}\n" for key, value in facts.items()))
        write(root, f"{nodes}/{node}/gpu_id", f"{5000 + index}\n")
        write(root, f"dev/dri/renderD{128 + index}", "")
        others = [other + 1 for other in range(num_gpus) if other != index]
        for number, other in enumerate([0, *others]):
            link = {"type": 11 if other else 2, "node_from": node, "node_to": other, "weight": 15}
            bandwidth = {"max_bandwidth": 50_000 if other else 64_000}
            text = "".join(f"{key} {value}\n" for key, value in {**link, **bandwidth}.items())
            write(root, f"{nodes}/{node}/io_links/{number}/properties", text)
    write(root, "dev/kfd", "")
    return root
