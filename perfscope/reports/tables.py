"""Exports of a table: Parquet, CSV and Arrow. One rank's window is in memory at a time.

They have a row per span and no place for counters, which they leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from perfscope.analysis.machine.results import CounterTrack
from perfscope.reports.export_source import TimelinePart

if TYPE_CHECKING:
    import pyarrow as pa


def write_parquet(
    parts: Sequence[TimelinePart], title: str, file: BinaryIO, counters: Sequence[CounterTrack] = ()
) -> int:
    """All timelines as one Parquet file (zstd), a row group per rank and window. Gives the number of rows."""
    import pyarrow.parquet as pq

    return _write(parts, lambda schema: pq.ParquetWriter(file, _titled(schema, title), compression="zstd"))


def write_csv(
    parts: Sequence[TimelinePart], title: str, file: BinaryIO, counters: Sequence[CounterTrack] = ()
) -> int:
    """All timelines as one CSV file with a header; missing values are empty. Gives the number of rows."""
    from pyarrow import csv

    return _write(parts, lambda schema: csv.CSVWriter(file, schema))


def write_arrow(
    parts: Sequence[TimelinePart], title: str, file: BinaryIO, counters: Sequence[CounterTrack] = ()
) -> int:
    """All timelines as one Arrow IPC file (Feather V2), uncompressed. Gives the number of rows."""
    import pyarrow as pa

    return _write(parts, lambda schema: pa.ipc.new_file(file, _titled(schema, title)))


def _write(parts: Sequence[TimelinePart], open_writer: Callable[[pa.Schema], Any]) -> int:
    """Every part with the writer that `open_writer` makes for the first one's schema. Gives the rows."""
    rows, writer = 0, None
    try:
        for table in _plain_tables(parts):
            if writer is None:
                writer = open_writer(table.schema)
            writer.write_table(table)
            rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def _titled(schema: pa.Schema, title: str) -> pa.Schema:
    return schema.with_metadata({"perfscope.run": title})


def _plain_tables(parts: Sequence[TimelinePart]) -> Iterator[pa.Table]:
    """Tables with words as plain strings: each file has its own dictionary, one output wants one type."""
    import pyarrow as pa

    for part in parts:
        table = part.load()
        fields = [
            field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field
            for field in table.schema
        ]
        yield table.cast(pa.schema(fields))
