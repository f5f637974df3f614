"""Single rows of a run's files: decoding lines, and whether a row is what it should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from perfscope.rundir.documents import DECODE_ERRORS
from perfscope.rundir.schema import STEPS

Row = list[int | None]
_T = TypeVar("_T")

MAX_STEP_NS = 30 * 86_400 * 10**9  # a month
MAX_BATCH = 10**12  # samples or tokens of one rank in one step
_PARTS = (  # of a step's duration
    *("input_ns", "forward_ns", "backward_ns", "optimizer_ns"),
    *("evaluation_ns", "rollout_ns", "inference_ns", "checkpoint_ns", "gc_ns"),
)
_COUNTS = (
    *("num_micro", "samples", "tokens", "minor_faults", "major_faults", "thread_minor_faults"),
    *("thread_switches", "written_bytes"),
)
_OF_THREADS = (
    *("user_ns", "system_ns"),  # may be longer than the step
    *("thread_user_ns", "thread_system_ns", "runqueue_ns"),  # in hundredths of a second on some kernels
)
_SMALL_COLUMNS = frozenset(field.name for field in STEPS if field.type == pa.int32())


def decode_lines(lines: Sequence[bytes], decoder: msgspec.json.Decoder[_T]) -> tuple[list[_T], int]:
    """Decoded lines and how many could not be. A file without damage is decoded in one call."""
    try:
        return decoder.decode_lines(b"\n".join(lines)), 0
    except (msgspec.DecodeError, *DECODE_ERRORS):
        tried = [_decode_line(line, decoder) for line in lines]
        good = [value for value in tried if value is not None]
        return good, len(tried) - len(good)


def _decode_line(line: bytes, decoder: msgspec.json.Decoder[_T]) -> _T | None:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, *DECODE_ERRORS):
        return None


def step_columns(lines: list[bytes]) -> tuple[tuple[str, ...] | None, list[bytes]]:
    """Column names from the first readable header, and the other lines."""
    for index, line in enumerate(lines):
        if not line.startswith(b"{"):
            continue
        try:
            columns = msgspec.json.decode(line, type=dict[str, list[str]]).get("columns")
        except (msgspec.DecodeError, *DECODE_ERRORS):
            continue
        if columns and {"step", "start_ns", "dur_ns"} <= set(columns):
            return tuple(columns), lines[:index] + lines[index + 1 :]
    return None, lines


def is_step(row: Row, columns: tuple[str, ...]) -> bool:
    """As many values as columns, the times there and in order, and nothing a column cannot hold."""
    if len(row) != len(columns):
        return False
    values = dict(zip(columns, row, strict=True))
    duration = values["dur_ns"]
    if values["step"] is None or values["start_ns"] is None or duration is None or duration < 0:
        return False
    return all(
        value is None or -1 << bits <= value < 1 << bits
        for name, value in values.items()
        for bits in (31 if name in _SMALL_COLUMNS else 63,)
    )


def without_impossible(table: pa.Table) -> tuple[pa.Table, dict[str, int]]:
    """Steps as they can have been.

    Steps that are longer than MAX_STEP_NS, or in the file twice, are left out; so are single values below 0,
    parts of a step that are longer than the step, and counts beyond MAX_BATCH.

    Args:
        table: schema.STEPS.

    Returns:
        The others, and what was left out: what is wrong -> how many rows or values.
    """
    starts, durations = (table[name].to_numpy() for name in ("start_ns", "dur_ns"))
    is_first = np.zeros(len(table), dtype=bool)
    is_first[np.unique(np.stack([table["step"].to_numpy(), starts]), axis=1, return_index=True)[1]] = True
    is_long = durations > MAX_STEP_NS
    wrong = {
        "steps of more than 30 days": int(is_long.sum()),
        "steps that are in the file twice": int((~is_first & ~is_long).sum()),
    }
    keep = is_first & ~is_long
    if not keep.all():
        table, durations = table.filter(pa.array(keep)), durations[keep]
    for name in (*_PARTS, *_COUNTS, *_OF_THREADS):
        if table[name].null_count == len(table):
            continue
        values = table[name].to_numpy(zero_copy_only=False)  # NaN where null
        most = durations if name in _PARTS else MAX_BATCH if name in _COUNTS else MAX_STEP_NS
        bad = (values < 0) | (values > most)
        if bad.any():
            kept = pa.array(table[name].to_pylist(), table[name].type, mask=bad)
            table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), kept)
        wrong[f"impossible {name}"] = int(bad.sum())
    return table, {what: number for what, number in wrong.items() if number}
