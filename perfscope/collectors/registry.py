"""Which collectors there are: one tuple, and what other packages register.

Another package adds its own with an entry point in the group `perfscope.collectors` that names a class which
satisfies `base.Collector`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from perfscope.collectors.base import Collector
from perfscope.collectors.gpu.registry import COLLECTORS as GPU_COLLECTORS

GROUP = "perfscope.collectors"

# Module and class, in the order in which the doctor lists them. Names, not classes: a host without
# a source never loads its code.
COLLECTORS: tuple[str, ...] = (
    "perfscope.collectors.cpu.counters:CpuCounters",
    "perfscope.collectors.cpu.clock:CpuClock",
    "perfscope.collectors.cpu.tasks:TaskTimes",
    "perfscope.collectors.cpu.tasks:MainThreads",
    "perfscope.collectors.cpu.pressure:Pressure",
    "perfscope.collectors.memory.occupancy:MemoryOccupancy",
    "perfscope.collectors.memory.numa:NumaCounters",
    "perfscope.collectors.memory.usage:NumaMemory",
    "perfscope.collectors.memory.placement:NumaPlacement",
    "perfscope.collectors.memory.bandwidth:MemoryBandwidth",
    "perfscope.collectors.memory.perf_stat:PerfStat",
    "perfscope.collectors.memory.resctrl:Resctrl",
    *GPU_COLLECTORS,
    "perfscope.collectors.network.fabric:FabricTraffic",
    "perfscope.collectors.network.fabric:FabricErrors",
    "perfscope.collectors.network.ethernet:EthernetCounters",
    "perfscope.collectors.network.ethernet:TcpCounters",
    "perfscope.collectors.power.rapl:RaplEnergy",
    "perfscope.collectors.power.perf:PerfEnergy",
    "perfscope.collectors.storage:IoCounters",
    "perfscope.collectors.mounts:MountBytes",
    "perfscope.collectors.lustre_osts:LustreOsts",
    "perfscope.collectors.cpu.neighbors:Neighbors",
    "perfscope.collectors.stacks.bursts:StackBursts",
)


def own_collectors() -> list[Collector]:
    """One new instance of each built-in collector."""
    return [_make(import_path) for import_path in COLLECTORS]


def foreign_collectors() -> tuple[list[Collector], list[str]]:
    """Collectors of other packages, and one line for each that cannot be loaded."""
    collectors: list[Collector] = []
    problems: list[str] = []
    for point in entry_points(group=GROUP):
        try:
            collectors.append(point.load()())
        except Exception as error:  # noqa: BLE001, PERF203 - someone else's code: name it, go on without
            problems.append(f"collector {point.name} ({point.value}): {type(error).__name__}: {error}")
    return collectors, problems


def _make(import_path: str) -> Collector:
    module, _, name = import_path.partition(":")
    collector: Collector = getattr(import_module(module), name)()
    return collector
