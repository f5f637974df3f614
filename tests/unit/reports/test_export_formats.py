"""Exports of the timeline: every span arrives, in the shape the other tool reads."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from perfscope.analysis.machine.results import CounterTrack
from perfscope.reports.export_source import LaneName, TimelinePart
from perfscope.reports.exports import EXPORTS, FIGURES
from perfscope.reports.perfetto import write_perfetto
from perfscope.reports.tables import write_csv, write_parquet
from perfscope.rundir.files import OutputError, write_aside
from perfscope.rundir.schema import EXPORTED

EPOCH = 1_790_000_000_123_456_789


def timeline(rank: int) -> pa.Table:
    """A step with a layer, a kernel launch and its kernel, and a collective; hostile names included."""
    spans: list[dict[str, object]] = [
        {"name": "step 3", "kind": "annotation", "start_ns": EPOCH, "dur_ns": 9_000_001, "depth": 0},
        {
            "name": 'conv "</script>\n\u2028',
            "kind": "compute",
            "layer": "features.0",
            "start_ns": EPOCH + 1,
            "dur_ns": 1_999_999,
            "depth": 1,
            "flops": 2**40,
            "correlation": 77,
        },
        {
            "name": "gemm_kernel",
            "kind": "compute",
            "device": 0,
            "lane": 7,
            "start_ns": EPOCH + 3_000_000,
            "dur_ns": 400,
            "correlation": 77,
            "launch_ns": EPOCH + 1_000,
        },
        {
            "name": "ncclAllReduce",
            "kind": "comm",
            "device": 0,
            "lane": 140_000_000_000_007,
            "collective": "all_reduce",
            "group": "0",
            "axis": "dp",
            "unattributed": "no_layers",
            "in_bytes": 4096,
            "start_ns": EPOCH + 4_000_000,
            "dur_ns": 0,
        },
    ]
    base = {"rank": rank, "window": 0, "step": 3, "device": -1, "lane": 7, "depth": 0, "phase": "other"}
    rows = [{name: (base | span).get(name) for name in EXPORTED.names} for span in spans]
    return pa.Table.from_pylist(rows, schema=EXPORTED)


def part(rank: int, rows: pa.Table | None = None) -> TimelinePart:
    table = timeline(rank) if rows is None else rows
    return TimelinePart(
        rank=rank,
        window=0,
        host="node01",
        lanes=(LaneName(device=-1, lane=7, label="main thread"),),
        load=lambda: table,
    )


def perfetto(*parts: TimelinePart) -> dict[str, list[dict[str, object]]]:
    buffer = io.BytesIO()
    assert write_perfetto(parts, "run </script>", buffer) == sum(p.load().num_rows for p in parts)
    found: dict[str, list[dict[str, object]]] = json.loads(buffer.getvalue(), parse_float=Decimal)
    return found


def test_perfetto_has_a_process_per_rank_and_a_named_thread_per_lane() -> None:
    events = perfetto(part(0), part(1))["traceEvents"]
    processes = [e["args"] for e in events if e["name"] == "process_name"]
    assert processes == [{"name": "rank 0 · node01"}, {"name": "rank 1 · node01"}]
    threads = [(e["pid"], e["tid"], e["args"]) for e in events if e["name"] == "thread_name"]
    assert threads[0] == (0, 1, {"name": "main thread"})
    assert threads[1] == (0, 2, {"name": "GPU 0 stream 7"})  # not the host thread with the same number
    assert len(threads) == 6


def test_perfetto_keeps_every_nanosecond() -> None:
    spans = [e for e in perfetto(part(0))["traceEvents"] if e["ph"] == "X"]
    times = [(Decimal(str(e["ts"])), Decimal(str(e["dur"]))) for e in spans]
    expected = [(0, 9_000_001), (1, 1_999_999), (3_000_000, 400), (4_000_000, 0)]
    assert [(int(ts * 1000), int(dur * 1000)) for ts, dur in times] == expected
    assert all(float(ts) * 1000 == pytest.approx(float(ts * 1000), abs=1e-3) for ts, _ in times)


def test_perfetto_arguments_leave_out_what_is_missing() -> None:
    spans = [e for e in perfetto(part(0))["traceEvents"] if e["ph"] == "X"]
    assert spans[1]["args"] == {
        "step": 3,
        "window": 0,
        "phase": "other",
        "layer": "features.0",
        "flops": 2**40,
    }
    assert spans[3]["cat"] == "comm"


def test_perfetto_says_how_long_ago_device_work_was_launched() -> None:
    spans = [e for e in perfetto(part(0))["traceEvents"] if e["ph"] == "X"]
    kernel = spans[2]["args"]
    assert isinstance(kernel, dict)
    assert kernel["launched_ns_before"] == 2_999_000


def test_perfetto_has_counters_of_each_host_on_the_spans_clock() -> None:
    track = CounterTrack(
        id="n/cpu",
        host="node01",
        group="cpu",
        title="CPU </script> busy",
        unit="ratio",
        t_ns=(EPOCH - 1_500_000_001, EPOCH + 7, EPOCH + 100_000_000, EPOCH + 200_000_000),
        mean=(0.25, math.nan, 0.5, 0.75),
        low=(0.25, math.nan, 0.5, 0.75),
        high=(0.25, math.nan, 0.5, 0.75),
    )
    traffic = structs.replace(track, host="node02", title="eth0 sent", unit="bytes_per_s", mean=(1e6,) * 4)
    buffer = io.BytesIO()
    assert write_perfetto([part(0)], "run", buffer, [track, traffic]) == 4, "counters are no spans"
    events = json.loads(buffer.getvalue(), parse_float=Decimal)["traceEvents"]
    counters = [e for e in events if e["ph"] == "C"]
    busy = [e for e in counters if e["name"] == "CPU </script> busy (%)"]
    assert [(e["ts"], float(e["args"]["value"])) for e in busy] == [
        (Decimal("-1500000.001"), 25.0),
        (Decimal("100000.000"), 50.0),
        (Decimal("200000.000"), 75.0),
    ]
    sent = [e for e in counters if e["name"] == "eth0 sent (MB/s)"]
    assert [float(e["args"]["value"]) for e in sent] == [1.0] * 4
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names[busy[0]["pid"]] == "machine · node01"
    assert names[sent[0]["pid"]] == "machine · node02"
    assert names[0] == "rank 0 · node01"


def test_trace_processor_reads_every_span(tmp_path: Path) -> None:
    trace_processor: Any = pytest.importorskip("perfetto.trace_processor")
    shell = shutil.which("trace_processor_shell")
    if shell is None:
        pytest.skip("trace_processor_shell is not on PATH")
    file = tmp_path / "timeline.perfetto.json"
    with file.open("wb") as out:
        write_perfetto([part(0), part(1)], "run", out)
    config = trace_processor.TraceProcessorConfig(bin_path=shell)
    with trace_processor.TraceProcessor(trace=str(file), config=config) as processor:
        durations = sorted(row.dur for row in processor.query("select dur from slice"))
    assert durations == sorted([9_000_001, 1_999_999, 400, 0] * 2)


def test_perfetto_of_nothing_is_still_a_trace() -> None:
    assert perfetto(part(0, timeline(0).slice(0, 0)))["traceEvents"]


def test_parquet_is_one_table_of_all_ranks_whatever_their_dictionaries() -> None:
    buffer = io.BytesIO()
    assert write_parquet([part(0), part(1, timeline(1).slice(2))], "run", buffer) == 6
    table = pq.read_table(io.BytesIO(buffer.getvalue()))
    assert table.column("rank").to_pylist() == [0, 0, 0, 0, 1, 1]
    assert table.column("name").to_pylist()[-1] == "ncclAllReduce"
    assert table.schema.names == EXPORTED.names
    assert table.column("start_ns").to_pylist()[0] == EPOCH


def test_csv_reads_back_with_any_csv_reader() -> None:
    buffer = io.BytesIO()
    assert write_csv([part(0), part(1)], "run", buffer) == 8
    rows = list(csv.DictReader(io.StringIO(buffer.getvalue().decode(), newline="")))
    assert len(rows) == 8
    assert rows[1]["name"] == 'conv "</script>\n\u2028'
    assert rows[1]["start_ns"] == str(EPOCH + 1)
    assert rows[0]["layer"] == ""


def test_a_failed_export_leaves_no_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("old")
    with pytest.raises(RuntimeError, match="half way"), write_aside(target) as file:
        file.write(b"half")
        raise RuntimeError("half way")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_link_stays_a_link_and_a_device_is_not_replaced(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    with write_aside(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    with write_aside(Path("/dev/null")) as file:
        file.write(b"gone")
    assert not Path("/dev/null").is_file()


def test_a_pipe_named_by_its_descriptor_is_written() -> None:
    reading, writing = os.pipe()
    with write_aside(Path(f"/dev/fd/{writing}")) as file:
        file.write(b"through")
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"through"


@pytest.mark.parametrize("where", ["missing/out.html", "."])
def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path, where: str) -> None:
    with pytest.raises(OutputError) as caught, write_aside(tmp_path / where) as file:
        file.write(b"x")
    assert "cannot write" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_formats_are_those_the_command_offers() -> None:
    from perfscope.cli.export import FORMATS

    assert (*(export.name for export in EXPORTS), *FIGURES, "otf2", "chakra") == FORMATS
