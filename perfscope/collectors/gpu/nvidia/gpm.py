"""GPU performance monitoring (Hopper and later): how busy SMs, tensor cores, memory and links really are.

The driver compares two samples, so a reading is a mean over the time between them: its `t_begin_ns` and
`t_end_ns` are those of the samples. Samples closer together than 100 ms are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from perfscope.collectors.base import Reading
from perfscope.collectors.gpu.base import metric
from perfscope.collectors.gpu.nvidia.devices import LINK_NAME, asked
from perfscope.collectors.gpu.nvidia.parts import Failed, NvidiaGpu, NvmlCollector, Query, Value, error_words
from perfscope.rundir.metrics import DERIVED, Metric, Series
from perfscope.vocabulary import gpu as words
from perfscope.vocabulary.gpu import GpuMetric

MIN_INTERVAL_NS = 100_000_000
_EARLY_NS = 5_000_000  # a tick of 100 ms may come a little early
_MIB = float(1 << 20)


def _gpm(row: GpuMetric, number: int) -> Metric:
    scale = 0.01 if row.unit == "ratio" else _MIB
    return metric(row, f"NVML GPM metric {number}", scale=scale, quality=DERIVED)


GPM_METRICS: dict[int, Metric] = {
    2: _gpm(words.COMPUTE_ACTIVITY, 2),
    3: _gpm(words.OCCUPANCY, 3),
    5: _gpm(words.MATRIX_ACTIVITY, 5),
    10: _gpm(words.DRAM_ACTIVITY, 10),
    20: _gpm(words.PCIE_TX_RATE, 20),
    21: _gpm(words.PCIE_RX_RATE, 21),
    60: _gpm(words.LINK_RX_RATE, 60),
    61: _gpm(words.LINK_TX_RATE, 61),
}
_LINK_METRICS = (60, 61)


class _Samples:
    """The two sample buffers of one GPU, and the struct by which they are compared."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._buffers = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self.taken_ns = 0  # when the older one was; 0 = not yet

    def take(self, now_ns: int) -> None:
        """Fill the spare buffer, which becomes the newer one. Raises NVMLError."""
        self._nvml.nvmlGpmSampleGet(self._handle, self._buffers[1])
        self._buffers.reverse()
        self.taken_ns = now_ns

    def compare(self, numbers: Sequence[int]) -> list[Value | Failed]:
        """Take a sample and give the metrics since the one before. Raises NVMLError."""
        nvml, request = self._nvml, self._request
        nvml.nvmlGpmSampleGet(self._handle, self._buffers[1])
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(numbers)
        request.sample1, request.sample2 = self._buffers
        for index, number in enumerate(numbers):
            request.metrics[index].metricId = number
        nvml.nvmlGpmMetricsGet(request)
        self._buffers.reverse()
        values: list[Value | Failed] = []
        for index in range(len(numbers)):
            entry = request.metrics[index]
            good = entry.nvmlReturn == 0 and math.isfinite(entry.value)
            values.append(entry.value if good else Failed(entry.nvmlReturn or _NO_DATA))
        return values

    def free(self) -> None:
        for buffer in self._buffers:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(buffer)
        self._buffers = []


_NO_DATA = 21  # NVML_ERROR_NO_DATA: not a number, for instance when nothing ran


class NvmlGpm(NvmlCollector):
    """GPM. See the module."""

    name = "gpu.nvidia.gpm"
    source = "NVML GPM"
    min_interval_ns = MIN_INTERVAL_NS

    def __init__(self) -> None:
        super().__init__()
        self._samples: dict[int, _Samples] = {}
        self._numbers: dict[Series, int] = {}

    def groups(self, nvml: Any, gpu: NvidiaGpu) -> list[list[Query]]:
        reason = _why_not(nvml, gpu.handle)
        if reason:
            gpu.refused.append(("GPM", reason))
            return []
        link = {**gpu.labels, "kind": LINK_NAME}
        numbers = {
            Series(metric_kind, link if number in _LINK_METRICS else gpu.labels): number
            for number, metric_kind in GPM_METRICS.items()
        }
        self._numbers.update(numbers)
        return [[Query(list(numbers), lambda: [0.0] * len(numbers))]]

    def sample(self) -> Sequence[Reading]:
        readings: list[Reading] = []
        for gpu in self._gpus:
            for group in gpu.groups:
                if not gpu.gone:
                    self._compare(gpu, group[0], readings)
            if gpu.gone and gpu.index in self._samples:
                self._samples.pop(gpu.index).free()
        self._gpus = [gpu for gpu in self._gpus if not gpu.gone]
        return readings

    def _compare(self, gpu: NvidiaGpu, query: Query, readings: list[Reading]) -> None:
        now = self._clock()
        series = list(query.series)
        try:
            samples = self._samples.get(gpu.index)
            if samples is None:
                samples = self._samples[gpu.index] = _Samples(self._nvml, gpu.handle)
            if not samples.taken_ns:
                samples.take(now)
                return
            since = samples.taken_ns
            if not series or now - since < MIN_INTERVAL_NS - _EARLY_NS:
                return
            values = samples.compare([self._numbers[item] for item in series])
            samples.taken_ns = now
        except self._nvml.NVMLError as error:
            since, values = now, [Failed(error.value)] * len(series)
        end = self._clock()
        for item, value in zip(series, values, strict=True):
            if not isinstance(value, Failed):
                self._failures.pop(item, None)
                readings.append(Reading(item, value, since, end))
            elif not gpu.gone and not self._ends(gpu, query, item, value.code):
                readings.append(Reading(item, None, since, end))

    def close(self) -> None:
        for samples in self._samples.values():
            samples.free()
        self._samples = {}
        super().close()


def _why_not(nvml: Any, handle: Any) -> str:
    """Why this GPU has no GPM; "" = it has."""
    mig = asked(nvml, "nvmlDeviceGetMigMode", handle)
    if mig and mig[0]:
        return "MIG is on: GPM would have to be read per GPU instance"
    try:
        support = nvml.nvmlGpmQueryDeviceSupport(handle)
    except nvml.NVMLError as error:
        return error_words(nvml, error.value)
    return "" if support.isSupportedDevice else "needs a Hopper or later GPU"
