"""Phases by name, from the lines of a rank to the result of the run."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from perfscope.analysis.phases import phases_of, rank_phases
from perfscope.rundir.phase_records import read_phases
from perfscope.rundir.schema import STEPS

NAMES = (
    {"phase": 0, "name": "epoch", "source": "lightning", "parent": -1, "trains": True},
    {"phase": 1, "name": "rollout", "source": "perfscope", "parent": 0, "trains": True},
    {"phase": 2, "name": "loads", "source": "nvtx", "parent": -1, "trains": False},
)
LINES = (
    {"begin_ns": 0, "end_ns": 100, "phases": [[0, 60, 1, 0]]},
    {"begin_ns": 100, "end_ns": 200, "phases": [[0, 100, 0, 0], [1, 30, 1, 1], [2, 90, 1, 1]]},
    {"begin_ns": 200, "end_ns": 300, "phases": [[0, 100, 0, 0], [1, 10, 1, 1]]},
    {"begin_ns": 300, "end_ns": 400, "phases": [[0, 50, 0, 0]]},
)


def written(*lines: object) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def steps(*starts_and_durations: tuple[int, int]) -> pa.Table:
    columns = {
        "start_ns": [start for start, _ in starts_and_durations],
        "dur_ns": [duration for _, duration in starts_and_durations],
    }
    size = len(starts_and_durations)
    arrays = [pa.array(columns.get(field.name, [None] * size), field.type) for field in STEPS]
    return pa.Table.from_arrays(arrays, schema=STEPS)


def test_time_of_each_phase_is_before_in_and_after_the_steps() -> None:
    times = read_phases(written(*NAMES, *LINES))
    assert times.num_bad == 0
    found = rank_phases(3, times, steps((101, 100), (201, 98)))
    epoch = found[((("epoch", "lightning"),), True)]
    rollout = found[(("epoch", "lightning"), ("rollout", "perfscope")), True]
    assert (epoch.ns, epoch.own_ns, epoch.before_ns, epoch.in_steps_ns) == (310, 270, 60, 200)
    assert (epoch.count, epoch.num_steps, epoch.is_open) == (1, 2, True)
    assert (rollout.ns, rollout.in_steps_ns, rollout.count, rollout.is_open) == (40, 40, 2, False)


def test_a_run_without_steps_has_its_phases_before_them() -> None:
    found = rank_phases(0, read_phases(written(*NAMES, *LINES)), STEPS.empty_table())
    assert {phase.before_ns == phase.ns for phase in found.values()} == {True}


def test_means_are_over_ranks_that_mark_phases_and_nested_ones_follow() -> None:
    times = read_phases(written(*NAMES, *LINES))
    none = read_phases(written(NAMES[0], {"begin_ns": 0, "end_ns": 9, "phases": [[0, 90, 1, 1]]}))
    ranks = {
        0: rank_phases(0, times, steps((101, 100), (201, 98))),
        1: rank_phases(1, none, STEPS.empty_table()),
        2: rank_phases(2, None, STEPS.empty_table()),
    }
    results = phases_of(ranks, {0: 2, 1: 0, 2: 7})
    assert [phase.path for phase in results] == [("epoch",), ("epoch", "rollout"), ("loads",)]
    epoch, rollout, loads = results
    assert (epoch.ns, epoch.per_step_ns, [rank.rank for rank in epoch.ranks]) == (200, 100, [0, 1])
    assert (rollout.ns, rollout.count, rollout.per_step_ns) == (20, 1.0, 20)
    assert not loads.is_training_thread


def test_damaged_lines_are_counted_and_the_others_used() -> None:
    data = written(
        NAMES[0],
        NAMES[0],  # again
        {"phase": 5, "name": "orphan", "parent": 4},
        {"phase": 10**12, "name": "number that no probe gives"},
        {"begin_ns": 9, "end_ns": 1, "phases": []},
        {"begin_ns": 0, "end_ns": 1, "phases": [[7, 1, 1, 1], [0, 1, 1, 1]]},
        {"begin_ns": 0, "end_ns": 1, "phases": [[0, -1, 1, 1]]},
    )
    times = read_phases(data + b'{"begin_ns": 3, "end')
    assert times.num_bad == 7
    assert times.ns.tolist() == [1] and list(times.names) == [0]


def test_an_empty_file_has_no_phases() -> None:
    times = read_phases(b"")
    assert times.ns.dtype == np.int64 and rank_phases(0, times, STEPS.empty_table()) == {}


@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_row_counts_for_the_step_that_holds_its_middle(where: int) -> None:
    line = {"begin_ns": 100 * where, "end_ns": 100 * where + 90, "phases": [[0, 50, 1, 1]]}
    found = rank_phases(0, read_phases(written(NAMES[0], line)), steps((100, 90), (200, 90)))
    phase = found[((("epoch", "lightning"),), True)]
    assert (phase.before_ns, phase.in_steps_ns) == ((50, 0) if where == 0 else (0, 50))


def test_a_row_that_is_cut_late_counts_once() -> None:
    """The thread loses its CPU where the first step begins: what is before it is cut in its first half."""
    lines = (
        {"begin_ns": 90, "end_ns": 140, "phases": [[0, 8, 1, 1]]},
        {"begin_ns": 140, "end_ns": 150, "phases": [[0, 10, 1, 1]]},
    )
    phase = rank_phases(0, read_phases(written(NAMES[0], *lines)), steps((100, 200)))[
        ((("epoch", "lightning"),), True)
    ]
    assert (phase.ns, phase.before_ns, phase.in_steps_ns) == (18, 8, 10)
