"""Readings of GPUs of any vendor: what is read, in which unit, how it is drawn, and why clocks are lowered.

The catalogue is the only place where a metric of GPUs has its name, unit and title. Collectors say where a
value comes from; analysis and reports read what stands here.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class GpuMetric(NamedTuple):
    """One kind of reading.

    `group` is the chart that shows it and `title` its line, with labels in braces; "" = no line. The
    line is the level, what a counter counts per second, or the share of time where it counts ns.
    """

    name: str
    unit: str  # as in rundir.metrics.Metric
    kind: str  # gauge or counter
    description: str
    group: str = ""
    title: str = ""
    peak: float | None = None  # what it can be at most, in the unit of the line


_GAUGE, _COUNTER = "gauge", "counter"

UTILIZATION = GpuMetric(
    "gpu_utilization", "ratio", _GAUGE, "share of time in which any kernel ran", "gpu", "GPU {gpu} busy", 1.0
)
MEMORY_UTILIZATION = GpuMetric(
    "gpu_memory_utilization",
    "ratio",
    _GAUGE,
    "share of time in which device memory was read or written",
    "gpu",
    "GPU {gpu} memory busy",
    1.0,
)
COMPUTE_ACTIVITY = GpuMetric(
    "gpu_compute_activity",
    "ratio",
    _GAUGE,
    "share of the compute units (SMs) that were busy",
    "gpu",
    "GPU {gpu} compute units active",
    1.0,
)
OCCUPANCY = GpuMetric(
    "gpu_occupancy",
    "ratio",
    _GAUGE,
    "share of the warps that could be active which were",
    "gpu",
    "GPU {gpu} occupancy",
    1.0,
)
MATRIX_ACTIVITY = GpuMetric(
    "gpu_matrix_activity",
    "ratio",
    _GAUGE,
    "share of time in which matrix units (tensor cores) worked",
    "gpu",
    "GPU {gpu} matrix units active",
    1.0,
)
DRAM_ACTIVITY = GpuMetric(
    "gpu_dram_activity",
    "ratio",
    _GAUGE,
    "share of the device memory's peak bandwidth in use",
    "gpu",
    "GPU {gpu} DRAM active",
    1.0,
)
THROTTLE_TIME = GpuMetric(
    "gpu_throttle_time",
    "ns",
    _COUNTER,
    "time in which this lowered the clocks",
    "gpu",
    "GPU {gpu} throttled: {name}",
    1.0,
)
THROTTLE_REASONS = GpuMetric(
    "gpu_throttle_reasons", "bitmask", _GAUGE, "why the clocks are below their top now, one bit a reason"
)
MEMORY_USED = GpuMetric("gpu_memory_used", "bytes", _GAUGE, "device memory in use")
MEMORY_TOTAL = GpuMetric("gpu_memory_total", "bytes", _GAUGE, "device memory in all")
CLOCK = GpuMetric(
    "gpu_clock", "hz", _GAUGE, "clock of the compute units (SMs) now", "clocks", "GPU {gpu} clock"
)
MEMORY_CLOCK = GpuMetric(
    "gpu_memory_clock", "hz", _GAUGE, "clock of the memory now", "clocks", "GPU {gpu} memory clock"
)
POWER = GpuMetric("gpu_power", "watts", _GAUGE, "power drawn", "power", "GPU {gpu}")
ENERGY = GpuMetric("gpu_energy", "joules", _COUNTER, "energy since the driver was loaded")
TEMPERATURE = GpuMetric(
    "gpu_temperature", "celsius", _GAUGE, "temperature of the die", "power", "GPU {gpu} temperature"
)
MEMORY_TEMPERATURE = GpuMetric(
    "gpu_memory_temperature",
    "celsius",
    _GAUGE,
    "temperature of the device memory",
    "power",
    "GPU {gpu} memory temperature",
)
PCIE_TX = GpuMetric("pcie_tx_bytes", "bytes", _COUNTER, "bytes sent by the GPU over PCIe")
PCIE_RX = GpuMetric("pcie_rx_bytes", "bytes", _COUNTER, "bytes received by the GPU over PCIe")
LINK_TX = GpuMetric(
    "gpu_link_tx_bytes", "bytes", _COUNTER, "payload sent by the GPU over one link to other GPUs"
)
LINK_RX = GpuMetric(
    "gpu_link_rx_bytes", "bytes", _COUNTER, "payload received by the GPU over one link to other GPUs"
)
_LINKS = "gpu_link"
PCIE_TX_RATE = GpuMetric(
    "gpu_pcie_tx_rate",
    "bytes_per_s",
    _GAUGE,
    "bytes/s the GPU sent over PCIe",
    _LINKS,
    "GPU {gpu} PCIe sent",
)
PCIE_RX_RATE = GpuMetric(
    "gpu_pcie_rx_rate",
    "bytes_per_s",
    _GAUGE,
    "bytes/s the GPU received over PCIe",
    _LINKS,
    "GPU {gpu} PCIe received",
)
PCIE_TX_SAMPLED = GpuMetric(
    "pcie_tx_rate",
    "bytes_per_s",
    _GAUGE,
    "bytes/s the GPU sent over PCIe, in a part of the time or estimated",
    _LINKS,
    "GPU {gpu} PCIe sent, sampled",
)
PCIE_RX_SAMPLED = GpuMetric(
    "pcie_rx_rate",
    "bytes_per_s",
    _GAUGE,
    "bytes/s the GPU received over PCIe, in a part of the time or estimated",
    _LINKS,
    "GPU {gpu} PCIe received, sampled",
)
PCIE_RATE = GpuMetric(
    "gpu_pcie_rate",
    "bytes_per_s",
    _GAUGE,
    "bytes/s over PCIe as the GPU's firmware counts them, directions not distinguished",
    _LINKS,
    "GPU {gpu} PCIe",
)
LINK_TX_RATE = GpuMetric(
    "gpu_link_tx_rate",
    "bytes_per_s",
    _GAUGE,
    "bytes/s the GPU sent over all links to other GPUs",
    _LINKS,
    "GPU {gpu} {kind} sent",
)
LINK_RX_RATE = GpuMetric(
    "gpu_link_rx_rate",
    "bytes_per_s",
    _GAUGE,
    "bytes/s the GPU received over all links to other GPUs",
    _LINKS,
    "GPU {gpu} {kind} received",
)
FOREIGN_PROCESSES = GpuMetric(
    "gpu_foreign_processes", "processes", _GAUGE, "compute processes on the GPU not of this run"
)
FOREIGN_MEMORY = GpuMetric(
    "gpu_foreign_memory", "bytes", _GAUGE, "device memory of processes not of this run"
)

# In the order in which lines are drawn.
GPU_METRICS = (
    UTILIZATION,
    MEMORY_UTILIZATION,
    COMPUTE_ACTIVITY,
    OCCUPANCY,
    MATRIX_ACTIVITY,
    DRAM_ACTIVITY,
    THROTTLE_TIME,
    THROTTLE_REASONS,
    MEMORY_USED,
    MEMORY_TOTAL,
    PCIE_TX,
    PCIE_RX,
    LINK_TX,
    LINK_RX,
    PCIE_TX_RATE,
    PCIE_RX_RATE,
    PCIE_TX_SAMPLED,
    PCIE_RX_SAMPLED,
    PCIE_RATE,
    LINK_TX_RATE,
    LINK_RX_RATE,
    POWER,
    ENERGY,
    TEMPERATURE,
    MEMORY_TEMPERATURE,
    CLOCK,
    MEMORY_CLOCK,
    FOREIGN_PROCESSES,
    FOREIGN_MEMORY,
)


class ThrottleReason(str, Enum):
    """Why a GPU's clocks are below their top. The value is the label `reason` in samples.jsonl."""

    IDLE = "idle"
    CLOCK_SETTING = "clock_setting"  # a user or a program set them
    SYNC = "sync"  # kept to the slowest GPU of a group
    POWER_CAP = "power_cap"
    CURRENT = "current"  # of the voltage regulators
    THERMAL = "thermal"
    POWER_BRAKE = "power_brake"  # the board or the power supply asks for it
    HARDWARE = "hardware"  # the hardware protects itself, and does not say from what
    OTHER = "other"


# Faults of cooling or power rather than a set limit.
THROTTLE_FAULTS = frozenset((ThrottleReason.THERMAL, ThrottleReason.POWER_BRAKE, ThrottleReason.HARDWARE))


class ThrottleBit(NamedTuple):
    """A bit of gpu_throttle_reasons as the vendor defines it."""

    mask: int
    reason: ThrottleReason
    name: str  # the vendor's: "HW thermal"
