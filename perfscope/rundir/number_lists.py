"""Lines of numbers as columns: `[3,100,105,[7,null,2.5]]`, all with as many values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray
from pyarrow import csv

_WORD = 1 << 64
_LARGEST_BLOCK = 1 << 30  # bytes: Arrow chooses the types of columns by the first block
_LARGEST = 1e30  # no figure of any machine
_EXACT = 1 << 53  # whole numbers below are exact as float64
Numbers: TypeAlias = "NDArray[np.int64] | NDArray[np.uint64] | NDArray[np.float64]"


class NumberColumn(Struct, frozen=True, eq=False):
    """Values of one column.

    Attributes:
        values: those that are not null; int64, uint64 or float64.
        is_read: bool[n], which are not null; None: all.
        is_beyond: bool[n], which no figure of any machine is; None: none.
    """

    values: Numbers
    is_read: NDArray[np.bool_] | None = None
    is_beyond: NDArray[np.bool_] | None = None


class Readings(Struct, frozen=True, eq=False):
    """Of a series of lines: two times of each, and the values."""

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    columns: tuple[NumberColumn, ...]


def read(lines: Sequence[bytes], num_values: int) -> Readings | None:
    """Three whole numbers and a list of `num_values` per line.

    None: some line may be damaged, or has a number that a column cannot hold exactly; nothing is said of the
    others then.
    """
    names = tuple(map(str, range(num_values + 3)))
    text = b"".join(line + b"\n" for line in lines)
    table = number_table(text, names, (pa.int64(),) * 3, has_list=True) if num_values else None
    if table is None or len(table) != len(lines):
        return None
    columns = [_column(table[name]) for name in names[3:]]
    parsed = tuple(column for column in columns if column is not None)
    if len(parsed) < len(columns) or any(table[name].null_count for name in names[:3]):
        return None
    return Readings(table["1"].to_numpy().copy(), table["2"].to_numpy().copy(), parsed)


def number_table(
    lines: bytes, names: tuple[str, ...], types: tuple[pa.DataType, ...], *, has_list: bool = False
) -> pa.Table | None:
    """Lines `[a,b,...]` of numbers and nulls, or `[a, b, ...]`, by Arrow's reader of tables.

    Args:
        lines: each with its newline.
        names: of the columns.
        types: of the first columns; Arrow chooses those of the others.
        has_list: what follows the third number is a list: `[a,b,c,[d,...]]`.

    Returns:
        None: some line has other brackets or commas, or holds no such numbers.
    """
    if not _are_lists(lines, len(names), has_list=has_list):
        return None
    try:
        return csv.read_csv(pa.BufferReader(lines.translate(None, b"[] ")), *_options(names, types))
    except pa.ArrowInvalid:
        return None


@lru_cache(maxsize=64)
def _options(
    names: tuple[str, ...], types: tuple[pa.DataType, ...]
) -> tuple[csv.ReadOptions, csv.ParseOptions, csv.ConvertOptions]:
    return (
        csv.ReadOptions(column_names=list(names), use_threads=False, block_size=_LARGEST_BLOCK),
        csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
        csv.ConvertOptions(column_types=dict(zip(names, types, strict=False)), null_values=["null"]),
    )


def _are_lists(text: bytes, num_values: int, *, has_list: bool) -> bool:
    """Whether every line has the brackets and commas of so many values, whatever these are."""
    codes = np.frombuffer(text, np.uint8)
    ends, commas, spaces = (np.flatnonzero(codes == ord(mark)) for mark in "\n, ")
    if not len(ends) or len(commas) != len(ends) * (num_values - 1):
        return False
    if any(np.count_nonzero(codes == ord(mark)) != (1 + has_list) * len(ends) for mark in "[]"):
        return False
    if len(spaces) and not np.array_equal(spaces, commas + 1):
        return False
    begins = np.concatenate(([0], ends[:-1] + 1))
    by_line = commas.reshape(len(ends), num_values - 1)
    is_regular = (
        (codes[begins] == ord("["))
        & (codes[ends - 1] == ord("]"))
        & (begins < by_line[:, 0])
        & (by_line[:, -1] < ends)
    )
    if has_list:
        inner = codes[by_line[:, 2] + (2 if len(spaces) else 1)]
        is_regular &= (inner == ord("[")) & (codes[ends - 2] == ord("]"))
    return bool(is_regular.all())


def _column(column: pa.ChunkedArray) -> NumberColumn | None:
    """None: a value that is no number, or that Arrow may have rounded."""
    if pa.types.is_null(column.type):
        return NumberColumn(np.empty(0, np.int64), np.zeros(len(column), bool))
    if column.type not in (pa.int64(), pa.float64()):
        return None
    parts = [numbers_of(chunk) for chunk in column.chunks]
    values = np.concatenate([values for values, _ in parts])  # Arrow's columns are twice as large as need be
    is_read = None
    if column.null_count:
        is_read = np.concatenate([is_known for _, is_known in parts])
        values = values[is_read]
    if column.type == pa.float64() and not (abs(values) < _EXACT).all():
        return None  # also NaN and infinity, which are no JSON
    return NumberColumn(values, is_read)


def numbers_of(array: pa.Array) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The numbers of an array, anything where it has none, and where it has some; shape (n,).

    Read from its buffers: pyarrow.compute, which has functions for it, takes longer to import than a report
    of many runs takes to read.
    """
    begin, end = array.offset, array.offset + len(array)
    validity, data = array.buffers()
    is_known = np.ones(len(array), bool)
    if validity is not None:
        bits = np.unpackbits(np.frombuffer(validity, np.uint8), count=end, bitorder="little")
        is_known = bits[begin:].view(np.bool_)
    return np.frombuffer(data, numpy_dtype(array.type))[begin:end], is_known


def numpy_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """numpy's name of an Arrow type of numbers or truth values.

    Not `kind.to_pandas_dtype()`: with pyarrow 25.0.1 it fails where pandas is not installed.
    """
    return np.dtype({"halffloat": "float16", "float": "float32"}.get(str(kind), str(kind)))


def column_of(values: tuple[int | float | None, ...]) -> NumberColumn:
    """The same of single values."""
    is_read = None
    there: Sequence[int | float | None] = values
    if None in values:
        is_read = np.array([value is not None for value in values], bool)
        there = [value for value in values if value is not None]
    array = np.array(there) if there else np.empty(0, np.int64)
    if array.dtype in (np.int64, np.uint64):
        return NumberColumn(array, is_read)
    is_beyond = np.array([_is_beyond(value) for value in values], bool)
    if is_beyond.any():
        return NumberColumn(np.empty(0, np.int64), is_read, is_beyond)
    if any(type(value) is float for value in there):
        return NumberColumn(array.astype(np.float64), is_read)
    # 64-bit numbers, some of them negative: numpy would round them
    return NumberColumn(np.array([int(value or 0) % _WORD for value in there], np.uint64), is_read)


def _is_beyond(value: float | None) -> bool:
    if value is None:
        return False
    if type(value) is float:
        return abs(value) > _LARGEST
    return not -(1 << 63) <= value < _WORD
