"""Different values and pairs, without numpy's hashing and its comparison of rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analysis.intervals import (
    distinct,
    distinct_pairs,
    median_of,
    numbered,
    one_of,
    percentiles_of,
)

NUMBERS = st.integers(-3, 3) | st.sampled_from([-(1 << 62), 1 << 62, (1 << 63) - 1, 140_000_000_000_000])


@given(st.lists(NUMBERS))
def test_distinct_values_are_those_of_unique(values: list[int]) -> None:
    array = np.array(values, np.int64)
    assert distinct(array).tolist() == np.unique(array).tolist()


@given(st.lists(st.tuples(st.integers(-1, 4), NUMBERS)))
def test_distinct_pairs_are_those_of_unique_rows(pairs: list[tuple[int, int]]) -> None:
    rows = np.array(pairs, np.int64).reshape(-1, 2)
    found, pair_of = distinct_pairs(rows[:, 0].astype(np.int32), rows[:, 1])
    assert [tuple(pair) for pair in found.tolist()] == sorted(set(pairs))
    assert found[pair_of].tolist() == rows.tolist()


@given(st.lists(NUMBERS | st.integers(0, 40)))
def test_numbered_values_are_those_of_unique(values: list[int]) -> None:
    array = np.array(values, np.int64)
    for kept in (array, array[abs(array) < 100].astype(np.int32)):
        found, index = numbered(kept)
        expected, expected_index = np.unique(kept, return_inverse=True)
        assert found.dtype == expected.dtype and found.tolist() == expected.tolist()
        assert index.tolist() == expected_index.tolist()


@given(st.lists(st.integers(0, 1 << 55), min_size=1))
def test_median_and_percentiles_are_numpys_to_the_bit(values: list[int]) -> None:
    array = np.array(values, np.int64)
    assert median_of(array) == float(np.median(array))
    assert percentiles_of(array, (10, 50, 90)) == np.percentile(array, (10, 50, 90)).tolist()


def test_texts_are_one_of_few_choices() -> None:
    texts = np.array(["send", "all_reduce", "recv"])
    assert one_of(texts, ("send", "recv")).tolist() == [True, False, True]
    assert one_of(np.empty((0,), np.int32), (1, 2)).tolist() == []
