"""Ideal bubbles by the formulas, on numbers worked out by hand."""

from __future__ import annotations

import pytest

from perfscope.analysis.pipeline.ideal import ideal_ratio
from perfscope.vocabulary.pipelines import Schedule, StageWork

TIMES = {StageWork.FORWARD: 2.0, StageWork.INPUT_BACKWARD: 3.0, StageWork.WEIGHT_BACKWARD: 1.0}


@pytest.mark.parametrize(
    ("schedule", "p", "m", "v", "expected"),
    [
        (Schedule.GPIPE, 4, 8, 1, 3 / 11),
        (Schedule.FORWARD_ONLY, 4, 8, 1, 3 / 11),
        (Schedule.ONE_F_ONE_B, 8, 56, 1, 7 / 63),
        (Schedule.INTERLEAVED, 4, 8, 2, 3 / 19),
        (Schedule.LOOPED_BFS, 4, 8, 4, 3 / 35),
        (Schedule.ZERO_BUBBLE, 4, 8, 1, 3 * 4 / (8 * 6 + 3 * 4)),
        (Schedule.ZB_V, 4, 8, 2, 3 * 2 / (16 * 6 + 3 * 2)),
        (Schedule.GPIPE, 1, 8, 1, 0.0),
        (Schedule.OTHER, 4, 8, 1, None),
    ],
)
def test_the_formulas(schedule: Schedule, p: int, m: int, v: int, expected: float | None) -> None:
    ratio = ideal_ratio(schedule, num_ranks=p, num_microbatches=m, stages_per_rank=v, mean_ns=TIMES)
    assert ratio == (None if expected is None else pytest.approx(expected))


def test_weights_that_take_longer_than_the_rest_fill_the_bubble() -> None:
    times = {**TIMES, StageWork.WEIGHT_BACKWARD: 6.0}
    ratio = ideal_ratio(
        Schedule.ZERO_BUBBLE, num_ranks=4, num_microbatches=8, stages_per_rank=1, mean_ns=times
    )
    assert ratio == 0.0
