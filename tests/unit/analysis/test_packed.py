"""Records that are kept packed."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pyarrow.parquet as pq

from perfscope.analysis.packed import Packed
from perfscope.analysis.results import CommByLayer
from perfscope.reports.document import to_plain
from perfscope.rundir.schema import TIMELINE
from perfscope.rundir.timeline_columns import TimelineColumns


def record(layer: str) -> CommByLayer:
    return CommByLayer(layer=layer, exposed_ns=3, hidden_ns=2, calls=0.5, bytes=None, axes={"dp": 3})


def test_packed_records_read_as_the_records_and_are_written_as_they_are() -> None:
    records = [record("a"), record("é\x7f")]
    packed = Packed(CommByLayer, records)
    assert list(packed) == records
    assert len(packed) == 2
    assert packed[1] == records[1]
    assert to_plain(packed) == to_plain(records)
    assert packed == Packed(CommByLayer, records) and packed != Packed(CommByLayer, records[:1])
    assert repr(packed) == repr(records)


def test_a_timeline_is_freed_without_the_cycle_collector(tmp_path: Path) -> None:
    pq.write_table(TIMELINE.empty_table(), tmp_path / "rows.parquet")
    gc.disable()
    try:
        columns = TimelineColumns((tmp_path / "rows.parquet").read_bytes(), TIMELINE.names)
        columns.decoded()
        metadata = weakref.ref(columns._file.metadata)
        del columns
        assert metadata() is None
    finally:
        gc.enable()
