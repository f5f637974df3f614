"""Exports of a table: Parquet, CSV and Arrow. One rank's window is in memory at a time.

They have a row per span and no place for counters, which they leave out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

from perfscope.analysis.machine.results import CounterTrack
from perfscope.reports.export_source import TimelinePart

if TYPE_CHECKING:
    import pyarrow as pa


def write_parquet(
    parts: Sequence[TimelinePart], title: str, file: BinaryIO, counters: Sequence[CounterTrack] = ()
) -> int:
    """All timelines as one Parquet file (zstd), a row group per rank and window. Gives the number of rows."""
    import pyarrow.parquet as pq

    rows, writer = 0, None
    try:
        for table in _plain_tables(parts):
            if writer is None:
                schema = table.schema.with_metadata({"perfscope.run": title})
                writer = pq.ParquetWriter(file, schema, compression="zstd")
            writer.write_table(table)
            rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def write_csv(
    parts: Sequence[TimelinePart], title: str, file: BinaryIO, counters: Sequence[CounterTrack] = ()
) -> int:
    """All timelines as one CSV file with a header; missing values are empty. Gives the number of rows."""
    from pyarrow import csv

    rows, writer = 0, None
    try:
        for table in _plain_tables(parts):
            if writer is None:
                writer = csv.CSVWriter(file, table.schema)
            writer.write_table(table)
            rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def write_arrow(
    parts: Sequence[TimelinePart], title: str, file: BinaryIO, counters: Sequence[CounterTrack] = ()
) -> int:
    """All timelines as one Arrow IPC file (Feather V2), uncompressed. Gives the number of rows."""
    import pyarrow as pa

    rows, writer = 0, None
    try:
        for table in _plain_tables(parts):
            if writer is None:
                schema = table.schema.with_metadata({"perfscope.run": title})
                writer = pa.ipc.new_file(file, schema)
            writer.write_table(table)
            rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


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
