"""Builds small run directories whose truth is known, in the raw and derived formats a real run has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from perfscope.rundir import layout
from perfscope.rundir.reader import RunReader
from perfscope.rundir.schema import TIMELINE

EPOCH = 1_780_000_000_000_000_000  # windows lie at today's Unix time, as in a real trace
MAIN, BACKEND, AUTOGRAD = 100, 200, 300
STEP_COLUMNS = [
    *(
        "step",
        "start_ns",
        "dur_ns",
        "window",
        "input_ns",
        "backward_ns",
        "optimizer_ns",
        "num_micro",
        "samples",
    )
]


def span(start: int, dur: int, kind: str, **columns: Any) -> dict[str, Any]:
    """A row of the timeline on the main thread; times since EPOCH, step told from `window`'s steps."""
    return {"start_ns": EPOCH + start, "dur_ns": dur, "kind": kind, "phase": "other", "name": kind, **columns}


def comm(start: int, dur: int, seq: int, **columns: Any) -> dict[str, Any]:
    """One all_reduce of 4 kB of float on the backend's thread."""
    values = {"lane": BACKEND, "collective": "all_reduce", "group": "0", "seq": seq, "dtype": "float"}
    return span(start, dur, "comm", **{**values, "in_bytes": 4096, "out_bytes": 4096, **columns})


class SyntheticRun:
    """A run directory under construction."""

    def __init__(self, path: Path, **manifest: Any) -> None:
        self.path = path
        self.write(layout.RUN_JSON, {"schema_version": 1, "origin": "run", "status": "finished", **manifest})

    def write(self, name: str, value: object) -> Path:
        """One JSON document; text goes in as it is."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    def rank(self, rank: int, **meta: Any) -> None:
        document = {"schema_version": 1, "rank": rank, "host": "node0", "finished": True, **meta}
        self.write(f"ranks/{rank}/rank.json", document)

    def steps(self, rank: int, durations: Sequence[int], **columns: Sequence[int | None]) -> None:
        """steps.jsonl; `columns` gives more of STEP_COLUMNS, one value per step."""
        names = list(dict.fromkeys([*STEP_COLUMNS, *columns]))
        lines, start = [json.dumps({"columns": names})], 1_000_000
        for index, duration in enumerate(durations):
            row: dict[str, int | None] = dict.fromkeys(STEP_COLUMNS)
            row.update(step=index, start_ns=start, dur_ns=duration, window=-1, num_micro=1)
            row.update({name: values[index] for name, values in columns.items()})
            lines.append(json.dumps([row[name] for name in names], separators=(",", ":")))
            start += duration
        self.write(f"ranks/{rank}/steps.jsonl", "\n".join(lines) + "\n")

    def window(
        self,
        rank: int,
        spans: Sequence[dict[str, Any]],
        steps: Sequence[tuple[int, int, int]],
        *,
        window: int = 0,
        **summary: Any,
    ) -> None:
        """What ingest leaves of one window; `steps` are (number, start, end) since EPOCH."""
        rows = [{**_DEFAULTS, "rank": rank, "window": window, **one} for one in spans]
        marks = [[number, EPOCH + start, EPOCH + end] for number, start, end in steps]
        for row in rows:
            inside = [number for number, start, end in marks if start <= row["start_ns"] < end]
            row.setdefault("step", inside[0] if inside else -1)
        name = f"rank-{rank:05d}-window-{window:03d}"
        path = self.path / "derived" / "timeline" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=TIMELINE), path)
        roles = {MAIN: "main", BACKEND: "backend", AUTOGRAD: "autograd"}
        document = {
            "rank": rank,
            "window": window,
            "source": {"path": f"ranks/{rank}/windows/{window}.json.gz"},
            "events_read": len(rows),
            "events_kept": len(rows),
            "steps": marks,
            "step_source": "perfscope" if marks else "whole file",
            "lanes": [
                {"device": -1, "lane": lane, "role": role, "label": f"{role} thread"}
                for lane, role in roles.items()
            ],
            "host": "node0",
            **summary,
        }
        self.write(f"derived/ingest/{name}.json", document)

    def read(self) -> RunReader:
        return RunReader(self.path)


_DEFAULTS: dict[str, Any] = {"device": -1, "lane": MAIN, "depth": 0}
