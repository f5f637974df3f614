"""A small valid file of every trace format, and what of it may be changed: for tests that damage files."""

from __future__ import annotations

import gzip
import json
import pickle
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from perfscope.reports.chakra import write_chakra
from perfscope.reports.export_source import TimelinePart
from perfscope.rundir.schema import EXPORTED
from tests.support.nsys_database import Database, training

_DATA = Path(__file__).parents[1] / "data"


def _lines(data: bytes) -> object:
    return [json.loads(line) for line in data.splitlines()]


def _as_lines(document: object) -> bytes:
    assert isinstance(document, list)
    return b"".join(json.dumps(line).encode() + b"\n" for line in document)


@dataclass(frozen=True)
class Sample:
    """One file.

    Attributes:
        name: of the file; the format recognizes it by that, or by its content.
        data: its content, unpacked.
        load, dump: to and from plain values, for files that have such.
        change: damages a file of another kind in its own terms.
    """

    name: str
    data: bytes
    load: Callable[[bytes], object] | None = None
    dump: Callable[[object], bytes] | None = None
    change: Callable[[bytes, Random], bytes] | None = None


def _json(name: str, data: bytes) -> Sample:
    return Sample(name, data, json.loads, lambda document: json.dumps(document).encode())


def _unpacked(*parts: str) -> bytes:
    return gzip.decompress(_DATA.joinpath(*parts).read_bytes())


def _first(data: bytes, most: int) -> bytes:
    """A trace with fewer events."""
    document = json.loads(data)
    document["traceEvents"] = document["traceEvents"][:most]
    return json.dumps(document).encode()


def _chakra() -> bytes:
    rows = [
        {"start_ns": 2000 * at, "dur_ns": 1500, "kind": "comm" if at % 3 == 2 else "compute", "step": at // 3}
        for at in range(12)
    ]
    common = {"rank": 0, "window": 0, "device": -1, "lane": 7, "phase": "other", "name": "aten::mm"}
    reduce = {"collective": "all_reduce", "group": "0", "group_size": 2, "in_bytes": 64}
    spans = [{**common, **(reduce if row["kind"] == "comm" else {}), **row} for row in rows]
    columns = [{name: span.get(name) for name in EXPORTED.names} for span in spans]
    table = pa.Table.from_pylist(columns, EXPORTED)
    part = TimelinePart(rank=0, window=0, host="n1", lanes=(), load=lambda: table)
    with tempfile.TemporaryDirectory() as folder:
        write_chakra([part], {"0": (0, 1)}, Path(folder) / "et")
        return (Path(folder) / "et" / "trace.0.et").read_bytes()


def _nodes(data: bytes) -> bytes:
    """An execution trace with fewer nodes."""
    document = json.loads(data)
    document["nodes"] = document["nodes"][:120]
    return json.dumps(document).encode()


def _calls() -> bytes:
    columns = ["lane", "start_ns", "dur_ns", "kind", "phase", "name", "collective", "group", "group_size"]
    rows = [
        [7, 1000 * at, 500, "comm", "backward", "MPI_Allreduce", "all_reduce", "world", 2]
        for at in range(1, 9)
    ]
    document = {
        "version": 1,
        "unix_ns": 1_700_000_000_000_000_000,
        "monotonic_ns": 10,
        "main_tid": 7,
        "lanes": {"8": "communication"},
        "groups": [{"name": "world", "ranks": [0, 1]}],
        "steps": [[0, 900, 4100], [1, 4100, 9000]],
        "outside": "python",
        "columns": [*columns, "in_bytes", "out_bytes", "dtype"],
        "rows": [[*row, 64, 64, "float32"] for row in rows],
    }
    return json.dumps(document).encode()


def _flight() -> dict[str, Any]:
    entry = {
        "record_id": 1,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 1,
        "p2p_seq_id": 0,
        "op_id": 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_001_000,
        "input_sizes": [[8, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[8, 4]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "retired": False,
        "is_p2p": False,
        "frames": [{"name": "step", "filename": "train.py", "line": 40}],
    }
    numbers = {"last_enqueued_collective": 2, "last_started_collective": -1, "last_completed_collective": 1}
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": numbers},
        "entries": [entry, {**entry, "record_id": 2, "collective_seq_id": 2}],
    }


def _inspector() -> bytes:
    records = [
        {
            "header": {"id": "0x7f8c", "rank": 0, "n_ranks": 2, "nnodes": 1},
            "metadata": {"dump_timestamp_us": 1_748_030_377_748_202 + at, "hostname": "n1", "pid": 7},
            "coll_perf": {
                "coll": "AllReduce",
                "coll_sn": at,
                "coll_msg_size_bytes": 1 << 20,
                "coll_exec_time_us": 100 + at,
                "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": 10.5,
                "coll_busbw_gbs": 10.5,
            },
        }
        for at in range(1, 6)
    ]
    return _as_lines(records)


def _nsys() -> bytes:
    database = Database()
    database.session()
    training(database, 4000, steps=2)
    with tempfile.TemporaryDirectory() as folder:
        return database.write(Path(folder) / "report.sqlite").read_bytes()


_CELLS = (None, -1, 1 << 62, -(1 << 63), 0.5, 1e308, float("inf"), "", "x" * 5000, b"\xff\0", "7", "\0")


def _change_database(data: bytes, random: Random) -> bytes:
    """Some cells, columns or tables of a database."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.sqlite"
        path.write_bytes(data)
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            names = [name for (name,) in rows]
            for _ in range(random.randint(1, 3)):
                table = random.choice(names)
                columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
                if not columns:
                    continue  # dropped just before
                column = random.choice(columns)
                where = random.choice(("", " WHERE rowid = 1", " WHERE rowid % 2"))
                statement = random.choice(
                    (
                        f'UPDATE OR IGNORE "{table}" SET "{column}" = ?{where}',
                        f'UPDATE OR IGNORE "{table}" SET "{column}" = ?{where}',
                        f'UPDATE OR IGNORE "{table}" SET "{column}" = ?{where}',
                        f'DELETE FROM "{table}"',
                        f'DROP TABLE "{table}"',
                        f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "other"',
                    )
                )
                try:
                    connection.execute(statement, (random.choice(_CELLS),) if "?" in statement else ())
                except sqlite3.Error:
                    continue  # a type that this column refuses
            connection.commit()
        return path.read_bytes()


def samples() -> Mapping[str, tuple[Sample, ...]]:
    """Name of a format -> files of it, at least one."""
    return {
        "kineto": (
            _json("t_rank0.json", _first(_unpacked("traces", "cpu_gloo_groups", "rank0.json.gz"), 250)),
        ),
        "xplane": (
            Sample(
                "host.tensorflow.xplane.pb",
                _unpacked("frameworks", "tensorflow_cnn", "windows", "0.tensorflow.xplane.pb.gz"),
            ),
            Sample("host.jax.xplane.pb", _unpacked("frameworks", "jax-two-processes.jax.xplane.pb.gz")),
        ),
        "mxnet": (
            _json("p.mxnet.json", _first(_unpacked("frameworks", "mxnet-dist-sync-0.mxnet.json.gz"), 300)),
        ),
        "calls": (_json("0.calls.json", _calls()),),
        "execution": (
            _json("rank0.et.json", _nodes(_unpacked("traces", "execution_gloo", "gloo_rank0.et.json.gz"))),
        ),
        "chakra": (Sample("trace.0.et", _chakra()),),
        "flight": (
            Sample(
                "nccl_trace_rank_0",
                pickle.dumps(_flight(), 2),
                pickle.loads,
                lambda document: pickle.dumps(document, 2),
            ),
            _json("rank_0.flight.json", json.dumps(_flight()).encode()),
        ),
        "inspector": (Sample("n1-pid7.log", _inspector(), _lines, _as_lines),),
        "nsys": (Sample("report.sqlite", _nsys(), change=_change_database),),
    }
