"""State of AMD GPUs: the table `gpu_metrics`, one read for everything, and files of sysfs for what it lacks.

Every metric has a list of places in order of preference. Which of them answers is decided once, when the
collector is opened; what none gives is reported as absent.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from perfscope.collectors.base import FAST_NS, BaseCollector, Capability, Reading, reason_of
from perfscope.collectors.context import Context, KeptFile
from perfscope.collectors.gpu.amd.cards import Card, list_cards
from perfscope.collectors.gpu.amd.metrics_table import MetricsTable, UnknownTableError, read_table
from perfscope.collectors.gpu.amd.readings import FILE_READINGS, TABLE_READINGS, FileReading, TableReading
from perfscope.collectors.gpu.amd.throttling import ThrottleTimes
from perfscope.collectors.gpu.base import absent_metrics, count_text
from perfscope.collectors.gpu.registry import first_index
from perfscope.rundir.metrics import Metric, Series
from perfscope.vocabulary import gpu as words

MAX_FAILURES = 10  # in a row, of one file
_GONE = (errno.ENODEV, errno.ENXIO)
NO_GPU = "no AMD GPU: neither amdkfd nor amdgpu shows one"
Value = int | float | None


@dataclass(slots=True)
class CounterFile:
    """A file that is kept open, and the series that come from it.

    `read` gives the series' values in order, or raises OSError or ValueError.
    """

    path: str
    file: KeptFile
    series: list[Series]
    read: Callable[[bytes], Sequence[Value]]
    failures: int = 0


@dataclass(slots=True)
class AmdGpu:
    """A card with its sources, and what it does not give: (metric, reason)."""

    index: int
    sources: list[CounterFile] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    @property
    def labels(self) -> dict[str, str]:
        return {"gpu": str(self.index)}


class AmdDevices(BaseCollector):
    """See the module. Slow by nature: the table and the sensors are asked of the GPU's firmware."""

    name = "gpu.amd"
    slow = True
    min_interval_ns = FAST_NS
    source = "/sys/class/drm/cardN/device/gpu_metrics and hwmon"

    def __init__(self) -> None:
        super().__init__()
        self._gpus: list[AmdGpu] = []
        self._clock: Callable[[], int] = lambda: 0

    def probe(self, ctx: Context) -> Capability:
        gpus = self._opened(ctx)
        metrics = {
            item.metric.name: item.metric for gpu in gpus for src in gpu.sources for item in src.series
        }
        self._close(gpus)
        reasons = sorted({reason for gpu in gpus for _, reason in gpu.refused})
        return self.capability(
            metrics=tuple(metrics.values()),
            source=self.source,
            reason="" if metrics else "; ".join(reasons) or NO_GPU,
            absent=absent_metrics({gpu.index: gpu.refused for gpu in gpus}) if metrics else (),
            detail=count_text(len(gpus)) if metrics else "",
        )

    def open(self, ctx: Context) -> None:
        """Open every file. Raises OSError: the GPUs that `probe` saw are gone."""
        self._gpus, self._clock = self._opened(ctx), ctx.clock
        if not any(gpu.sources for gpu in self._gpus):
            raise OSError(NO_GPU)

    def _opened(self, ctx: Context) -> list[AmdGpu]:
        cards = [card for card in list_cards(ctx) if card.pci and not card.is_part]
        first = first_index(ctx, "AMD") if cards else 0
        return [self._card(ctx, card, AmdGpu(first + card.index)) for card in cards]

    def _card(self, ctx: Context, card: Card, gpu: AmdGpu) -> AmdGpu:
        """The table's series, then the files' for metrics that the table does not give."""
        given: set[str] = set()
        table = self._table(ctx, card, gpu)
        if table is not None:
            gpu.sources.append(table)
            given |= {item.metric.name for item in table.series}
        for reading in FILE_READINGS:
            if reading.row.name in given:
                continue
            source = _file_source(ctx, card, gpu, reading)
            if source is not None:
                gpu.sources.append(source)
                given.add(reading.row.name)
        if words.THROTTLE_TIME.name in given:
            given.add(words.THROTTLE_REASONS.name)  # nothing that the times do not tell
        rows = [possible.row for possible in TABLE_READINGS] + [possible.row for possible in FILE_READINGS]
        missing = dict.fromkeys(row.name for row in rows if row.name not in given)
        gpu.refused += [(name, "the driver does not give it") for name in missing]
        return gpu

    def _table(self, ctx: Context, card: Card, gpu: AmdGpu) -> CounterFile | None:
        path = f"{card.folder}/gpu_metrics"
        try:
            file = ctx.keep(path)
        except OSError as error:
            gpu.refused.append(("gpu_metrics", reason_of(error)))
            return None
        try:
            now = read_table(file.read())
        except (OSError, UnknownTableError) as error:
            gpu.refused.append(("gpu_metrics", _words(error)))
            file.close()
            return None
        times = ThrottleTimes(now, gpu.labels)
        readings = _first_answers(now)
        series = [
            *(Series(metric, {**gpu.labels, **labels}) for _, metric, labels in readings),
            *times.series,
        ]
        picks = [pick for pick, _, _ in readings]

        def read(data: bytes) -> Sequence[Value]:
            table = read_table(data)
            return [*(pick(table) for pick in picks), *times.add(table, self._clock())]

        return CounterFile(path, file, series, read)

    def sample(self) -> Sequence[Reading]:
        readings: list[Reading] = []
        for gpu in self._gpus:
            begin = self._clock()
            answers = [(item, self._values(gpu, item)) for item in list(gpu.sources)]
            end = self._clock()
            for source, values in answers:
                if source in gpu.sources:
                    readings += [
                        Reading(series, value, begin, end)
                        for series, value in zip(source.series, values, strict=True)
                    ]
        return readings

    def _values(self, gpu: AmdGpu, source: CounterFile) -> Sequence[Value]:
        """What a source gives now; Nones where it fails, which ends it when it fails too often."""
        try:
            values = source.read(source.file.read())
        except (OSError, ValueError) as error:
            source.failures += 1
            gone = isinstance(error, OSError) and error.errno in _GONE
            if gone or source.failures >= MAX_FAILURES:
                self._end(gpu, source, _words(error))
            return [None] * len(source.series)
        source.failures = 0
        return values

    def _end(self, gpu: AmdGpu, source: CounterFile, reason: str) -> None:
        gpu.sources.remove(source)
        source.file.close()
        what = ", ".join(dict.fromkeys(item.metric.name for item in source.series))
        self.stopped(what, gpu.labels, f"{source.path}: {reason}")

    def close(self) -> None:
        self._close(self._gpus)
        self._gpus = []

    def _close(self, gpus: Sequence[AmdGpu]) -> None:
        for gpu in gpus:
            for source in gpu.sources:
                source.file.close()


Pick = Callable[[MetricsTable], Value]


def _first_answers(now: MetricsTable) -> list[tuple[Pick, Metric, dict[str, str]]]:
    """Per metric and labels the first reading of the table that gives a value now."""
    picks: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[Pick, Metric, dict[str, str]]] = {}
    for reading in TABLE_READINGS:
        key = (reading.row.name, tuple(sorted(reading.labels.items())))
        if now.revision in reading.revisions and key not in picks and reading.pick(now) is not None:
            picks[key] = (reading.pick, _metric_of(reading, now.revision), reading.labels)
    return list(picks.values())


def _metric_of(reading: TableReading, revision: tuple[int, int]) -> Metric:
    source = f"gpu_metrics {revision[0]}.{revision[1]}: {reading.source}"
    return reading.metric(source)


def _file_source(ctx: Context, card: Card, gpu: AmdGpu, reading: FileReading) -> CounterFile | None:
    for path in ctx.glob(f"{card.folder}/{reading.pattern}"):
        try:
            file = ctx.keep(path)
        except OSError:
            continue
        try:
            value = reading.parse(file.read().decode("utf-8", "replace"))
        except OSError:
            value = None
        if value is None:
            file.close()
            continue
        series = Series(reading.metric(reading.source), gpu.labels)
        return CounterFile(
            path, file, [series], lambda data: (reading.parse(data.decode("utf-8", "replace")),)
        )
    return None


def _words(error: Exception) -> str:
    return reason_of(error) if isinstance(error, OSError) else str(error)
