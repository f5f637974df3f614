"""Timeline tables as numpy columns: words become small codes, null becomes -1."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64, Intervals, distinct, union
from perfscope.rundir.number_lists import numbers_of
from perfscope.rundir.schema import KINDS, PHASES
from perfscope.rundir.window_records import CountedLayers, WindowSummary

Mask: TypeAlias = NDArray[np.bool_]

COMPUTE, COMM, COPY, INPUT, OPTIMIZER, HOST, ANNOTATION, RUNTIME, PYTHON, WAIT = range(len(KINDS))
FORWARD, BACKWARD, OPTIMIZER_PHASE, OTHER = range(len(PHASES))


_P = ParamSpec("_P")
_T = TypeVar("_T")
_N = TypeVar("_N", bound=np.integer[Any])


class Columns(Protocol):
    """Named columns of one length (pyarrow.Table, rundir.timeline_columns.TimelineColumns)."""

    num_rows: int

    @property
    def column_names(self) -> list[str]: ...
    def column(self, name: str) -> pa.ChunkedArray: ...


MANY_ROWS = 1 << 16
# Of a long table only these stay decoded: all columns at once would be most of a report's memory.
_KEPT = frozenset(("start_ns", "device", "lane", "kind", "phase", "layer", "name"))


class SpanTable:
    """Rows of one rank and window, of which each column is decoded once, whoever reads it.

    Arrays that are read from it are shared, and therefore cannot be written to. Of more than MANY_ROWS rows
    columns that few read are decoded anew each time.
    """

    __slots__ = ("_decoded", "_table", "num_rows")

    def __init__(self, table: Columns) -> None:
        self._table = table
        self._decoded: dict[tuple[object, ...], Any] = {}
        self.num_rows: int = table.num_rows

    @property
    def column_names(self) -> list[str]:
        """Of the table."""
        return self._table.column_names

    def column(self, name: str) -> pa.ChunkedArray:
        """As in the file."""
        return self._table.column(name)

    def decoded(self, key: tuple[object, ...], decode: Callable[[], _T]) -> _T:
        """What `decode` returned when it was first asked for `key`."""
        columns = _arguments(key)
        if self.num_rows > MANY_ROWS and columns and columns[0] not in _KEPT:
            return decode()
        if key not in self._decoded:
            self._decoded[key] = value = decode()
            for array in value if isinstance(value, tuple) else (value,):
                if isinstance(array, np.ndarray):
                    array.flags.writeable = False
        kept: _T = self._decoded[key]
        return kept

    def forget(self, columns: Collection[str] | None = None) -> None:
        """Frees what was decoded of columns, or all; they are decoded again if they are read again."""
        if columns is None:
            self._decoded.clear()
            return
        for key in [key for key in self._decoded if any(column in columns for column in _arguments(key))]:
            del self._decoded[key]


def _arguments(key: tuple[object, ...]) -> tuple[object, ...]:
    """What a function of `once_per_table` was called with, apart from the table and keywords."""
    return key[1] if len(key) > 1 and isinstance(key[1], tuple) else ()


Table: TypeAlias = pa.Table | SpanTable


def once_per_table(read: Callable[Concatenate[Table, _P], _T], /) -> Callable[Concatenate[Table, _P], _T]:
    """Wraps a function of a table and of hashable arguments: it runs once for a SpanTable."""

    @wraps(read)
    def read_once(table: Table, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if isinstance(table, SpanTable):
            return table.decoded((read, args, *kwargs.items()), lambda: read(table, *args, **kwargs))
        return read(table, *args, **kwargs)

    return read_once


class Spans(Struct, frozen=True, kw_only=True, eq=False):
    """One rank and window's spans; arrays of shape (n,), in the table's order."""

    start: Int64
    end: Int64
    device: NDArray[np.int64]  # -1 = host
    lane: NDArray[np.int64]
    kind: NDArray[np.int32]  # index into schema.KINDS; -1 = unknown
    phase: NDArray[np.int32]  # index into schema.PHASES; -1 = unknown

    def union(self, mask: Mask) -> Intervals:
        """The canonical union of the spans in `mask`."""
        return union(self.start[mask], self.end[mask])


def waited_from(spans: Spans) -> Int64:
    """From when on a thread waits for each call of communication, shape (n,); else the span's start.

    A CPU backend's span of a message begins when the message is asked for and ends when the thread has waited
    for it. What the thread does meanwhile (reading data, say) is not spent on the message.
    """
    start = spans.start.copy()
    is_wait = spans.kind == WAIT
    if not is_wait.any():
        return start
    rows = np.flatnonzero((spans.device < 0) & (is_wait | (spans.kind == COMM)))
    for lane in distinct(spans.lane[rows[is_wait[rows]]]).tolist():
        of_lane = rows[spans.lane[rows] == lane]
        waits, calls = of_lane[is_wait[of_lane]], of_lane[~is_wait[of_lane]]
        waits = waits[np.argsort(spans.start[waits], kind="stable")]
        wait = waits[np.maximum(np.searchsorted(spans.start[waits], spans.end[calls], side="right") - 1, 0)]
        begin, end = spans.start[wait], spans.end[wait]
        is_in = (start[calls] <= begin) & (begin <= spans.end[calls]) & (spans.end[calls] <= end)
        start[calls[is_in]] = begin[is_in]
    return start


@once_per_table
def spans_of(table: Table) -> Spans:
    """Start, duration, device, lane, kind and phase of the rows, as numpy."""
    start = whole_numbers(table, "start_ns")
    return Spans(
        start=start,
        end=start + whole_numbers(table, "dur_ns"),
        device=whole_numbers(table, "device"),
        lane=whole_numbers(table, "lane"),
        kind=known_words(table, "kind", KINDS),
        phase=known_words(table, "phase", PHASES),
    )


@once_per_table
def whole_numbers(table: Table, column: str, *, null: int = -1) -> Int64:
    """An integer column as int64, shape (n,); `null` where the table has none."""
    array = table.column(column)
    if not pa.types.is_integer(array.type):
        array = array.cast(pa.int64())
    if array.null_count == len(array):
        return constant(null, len(array), np.int64)
    parts = [_filled(chunk, null).astype(np.int64, copy=False) for chunk in array.chunks]
    values: Int64 = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])
    return values


@lru_cache(maxsize=64)
def constant(value: int, length: int, kind: type[_N]) -> NDArray[_N]:
    """An array of equal numbers that takes no memory, and cannot be written to."""
    return np.broadcast_to(kind(value), (length,))


def is_constant(values: NDArray[_N]) -> bool:
    """Whether it is an array of `constant`, of at least one number."""
    return len(values) > 0 and values.strides == (0,)


class _Constant(NamedTuple):
    """An array of `constant` on its way to another process."""

    value: int
    length: int
    kind: str

    @classmethod
    def or_plain(cls, value: Any) -> Any:
        """Values of a record: arrays, and dictionaries of them."""
        if isinstance(value, np.ndarray) and is_constant(value):
            return cls(int(value[0]), len(value), value.dtype.char)
        return {key: cls.or_plain(of) for key, of in value.items()} if isinstance(value, dict) else value


def _restored(value: Any) -> Any:
    if isinstance(value, _Constant):
        kind: Any = np.dtype(value.kind).type
        return constant(value.value, value.length, kind)
    return {key: _restored(of) for key, of in value.items()} if isinstance(value, dict) else value


def _record_of(kind: Callable[..., _T], names: Sequence[str], values: Sequence[Any]) -> _T:
    return kind(**dict(zip(names, map(_restored, values), strict=True)))


class ArrayRecord(Struct, frozen=True):
    """A record of arrays of which those of `constant` stay so in another process."""

    def __reduce__(self) -> tuple[Any, ...]:
        names = self.__struct_fields__
        return _record_of, (type(self), names, [_Constant.or_plain(getattr(self, name)) for name in names])


def _filled(array: pa.Array, null: int) -> NDArray[np.integer[Any]]:
    """An array of integers, `null` where it has none."""
    if not array.null_count:
        plain: NDArray[np.integer[Any]] = array.to_numpy(zero_copy_only=False)
        return plain
    if array.null_count == len(array):
        return np.full(len(array), null)
    numbers, is_known = numbers_of(array)
    return np.where(is_known, numbers, null)


def owning_step(table: Table, of: NDArray[np.bool_] | slice = slice(None)) -> Int64:
    """The step each span belongs to, shape (n,); -1 = none.

    Host spans: the step they start in. Device spans: the step that launched them, however late the device
    gets to it, none if their launch is not in the file; without any launch in the file, as host spans.

    Args:
        table: columns step, launch_step and device of schema.TIMELINE.
        of: spans that are asked for.
    """
    step, launch = whole_numbers(table, "step")[of], whole_numbers(table, "launch_step", null=-2)[of]
    device = whole_numbers(table, "device")[of] >= 0
    if not (device & (launch != -2)).any():
        return step
    result: Int64 = np.where(device, np.maximum(launch, -1), step)
    return result


@once_per_table
def words(table: Table, column: str) -> tuple[NDArray[np.int32], list[str]]:
    """A text column as codes (shape (n,), -1 = null) and the words they stand for, in their order.

    A file has words in the order in which they occur, which differs between ranks.
    """
    codes, texts = _words(table, column)
    ordered = sorted(texts)
    if ordered == texts:
        return codes, texts
    code_of = {text: index for index, text in enumerate(ordered)}
    return np.array([*(code_of[text] for text in texts), -1], dtype=np.int32)[codes], ordered


def _words(table: Table, column: str) -> tuple[NDArray[np.int32], list[str]]:
    array = table.column(column)
    if array.null_count == len(array):
        return constant(-1, len(array), np.int32), []
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    if array.num_chunks != 1:
        array = array.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray) and array.num_chunks == 0:
        return np.empty(0, dtype=np.int32), []
    chunk = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    codes: NDArray[np.int32] = _filled(chunk.indices, -1).astype(np.int32, copy=False)
    return codes, chunk.dictionary.to_pylist()


@once_per_table
def known_words(table: Table, column: str, vocabulary: tuple[str, ...]) -> NDArray[np.int32]:
    """A text column as indices into `vocabulary`; -1 for null and for words it does not have."""
    codes, texts = _words(table, column)
    position = {word: index for index, word in enumerate(vocabulary)}
    lookup = np.array([*(position.get(word, -1) for word in texts), -1], dtype=np.int32)
    result: NDArray[np.int32] = lookup[codes]  # code -1 takes the last entry
    return result


class StepSpan(Struct, frozen=True, kw_only=True):
    """One traced step in the trace's clock."""

    step: int
    start_ns: int
    end_ns: int


class WindowFacts(Struct, frozen=True, kw_only=True):
    """What ingest says of one rank and window, typed."""

    rank: int
    window: int
    host: str
    steps: tuple[StepSpan, ...]
    whole_file: bool  # no step mark in the trace: `steps` is the file as one
    has_device: bool
    ends_early: bool = False  # the file does: what is after the last of `steps` is not whole
    runs_ahead: bool = False  # the host does, of its device, on which `steps` are therefore
    lacks_device: bool = False  # the host used a device, of whose work the file has none
    roles: dict[tuple[int, int], tuple[str, str]]  # (device, lane) -> (role, label)
    groups: dict[str, tuple[int, ...]]  # process group name -> ranks, where the trace says so
    descriptions: Mapping[str, str] = {}  # process group name -> the framework's description, likewise
    counters: CountedLayers | None = None  # None: none were read

    def lanes_with(self, *roles: str) -> list[int]:
        """Host lanes of these roles."""
        return [lane for (device, lane), (role, _) in self.roles.items() if device < 0 and role in roles]


def window_facts(summary: WindowSummary) -> WindowFacts:
    """What ingest says of a window, without steps of no length and groups without their ranks."""
    names = ((group.name if group.pg_name is None else group.pg_name, group) for group in summary.groups)
    return WindowFacts(
        rank=summary.rank,
        window=summary.window,
        host=summary.host,
        steps=tuple(
            StepSpan(step=step, start_ns=start, end_ns=end)
            for step, start, end in summary.steps
            if end > start
        ),
        whole_file=not summary.is_marked,
        has_device=summary.has_device,
        ends_early=summary.ends_early,
        lacks_device=summary.lacks_device,
        runs_ahead=summary.runs_ahead,
        roles={(lane.device, lane.lane): (lane.role, lane.label) for lane in summary.lanes},
        groups={
            str(name): group.ranks for name, group in names if name is not None and group.ranks is not None
        },
        descriptions={
            str(group.pg_name): group.pg_desc
            for group in summary.groups
            if group.pg_name is not None and group.pg_desc
        },
        counters=summary.counters,
    )
