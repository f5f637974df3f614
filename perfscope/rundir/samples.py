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
from collections.abc import Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from perfscope.rundir import old_gpu_words
from perfscope.rundir.documents import DECODE_ERRORS, is_too_deep
from perfscope.rundir.metrics import EXACT, QUALITIES
from perfscope.rundir.opening import open_regular
from perfscope.rundir.sample_facts import FactValue, SamplerEnd, fact_value
from perfscope.rundir.seal import Counter
from perfscope.rundir.typed import read_as
from perfscope.vocabulary.gpu import ThrottleBit, ThrottleReason

_WORD = 1 << 64
_LONGEST_NS = 400 * 86_400_000_000_000  # no training samples for longer
_LARGEST = 1e30
_LONGEST_LINE = 64 << 20  # bytes; a longer one is read in pieces, which are no lines


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


class _Growing(Struct):
    definition: Mapping[str, Any]
    collector: str
    usual: int  # its quality, unless a reading has its own
    begin: list[int] = []
    end: list[int] = []
    values: list[int | float] = []
    quality: list[int] = []
    segment: list[int] = []


def read_samples(path: Path, host: str) -> HostSamples:
    """Read one samples.jsonl.

    Raises:
        OSError, UnreadableFileError: it cannot be read.
    """
    reader, counter = _Reader(), Counter()
    with BufferedReader(open_regular(path)) as file:
        while line := file.readline(_LONGEST_LINE):
            counter.add(line)
            reader.take(line)
    return replace(reader.result(host), seal=counter.seal())


class _Reader:
    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder().decode
        self._rows: dict[int, list[_Growing]] = {}
        self._series: dict[tuple[str, str, tuple[tuple[str, str], ...]], _Growing] = {}
        self._facts: list[SampleFact] = []
        self._anchors: list[tuple[int, int]] = []
        self._intervals: list[tuple[int, int]] = []
        self._ends: list[SamplerEnd] = []
        self._segment = 0
        self._dropped = 0
        self._first_ns: int | None = None  # of the first row; a sampler's clock starts with its host

    def take(self, line: bytes) -> None:
        if line.isspace():
            return  # written before a line that follows a torn one
        try:
            entry = self._decode(line)
            if isinstance(entry, list):
                self._row(entry)
            elif isinstance(entry, dict) and not is_too_deep(entry):
                self._other(entry)
            else:
                self._dropped += 1
        except (msgspec.DecodeError, *DECODE_ERRORS, LookupError, TypeError, OverflowError):
            self._dropped += 1  # torn by a crash, or not ours

    def _row(self, entry: list[Any]) -> None:
        number, begin, end, values = entry[0], entry[1], entry[2], entry[3]
        columns = self._rows[number]
        odd = _mapping(entry[4]) if len(entry) > 4 else None
        if len(columns) != len(values):
            raise ValueError("as many values as series")
        self._check(begin, end, values)
        codes = {int(index): QUALITIES.index(word) for index, word in odd.items()} if odd else {}
        for index, (column, value) in enumerate(zip(columns, values, strict=True)):
            if value is None:
                continue
            column.begin.append(begin)
            column.end.append(end)
            column.values.append(value)
            column.quality.append(codes.get(index, column.usual))
            column.segment.append(self._segment)

    def _check(self, begin: object, end: object, values: Sequence[object]) -> None:
        """Nothing that a column cannot hold, and no time far from all others: the file may be damaged."""
        if type(begin) is not int or type(end) is not int or not 0 <= begin <= end < 1 << 62:
            raise ValueError("two times in order")
        if self._first_ns is None:
            self._first_ns = begin
        if abs(begin - self._first_ns) > _LONGEST_NS or end - begin > _LONGEST_NS:
            raise ValueError("a time far from the others")
        for value in values:
            if type(value) is int:
                if not -(1 << 63) <= value < _WORD:
                    raise ValueError("more than 64 bits")
            elif type(value) is float:
                if abs(value) > _LARGEST:
                    raise ValueError("no figure of any machine")
            elif value is not None:
                raise TypeError("a number or null")

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
        return HostSamples(
            host=host,
            series=tuple(_finished(column) for column in self._series.values()),
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


def _finished(column: _Growing) -> SampleSeries:
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
        t_begin_ns=np.array(column.begin, np.int64),
        t_end_ns=np.array(column.end, np.int64),
        values=_column_of(column.values),
        quality=np.array(column.quality, np.uint8),
        segment=np.array(column.segment, np.int32),
    )


def _bits(rows: object) -> tuple[ThrottleBit, ...]:
    """What the bits of a bitmask mean; those of a newer version's reasons are left out."""
    by_value = {reason.value: reason for reason in ThrottleReason}
    return tuple(
        ThrottleBit(row[0], by_value[row[1]], str(row[2]))
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, list) and len(row) == 3 and type(row[0]) is int and row[1] in by_value
    )


def _column_of(values: Sequence[int | float]) -> NDArray[np.int64] | NDArray[np.float64]:
    if any(isinstance(value, float) for value in values):
        return np.array(values, np.float64)
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array([(int(v) + (1 << 63)) % _WORD - (1 << 63) for v in values], np.int64)
