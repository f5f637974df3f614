"""Operators' own time against a walk of the nesting."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analysis.kernels.own_time import own_time
from perfscope.analysis.spans import Spans


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """(start, end, lane) of spans that nest in their threads."""
    spans: list[tuple[int, int, int]] = []

    def fill(start: int, end: int, lane: int, depth: int) -> None:
        while start < end:
            start += draw(st.integers(0, 4))
            stop = start + draw(st.integers(1, 9))
            if stop > end:
                return
            spans.append((start, stop, lane))
            if depth < 3 and draw(st.booleans()):
                fill(start, stop, lane, depth + 1)
            start = stop

    for lane in (7, 9):
        fill(0, draw(st.integers(0, 40)), lane, 0)
    return draw(st.permutations(spans))


@given(nested())
def test_own_times_add_up_to_the_time_covered(spans: list[tuple[int, int, int]]) -> None:
    start, end, lane = (np.array([span[at] for span in spans], dtype=np.int64) for at in range(3))
    zeros = np.zeros(len(spans), dtype=np.int64)
    codes = zeros.astype(np.int32)
    table = Spans(start=start, end=end, device=zeros - 1, lane=lane, kind=codes, phase=codes)
    if not spans:
        return
    rows, own = own_time(table, np.arange(len(spans)))
    covered = {(thread, at) for begin, stop, thread in spans for at in range(begin, stop)}
    assert int(own.sum()) == len(covered)
    for row, length in zip(rows.tolist(), own.tolist(), strict=True):
        begin, stop, thread = spans[row]
        inside = {
            at
            for other, (first, last, of) in enumerate(spans)
            if other != row
            and of == thread
            and begin <= first
            and last <= stop
            and (first, last) != (begin, stop)
            for at in range(first, last)
        }
        alike = [other for other, span in enumerate(spans) if span == spans[row]]
        if len(alike) == 1:
            assert length == stop - begin - len(inside)
