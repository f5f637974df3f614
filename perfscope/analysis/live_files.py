"""Files of a run that goes on, as they grow: steps and marks of a rank, samples of a host."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec
from msgspec import Struct

from perfscope.rundir.tail import Tail
from perfscope.vocabulary.run_parts import RunPart

RECENT = 100  # steps that say how fast a rank is now
_MOST_STEPS = 2 * RECENT
# States of marks.jsonl: what follows is not seen; it is over.
_BEGINS, _ENDED = "begins", "ended"
_OLD_LOOKS, _OLD_S = 3, 120.0  # looks without a reading, and at least so long: the sampler has ended


class _Growth:
    """When a file grew last, by the clock of the one who looks.

    Attributes:
        at_s: None: it is not there yet.
    """

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.at_s: float | None = None
        self._changed_s: float | None = None
        self._looked_s = float("-inf")

    def lines(self, now_s: float) -> list[bytes]:
        """What is new."""
        lines = self.tail.lines()
        changed = self.tail.changed_s
        if changed is not None and changed != self._changed_s:
            # Another host's clock may be wrong: the file has changed since the look before, not earlier.
            self.at_s = min(max(changed, self._looked_s), now_s)
            self._changed_s = changed
        self._looked_s = now_s
        return lines

    def forgive(self, now_s: float) -> None:
        """It counts as grown now."""
        if self.at_s is not None:
            self.at_s = self._looked_s = now_s


class StepsFile(_Growth):
    """The latest steps of one rank.

    Attributes:
        num_steps: that it has finished.
        end_ns: of the last one, the rank's CLOCK_MONOTONIC.
    """

    def __init__(self, tail: Tail) -> None:
        super().__init__(tail)
        self.num_steps = self.end_ns = 0
        self._recent: deque[tuple[int, int | None]] = deque(maxlen=_MOST_STEPS)  # ns, samples; untraced
        self._decoder = msgspec.json.Decoder(list[int | None])

    def look(self, now_s: float) -> None:
        """Read what is new; `now_s` is Unix time."""
        lines = self.lines(now_s)
        if not lines:
            return
        columns = msgspec.json.decode(self.tail.head)["columns"]
        indices = [columns.index(name) for name in ("step", "start_ns", "dur_ns", "window", "samples")]
        for line in lines[-_MOST_STEPS:]:
            try:
                row = self._decoder.decode(line)
                step, start, duration, window, samples = (row[index] for index in indices)
            except (msgspec.DecodeError, IndexError):
                continue  # a torn line, as a full disk leaves them
            if step is None or duration is None:
                continue
            self.num_steps = max(self.num_steps, step + 1)
            self.end_ns = max(self.end_ns, (start or 0) + duration)
            if window is None or window < 0:
                self._recent.append((duration, samples))

    def median_ns(self) -> int | None:
        recent = [duration for duration, _ in self._last()]
        return int(median(recent)) if recent else None

    def trend(self) -> float | None:
        """Median of the last steps over the one of as many before, minus 1."""
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


class MarksFile(_Growth):
    """The latest mark of one rank: what it does while it makes no step.

    Attributes:
        part: of the run, see vocabulary/run_parts.py; "": there is no mark.
        is_unseen: it may be at it since, without another mark.
        has_ended: it was over when the mark was written.
    """

    def __init__(self, tail: Tail) -> None:
        super().__init__(tail)
        self.part = ""
        self.is_unseen = self.has_ended = False

    def look(self, now_s: float) -> None:
        """Read what is new; `now_s` is Unix time."""
        had_head = bool(self.tail.head)
        lines = self.lines(now_s)
        if not had_head and self.tail.head:  # marks have no header: the first line is one of them
            lines = [self.tail.head, *lines]
        for line in lines[-1:]:
            try:
                mark = msgspec.json.decode(line, type=_Mark)
            except msgspec.DecodeError:
                continue  # a torn line, or a part that no probe names
            self.part, self.is_unseen = mark.part.value, mark.state == _BEGINS
            # A mark of input is written when the training has got its batch.
            self.has_ended = mark.state == _ENDED or mark.part is RunPart.INPUT


class _Mark(Struct):
    part: RunPart
    state: str = ""


class _Reading(Struct):
    time_ns: int
    value: float


class SamplesFile(_Growth):
    """Readings of each series of one host: the last one, and the last one of the look before.

    In the first look that is the first one: of a long file, from near its end. When no line has come
    for some looks, and for long, there are none any more.
    """

    def __init__(self, tail: Tail) -> None:
        super().__init__(tail)
        self._looks_without = 0
        self._series: dict[int, list[tuple[str, Mapping[str, str], float]]] = {}
        self._readings: dict[tuple[int, int], tuple[_Reading, _Reading]] = {}

    def look(self, now_s: float) -> None:
        """Read what is new; `now_s` is Unix time."""
        lines = self.lines(now_s)
        self._looks_without = 0 if lines else self._looks_without + 1
        if lines:
            self._readings = {key: (last, last) for key, (_, last) in self._readings.items()}
        elif self._looks_without >= _OLD_LOOKS and now_s - (self.at_s or 0.0) > _OLD_S:
            self._readings = {}
        for line in lines:
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
                for position, value in enumerate(values):
                    if value is not None:
                        reading = _Reading(time_ns, value)
                        before, _ = self._readings.get((number, position), (reading, reading))
                        self._readings[number, position] = (before, reading)

    def last(self, metric: str) -> float | None:
        """Sum of the last values of a metric's series."""
        values = [reading.value * scale for _, reading, scale in self._of(metric)]
        return sum(values) if values else None

    def each(self, metric: str, label: str) -> dict[str, float]:
        """The last value of each series of a metric, by one of its labels."""
        return {
            of[label]: self._readings[number, position][1].value * scale
            for number, series in self._series.items()
            for position, (name, of, scale) in enumerate(series)
            if name == metric and label in of and (number, position) in self._readings
        }

    def rate(self, metric: str, *, beside: str = "", **labels: str) -> float | None:
        """Sum of the increases per second of a metric's series, without those of the interface `beside`."""
        rates = [
            (reading.value - before.value) * scale * 1e9 / (reading.time_ns - before.time_ns)
            for before, reading, scale in self._of(metric, beside, **labels)
            if reading.time_ns > before.time_ns
        ]
        return sum(rates) if rates else None

    def _of(self, metric: str, beside: str = "", **labels: str) -> list[tuple[_Reading, _Reading, float]]:
        return [
            (*self._readings[number, position], scale)
            for number, series in self._series.items()
            for position, (name, of, scale) in enumerate(series)
            if name == metric
            and (number, position) in self._readings
            and not (beside and of.get("interface") == beside)
            and all(of.get(key) == value for key, value in labels.items())
        ]
