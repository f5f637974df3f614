"""Who else computes on NVIDIA GPUs, by NVML's list of processes. See `gpu.foreign`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from perfscope.collectors.base import SECOND_NS, Capability, Fact
from perfscope.collectors.context import Context
from perfscope.collectors.gpu.base import metric
from perfscope.collectors.gpu.foreign import ForeignProcesses, GpuProcess
from perfscope.collectors.gpu.nvidia.devices import asked
from perfscope.collectors.gpu.nvidia.parts import NOT_FOUND, NvidiaGpu, NvmlCollector, Query
from perfscope.rundir.metrics import Series
from perfscope.vocabulary import gpu as words

_SOURCE = "nvmlDeviceGetComputeRunningProcesses"
FOREIGN_PROCESSES = metric(words.FOREIGN_PROCESSES, _SOURCE)
FOREIGN_MEMORY = metric(words.FOREIGN_MEMORY, _SOURCE)
_MPS_SERVER = "nvidia-cuda-mps"  # serves our own ranks as well


class NvmlProcesses(NvmlCollector):
    """Foreign processes on the GPUs. See the module."""

    name = "gpu.nvidia.processes"
    source = _SOURCE
    min_interval_ns = SECOND_NS

    def __init__(self) -> None:
        super().__init__()
        self._ctx = Context()
        self._foreign: ForeignProcesses | None = None

    def probe(self, ctx: Context) -> Capability:
        self._ctx = ctx
        return super().probe(ctx)

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        super().open(ctx)

    def _decide(self, nvml: Any) -> list[NvidiaGpu]:
        self._foreign = ForeignProcesses(self._ctx, partial(_name, nvml), (_MPS_SERVER,))
        return super()._decide(nvml)

    def groups(self, nvml: Any, gpu: NvidiaGpu) -> list[list[Query]]:
        series = [Series(FOREIGN_PROCESSES, gpu.labels), Series(FOREIGN_MEMORY, gpu.labels)]
        return [[Query(series, lambda: self._count(nvml, gpu))]]

    def _count(self, nvml: Any, gpu: NvidiaGpu) -> list[int | None]:
        """Number and memory of foreign processes. Raises NVMLError."""
        assert self._foreign is not None
        return self._foreign.count(gpu.index, _processes(nvml, gpu.handle))

    def facts(self) -> Sequence[Fact]:
        return [*super().facts(), *(self._foreign.take_facts() if self._foreign is not None else ())]


def _processes(nvml: Any, handle: Any) -> list[GpuProcess]:
    """Compute processes of one GPU. Raises NVMLError."""
    try:
        try:
            processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except nvml.NVMLLibraryMismatchError:  # a driver older than the calls of version 3
            processes = nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)
    except nvml.NVMLError as error:
        if error.value != NOT_FOUND:  # how some drivers say that there is none
            raise
        return []
    return [GpuProcess(process.pid, process.usedGpuMemory) for process in processes]


def _name(nvml: Any, pid: int) -> str:
    name = asked(nvml, "nvmlSystemGetProcessName", pid)
    return str(name).rpartition("/")[2] if name else ""
