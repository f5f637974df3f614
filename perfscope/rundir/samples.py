"""hosts/<host>/samples.jsonl: what the sampler of one host wrote. Reading it back into columns.

The file is append-only and every line is one write, so it is whole after SIGKILL but for the last line:

    {"schema_version":1,"host":..,"pid":..,"interval_ns":..,"anchor":[monotonic_ns,unix_ns]}   first line, and
                                                          again when another sampler goes on in the same file
    {"id":3,"collector":"numa","series":[{"metric":..,"labels":{..},"unit":..,"kind":..,"quality":..,"source":..,
        "limit":..,"scale":..,"bits":[[mask,reason,name],..]},..]}    once, before rows that use id 3
    [3,t_begin_ns,t_end_ns,[v0,v1,null,..]]               one reading of all series of id 3; null = not read
    [3,t_begin_ns,t_end_ns,[v0,v1],{"1":"saturated"}]     with the quality of single values
    {"fact":"stopped","collector":"numa","t_ns":..,"labels":{"node":"1"},"value":{"what":..,"reason":..}}
    {"anchor":[monotonic_ns,unix_ns]}                     now and then
    {"interval_ns":..,"t_ns":..}                          the tick became longer: the file grew large
    {"end":"every rank has ended","t_ns":..,"cost":{"cpu_ns":..,"start_up_ns":..,"wall_ns":..,
                                                    "ticks":..,"late_ticks":..,"readings":..,"lost_lines":..,
                                                    "collectors":{name:{"samples":..,"cpu_ns":..}}}}

Times are monotonic ns of the host. Values are raw integers (or floats); `scale` turns them into `unit`.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from perfscope.rundir import number_lists, old_gpu_words
from perfscope.rundir.documents import DECODE_ERRORS, is_too_deep
from perfscope.rundir.metrics import EXACT, QUALITIES
from perfscope.rundir.number_lists import NumberColumn, Numbers
from perfscope.rundir.opening import open_regular
from perfscope.rundir.rows import decode_lines
from perfscope.rundir.sample_facts import FactValue, SamplerEnd, fact_value
from perfscope.rundir.seal import Counter
from perfscope.rundir.typed import read_as
from perfscope.vocabulary.gpu import ThrottleBit, ThrottleReason

_T = TypeVar("_T", bound=np.generic)
_LONGEST_NS = 400 * 86_400_000_000_000  # no training samples for longer
_LONGEST_LINE = 64 << 20  # bytes; a longer one is read in pieces, which are no lines
_CHUNK = 2 << 20  # bytes read at a time: several times as much as objects


class SampleSeries(Struct, frozen=True, eq=False, kw_only=True):
    """All readings of one series, in time order; readings that failed are left out.

    Attributes:
        collector, metric, labels, unit, kind, source, limit, scale, bits: see rundir.metrics. What earlier
            versions called otherwise has its present name (rundir/old_gpu_words.py).
        t_begin_ns, t_end_ns: int64[n], monotonic; the value was read between the two.
        values: raw; int64[n] (unsigned 64-bit ones wrapped into it: differences modulo 2**64 stay
            right), or float64[n] where any value is a float.
        quality: uint8[n], index into rundir.metrics.QUALITIES.
        segment: int32[n]; another number where another sampler process went on: counters must not be
            differenced across.
    """

    collector: str
    metric: str
    labels: Mapping[str, str]
    unit: str
    kind: str
    source: str
    limit: int | None
    scale: float
    t_begin_ns: NDArray[np.int64]
    t_end_ns: NDArray[np.int64]
    values: NDArray[np.int64] | NDArray[np.float64]
    quality: NDArray[np.uint8]
    segment: NDArray[np.int32]
    bits: tuple[ThrottleBit, ...] = ()


class SampleFact(Struct, frozen=True, kw_only=True):
    """A `fact` line: name is binding, neighbor, stopped, absent or note."""

    name: str
    collector: str
    t_ns: int  # monotonic
    labels: Mapping[str, str]
    value: FactValue


class HostSamples(Struct, frozen=True, kw_only=True):
    """One host's file.

    Attributes:
        host: directory name below hosts/.
        series: every series, in order of first appearance.
        facts: in file order.
        anchors: (monotonic_ns, unix_ns) pairs, in order.
        intervals: (monotonic_ns from which on, tick in ns).
        ends: one per sampler that ended in order.
        num_dropped: lines that could not be read.
        seal: of the file as it was read, see rundir/seal.py.
    """

    host: str
    series: tuple[SampleSeries, ...]
    facts: tuple[SampleFact, ...]
    anchors: tuple[tuple[int, int], ...]
    intervals: tuple[tuple[int, int], ...]
    ends: tuple[SamplerEnd, ...]
    num_dropped: int
    seal: Mapping[str, object] = {}

    def find(self, metric: str, **labels: str) -> list[SampleSeries]:
        """Series of a metric whose labels include `labels`."""
        return [
            series
            for series in self.series
            if series.metric == metric and all(series.labels.get(k) == v for k, v in labels.items())
        ]

    def unix_ns(self, monotonic_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Monotonic times as wall-clock times by the anchors: linear between two, shifted outside."""
        if not self.anchors:
            return monotonic_ns
        mono = np.array([pair[0] for pair in self.anchors], np.int64)
        offset = np.array([pair[1] - pair[0] for pair in self.anchors], np.int64)
        base = int(offset[0])  # offsets differ by little: interpolate the difference, exactly in float64
        drift = np.interp(
            (monotonic_ns - mono[0]).astype(np.float64),
            (mono - mono[0]).astype(np.float64),
            (offset - base).astype(np.float64),
        )
        moved: NDArray[np.int64] = monotonic_ns + base + np.rint(drift).astype(np.int64)
        return moved


class _Reading(Struct, array_like=True):
    """A line of values."""

    series: int
    begin_ns: int
    end_ns: int
    values: list[int | float | None]
    odd: dict[str, str] | None = None  # index -> quality


class _Piece(Struct, frozen=True, eq=False):
    """Readings of one series that stand together in the file; `begin` and `end` may be shared with others."""

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    quality: NDArray[np.uint8]
    segment: NDArray[np.int32]


class _Values:
    """The values of one series so far, in memory that grows with them: joining pieces would need it twice."""

    def __init__(self) -> None:
        self._values: array[int] | array[float] = array("q")

    def extend(self, values: Numbers) -> None:
        if values.dtype == np.float64 and self._values.typecode == "q":
            self._values = array("d", self.result().astype(np.float64).tobytes())
        if self._values.typecode == "d":
            values = values.astype(np.float64)
        self._values.frombytes(values.tobytes())

    def result(self) -> NDArray[np.int64] | NDArray[np.float64]:
        if self._values.typecode == "q":
            return np.frombuffer(self._values, np.int64)
        return np.frombuffer(self._values, np.float64)


class _Growing(Struct, eq=False):
    definition: Mapping[str, Any]
    collector: str
    usual: int  # its quality, unless a reading has its own
    pieces: list[_Piece] = []
    values: _Values = field(default_factory=_Values)


def read_samples(path: Path, host: str) -> HostSamples:
    """Read one samples.jsonl.

    Raises:
        OSError, UnreadableFileError: it cannot be read.
    """
    reader, counter = _Reader(), Counter()
    begun = b""
    with BufferedReader(open_regular(path)) as file:
        while chunk := file.read(_CHUNK):
            counter.add(chunk)
            begun += chunk
            last = len(begun) if len(begun) >= _LONGEST_LINE else begun.rfind(b"\n") + 1
            reader.take(begun[:last])
            begun = begun[last:]
    reader.take(begun)
    return replace(reader.result(host), seal=counter.seal())


class _Reader:
    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder().decode
        self._readings = msgspec.json.Decoder(_Reading)
        self._rows: dict[int, list[_Growing]] = {}
        self._series: dict[tuple[str, str, tuple[tuple[str, str], ...]], _Growing] = {}
        self._facts: list[SampleFact] = []
        self._anchors: list[tuple[int, int]] = []
        self._intervals: list[tuple[int, int]] = []
        self._ends: list[SamplerEnd] = []
        self._segment = 0
        self._dropped = 0
        self._first_ns: int | None = None  # of the first row; a sampler's clock starts with its host

    def take(self, lines: bytes) -> None:
        """Lines of the file; lists are readings, objects are all else."""
        by_series: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for line in lines.split(b"\n"):
            if line.startswith(b"["):
                by_series[line[1 : line.find(b",")]].append(line)
            elif line and not line.isspace():  # a line that is empty was written behind a torn one
                if b'"series"' in line or b'"schema_version"' in line:
                    self._take_readings(by_series)  # what follows may have the same ids
                    by_series.clear()
                self._take_other(line)
        self._take_readings(by_series)

    def _take_other(self, line: bytes) -> None:
        try:
            entry = self._decode(line)
            if isinstance(entry, dict) and not is_too_deep(entry):
                self._other(entry)
            else:
                self._dropped += 1
        except (msgspec.DecodeError, *DECODE_ERRORS, LookupError, TypeError, OverflowError):
            self._dropped += 1  # torn by a crash, or not ours

    def _take_readings(self, by_series: Mapping[bytes, list[bytes]]) -> None:
        for number, lines in by_series.items():
            series = self._rows.get(int(number), []) if number.isdigit() else []
            readings = number_lists.read(lines, len(series)) if series else None
            if readings is not None and self._are_times(readings.begin, readings.end):
                self._grow(series, readings.begin, readings.end, readings.columns, [])
            else:
                self._take_one_by_one(lines)

    def _are_times(self, begin: NDArray[np.int64], end: NDArray[np.int64]) -> bool:
        """The same as in `_is_usable`, for all."""
        first = int(begin[0]) if self._first_ns is None else self._first_ns
        are_times = bool(
            (begin >= 0).all()
            and (begin <= end).all()
            and (end < 1 << 62).all()
            and (end - begin <= _LONGEST_NS).all()
            and (abs(begin - first) <= _LONGEST_NS).all()
        )
        if are_times:
            self._first_ns = first
        return are_times

    def _take_one_by_one(self, lines: list[bytes]) -> None:
        """Where a line is torn, has qualities of its own, or values that are no machine's."""
        readings, num_bad = decode_lines(lines, self._readings)
        self._dropped += num_bad
        by_series: dict[int, list[_Reading]] = {}
        for reading in readings:
            if self._is_usable(reading):
                by_series.setdefault(reading.series, []).append(reading)
            else:
                self._dropped += 1
        for number, of_series in by_series.items():
            self._append(self._rows[number], of_series)

    def _is_usable(self, reading: _Reading) -> bool:
        """As many values as series, two times in order, not far from all others: the file may be damaged."""
        begin, end = reading.begin_ns, reading.end_ns
        if len(self._rows.get(reading.series, ())) != len(reading.values) or not reading.values:
            return False
        if not 0 <= begin <= end < 1 << 62 or end - begin > _LONGEST_NS:
            return False
        if self._first_ns is None:
            self._first_ns = begin
        if abs(begin - self._first_ns) > _LONGEST_NS:
            return False
        return reading.odd is None or all(map(_is_quality, reading.odd.items()))

    def _append(self, series: list[_Growing], readings: list[_Reading]) -> None:
        """Readings of the same series."""
        columns = [
            number_lists.column_of(column) for column in zip(*(r.values for r in readings), strict=True)
        ]
        beyond = [column.is_beyond for column in columns if column.is_beyond is not None]
        if beyond:
            is_beyond = np.any(beyond, axis=0).tolist()
            self._dropped += sum(is_beyond)
            readings = [reading for reading, out in zip(readings, is_beyond, strict=True) if not out]
            if readings:
                self._append(series, readings)
            return
        begin = np.array([reading.begin_ns for reading in readings], np.int64)
        end = np.array([reading.end_ns for reading in readings], np.int64)
        odd = [(row, reading.odd) for row, reading in enumerate(readings) if reading.odd]
        self._grow(series, begin, end, columns, odd)

    def _grow(
        self,
        series: list[_Growing],
        begin: NDArray[np.int64],
        end: NDArray[np.int64],
        columns: Sequence[NumberColumn],
        odd: Sequence[tuple[int, Mapping[str, str]]],
    ) -> None:
        """`odd`: rows with qualities of their own. Series share arrays where these are the same."""
        segment = np.full(len(begin), self._segment, np.int32)
        usual = {entry.usual: np.full(len(begin), entry.usual, np.uint8) for entry in series}
        for index, (growing, column) in enumerate(zip(series, columns, strict=True)):
            quality = usual[growing.usual]
            odd_rows = [(row, qualities[str(index)]) for row, qualities in odd if str(index) in qualities]
            if odd_rows:
                quality = quality.copy()
                quality[[row for row, _ in odd_rows]] = [QUALITIES.index(word) for _, word in odd_rows]
            piece = _Piece(begin, end, quality, segment)
            if column.is_read is not None:
                at = column.is_read
                piece = _Piece(begin[at], end[at], quality[at], segment[at])
            growing.pieces.append(piece)
            growing.values.extend(column.values)

    def _other(self, entry: dict[str, Any]) -> None:
        if "series" in entry:
            collector = old_gpu_words.collector(str(entry.get("collector", "")))
            series = [old_gpu_words.series(_mapping(definition)) for definition in entry["series"]]
            self._rows[int(entry["id"])] = [self._column(collector, definition) for definition in series]
        elif "fact" in entry:
            name = str(entry["fact"])
            self._facts.append(
                SampleFact(
                    name=name,
                    collector=old_gpu_words.collector(str(entry.get("collector", ""))),
                    t_ns=min(max(int(entry.get("t_ns", 0)), 0), 1 << 62),
                    labels=_mapping(entry.get("labels")),
                    value=fact_value(name, old_gpu_words.fact_value(_mapping(entry.get("value")))),
                )
            )
        elif "end" in entry:
            self._ends.append(read_as(SamplerEnd, entry))
        else:
            self._header(entry)

    def _header(self, entry: dict[str, Any]) -> None:
        if "schema_version" in entry and (self._rows or self._anchors):
            self._segment += 1  # another sampler goes on in the same file, with ids of its own
            self._rows = {}
        anchor = entry.get("anchor")
        if anchor:
            mono, unix = int(anchor[0]), int(anchor[1])
            if not 0 <= mono < 1 << 62 or not 0 <= unix < 1 << 62:
                raise ValueError("two times")
            self._anchors.append((mono, unix))
        if "interval_ns" in entry:
            since = int(entry.get("t_ns") or (anchor[0] if anchor else 0))
            self._intervals.append((since, int(entry["interval_ns"])))

    def _column(self, collector: str, definition: Mapping[str, Any]) -> _Growing:
        labels = tuple(sorted((str(k), str(v)) for k, v in _mapping(definition.get("labels")).items()))
        if not math.isfinite(float(definition.get("scale", 1.0))):
            raise ValueError("not a series")
        key = (collector, str(definition["metric"]), labels)
        if key not in self._series:
            usual = QUALITIES.index(definition.get("quality", EXACT))
            self._series[key] = _Growing(definition=definition, collector=collector, usual=usual)
        return self._series[key]

    def result(self, host: str) -> HostSamples:
        joined = _Joined()
        return HostSamples(
            host=host,
            series=tuple(_finished(column, joined) for column in self._series.values()),
            facts=tuple(self._facts),
            anchors=tuple(sorted(set(self._anchors))),
            intervals=tuple(self._intervals),
            ends=tuple(self._ends),
            num_dropped=self._dropped,
        )


def _mapping(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError("names and values")
    return value


class _Joined:
    """Pieces one behind the other; series that share their pieces share the result."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, ...], NDArray[Any]] = {}

    def __call__(self, pieces: Sequence[NDArray[_T]], kind: type[_T]) -> NDArray[_T]:
        key = tuple(map(id, pieces))
        if key not in self._made:
            self._made[key] = np.concatenate(pieces) if pieces else np.empty(0, kind)
        return self._made[key]


def _finished(column: _Growing, joined: _Joined) -> SampleSeries:
    pieces = column.pieces
    definition = column.definition
    limit = definition.get("limit")
    if type(limit) is not int or not 0 < limit <= 1 << 62:
        limit = None  # as wide as the column: differences are right without
    return SampleSeries(
        collector=column.collector,
        metric=str(definition["metric"]),
        labels={str(k): str(v) for k, v in _mapping(definition.get("labels")).items()},
        unit=str(definition.get("unit", "")),
        kind=str(definition.get("kind", "gauge")),
        source=str(definition.get("source", "")),
        limit=limit,
        scale=float(definition.get("scale", 1.0)),
        bits=_bits(definition.get("bits")),
        t_begin_ns=joined([piece.begin for piece in pieces], np.int64),
        t_end_ns=joined([piece.end for piece in pieces], np.int64),
        values=column.values.result(),
        quality=joined([piece.quality for piece in pieces], np.uint8),
        segment=joined([piece.segment for piece in pieces], np.int32),
    )


def _bits(rows: object) -> tuple[ThrottleBit, ...]:
    """What the bits of a bitmask mean; those of a newer version's reasons are left out."""
    by_value = {reason.value: reason for reason in ThrottleReason}
    return tuple(
        ThrottleBit(row[0], by_value[row[1]], str(row[2]))
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, list) and len(row) == 3 and type(row[0]) is int and row[1] in by_value
    )


def _is_quality(item: tuple[str, str]) -> bool:
    return item[0].isdecimal() and item[1] in QUALITIES
