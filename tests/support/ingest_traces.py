"""Small traces with a known truth, and the table perfscope makes of one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from perfscope.ingest.files import WindowFile
from perfscope.ingest.run import read_window
from perfscope.ingest.summary import IngestSummary

TRACES = Path(__file__).parents[1] / "data" / "traces"
MI300 = TRACES / "mi300_resnet" / "resnet_act_checkpoint.json.gz"
DLRM = TRACES / "dlrm_v100_8ranks"
NS_V100 = next((TRACES / "ns_v100").glob("*.gz"))
GLOO = TRACES / "cpu_gloo_2ranks"

Json = dict[str, Any]
MAIN, AUTOGRAD, BACKEND = 100, 101, 102


@dataclass(frozen=True)
class Ingested:
    """What became of one trace."""

    summary: IngestSummary
    rows: list[Json]

    def named(self, name: str) -> list[Json]:
        return [row for row in self.rows if row["name"] == name]

    def one(self, name: str) -> Json:
        (row,) = self.named(name)
        return row


def ingest(directory: Path, trace: bytes | Path) -> Ingested:
    """Ingest one trace (its bytes, or a file) as rank 0, window 0 of a run in `directory`."""
    data = trace.read_bytes() if isinstance(trace, Path) else trace
    source = directory / "ranks" / "0" / "windows" / "0.json"
    for folder in (source.parent, directory / "derived" / "timeline", directory / "derived" / "ingest"):
        folder.mkdir(parents=True, exist_ok=True)
    source.write_bytes(data)
    file = WindowFile(directory, source, 0, 0)
    summary = read_window(file)
    table = pq.ParquetFile(file.table).read()
    assert summary.events_read == summary.events_kept + summary.events_skipped + summary.events_dropped
    assert table.num_rows == summary.events_kept
    return Ingested(summary, table.to_pylist())


def text_of(path: Path) -> bytes:
    """A fixture's JSON text."""
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def span(name: str, start: float, dur: float, *, tid: int = MAIN, cat: str = "cpu_op", **args: Any) -> Json:
    """A complete event of a host thread, microseconds; `_` in an argument's name is a space."""
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": MAIN,
        "tid": tid,
        "ts": start,
        "dur": dur,
        "args": named,
    }


def note(name: str, start: float, dur: float, *, tid: int = MAIN, **args: Any) -> Json:
    """A user annotation."""
    return span(name, start, dur, tid=tid, cat="user_annotation", **args)


def launch(start: float, correlation: int, *, tid: int = MAIN, name: str = "cudaLaunchKernel") -> Json:
    return span(name, start, 1, tid=tid, cat="cuda_runtime", correlation=correlation)


def kernel(
    name: str,
    start: float,
    dur: float,
    correlation: int,
    *,
    stream: int = 7,
    cat: str = "kernel",
    **args: Any,
) -> Json:
    """Work on device 0."""
    named = {key.replace("_", " "): value for key, value in args.items()}
    args_ = {"device": 0, "stream": stream, "correlation": correlation, **named}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": start,
        "dur": dur,
        "args": args_,
    }


def document(events: Sequence[Json], **fields: Any) -> bytes:
    """A trace in the form torch writes: metadata, then the events."""
    return json.dumps({"schemaVersion": 1, **fields, "traceEvents": list(events)}, indent=1).encode()


def shapes(dims: list[Any], types: list[str], concrete: list[str] | None = None) -> Json:
    """Arguments of an operator as `record_shapes` leaves them."""
    found: Json = {"Input_Dims": dims, "Input_type": types}
    if concrete is not None:
        found["Concrete_Inputs"] = concrete
    return found
