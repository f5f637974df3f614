"""A window's timeline whose columns are decoded one at a time.

A file is a twentieth of the size of its rows in memory, so its bytes are held, and a column is decoded
when it is asked for. All columns of a long window at once would be most of a report's memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


class TimelineColumns:
    """Columns of schema.TIMELINE of one rank and window.

    Args:
        data: a Parquet file, whole and as it was written: what is damaged shows only when it is decoded.
        columns: those that are asked for.

    Raises:
        KeyError: the file lacks one of the columns.
        pyarrow.ArrowException: it is no Parquet file.
    """

    __slots__ = ("_file", "column_names", "num_rows")

    def __init__(self, data: bytes, columns: Sequence[str]) -> None:
        import pyarrow.parquet as pq  # loads TLS and cloud file systems: not for a run without traces

        self._file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        self.num_rows: int = self._file.metadata.num_rows
        self.column_names = list(columns)
        if absent := set(columns) - set(self._file.schema_arrow.names):
            raise KeyError(", ".join(sorted(absent)))

    def column(self, name: str) -> pa.ChunkedArray:
        """One of the columns, decoded anew."""
        return self._file.read([name], use_threads=False).column(0)

    def decoded(self) -> pa.Table:
        """All of them."""
        return self._file.read(self.column_names, use_threads=False).select(self.column_names)
