"""Interval algebra against a bitmap that is too simple to be wrong."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from perfscope.analysis import intervals as iv

SIZE = 64
BASE = 1_780_000_000_000_000_000  # today's epoch ns: products and sums must not leave int64

spans = st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=24)


def columns(pairs: list[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2) + BASE
    return array[:, 0], array[:, 1]


def bitmap(pairs: list[tuple[int, int]]) -> NDArray[np.bool_]:
    bits = np.zeros(SIZE, dtype=bool)
    for start, end in pairs:
        bits[start:end] = True
    return bits


def drawn(intervals: NDArray[np.int64]) -> NDArray[np.bool_]:
    return bitmap([(int(a) - BASE, int(b) - BASE) for a, b in intervals])


def is_canonical(intervals: NDArray[np.int64]) -> bool:
    return bool((intervals[:, 1] > intervals[:, 0]).all() and (intervals[1:, 0] > intervals[:-1, 1]).all())


@given(spans)
def test_union_covers_what_the_spans_cover(pairs: list[tuple[int, int]]) -> None:
    result = iv.union(*columns(pairs))
    assert is_canonical(result)
    assert (drawn(result) == bitmap(pairs)).all()
    assert iv.length(result) == bitmap(pairs).sum()


@given(spans, spans)
def test_intersection_and_difference(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    left, right = iv.union(*columns(a)), iv.union(*columns(b))
    both, only = iv.intersect(left, right), iv.subtract(left, right)
    assert is_canonical(both) and is_canonical(only)
    assert (drawn(both) == (bitmap(a) & bitmap(b))).all()
    assert (drawn(only) == (bitmap(a) & ~bitmap(b))).all()
    assert iv.length(both) + iv.length(only) == iv.length(left)
    assert (drawn(iv.merge(left, right)) == (bitmap(a) | bitmap(b))).all()


@given(spans, spans)
def test_overlap_of_each_span(cover: list[tuple[int, int]], queries: list[tuple[int, int]]) -> None:
    start, end = columns(queries)
    result = iv.overlap_each(iv.union(*columns(cover)), start, end)
    assert result.tolist() == [int((bitmap(cover) & bitmap([query])).sum()) for query in queries]


@given(spans)
def test_disjoint_parts_share_out_the_union(pairs: list[tuple[int, int]]) -> None:
    start, end = iv.disjoint_parts(*columns(pairs))
    assert int(np.maximum(end - start, 0).sum()) == bitmap(pairs).sum()
    assert (drawn(iv.union(start, end)) == bitmap(pairs)).all()
    for (a, b), cut_a, cut_b in zip(pairs, start - BASE, end - BASE, strict=True):
        assert cut_b == cut_a or (a <= cut_a and cut_b == b)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, SIZE), st.integers(0, SIZE)), max_size=24))
def test_grouped_length_is_the_union_of_each_group(rows: list[tuple[int, int, int]]) -> None:
    start, end = columns([(a, b) for _, a, b in rows])
    result = iv.grouped_length(np.array([row[0] for row in rows], dtype=np.int32), start, end, 6)
    for code in range(6):
        assert result[code] == bitmap([(a, b) for c, a, b in rows if c == code]).sum()


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=8), st.integers(1, 1000))
def test_apportioned_means_add_up(totals: list[int], parts: int) -> None:
    result = iv.apportion(totals, parts)
    assert sum(result) == (2 * sum(totals) + parts) // (2 * parts)
    assert all(abs(mean * parts - total) < parts for mean, total in zip(result, totals, strict=True))


@given(spans)
def test_of_spans_open_at_once_the_first_to_end_is_left(pairs: list[tuple[int, int]]) -> None:
    owner, begin, end = iv.first_ending(*columns(pairs))
    pieces = list(zip(owner.tolist(), (begin - BASE).tolist(), (end - BASE).tolist(), strict=True))
    for moment in range(SIZE):
        still_open = [stop for start, stop in pairs if start <= moment < stop]
        found = [index for index, start, stop in pieces if start <= moment < stop]
        assert [pairs[index][1] for index in found] == ([min(still_open)] if still_open else [])
        assert all(pairs[index][0] <= moment for index in found)


@given(st.lists(spans, min_size=1, max_size=4))
def test_groups_moved_apart_do_not_touch(groups: list[list[tuple[int, int]]]) -> None:
    far = 10**17  # groups may be on clocks of their own
    ordered = [[(min(pair), max(pair)) for pair in pairs] or [(0, 0)] for pairs in groups]
    group = np.repeat(np.arange(len(ordered)), [len(pairs) for pairs in ordered])
    start, end = (np.concatenate(times) for times in zip(*map(columns, ordered), strict=True))
    start, end = start + group * far, end + group * far
    offset, stride = iv.apart(group, start, end)
    together = iv.union(start + offset[group], end + offset[group])
    of_group = together[:, 0] // stride
    for number, pairs in enumerate(ordered):
        back = together[of_group == number] - offset[number] - number * far
        assert (drawn(back) == bitmap(pairs)).all()
