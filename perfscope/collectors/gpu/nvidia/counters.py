"""NVIDIA GPUs through NVML: how busy, how hot, how fast they may run, and what energy they use.

Utilisation means "some kernel ran", over a window of the driver's own (1/6 to 1 s): it is no occupancy.
Energy is a counter since the driver was loaded; its differences are better than any polled power.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfscope.collectors.gpu.nvidia.parts import Failed, FieldQuery, Gpu, NvmlCollector, Query, Value
from perfscope.collectors.gpu.nvidia.parts import metric_of as _metric
from perfscope.rundir.metrics import COUNTER, GAUGE, Series

_WINDOW = "the driver's window, 1/6 to 1 s"
UTILIZATION = _metric(
    "gpu_utilization",
    "ratio",
    GAUGE,
    "nvmlDeviceGetUtilizationRates",
    "share of time in which any kernel ran",
    scale=0.01,
    resolution=_WINDOW,
)
MEMORY_UTILIZATION = _metric(
    "gpu_memory_utilization",
    "ratio",
    GAUGE,
    "nvmlDeviceGetUtilizationRates",
    "share of time in which device memory was read or written",
    scale=0.01,
    resolution=_WINDOW,
)
MEMORY_USED = _metric(
    "gpu_memory_used",
    "bytes",
    GAUGE,
    "nvmlDeviceGetMemoryInfo",
    "device memory in use, what the driver keeps for itself left out where it says so (version 2)",
)
MEMORY_TOTAL = _metric("gpu_memory_total", "bytes", GAUGE, "nvmlDeviceGetMemoryInfo", "device memory in all")
SM_CLOCK = _metric(
    "gpu_sm_clock", "hz", GAUGE, "nvmlDeviceGetClockInfo(SM)", "clock of the SMs now", scale=1e6
)
MEMORY_CLOCK = _metric(
    "gpu_memory_clock", "hz", GAUGE, "nvmlDeviceGetClockInfo(MEM)", "clock of the memory now", scale=1e6
)
THROTTLE_REASONS = _metric(
    "gpu_throttle_reasons",
    "bitmask",
    GAUGE,
    "nvmlDeviceGetCurrentClocksEventReasons",
    "why the clocks are below their top: 0x1 idle, 0x2 application clocks, 0x4 power cap, 0x8 hardware, "
    "0x10 sync boost, 0x20 and 0x40 heat, 0x80 power brake, 0x100 display",
)
TEMPERATURE = _metric(
    "gpu_temperature", "celsius", GAUGE, "nvmlDeviceGetTemperature(GPU)", "temperature of the die"
)
POWER = _metric("gpu_power", "watts", GAUGE, "NVML field 186", "power drawn now", scale=1e-3)
POWER_USAGE = _metric(
    "gpu_power",
    "watts",
    GAUGE,
    "nvmlDeviceGetPowerUsage",
    "power drawn; a mean over 1 s on most GPUs",
    scale=1e-3,
)
ENERGY = _metric(
    "gpu_energy", "joules", COUNTER, "NVML field 83", "energy since the driver was loaded", scale=1e-3
)
ENERGY_CALL = _metric(
    "gpu_energy",
    "joules",
    COUNTER,
    "nvmlDeviceGetTotalEnergyConsumption",
    "energy since the driver was loaded",
    scale=1e-3,
)
THROTTLE_TIME = _metric(
    "gpu_throttle_time",
    "ns",
    COUNTER,
    "NVML fields 74, 76, 269, 270, 271",
    "time in which this held the clocks down",
)
THROTTLE_FIELDS = {
    "sw_power_cap": 74,
    "sync_boost": 76,
    "sw_thermal": 269,
    "hw_thermal": 270,
    "hw_power_brake": 271,
}
_FIELD_POWER, _FIELD_ENERGY = 186, 83
_CLOCK_SM, _CLOCK_MEMORY, _SENSOR_GPU = 1, 2, 0


class NvmlDevices(NvmlCollector):
    """The GPUs' own state. See the module."""

    name = "nvml"
    source = "NVML (libnvidia-ml.so.1)"

    def groups(self, nvml: Any, gpu: Gpu) -> list[list[Query]]:
        return [_levels(nvml, gpu), [_fields(nvml, gpu)]]


def _levels(nvml: Any, gpu: Gpu) -> list[Query]:
    """What has a call of its own. Read at one go, so that one pair of times serves all."""
    handle = gpu.handle

    def utilization() -> Sequence[Value]:
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
        return rates.gpu, rates.memory

    def memory() -> Sequence[Value]:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        return info.used, info.total

    def memory_v1() -> Sequence[Value]:
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
        return info.used, info.total

    def one(metric: Any, call: Callable[[], Value], other: Callable[[], Value] | None = None) -> Query:
        series = Series(metric, gpu.labels)
        instead = {series: Query([Series(metric, gpu.labels)], lambda: (other(),))} if other else None
        return Query([series], lambda: (call(),), instead)

    def memory_series() -> list[Series]:
        return [Series(metric, gpu.labels) for metric in (MEMORY_USED, MEMORY_TOTAL)]

    second = memory_series()
    first_version = Query(memory_series(), memory_v1)
    rates = [Series(metric, gpu.labels) for metric in (UTILIZATION, MEMORY_UTILIZATION)]
    return [
        Query(rates, utilization),
        Query(second, memory, dict.fromkeys(second, first_version)),
        one(SM_CLOCK, lambda: nvml.nvmlDeviceGetClockInfo(handle, _CLOCK_SM)),
        one(MEMORY_CLOCK, lambda: nvml.nvmlDeviceGetClockInfo(handle, _CLOCK_MEMORY)),
        one(
            THROTTLE_REASONS,
            lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
            lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),  # drivers before 535
        ),
        one(
            TEMPERATURE,
            lambda: nvml.nvmlDeviceGetTemperature(handle, _SENSOR_GPU),
            lambda: nvml.nvmlDeviceGetTemperatureV(handle, _SENSOR_GPU),  # the only one from CUDA 14 on
        ),
    ]


def _fields(nvml: Any, gpu: Gpu) -> FieldQuery:
    """Power, energy and throttle times: one call."""
    handle = gpu.handle
    power, energy = Series(POWER, gpu.labels), Series(ENERGY, gpu.labels)
    fields = {power: (_FIELD_POWER, 0), energy: (_FIELD_ENERGY, 0)}
    for reason, field in THROTTLE_FIELDS.items():
        fields[Series(THROTTLE_TIME, {**gpu.labels, "reason": reason})] = (field, 0)

    def usage() -> Sequence[Value | Failed]:
        return (nvml.nvmlDeviceGetPowerUsage(handle),)

    def consumption() -> Sequence[Value | Failed]:
        return (nvml.nvmlDeviceGetTotalEnergyConsumption(handle),)

    instead = {
        power: Query([Series(POWER_USAGE, gpu.labels)], usage),
        energy: Query([Series(ENERGY_CALL, gpu.labels)], consumption),
    }
    return FieldQuery(nvml, handle, fields, instead=instead)
