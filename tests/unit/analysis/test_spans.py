"""Columns of a timeline as numpy: equal to pyarrow's own reading of them."""

from __future__ import annotations

import subprocess
import sys
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analysis.intervals import Int64
from perfscope.analysis.spans import ArrayRecord, SpanTable, constant, is_constant, whole_numbers, words

numbers = st.lists(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=20), max_size=3)
kinds = st.sampled_from([pa.int8(), pa.int16(), pa.int32(), pa.int64()])


@given(numbers, kinds, st.integers(0, 30), st.integers(0, 30), st.sampled_from([-1, -2]))
def test_integers_with_nulls_in_slices_of_chunks(
    chunks: list[list[int | None]], kind: pa.DataType, first: int, length: int, null: int
) -> None:
    limit = 2 ** (kind.bit_width - 1)
    fitting = [[None if value is None else value % limit for value in chunk] for chunk in chunks]
    column = pa.chunked_array([pa.array(chunk, kind) for chunk in fitting], kind).slice(first, length)
    table = pa.table({"a": column})
    expected = column.cast(pa.int64()).fill_null(null).to_pylist()
    assert whole_numbers(table, "a", null=null).tolist() == expected


@given(st.lists(st.lists(st.none() | st.sampled_from("abc"), max_size=12), max_size=3), st.booleans())
def test_words_with_nulls(chunks: list[list[str | None]], are_coded: bool) -> None:
    column = pa.chunked_array([pa.array(chunk, pa.string()) for chunk in chunks], pa.string())
    codes, found = words(pa.table({"a": column.dictionary_encode() if are_coded else column}), "a")
    assert [found[code] if code >= 0 else None for code in codes.tolist()] == column.to_pylist()


def test_columns_that_were_forgotten_are_read_again() -> None:
    table = SpanTable(pa.table({"a": [1, None], "b": ["x", "y"], "none": pa.nulls(2, pa.int64())}))
    numbers, (codes, _) = whole_numbers(table, "a"), words(table, "b")
    assert whole_numbers(table, "a") is numbers and whole_numbers(table, "none").tolist() == [-1, -1]
    table.forget({"a"})
    assert whole_numbers(table, "a") is not numbers and whole_numbers(table, "a").tolist() == [1, -1]
    assert words(table, "b")[0] is codes


def test_reading_columns_does_not_load_pyarrow_compute() -> None:
    code = (
        "from perfscope.lean_imports import hide_unused; hide_unused();"  # it would load pyarrow.compute
        "import sys, pyarrow as pa; from perfscope.analysis.spans import whole_numbers;"
        "whole_numbers(pa.table({'a': pa.array([1, None], pa.int32())}), 'a');"
        "assert 'pyarrow.compute' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Record(ArrayRecord, frozen=True, eq=False):
    numbers: Int64
    used: dict[str, Int64]


def test_equal_numbers_take_no_memory_in_another_process_either() -> None:
    none, some = constant(-1, 5, np.int64), np.arange(5)
    there = ForkingPickler.loads(ForkingPickler.dumps(Record(none, {"a": none, "b": some})))
    assert is_constant(there.numbers) and there.numbers.tolist() == [-1] * 5
    assert there.used["a"] is there.numbers and there.used["b"].tolist() == some.tolist()
