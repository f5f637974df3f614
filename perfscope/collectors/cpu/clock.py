"""How fast the CPUs run, and whether heat slows them down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.collectors.base import SECOND_NS, Absent, BaseCollector, Capability, Reading, words_of
from perfscope.collectors.context import Context
from perfscope.collectors.nodes import node_cpus, online_nodes
from perfscope.rundir.metrics import COUNTER, DERIVED, GAUGE, Metric, Series

_CPUS = "/sys/devices/system/cpu"
CPUS_PER_NODE = 4  # each read may interrupt that CPU
CORES_PER_SAMPLE = 16
FREQUENCY = Metric(
    name="cpu_frequency",
    unit="hz",
    kind=GAUGE,
    source=f"{_CPUS}/cpuN/cpufreq/scaling_cur_freq",
    description=f"mean frequency of up to {CPUS_PER_NODE} CPUs of the node",
    scale=1000,
    quality=DERIVED,
)
THROTTLE_COUNT = Metric(
    name="thermal_throttle_count",
    unit="events",
    kind=COUNTER,
    source=f"{_CPUS}/cpuN/thermal_throttle/*_throttle_count",
    description="times heat slowed down a package, or (core: all) a core",
)
THROTTLE_TIME = Metric(
    name="thermal_throttle_time",
    unit="ns",
    kind=COUNTER,
    source=f"{_CPUS}/cpuN/thermal_throttle/package_throttle_total_time_ms",
    description="time the package was slowed down by heat",
    scale=1_000_000,
    resolution="1 ms",
)
_NO_CPUFREQ = "no cpufreq: virtual machines have none, and some machines leave the clock to the firmware"
_NO_THERMAL = "no thermal_throttle: only Intel CPUs outside of virtual machines count it"


@dataclass(slots=True)
class _File:
    """One file, one series; of a package's counters every CPU of it shows the same, so one is read."""

    path: str
    series: Series


class CpuClock(BaseCollector):
    """CPU frequency of each node, thermal throttling of each package and of all cores together."""

    name = "cpu.clock"
    slow = True
    min_interval_ns = SECOND_NS

    def __init__(self) -> None:
        super().__init__()
        self._frequencies: list[tuple[Series, list[str]]] = []
        self._packages: list[_File] = []
        self._cores: dict[str, int] = {}  # path -> last value
        self._turn: list[str] = []
        self._core_series = Series(THROTTLE_COUNT, {"core": "all"})

    def probe(self, ctx: Context) -> Capability:
        frequency = bool(ctx.glob(f"{_CPUS}/cpu0/cpufreq/scaling_cur_freq"))
        cpus = _throttle_cpus(ctx)
        times = any(ctx.exists(f"{path}/package_throttle_total_time_ms") for path in cpus[:1])
        parts = (
            (FREQUENCY, frequency, _NO_CPUFREQ),
            (THROTTLE_COUNT, bool(cpus), _NO_THERMAL),
            (THROTTLE_TIME, times, _NO_THERMAL if not cpus else "counted since Linux 5.6"),
        )
        metrics = tuple(metric for metric, there, _ in parts if there)
        return self.capability(
            metrics=metrics,
            source=f"{_CPUS}/cpuN/{{cpufreq,thermal_throttle}}",
            reason="" if metrics else f"{_NO_CPUFREQ}; {_NO_THERMAL}",
            absent=tuple(Absent(what=metric.name, reason=why) for metric, there, why in parts if not there),
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        for node in online_nodes(ctx) or [0]:
            paths = [f"{_CPUS}/cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in _some(node_cpus(ctx, node))]
            paths = [path for path in paths if ctx.exists(path)]
            if paths:
                self._frequencies.append((Series(FREQUENCY, {"node": str(node)}), paths))
        seen: set[str] = set()
        for folder in _throttle_cpus(ctx):
            topology = f"{folder.rpartition('/')[0]}/topology"
            if _first_thread(ctx, topology):
                self._cores[f"{folder}/core_throttle_count"] = 0
            package = ctx.read_or(f"{topology}/physical_package_id", "0")
            if package not in seen:
                seen.add(package)
                self._open_package(folder, package)
        self._turn = list(self._cores)

    def sample(self) -> Sequence[Reading]:
        readings: list[Reading] = []
        for frequency in tuple(self._frequencies):
            readings += self._sample_frequency(*frequency)
        for file in tuple(self._packages):
            readings += self._sample_package(file)
        if self._cores:
            readings += self._sample_cores()
        return readings

    def _open_package(self, folder: str, package: str) -> None:
        labels = {"package": package}
        for name, metric in (
            ("package_throttle_count", THROTTLE_COUNT),
            ("package_throttle_total_time_ms", THROTTLE_TIME),
        ):
            if self._ctx.exists(f"{folder}/{name}"):
                self._packages.append(_File(f"{folder}/{name}", Series(metric, labels)))

    def _sample_frequency(self, series: Series, paths: list[str]) -> list[Reading]:
        begin = self._ctx.clock()
        frequencies = [value for path in paths if (value := self._ctx.read_int(path)) is not None]
        end = self._ctx.clock()
        if frequencies:
            return [Reading(series, round(sum(frequencies) / len(frequencies)), begin, end)]
        self._frequencies.remove((series, paths))
        self.stopped(series.metric.name, dict(series.labels), "no CPU of the node reports its frequency")
        return []

    def _sample_package(self, file: _File) -> list[Reading]:
        begin = self._ctx.clock()
        try:
            value = int(self._ctx.read(file.path))
        except (OSError, ValueError) as error:
            self._packages.remove(file)
            self.stopped(file.series.metric.name, dict(file.series.labels), words_of(error))
            return []
        return [Reading(file.series, value, begin, self._ctx.clock())]

    def _sample_cores(self) -> list[Reading]:
        """The sum over cores. On a large machine some are read each second; the sum still only grows."""
        begin = self._ctx.clock()
        first = not any(self._cores.values()) and len(self._turn) == len(self._cores)
        count = len(self._cores) if first else CORES_PER_SAMPLE
        if len(self._turn) < count:
            self._turn += [path for path in self._cores if path not in self._turn]
        chosen, self._turn = self._turn[:count], self._turn[count:]
        for path in chosen:
            value = self._ctx.read_int(path)
            if value is not None:  # of a CPU that was taken offline, the last value stays in the sum
                self._cores[path] = value
        return [Reading(self._core_series, sum(self._cores.values()), begin, self._ctx.clock())]


def _throttle_cpus(ctx: Context) -> list[str]:
    return [
        name.rpartition("/")[0]
        for name in ctx.glob(f"{_CPUS}/cpu[0-9]*/thermal_throttle/core_throttle_count")
    ]


def _first_thread(ctx: Context, topology: str) -> bool:
    """Whether this CPU stands for its core: every hardware thread counts the same events."""
    siblings = ctx.read_or(f"{topology}/thread_siblings_list")
    first = siblings.replace("-", ",").split(",")[0]
    return not first or topology.endswith(f"/cpu{first}/topology")


def _some(cpus: list[int]) -> list[int]:
    """Up to CPUS_PER_NODE, evenly spread."""
    step = max(len(cpus) // CPUS_PER_NODE, 1)
    return cpus[::step][:CPUS_PER_NODE]
