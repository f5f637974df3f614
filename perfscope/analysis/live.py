"""A run that still goes on: how fast its ranks step now, whether one hangs, and how busy its hosts are."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec
from msgspec import Struct

from perfscope.rundir import layout
from perfscope.rundir.reader import RunReader
from perfscope.rundir.records import RankRecord
from perfscope.rundir.tail import Tail

RECENT = 100  # steps that say how fast a rank is now
HANG_STEPS = 10  # usual steps without one, from which on a rank hangs,
HANG_AFTER_S = 60.0  # but not before
_MOST_STEPS = 2 * RECENT
_LOCAL = "lo"  # an interface that leaves no host


class LiveRank(Struct, frozen=True, kw_only=True):
    """One rank, now.

    Attributes:
        steps: that it has finished.
        step_ns: median of its last RECENT untraced steps; None: it has none yet.
        trend: that median over the one of as many steps before, minus 1; None: too few steps.
        samples_per_s: of these steps; None: the batch size is not known.
        age_s: since its last step reached the disk; None: it has none yet.
        hangs: it has made no step for HANG_STEPS usual ones, and longer than the floor.
    """

    rank: int
    host: str
    pid: int | None
    steps: int
    step_ns: int | None
    trend: float | None
    samples_per_s: float | None
    age_s: float | None
    finished: bool
    hangs: bool


class LiveHost(Struct, frozen=True, kw_only=True):
    """One host, over its last two readings; None: not measured.

    Attributes:
        cpus_busy, others_cpus: CPUs that were busy, and of these with other processes than the run's.
        memory_bytes, memory_total_bytes: in use without the page cache, and there.
        received_bytes_per_s, sent_bytes_per_s: of all interfaces but loopback.
    """

    host: str
    cpus_busy: float | None
    others_cpus: float | None
    memory_bytes: int | None
    memory_total_bytes: int | None
    received_bytes_per_s: float | None
    sent_bytes_per_s: float | None


class LiveRun(Struct, frozen=True, kw_only=True):
    """A run at one moment.

    Attributes:
        started_unix_ns: None: not recorded.
        expected: ranks of the job; None: not known.
        is_open: it has not been closed: it goes on, or perfscope was killed.
        step_ns: of the slowest rank; None: no rank has steps.
    """

    name: str
    path: str
    started_unix_ns: int | None
    expected: int | None
    is_open: bool
    step_ns: int | None
    ranks: tuple[LiveRank, ...]
    hosts: tuple[LiveHost, ...]

    @property
    def hanging(self) -> tuple[LiveRank, ...]:
        """Ranks that hang."""
        return tuple(rank for rank in self.ranks if rank.hangs)


class RunWatch:
    """Looks at a run again and again; each look reads what was appended since.

    Args:
        path: of the run directory.
        hang_after_s: the shortest time without a step that is a hang, seconds.

    Raises:
        RunDirectoryError: there is no run.
    """

    def __init__(self, path: str, hang_after_s: float = HANG_AFTER_S) -> None:
        self._path, self._hang_after_s = path, hang_after_s
        self._steps: dict[int, _Steps] = {}
        self._samples: dict[str, _Samples] = {}
        RunReader(path)

    def look(self, now_s: float) -> LiveRun:
        """The run now.

        Args:
            now_s: Unix time, seconds.
        """
        reader = RunReader(self._path)
        is_open = reader.run.is_open
        ranks = tuple(
            self._rank(reader, rank, record, now_s, is_open=is_open)
            for rank, record in sorted(reader.rank_records.items())
        )
        known = [rank.step_ns for rank in ranks if rank.step_ns is not None]
        return LiveRun(
            name=reader.run.name or reader.path.name,
            path=str(reader.path),
            started_unix_ns=reader.run.start_unix_ns,
            expected=reader.run.expected_ranks or reader.run.world_size,
            is_open=is_open,
            step_ns=max(known, default=None),
            ranks=ranks,
            hosts=tuple(self._host(reader, host) for host in reader.hosts),
        )

    def _rank(
        self, reader: RunReader, rank: int, record: RankRecord, now_s: float, *, is_open: bool
    ) -> LiveRank:
        steps = self._steps.setdefault(rank, _Steps(Tail(reader.rank_folder(rank) / layout.STEPS_JSONL)))
        steps.look()
        usual, changed = steps.median_ns(), steps.tail.changed_s
        age = None if changed is None or not steps.num_steps else max(0.0, now_s - changed)
        finished = bool(record.finished) or not is_open
        limit = max(self._hang_after_s, HANG_STEPS * (usual or 0) / 1e9)
        return LiveRank(
            rank=rank,
            host=record.host,
            pid=record.pid,
            steps=steps.num_steps,
            step_ns=usual,
            trend=steps.trend(),
            samples_per_s=steps.samples_per_s(),
            age_s=age,
            finished=finished,
            hangs=not finished and age is not None and age > limit,
        )

    def _host(self, reader: RunReader, host: str) -> LiveHost:
        path = reader.path / layout.HOSTS / host / layout.SAMPLES_JSONL
        samples = self._samples.setdefault(host, _Samples(Tail(path)))
        samples.look()
        busy, others = samples.rate("cpu_busy", cpu="all"), samples.rate("neighbour_cpu")
        total, free, cached = (samples.last(f"node_memory_{part}") for part in ("total", "free", "file"))
        used = None if total is None or free is None or cached is None else int(total - free - cached)
        return LiveHost(
            host=host,
            cpus_busy=None if busy is None else busy / 1e9,
            others_cpus=None if others is None else others / 1e9,
            memory_bytes=used,
            memory_total_bytes=None if total is None else int(total),
            received_bytes_per_s=samples.rate("net_rx_bytes", beside=_LOCAL),
            sent_bytes_per_s=samples.rate("net_tx_bytes", beside=_LOCAL),
        )


class _Steps:
    """The latest steps of one rank: (duration ns, samples), the untraced ones."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.num_steps = 0
        self._recent: deque[tuple[int, int | None]] = deque(maxlen=_MOST_STEPS)
        self._decoder = msgspec.json.Decoder(list[int | None])

    def look(self) -> None:
        lines = self.tail.lines()
        if not lines:
            return
        columns = msgspec.json.decode(self.tail.head)["columns"]
        places = [columns.index(name) for name in ("step", "dur_ns", "window", "samples")]
        for line in lines:
            try:
                row = self._decoder.decode(line)
                step, duration, window, samples = (row[place] for place in places)
            except (msgspec.DecodeError, IndexError):
                continue  # a torn line, as a full disk leaves them
            if step is None or duration is None:
                continue
            self.num_steps = max(self.num_steps, step + 1)
            if window is None or window < 0:
                self._recent.append((duration, samples))

    def median_ns(self) -> int | None:
        recent = [duration for duration, _ in self._last()]
        return int(median(recent)) if recent else None

    def trend(self) -> float | None:
        durations = [duration for duration, _ in self._recent]
        if len(durations) < _MOST_STEPS:
            return None
        before = median(durations[:RECENT])
        return median(durations[RECENT:]) / before - 1 if before else None

    def samples_per_s(self) -> float | None:
        last = self._last()
        time = sum(duration for duration, _ in last)
        numbers = [samples for _, samples in last if samples is not None]
        return sum(numbers) * 1e9 / time if time and len(numbers) == len(last) else None

    def _last(self) -> Sequence[tuple[int, int | None]]:
        return list(self._recent)[-RECENT:]


class _Reading(Struct):
    time_ns: int
    value: float


class _Samples:
    """The last two readings of each series of one host."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._series: dict[int, list[tuple[str, Mapping[str, str], float]]] = {}
        self._readings: dict[tuple[int, int], tuple[_Reading | None, _Reading]] = {}

    def look(self) -> None:
        for line in self._tail.lines():
            try:
                entry = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue  # a torn line
            if isinstance(entry, dict) and "series" in entry:
                self._series[entry["id"]] = [
                    (series["metric"], series["labels"], series.get("scale", 1)) for series in entry["series"]
                ]
            elif isinstance(entry, list) and len(entry) >= 4:
                number, _, time_ns, values = entry[:4]
                for place, value in enumerate(values):
                    if value is not None:
                        _, before = self._readings.get((number, place), (None, None))
                        self._readings[number, place] = (before, _Reading(time_ns, value))

    def last(self, metric: str) -> float | None:
        """Sum of the last values of a metric's series."""
        found = [reading.value * scale for _, reading, scale in self._of(metric)]
        return sum(found) if found else None

    def rate(self, metric: str, *, beside: str = "", **labels: str) -> float | None:
        """Sum of the increases per second of a metric's series, without those of the interface `beside`."""
        found = [
            (reading.value - before.value) * scale * 1e9 / (reading.time_ns - before.time_ns)
            for before, reading, scale in self._of(metric, beside, **labels)
            if before is not None and reading.time_ns > before.time_ns
        ]
        return sum(found) if found else None

    def _of(
        self, metric: str, beside: str = "", **labels: str
    ) -> list[tuple[_Reading | None, _Reading, float]]:
        return [
            (*self._readings[number, place], scale)
            for number, series in self._series.items()
            for place, (name, of, scale) in enumerate(series)
            if name == metric
            and (number, place) in self._readings
            and not (beside and of.get("interface") == beside)
            and all(of.get(key) == value for key, value in labels.items())
        ]
