"""Who else computes on the GPUs: processes that are no rank's and not below one.

NVML gives the pids of the machine's first PID namespace. In a container they may be others than ours see;
then nothing is counted, and that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfscope.collectors.base import SECOND_NS, Capability, Fact
from perfscope.collectors.context import Context
from perfscope.collectors.gpu.nvidia.devices import asked
from perfscope.collectors.gpu.nvidia.parts import NOT_FOUND, Failed, Gpu, NvmlCollector, Query
from perfscope.collectors.gpu.nvidia.parts import metric_of as _metric
from perfscope.collectors.process_table import descends, in_container, is_marked, run_marks, user_of
from perfscope.rundir.metrics import GAUGE, Series

_SOURCE = "nvmlDeviceGetComputeRunningProcesses"
FOREIGN_PROCESSES = _metric(
    "gpu_foreign_processes", "processes", GAUGE, _SOURCE, "compute processes on the GPU not of this run"
)
FOREIGN_MEMORY = _metric(
    "gpu_foreign_memory", "bytes", GAUGE, _SOURCE, "device memory of processes not of this run"
)
_MPS_SERVER = "nvidia-cuda-mps"  # serves our own ranks as well


class NvmlProcesses(NvmlCollector):
    """Foreign processes on the GPUs. See the module."""

    name = "nvml.processes"
    source = _SOURCE
    min_interval_ns = SECOND_NS

    def __init__(self) -> None:
        super().__init__()
        self._ctx = Context()
        self._marks: set[bytes] = set()
        self._translated = False  # whether NVML's pids are those we see
        self._said = False
        self._named: set[tuple[int, int]] = set()

    def probe(self, ctx: Context) -> Capability:
        self._prepare(ctx)
        capability = super().probe(ctx)
        self._facts.clear()  # what was seen on the way is told once it is opened
        return capability

    def open(self, ctx: Context) -> None:
        self._prepare(ctx)
        super().open(ctx)

    def _prepare(self, ctx: Context) -> None:
        self._ctx = ctx
        self._marks = run_marks(ctx)
        self._translated = not in_container(ctx)
        self._said = False
        self._named.clear()

    def groups(self, nvml: Any, gpu: Gpu) -> list[list[Query]]:
        series = [Series(FOREIGN_PROCESSES, gpu.labels), Series(FOREIGN_MEMORY, gpu.labels)]
        return [[Query(series, lambda: self._count(nvml, gpu))]]

    def _count(self, nvml: Any, gpu: Gpu) -> list[int | Failed | None]:
        """Number and memory of strangers; None where it cannot be told. Raises NVMLError."""
        processes = _processes(nvml, gpu.handle)
        ranks = self._ctx.pids()
        strangers = [process for process in processes if not self._is_ours(process.pid, ranks)]
        self._translated = self._translated or len(strangers) < len(processes)
        if strangers and not self._translated:
            self._say_unmatched()
            return [None, None]
        strangers = [process for process in strangers if _MPS_SERVER not in _name(nvml, process.pid)]
        for process in strangers if ranks else ():
            if (gpu.index, process.pid) not in self._named:
                self._named.add((gpu.index, process.pid))
                self._facts.append(self._fact(nvml, gpu, process))
        known = [process.usedGpuMemory for process in strangers if process.usedGpuMemory is not None]
        return [len(strangers), sum(known) if known or not strangers else None]

    def _is_ours(self, pid: int, ranks: Sequence[int]) -> bool:
        return descends(self._ctx, pid, ranks) or is_marked(self._ctx, pid, self._marks)

    def _say_unmatched(self) -> None:
        if not self._said and self._ctx.pids():
            self._said = True
            text = (
                "gpu_foreign_processes: the GPUs' processes cannot be matched with the ranks: "
                "this container has pids of its own (start it with --pid=host)"
            )
            self._facts.append(Fact("note", {}, {"text": text}))

    def _fact(self, nvml: Any, gpu: Gpu, process: Any) -> Fact:
        value: dict[str, object] = {
            "pid": process.pid,
            "name": _name(nvml, process.pid),
            "user": user_of(self._ctx, process.pid),
            "gpu": gpu.index,
            "memory_bytes": process.usedGpuMemory,
        }
        return Fact("neighbour", {"kind": "gpu", **gpu.labels}, value)


def _processes(nvml: Any, handle: Any) -> list[Any]:
    """Compute processes of one GPU. Raises NVMLError."""
    try:
        try:
            found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except nvml.NVMLLibraryMismatchError:  # a driver older than the calls of version 3
            found = nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)
    except nvml.NVMLError as error:
        if error.value != NOT_FOUND:  # how some drivers say that there is none
            raise
        return []
    return list(found)


def _name(nvml: Any, pid: int) -> str:
    name = asked(nvml, "nvmlSystemGetProcessName", pid)
    return str(name).rpartition("/")[2] if name else ""
