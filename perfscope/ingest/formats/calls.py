"""`N.calls.json`: calls that the probe timed itself, beside a framework's trace or alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from perfscope.errors import TraceError
from perfscope.ingest.collectives import Collective
from perfscope.ingest.formats.trace import FrameworkTrace, Ints, depths, write_table
from perfscope.ingest.inflate import read_whole
from perfscope.rundir.schema import KINDS, PHASES


def read_calls(path: Path) -> FrameworkTrace:
    """The file as a trace; times become Unix time.

    Raises:
        TraceError: it is no such file, or of a newer version.
    """
    document = _document(path)
    offset = _int(document.get("unix_ns")) - _int(document.get("monotonic_ns"))
    main_tid = _lane_or_none(document.get("main_tid"))
    labels = _labels(document.get("lanes"))
    trace = FrameworkTrace(groups=[group for group in _list(document, "groups") if isinstance(group, dict)])
    trace.notes += [str(note) for note in _list(document, "notes")]
    for step_row in _list(document, "steps"):
        if _is_step(step_row):
            trace.steps.append((step_row[0], step_row[1] + offset, step_row[2] + offset))
        else:
            trace.num_dropped += 1
    lost = _int(document.get("num_lost"))
    if lost:
        trace.notes.append(f"{lost:,} calls of this window are not in the file: there were too many")
    numbers: dict[int, int] = {}

    def lane_of(lane: int) -> int:
        if lane not in numbers:
            is_main = lane == main_tid
            label = labels.get(str(lane)) or ("main thread" if is_main else f"thread {lane}")
            role = "main" if is_main else "backend" if str(lane) in labels else "worker"
            numbers[lane] = trace.lane(lane, role, label)
        return numbers[lane]

    if isinstance(main_tid, int):
        lane_of(main_tid)
    for row in document["rows"]:
        trace.num_read += 1
        try:
            values = dict(zip(document["columns"], row, strict=False))
            _add(trace, values, lane_of(_whole(values["lane"])), offset)
        except (KeyError, TypeError, ValueError):
            trace.num_dropped += 1
    outside = document.get("outside")
    if outside and isinstance(main_tid, int):
        _fill(trace, numbers[main_tid], str(outside))
    return trace


def merge_calls(table_path: Path, trace: FrameworkTrace, steps: list[tuple[int, int, int]]) -> int:
    """Add a trace of calls to the timeline of the framework's own trace.

    Args:
        table_path: the window's Parquet file; rewritten.
        steps: (step, start_ns, end_ns) of the framework's trace.

    Returns:
        Rows added.

    Raises:
        OSError: the table cannot be read or written.
    """
    earlier = pq.ParquetFile(table_path).read(use_threads=False)
    rank, window = table_path.stem.split("-")[1::2]
    more = trace.table(int(rank), int(window), sorted(steps, key=lambda step_row: step_row[1]))
    table = pa.concat_tables([earlier, more]).unify_dictionaries().sort_by("start_ns").combine_chunks()
    ids = np.stack([table.column(name).to_numpy().astype(np.int64) for name in ("device", "lane")], axis=1)
    start = table.column("start_ns").to_numpy()
    deep = depths(ids, start, start + table.column("dur_ns").to_numpy())
    at = table.schema.get_field_index("depth")
    table = table.set_column(at, table.schema.field(at), pa.array(np.minimum(deep, 32767).astype(np.int16)))
    write_table(table, table_path)
    return len(more)


def _document(path: Path) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(read_whole(path))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
        raise TraceError(f"{path}: is no record of calls")
    if document.get("version") != 1 or not isinstance(document.get("columns"), list):
        raise TraceError(f"{path}: was made by a newer perfscope; upgrade perfscope to read it")
    return document


def _add(trace: FrameworkTrace, values: dict[str, Any], lane: int, offset: int) -> None:
    kind, phase = values["kind"], values.get("phase") or "other"
    if kind not in KINDS or phase not in PHASES:
        raise ValueError(kind)
    collective = None
    if values.get("collective"):
        collective = Collective(
            name=_word(values["collective"]),
            group=_word(values.get("group")),
            group_size=_maybe(values.get("group_size"), 31),
            in_bytes=_maybe(values.get("in_bytes")),
            out_bytes=_maybe(values.get("out_bytes")),
            dtype=_word(values.get("dtype")),
            peer=_maybe(values.get("peer"), 31),
        )
    start, dur = _whole(values["start_ns"]) + offset, max(0, _whole(values["dur_ns"]))
    name, layer = str(values["name"]), _word(values.get("layer"))
    trace.add(lane, start, dur, kind, name, phase=phase, layer=layer, collective=collective)


def _fill(trace: FrameworkTrace, main: int, name: str) -> None:
    """Compute spans on the main thread wherever a step is under way and no call is."""
    taken = trace.union_of(main)
    for _, start, end in trace.spans_of_steps():
        inside = taken[(taken[:, 1] > start) & (taken[:, 0] < end)].clip(start, end)
        edges: Ints = np.concatenate([[start], inside.ravel(), [end]]).reshape(-1, 2)
        for begin, stop in edges.tolist():
            if stop > begin:
                trace.add(main, begin, stop - begin, "compute", name)


def _labels(named: object) -> dict[str, str]:
    return {str(key): str(label) for key, label in named.items()} if isinstance(named, dict) else {}


def _is_step(step_row: object) -> bool:
    if (
        not isinstance(step_row, list)
        or len(step_row) != 3
        or any(_int(value) != value for value in step_row)
    ):
        return False
    return bool(abs(step_row[0]) < 1 << 31 and step_row[1] <= step_row[2])


def _lane_or_none(value: object) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 61 else None


def _list(document: dict[str, Any], key: str) -> list[Any]:
    items = document.get(key)
    return items if isinstance(items, list) else []


def _int(value: object) -> int:
    return value if type(value) is int and abs(value) < 1 << 61 else 0


def _whole(value: object, bits: int = 61) -> int:
    """A number that a column holds, with room for an offset. Raises ValueError, TypeError."""
    if type(value) is not int:
        raise TypeError("a whole number")
    if abs(value) >= 1 << bits:
        raise ValueError("more than a column holds")
    return value


def _maybe(value: object, bits: int = 61) -> int | None:
    return None if value is None else _whole(value, bits)


def _word(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError("a text")
    return value
