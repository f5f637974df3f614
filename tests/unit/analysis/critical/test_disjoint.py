"""Which spans of one thread are in no other, found at once or span by span."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analysis.critical.device import _disjoint, _outermost

SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 20)), max_size=30)


def one_by_one(spans: list[tuple[int, int]]) -> list[bool]:
    kept: list[bool] = []
    reach = -1
    for start, end in spans:
        kept.append(start >= reach)
        reach = end if kept[-1] else reach
    return kept


@given(SPANS)
def test_spans_are_kept_as_when_they_are_walked_one_by_one(drawn: list[tuple[int, int, int]]) -> None:
    group, start, duration = (
        np.array(column, np.int64) for column in zip(*(drawn or [(0, 0, 0)]), strict=True)
    )
    end = start + duration

    found = _outermost(group, start, end)

    expected = []
    for of in sorted(set(group.tolist())):
        rows = sorted(np.flatnonzero(group == of).tolist(), key=lambda row: (start[row], -end[row]))
        kept = one_by_one([(int(start[row]), int(end[row])) for row in rows])
        expected.append([row for row, is_kept in zip(rows, kept, strict=True) if is_kept])
    assert [rows.tolist() for rows in found] == expected


def test_a_span_that_outlasts_the_one_it_began_in_hides_nothing_after_that() -> None:
    start, end = np.array([0, 5, 11, 20]), np.array([10, 15, 12, 25])

    assert _disjoint(start, end).tolist() == [True, False, True, True]
