"""Which launch a correlation id means."""

from __future__ import annotations

import numpy as np

from perfscope.ingest.launches import MAX_PENDING, Launches
from perfscope.ingest.spill import LAUNCH


def enter(launches: Launches, starts: range, correlations: list[int]) -> None:
    rows = np.zeros(len(starts), LAUNCH)
    rows["start"], rows["dur"], rows["correlation"] = list(starts), 3, correlations
    context = np.zeros((len(rows), 3), np.int32)
    launches.add(rows, np.zeros(len(rows), np.int32), np.zeros(len(rows), np.int64), context)


def test_the_last_launch_of_a_correlation_id_is_found_in_whatever_order_they_are() -> None:
    launches = Launches()
    enter(launches, range(10, 14), [7, 3, 9, 3])
    enter(launches, range(20, 22), [5, 9])
    found = launches.find(np.array([3, 9, 7, 5, 4, 0]))
    assert found.is_known.tolist() == [True, True, True, True, False, False]
    assert found.start[:4].tolist() == [13, 21, 10, 20] and found.end[:4].tolist() == [16, 24, 13, 23]


def test_the_latest_launches_are_remembered() -> None:
    launches = Launches()
    enter(launches, range(MAX_PENDING), list(range(MAX_PENDING, 0, -1)))
    enter(launches, range(MAX_PENDING, MAX_PENDING + 2), [MAX_PENDING + 2, MAX_PENDING + 1])
    found = launches.find(np.array([MAX_PENDING + 1, MAX_PENDING, MAX_PENDING - 1, MAX_PENDING - 2, 1]))
    assert found.is_known.tolist() == [True, False, False, True, True]
