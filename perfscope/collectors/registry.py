"""Which collectors there are: one tuple, and what other packages register.

Another package adds its own with an entry point in the group `perfscope.collectors` that names a class which
satisfies `base.Collector`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from perfscope.collectors.base import Collector

GROUP = "perfscope.collectors"

# Module and class, in the order in which the doctor lists them. Names, not classes: a host without
# a source never loads its code.
COLLECTORS: tuple[str, ...] = (
    "perfscope.collectors.cpu:CpuCounters",
    "perfscope.collectors.cpu_clock:CpuClock",
    "perfscope.collectors.cpu_tasks:TaskTimes",
    "perfscope.collectors.pressure:Pressure",
    "perfscope.collectors.numa:NumaCounters",
    "perfscope.collectors.numa_memory:NumaMemory",
    "perfscope.collectors.numa_placement:NumaPlacement",
    "perfscope.collectors.membw:MemoryBandwidth",
    "perfscope.collectors.perf_stat:PerfStat",
    "perfscope.collectors.resctrl:Resctrl",
    "perfscope.collectors.nvml:NvmlDevices",
    "perfscope.collectors.nvml_links:NvmlLinks",
    "perfscope.collectors.nvml_links:NvmlPcieRate",
    "perfscope.collectors.nvml_gpm:NvmlGpm",
    "perfscope.collectors.nvml_processes:NvmlProcesses",
    "perfscope.collectors.fabric:FabricTraffic",
    "perfscope.collectors.fabric:FabricErrors",
    "perfscope.collectors.ethernet:EthernetCounters",
    "perfscope.collectors.ethernet:TcpCounters",
    "perfscope.collectors.power:RaplEnergy",
    "perfscope.collectors.power_perf:PerfEnergy",
    "perfscope.collectors.io:IoCounters",
    "perfscope.collectors.neighbours:Neighbours",
    "perfscope.collectors.stacks:StackBursts",
)


def own_collectors() -> list[Collector]:
    """One new instance of each built-in collector."""
    return [_make(place) for place in COLLECTORS]


def foreign_collectors() -> tuple[list[Collector], list[str]]:
    """Collectors of other packages, and one line for each that cannot be loaded."""
    found: list[Collector] = []
    problems: list[str] = []
    for point in entry_points(group=GROUP):
        try:
            found.append(point.load()())
        except Exception as error:  # noqa: BLE001, PERF203 - someone else's code: name it, go on without
            problems.append(f"collector {point.name} ({point.value}): {type(error).__name__}: {error}")
    return found, problems


def _make(place: str) -> Collector:
    module, _, name = place.partition(":")
    collector: Collector = getattr(import_module(module), name)()
    return collector
