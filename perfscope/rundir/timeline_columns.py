"""A window's timeline whose columns are decoded one at a time.

A file is a twentieth of the size of its rows in memory, so its bytes are held, and a column is decoded
when it is asked for. All columns of a long window at once would be most of a report's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa

from perfscope.rundir.schema import TIMELINE

_SHORT_ROWS = 65_536


class TimelineColumns:
    """Columns of schema.TIMELINE of one rank and window.

    Args:
        data: a Parquet file, whole and as it was written: what is damaged shows only when it is decoded.
        columns: those that are asked for.

    Raises:
        KeyError: the file lacks one of the columns.
        pyarrow.ArrowException: it is no Parquet file.
    """

    __slots__ = ("_file", "_names", "column_names", "num_rows")

    def __init__(self, data: bytes, columns: Sequence[str]) -> None:
        import pyarrow.parquet as pq  # loads TLS and cloud file systems: not for a run without traces

        self._file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        self.num_rows: int = self._file.metadata.num_rows
        self.column_names = list(columns)
        # Not of `schema`, which its metadata holds and which holds it: no such pair is freed without
        # Python's cycle collector, which is off. Columns of TIMELINE are not nested: paths are names.
        self._names = [".".join(path) for path in self._file.reader.column_paths]
        if absent := set(columns) - set(self._names):
            raise KeyError(", ".join(sorted(absent)))

    def column(self, name: str) -> pa.ChunkedArray:
        """One of the columns, decoded anew."""
        return self._file.read([name], use_threads=False).column(0)

    def decoded(self) -> pa.Table:
        """All of them. Columns that have no values by the file's own statistics are not decoded."""
        empty = self._without_values()
        read = self._file.read([name for name in self.column_names if name not in empty], use_threads=False)
        columns = [
            nulls(self.num_rows, TIMELINE.field(name).type) if name in empty else read.column(name)
            for name in self.column_names
        ]
        return pa.table(columns, names=self.column_names)

    def _without_values(self) -> set[str]:
        """Of schema.TIMELINE; where the file does not say it, a column counts as having values."""
        metadata, empty = self._file.metadata, set(TIMELINE.names)
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for index, name in enumerate(self._names):
                statistics = group.column(index).statistics if name in empty else None
                if statistics is None or statistics.null_count != group.num_rows:
                    empty.discard(name)
        return empty if metadata.num_row_groups else set()


def nulls(length: int, kind: pa.DataType) -> pa.Array:
    """A column without values. Those of short windows and runs, of which there are many, are kept."""
    return _short_nulls(length, kind) if length <= _SHORT_ROWS else pa.nulls(length, kind)


@lru_cache(maxsize=64)
def _short_nulls(length: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(length, kind)
