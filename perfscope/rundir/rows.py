"""Single rows of a run's files: decoding lines, and whether a row is what it should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.rundir.documents import DECODE_ERRORS
from perfscope.rundir.number_lists import number_table
from perfscope.rundir.schema import STEPS

Row = list[int | None]
_T = TypeVar("_T")

_BLOCK = 4 << 20  # bytes of lines read at a time
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


class StepLines(Struct, frozen=True, kw_only=True, eq=False):
    """What steps.jsonl of one rank says.

    Attributes:
        columns: name -> int32[n] or int64[n], as schema.STEPS has it; int64[n] where it has no such column.
        num_bad: lines that are no step.
        num_processes: that wrote steps of this rank one after another; 0: no header names the columns.
    """

    columns: Mapping[str, pa.Array | pa.ChunkedArray]
    num_bad: int = 0
    num_processes: int = 1

    @property
    def num_rows(self) -> int:
        """How many steps there are."""
        return len(next(iter(self.columns.values()))) if self.columns else 0


def read_step_lines(data: bytes) -> StepLines:
    """The steps of a whole steps.jsonl. A file without damage is read in one piece."""
    first, last = data.find(b"\n") + 1, data.rfind(b"\n") + 1
    columns = _column_names(data[:first])
    regular = None if columns is None else _regular(data[first:last], columns)
    if columns is not None and regular is not None:
        torn = _single_lines(columns, [data[last:]] if data[last:].strip() else [])
        if not torn.num_rows:
            return StepLines(columns=regular, num_bad=torn.num_bad)
    return _irregular(data.splitlines())


def read_step_files(files: Sequence[bytes]) -> list[StepLines]:
    """`read_step_lines` of each. Files with the same columns, all without damage, are read in one call."""
    header = files[0][: files[0].find(b"\n") + 1] if len(files) > 1 else b""
    columns = _column_names(header)
    if columns is None or not all(data.startswith(header) and data.endswith(b"\n") for data in files):
        return [read_step_lines(data) for data in files]
    bodies = [data[len(header) :] for data in files]
    together = _regular(b"".join(bodies), columns)
    if together is None:
        return [read_step_lines(data) for data in files]
    lengths = [body.count(b"\n") for body in bodies]
    begins = [end - length for end, length in zip(accumulate(lengths), lengths, strict=True)]
    return [
        StepLines(columns={name: column.slice(begin, length) for name, column in together.items()})
        for begin, length in zip(begins, lengths, strict=True)
    ]


def _irregular(lines: list[bytes]) -> StepLines:
    """Line by line: a line may be torn, and several processes may have written them."""
    names = [_column_names(line) if line.startswith(b"{") else None for line in lines]
    columns = next((header for header in names if header is not None), None)
    if columns is None:
        return StepLines(columns={}, num_bad=len(lines), num_processes=0)
    data_lines = [line for line in lines if not line.startswith(b"{")]
    steps = _single_lines(columns, data_lines)
    return StepLines(columns=steps.columns, num_bad=steps.num_bad, num_processes=len(lines) - len(data_lines))


def _column_names(line: bytes) -> tuple[str, ...] | None:
    try:
        columns = msgspec.json.decode(line, type=dict[str, list[str]]).get("columns")
    except (msgspec.DecodeError, *DECODE_ERRORS):
        return None
    return tuple(columns) if columns and {"step", "start_ns", "dur_ns"} <= set(columns) else None


def _single_lines(columns: tuple[str, ...], lines: list[bytes]) -> StepLines:
    rows, num_bad = decode_lines(lines, msgspec.json.Decoder(Row))
    usable = [row for row in rows if _is_step(row, columns)]
    return StepLines(
        columns={
            name: pa.array([row[at] for row in usable], _type_of(name)) for at, name in enumerate(columns)
        },
        num_bad=num_bad + len(rows) - len(usable),
    )


def _regular(body: bytes, columns: tuple[str, ...]) -> dict[str, pa.ChunkedArray] | None:
    """The same of lines that are all steps, by Arrow's reader of tables of numbers: they are arrays of
    integers and nulls, one per line. None: some line may not be.
    """
    if not body or len(set(columns)) < len(columns):
        return None
    types = tuple(map(_type_of, columns))
    blocks: list[pa.Table] = []
    begin = 0
    while begin < len(body):
        end = body.rfind(b"\n", begin, begin + _BLOCK) + 1
        block = number_table(body[begin:end], columns, types)
        if block is None:
            return None
        blocks.append(block)
        begin = end
    table = pa.concat_tables(blocks)
    if any(table[name].null_count for name in ("step", "start_ns", "dur_ns")):
        return None
    return {name: table[name] for name in columns} if table["dur_ns"].to_numpy().min() >= 0 else None


def _type_of(name: str) -> pa.DataType:
    return pa.int32() if name in _SMALL_COLUMNS else pa.int64()


def _is_step(row: Row, columns: tuple[str, ...]) -> bool:
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
    is_first = _is_first(table["step"].to_numpy(), starts)
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


def _is_first(steps: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Of each step, whether none before it has its number and its start."""
    is_first = np.ones(len(steps), dtype=bool)
    if (starts[1:] > starts[:-1]).all():
        return is_first
    order = np.lexsort((starts, steps))  # stable: the first of equal ones stays first
    again = (np.diff(steps[order]) == 0) & (np.diff(starts[order]) == 0)
    is_first[order[1:][again]] = False
    return is_first
