"""Finished slices into `schema.TIMELINE` on disk, each in order of start, several of them a row group."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from perfscope.ingest.collect import KernelConfig
from perfscope.ingest.collectives import Collective, ProcessGroups
from perfscope.ingest.cost_model import Cost
from perfscope.ingest.groups import CallGroups
from perfscope.ingest.timeline import ABSENT, COPY, Small, TimelineTable
from perfscope.rundir.files import replacing
from perfscope.rundir.number_lists import numpy_dtype
from perfscope.rundir.schema import KINDS, PHASES, TIMELINE

Ints = npt.NDArray[np.int64]
_WORD_COLUMNS = [field.name for field in TIMELINE if pa.types.is_dictionary(field.type)]
_ORDERED_COLUMNS = {"start_ns": "DELTA_BINARY_PACKED", "launch_ns": "DELTA_BINARY_PACKED"}
# Every column of a row group costs as much to write and to read as some thousand rows of it.
_GROUP_ROWS = 1 << 14
_COMM_COLUMNS = (
    *("collective", "group", "group_size", "in_bytes", "out_bytes", "in_rows", "out_rows"),
    *("dtype", "peer", "seq"),
)


class TimelineFile:
    """Writes one window's timeline aside and renames it into place when it is whole.

    Args:
        path: of the Parquet file.
        rank, window: constant columns.
        base_ns: added to every time.
        strings: text per `Table.word`, before the layers.
        layers: layer number -> name; may grow while slices are written.
        lanes: (device, lane) per `Table.lane`.
        collectives: may grow while slices are written.
        groups: that the file lists.
        call_groups: what was found out about calls that do not name theirs.
    """

    def __init__(
        self,
        path: Path,
        *,
        rank: int,
        window: int,
        base_ns: int,
        strings: Sequence[str],
        layers: Sequence[str],
        lanes: Sequence[tuple[int, int]],
        costs: Sequence[Cost],
        configs: Sequence[KernelConfig],
        collectives: Sequence[Collective],
        groups: ProcessGroups,
        call_groups: CallGroups,
    ) -> None:
        self.num_rows = 0
        self._constants = (rank, window, base_ns)
        self._words = strings
        self._layers = layers
        self._lanes = np.array(lanes, np.int64).reshape(-1, 2)
        self._costs = np.array([(c.flops, c.read, c.written) for c in costs] or [(0, 0, 0)], np.int64)
        padded = [*configs, KernelConfig(None, None, -1, -1)]  # the last stands for none
        self._config_numbers = np.array([(c.registers, c.occupancy) for c in padded], np.int64)
        self._config_words = [[c.grid or "" for c in configs], [c.block or "" for c in configs]]
        self._collectives = collectives
        self._groups = groups
        self._call_groups = call_groups
        self._counts: dict[tuple[str | None, str | None], int] = defaultdict(int)
        self._held: list[TimelineTable] = []  # slices that are not written yet
        self._num_held = 0
        self._stack = ExitStack()
        self._writer = pq.ParquetWriter(
            self._stack.enter_context(replacing(path)),
            TIMELINE,
            compression="zstd",
            compression_level=1,
            use_dictionary=_WORD_COLUMNS,
            column_encoding=_ORDERED_COLUMNS,
            write_statistics=False,
        )

    def __enter__(self) -> TimelineFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._write_held()
            self._writer.close()
        except BaseException:
            self._stack.__exit__(*sys.exc_info())
            raise
        self._stack.__exit__(kind, value, trace)

    def write(self, tables: Sequence[TimelineTable]) -> None:
        """The tables of a slice; they are on disk at the latest when the file is closed."""
        parts = [table for table in tables if len(table)]
        if not parts:
            return
        rows = _joined(parts)
        order = np.argsort(rows.start, kind="stable")
        self._held.append(
            TimelineTable(**{name: getattr(rows, name)[order] for name in TimelineTable.__struct_fields__})
        )
        self.num_rows += len(rows)
        self._num_held += len(rows)
        if self._num_held >= _GROUP_ROWS:
            self._write_held()

    def _write_held(self) -> None:
        """One row group out of the slices held."""
        if not self._held:
            return
        rows = _joined(self._held)
        self._held, self._num_held = [], 0
        columns = self._columns(rows) | self._comm_columns(rows)
        batch = pa.Table.from_arrays([columns[name] for name in TIMELINE.names], schema=TIMELINE)
        self._writer.write_table(batch, row_group_size=len(rows))

    def _columns(self, rows: TimelineTable) -> dict[str, pa.Array]:
        rank, window, base_ns = self._constants
        lanes = self._lanes[rows.lane]
        costs = self._costs[np.maximum(rows.cost, 0)]
        unknown = rows.cost < 0
        is_copy = (rows.kind == COPY) & (rows.moved >= 0)
        moved = np.where(is_copy, rows.moved, 0)
        unlaunched = rows.launch == ABSENT
        numbers = self._config_numbers[rows.config]
        on_host = lanes[:, 0] < 0
        return {
            "rank": _ints(np.full(len(rows), rank, np.int32), pa.int32()),
            "window": _ints(np.full(len(rows), window, np.int32), pa.int32()),
            "step": _ints(rows.step, pa.int32()),
            "device": _ints(lanes[:, 0], pa.int16()),
            "lane": _ints(lanes[:, 1], pa.int64()),
            "start_ns": _ints(rows.start + base_ns, pa.int64()),
            "dur_ns": _ints(rows.dur, pa.int64()),
            "depth": _ints(np.minimum(rows.depth, 32767), pa.int16()),
            "kind": _fixed_words(rows.kind, KINDS),
            "phase": _fixed_words(rows.phase, PHASES),
            "layer": _words(rows.layer, self._layers),
            "name": _words(rows.word, [*self._words, *self._layers]),
            "correlation": _ints(rows.correlation, pa.int64(), rows.correlation < 0),
            "launch_ns": _ints(np.where(unlaunched, 0, rows.launch + base_ns), pa.int64(), unlaunched),
            "launch_step": _ints(rows.launch_step, pa.int32(), unlaunched | on_host),
            "launch_dur_ns": _ints(rows.launch_dur, pa.int64(), unlaunched | on_host),
            "launch_call": _words(rows.launch_call, self._words),
            "operator": _words(rows.operator, self._words),
            "grid": _words(_where_said(rows.config, self._config_words[0]), self._config_words[0]),
            "block": _words(_where_said(rows.config, self._config_words[1]), self._config_words[1]),
            "registers": _ints(np.maximum(numbers[:, 0], 0), pa.int32(), numbers[:, 0] < 0),
            "occupancy": _ints(np.maximum(numbers[:, 1], 0), pa.int16(), numbers[:, 1] < 0),
            "flops": _ints(costs[:, 0], pa.int64(), unknown),
            "bytes_read": _ints(np.where(is_copy, moved, costs[:, 1]), pa.int64(), unknown & ~is_copy),
            "bytes_written": _ints(np.where(is_copy, moved, costs[:, 2]), pa.int64(), unknown & ~is_copy),
        }

    def _comm_columns(self, rows: TimelineTable) -> dict[str, pa.Array]:
        """Columns only communication has. Counts `seq`, so each slice must come exactly once."""
        rows_with = np.flatnonzero(rows.collective >= 0)
        descriptions: list[tuple[Any, ...]] = []
        lanes, starts = rows.lane[rows_with].tolist(), rows.start[rows_with].tolist()
        call_groups = self._call_groups
        for number, lane, start in zip(rows.collective[rows_with].tolist(), lanes, starts, strict=True):
            collective = self._groups.complete(
                self._collectives[number],
                call_groups.of_lane.get(lane),
                call_groups.sources.get((lane, start)),
            )
            key = (collective.group, collective.name)
            sizes = (collective.group_size, collective.in_bytes, collective.out_bytes)
            descriptions.append(
                (
                    collective.name,
                    collective.group,
                    *sizes,
                    collective.in_rows,
                    collective.out_rows,
                    collective.dtype,
                    collective.peer,
                    self._counts[key],
                )
            )
            self._counts[key] += 1
        return {
            name: _sparse(
                [values[column] for values in descriptions], rows_with, len(rows), TIMELINE.field(name).type
            )
            for column, name in enumerate(_COMM_COLUMNS)
        }


def _joined(parts: Sequence[TimelineTable]) -> TimelineTable:
    """The rows of tables, one behind the other."""
    return TimelineTable(
        **{
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in TimelineTable.__struct_fields__
        }
    )


def _where_said(numbers: Small, texts: Sequence[str]) -> Small:
    """`numbers`, -1 where the text is empty."""
    is_said = np.array([*(bool(text) for text in texts), False])
    result: Small = np.where(is_said[numbers], numbers, np.int32(-1))
    return result


def _sparse(values: list[Any], rows_with: Ints, length: int, kind: pa.DataType) -> pa.Array:
    """`values` at `rows_with`, null elsewhere and where a value is None."""
    if all(value is None for value in values):
        return pa.nulls(length, kind)
    numbers: dict[str, int] = {}
    if pa.types.is_dictionary(kind):
        values = [value if value is None else numbers.setdefault(value, len(numbers)) for value in values]
    column = np.full(length, -1, np.int64)
    column[rows_with] = [-1 if value is None else value for value in values]
    if not numbers:
        return _ints(column, kind, column < 0)
    return pa.DictionaryArray.from_arrays(
        _ints(column, pa.int32(), column < 0), pa.array(list(numbers), pa.string())
    )


def _ints(values: npt.NDArray[Any], kind: pa.DataType, null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    # Not by `pa.array`, which loads numpy's masked arrays to ask whether this is one: 10 ms.
    data = pa.py_buffer(np.ascontiguousarray(values, numpy_dtype(kind)))
    validity = None
    if null is not None and null.any():
        validity = pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [validity, data])


def _fixed_words(codes: Small, vocabulary: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(_ints(codes, pa.int32()), pa.array(vocabulary, pa.string()))


def _words(numbers: Small, texts: Sequence[str]) -> pa.Array:
    """Texts by number (negative: null), with a dictionary of those that occur, each once."""
    present = np.zeros(len(texts) + 1, np.bool_)
    present[numbers] = True  # -1 marks the spare last place
    used = np.flatnonzero(present[:-1])
    codes = np.full(len(texts) + 1, -1, np.int32)
    numbers_of: dict[str, int] = {}
    codes[used] = [numbers_of.setdefault(texts[number], len(numbers_of)) for number in used.tolist()]
    indices = codes[numbers]
    return pa.DictionaryArray.from_arrays(
        _ints(indices, pa.int32(), indices < 0), pa.array(list(numbers_of), pa.string())
    )
