"""What DCGM exporter's metrics are in the catalogue: name in its text -> metric, raw unit, further labels.

Names, units and meanings: NVIDIA's dcgm-exporter (default-counters.csv) and DCGM's field identifiers. Times
of violations are left out: their unit differs between versions.
"""

from __future__ import annotations

from perfscope.collectors.gpu.nvidia.counters import THROTTLE_BITS
from perfscope.rundir.metrics import Metric
from perfscope.vocabulary import gpu as words

_PERCENT, _MHZ, _MIB, _MILLI = 0.01, 1e6, float(1 << 20), 1e-3
LINK_LABELS = {"kind": "NVLink"}
LINK_NAMES = frozenset(("DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES"))


def _metric(kind: words.GpuMetric, name: str, scale: float) -> Metric:
    return Metric(
        name=kind.name,
        unit=kind.unit,
        kind=kind.kind,
        source=f"DCGM exporter: {name}",
        description=kind.description,
        scale=scale,
        bits=THROTTLE_BITS if kind is words.THROTTLE_REASONS else (),
    )


EXPORTED = {
    name: _metric(kind, name, scale)
    for name, kind, scale in (
        ("DCGM_FI_DEV_GPU_UTIL", words.UTILIZATION, _PERCENT),
        ("DCGM_FI_DEV_MEM_COPY_UTIL", words.MEMORY_UTILIZATION, _PERCENT),
        ("DCGM_FI_PROF_SM_ACTIVE", words.COMPUTE_ACTIVITY, 1.0),
        ("DCGM_FI_PROF_SM_OCCUPANCY", words.OCCUPANCY, 1.0),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", words.MATRIX_ACTIVITY, 1.0),
        ("DCGM_FI_PROF_DRAM_ACTIVE", words.DRAM_ACTIVITY, 1.0),
        ("DCGM_FI_PROF_PCIE_TX_BYTES", words.PCIE_TX_RATE, 1.0),
        ("DCGM_FI_PROF_PCIE_RX_BYTES", words.PCIE_RX_RATE, 1.0),
        ("DCGM_FI_PROF_NVLINK_TX_BYTES", words.LINK_TX_RATE, 1.0),
        ("DCGM_FI_PROF_NVLINK_RX_BYTES", words.LINK_RX_RATE, 1.0),
        ("DCGM_FI_DEV_POWER_USAGE", words.POWER, 1.0),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", words.ENERGY, _MILLI),
        ("DCGM_FI_DEV_SM_CLOCK", words.CLOCK, _MHZ),
        ("DCGM_FI_DEV_MEM_CLOCK", words.MEMORY_CLOCK, _MHZ),
        ("DCGM_FI_DEV_FB_USED", words.MEMORY_USED, _MIB),
        ("DCGM_FI_DEV_FB_TOTAL", words.MEMORY_TOTAL, _MIB),
        ("DCGM_FI_DEV_GPU_TEMP", words.TEMPERATURE, 1.0),
        ("DCGM_FI_DEV_MEMORY_TEMP", words.MEMORY_TEMPERATURE, 1.0),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", words.THROTTLE_REASONS, 1.0),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", words.THROTTLE_REASONS, 1.0),
    )
}
