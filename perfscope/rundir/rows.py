"""Single rows of a run's files: decoding lines, and whether a row is what it should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import pyarrow as pa

from perfscope.rundir.documents import DECODE_ERRORS
from perfscope.rundir.schema import STEPS

Row = list[int | None]
_T = TypeVar("_T")

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
