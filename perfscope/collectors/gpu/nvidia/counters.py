"""NVIDIA GPUs through NVML: how busy, how hot, how fast they may run, and what energy they use.

Utilization means "some kernel ran", over a window of the driver's own (1/6 to 1 s): it is no occupancy.
Energy is a counter since the driver was loaded; its differences are better than any polled power.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfscope.collectors.gpu.base import metric
from perfscope.collectors.gpu.nvidia.parts import Failed, FieldQuery, NvidiaGpu, NvmlCollector, Query, Value
from perfscope.rundir.metrics import Series
from perfscope.vocabulary import gpu as words
from perfscope.vocabulary.gpu import ThrottleBit, ThrottleReason

_WINDOW = "the driver's window, 1/6 to 1 s"
_RATES = "nvmlDeviceGetUtilizationRates"
_MEMORY = "nvmlDeviceGetMemoryInfo"
UTILIZATION = metric(words.UTILIZATION, _RATES, scale=0.01, resolution=_WINDOW)
MEMORY_UTILIZATION = metric(words.MEMORY_UTILIZATION, _RATES, scale=0.01, resolution=_WINDOW)
MEMORY_USED = metric(
    words.MEMORY_USED,
    _MEMORY,
    description="device memory in use, without what the driver keeps for itself where it says so (version 2)",
)
MEMORY_TOTAL = metric(words.MEMORY_TOTAL, _MEMORY)
SM_CLOCK = metric(words.CLOCK, "nvmlDeviceGetClockInfo(SM)", scale=1e6)
MEMORY_CLOCK = metric(words.MEMORY_CLOCK, "nvmlDeviceGetClockInfo(MEM)", scale=1e6)
# nvmlClocksEventReasons of nvml.h.
THROTTLE_BITS = (
    ThrottleBit(0x1, ThrottleReason.IDLE, "idle"),
    ThrottleBit(0x2, ThrottleReason.CLOCK_SETTING, "application clocks"),
    ThrottleBit(0x4, ThrottleReason.POWER_CAP, "SW power cap"),
    ThrottleBit(0x8, ThrottleReason.HARDWARE, "HW slowdown"),
    ThrottleBit(0x10, ThrottleReason.SYNC, "sync boost"),
    ThrottleBit(0x20, ThrottleReason.THERMAL, "SW thermal"),
    ThrottleBit(0x40, ThrottleReason.THERMAL, "HW thermal"),
    ThrottleBit(0x80, ThrottleReason.POWER_BRAKE, "HW power brake"),
    ThrottleBit(0x100, ThrottleReason.CLOCK_SETTING, "display clocks"),
)
THROTTLE_REASONS = metric(
    words.THROTTLE_REASONS, "nvmlDeviceGetCurrentClocksEventReasons", bits=THROTTLE_BITS
)
TEMPERATURE = metric(words.TEMPERATURE, "nvmlDeviceGetTemperature(GPU)")
POWER = metric(words.POWER, "NVML field 186", scale=1e-3)
POWER_USAGE = metric(
    words.POWER,
    "nvmlDeviceGetPowerUsage",
    description="power drawn; a mean over 1 s on most GPUs",
    scale=1e-3,
)
ENERGY = metric(words.ENERGY, "NVML field 83", scale=1e-3)
ENERGY_CALL = metric(words.ENERGY, "nvmlDeviceGetTotalEnergyConsumption", scale=1e-3)
THROTTLE_TIME = metric(words.THROTTLE_TIME, "NVML fields 74, 76, 269, 270, 271")
# Field -> the bit of the same reason.
THROTTLE_FIELDS = {74: 0x4, 76: 0x10, 269: 0x20, 270: 0x40, 271: 0x80}
_FIELD_POWER, _FIELD_ENERGY = 186, 83
_CLOCK_SM, _CLOCK_MEMORY, _SENSOR_GPU = 1, 2, 0


class NvmlDevices(NvmlCollector):
    """The GPUs' own state. See the module."""

    name = "gpu.nvidia"
    source = "NVML (libnvidia-ml.so.1)"

    def groups(self, nvml: Any, gpu: NvidiaGpu) -> list[list[Query]]:
        return [_levels(nvml, gpu), [_fields(nvml, gpu)]]


def _levels(nvml: Any, gpu: NvidiaGpu) -> list[Query]:
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

    def level(measured: Any, call: Callable[[], Value], other: Callable[[], Value] | None = None) -> Query:
        series = Series(measured, gpu.labels)
        instead = {series: Query([Series(measured, gpu.labels)], lambda: (other(),))} if other else None
        return Query([series], lambda: (call(),), instead)

    def memory_series() -> list[Series]:
        return [Series(metric_kind, gpu.labels) for metric_kind in (MEMORY_USED, MEMORY_TOTAL)]

    second = memory_series()
    first_version = Query(memory_series(), memory_v1)
    rates = [Series(metric_kind, gpu.labels) for metric_kind in (UTILIZATION, MEMORY_UTILIZATION)]
    return [
        Query(rates, utilization),
        Query(second, memory, dict.fromkeys(second, first_version)),
        level(SM_CLOCK, lambda: nvml.nvmlDeviceGetClockInfo(handle, _CLOCK_SM)),
        level(MEMORY_CLOCK, lambda: nvml.nvmlDeviceGetClockInfo(handle, _CLOCK_MEMORY)),
        level(
            THROTTLE_REASONS,
            lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
            lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),  # drivers before 535
        ),
        level(
            TEMPERATURE,
            lambda: nvml.nvmlDeviceGetTemperature(handle, _SENSOR_GPU),
            lambda: nvml.nvmlDeviceGetTemperatureV(handle, _SENSOR_GPU),  # the only one from CUDA 14 on
        ),
    ]


def _fields(nvml: Any, gpu: NvidiaGpu) -> FieldQuery:
    """Power, energy and throttle times: one call."""
    handle = gpu.handle
    power, energy = Series(POWER, gpu.labels), Series(ENERGY, gpu.labels)
    fields = {power: (_FIELD_POWER, 0), energy: (_FIELD_ENERGY, 0)}
    by_mask = {bit.mask: bit for bit in THROTTLE_BITS}
    for field, mask in THROTTLE_FIELDS.items():
        bit = by_mask[mask]
        labels = {**gpu.labels, "reason": bit.reason.value, "name": bit.name}
        fields[Series(THROTTLE_TIME, labels)] = (field, 0)

    def usage() -> Sequence[Value | Failed]:
        return (nvml.nvmlDeviceGetPowerUsage(handle),)

    def consumption() -> Sequence[Value | Failed]:
        return (nvml.nvmlDeviceGetTotalEnergyConsumption(handle),)

    instead = {
        power: Query([Series(POWER_USAGE, gpu.labels)], usage),
        energy: Query([Series(ENERGY_CALL, gpu.labels)], consumption),
    }
    return FieldQuery(nvml, handle, fields, instead=instead)
