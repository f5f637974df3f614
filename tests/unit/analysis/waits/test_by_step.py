"""How long ranks wait in each traced step: unions of known waits, against the totals of the analysis."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfscope.analysis.waits.analyze import analyze_waits
from perfscope.analysis.waits.by_step import waits_by_step
from tests.support.synthetic_lines import Played, Step, play

MS = 1_000_000
GROUPS = {"world": (0, 1, 2, 3)}


def step(compute_ms: int) -> list[tuple[Any, ...]]:
    return [("compute", "conv", "forward", compute_ms * MS), ("call", "world", 2 * MS)]


def played(late_ms: int) -> Played:
    """Four ranks, three steps; rank 1 is late in the second."""
    programs: dict[int, list[Step]] = {rank: [step(10), step(10), step(10)] for rank in range(4)}
    programs[1][1] = step(10 + late_ms)
    return play(programs, GROUPS)


def test_others_wait_in_the_step_in_which_one_is_late() -> None:
    run = played(7)
    waits = waits_by_step(run.matches)
    assert waits is not None
    assert waits.ranks == (0, 1, 2, 3)
    expected = np.zeros((4, 3), int)
    expected[[0, 2, 3], 1] = 7 * MS
    assert (waits.wait_ns == expected).all()
    per_step = analyze_waits(run.lines, run.matches, run.clocks, run.hosts).ranks
    assert [rank.wait_ns * 3 for rank in per_step] == [sum(row) // 3 * 3 for row in waits.wait_ns.tolist()]


def test_a_rank_without_a_call_in_a_step_has_no_value_there() -> None:
    programs: dict[int, list[Step]] = {rank: [step(10), step(12)] for rank in range(3)}
    programs[0].append([("compute", "conv", "forward", MS), ("call", "pair", MS)])
    programs[1].append([("compute", "conv", "forward", 4 * MS), ("call", "pair", MS)])
    programs[2].append([("compute", "conv", "forward", MS)])
    waits = waits_by_step(play(programs, {"world": (0, 1, 2), "pair": (0, 1)}).matches)
    assert waits is not None
    assert waits.wait_ns[:, 2].tolist() == [3 * MS, 0, -1]


def test_without_calls_there_are_no_waits() -> None:
    assert waits_by_step(()) is None
