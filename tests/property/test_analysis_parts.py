"""The parts of a step against a bitmap: every instant counted once, in the order of METRICS §1."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from perfscope.analysis import breakdown as bd
from perfscope.analysis.matching import RankCalls, match_calls
from perfscope.analysis.results import Breakdown
from perfscope.analysis.spans import (
    COMM,
    COMPUTE,
    COPY,
    INPUT,
    OPTIMIZER,
    OPTIMIZER_PHASE,
    OTHER,
    Spans,
    StepSpan,
    WindowFacts,
)

SIZE = 96
BASE = 1_780_000_000_000_000_000
MAIN, BACKEND, STRANGER = 1, 2, 3

Row = tuple[int, int, int, int, int, int]  # start, length, kind, phase, lane, device
rows = st.lists(
    st.tuples(
        st.integers(0, SIZE),
        st.integers(0, 20),
        st.sampled_from([COMPUTE, COMM, COPY, INPUT, OPTIMIZER]),
        st.sampled_from([OTHER, OPTIMIZER_PHASE]),
        st.sampled_from([MAIN, BACKEND, STRANGER]),
        st.just(-1),
    ),
    max_size=30,
)
edges = st.lists(st.integers(0, SIZE), min_size=2, max_size=6, unique=True).map(sorted)


def facts(bounds: list[int]) -> WindowFacts:
    steps = tuple(
        StepSpan(step=k, start_ns=BASE + a, end_ns=BASE + b)
        for k, (a, b) in enumerate(itertools.pairwise(bounds))
    )
    roles = {(-1, MAIN): ("main", "main"), (-1, BACKEND): ("backend", "backend")}
    return WindowFacts(
        rank=0, window=0, host="", steps=steps, whole_file=False, has_device=False, roles=roles, groups={}
    )


def spans_of(table: list[Row]) -> Spans:
    array = np.array(table, dtype=np.int64).reshape(-1, 6)
    return Spans(
        start=array[:, 0] + BASE,
        end=array[:, 0] + array[:, 1] + BASE,
        device=array[:, 5],
        lane=array[:, 4],
        kind=array[:, 2].astype(np.int32),
        phase=array[:, 3].astype(np.int32),
    )


def drawn(table: list[Row]) -> NDArray[np.bool_]:
    bits = np.zeros(SIZE, dtype=bool)
    for start, length, *_ in table:
        bits[start : start + length] = True
    return bits


@given(rows, edges)
def test_every_instant_of_a_cpu_step_is_counted_once_by_rank_of_cause(
    table: list[Row], bounds: list[int]
) -> None:
    window = facts(bounds)
    [total] = bd.step_totals(bd.activity(spans_of(table), window), [window.steps], None)
    main = [row for row in table if row[4] == MAIN]
    loading = drawn([row for row in main if row[2] == INPUT])
    own = [row for row in main if row[2] == COMPUTE]
    layers = [
        ("compute", drawn([row for row in own if row[3] != OPTIMIZER_PHASE]) & ~loading),
        ("optimizer", drawn([row for row in own if row[3] == OPTIMIZER_PHASE])),
        ("exposed_comm", drawn([row for row in table if row[2] == COMM])),
        ("copy", drawn([row for row in main if row[2] == COPY])),
        ("input_wait", loading),
        ("optimizer", drawn([row for row in main if row[2] == OPTIMIZER])),
        ("idle", np.ones(SIZE, dtype=bool)),
    ]
    left = np.zeros(SIZE, dtype=bool)
    left[bounds[0] : bounds[-1]] = True
    expected = dict.fromkeys(Breakdown.PARTS, 0)
    for part, bits in layers:
        expected[part] += int((left & bits).sum())
        left &= ~bits
    assert {part: getattr(total, part) for part in Breakdown.PARTS} == expected
    mean = bd.mean_breakdown([total])
    assert mean is not None
    assert sum(getattr(mean, part) for part in Breakdown.PARTS) == mean.step


kernels = st.lists(
    st.tuples(
        st.integers(0, SIZE),
        st.integers(1, 20),
        st.sampled_from([COMPUTE, COMM, COPY]),
        st.integers(-1, SIZE),
    ),
    min_size=1,
    max_size=20,
)


@given(kernels)
def test_the_gaps_of_a_device_partition_its_idle_time(events: list[tuple[int, int, int, int]]) -> None:
    scale = 2_000  # gaps on both sides of the 30 us rule
    array = np.array(events, dtype=np.int64)
    spans = Spans(
        start=BASE + array[:, 0] * scale,
        end=BASE + (array[:, 0] + array[:, 1]) * scale,
        device=np.zeros(len(array), dtype=np.int64),
        lane=np.zeros(len(array), dtype=np.int64),
        kind=array[:, 2].astype(np.int32),
        phase=np.zeros(len(array), dtype=np.int32),
    )
    launch = np.where(array[:, 3] >= 0, BASE + array[:, 3] * scale, -1)
    gaps = bd.device_gaps(spans, launch, np.ones(len(array), dtype=bool))
    pieces = np.concatenate((gaps.host_wait, gaps.kernel_wait, gaps.other))
    busy = np.zeros(SIZE + 20, dtype=bool)
    for start, length, *_ in events:
        busy[start : start + length] = True
    inside = np.flatnonzero(busy)
    idle = int((~busy[inside[0] : inside[-1] + 1]).sum()) * scale
    assert int((pieces[:, 1] - pieces[:, 0]).sum()) == idle
    assert all(end - start < bd.KERNEL_WAIT_NS for start, end in gaps.kernel_wait)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 2)), max_size=8), min_size=1, max_size=4)
)
def test_matched_calls_are_paired_once_in_order_and_agree_in_size(ranks: list[list[tuple[int, int]]]) -> None:
    members = []
    for rank, calls in enumerate(ranks):
        steps = np.array(sorted(step for step, _ in calls), dtype=np.int64)
        at = np.arange(len(calls), dtype=np.int64)
        size = np.array([size for _, size in calls], dtype=np.int64)
        members.append(
            RankCalls(
                rank=rank,
                enter=at,
                exit=at + 1,
                step=steps,
                seq=at,
                size=size,
                peer=np.full(len(calls), -1),
                launch=at,
                lane=np.zeros(len(calls), dtype=np.int64),
            )
        )
    matched = match_calls(members, "all_reduce")
    count = len(matched.seq)
    assert matched.enter.shape == (len(members), count)
    assert matched.num_unmatched == sum(len(calls) for calls in ranks) - count * len(members)
    for member, row in zip(members, matched.enter, strict=True):
        assert len(set(row.tolist())) == count  # `enter` is the call's own number here: none is used twice
        for size in set(member.size.tolist()):
            assert (np.diff(row[member.size[row] == size]) > 0).all()  # nor are calls of one size swapped
        known = (member.size[row] >= 0) & (matched.size >= 0)
        assert (member.size[row][known] == matched.size[known]).all()
