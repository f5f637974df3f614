"""How long each rank waits in each traced step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfscope.analysis import intervals as iv
from perfscope.analysis.collective_waits import JudgedCalls
from perfscope.analysis.waits.results import StepWaits


def waits_by_step(matches: Sequence[JudgedCalls]) -> StepWaits | None:
    """Waits in matched calls, by the step in which a rank made the call.

    Without those within the uncertainty of two hosts' clocks; None: no other call has a step.
    """
    calls = [match for match in matches if (match.step >= 0).any()]
    if not calls:
        return None
    ranks = sorted({rank for match in calls for rank in match.ranks})
    row_of = {rank: row for row, rank in enumerate(ranks)}
    row = np.concatenate(
        [np.repeat([row_of[rank] for rank in match.ranks], match.step.shape[1]) for match in calls]
    )
    window = np.concatenate([np.full(match.step.size, match.window) for match in calls])
    step, enter, wait = (
        np.concatenate([getattr(match, name).ravel() for match in calls])
        for name in ("step", "enter", "wait")
    )
    uncertain = np.concatenate([match.uncertain.ravel() for match in calls])
    inside = (step >= 0) & ~uncertain
    if not inside.any():
        return None
    row, window, step, enter, wait = (of[inside] for of in (row, window, step, enter, wait))
    steps, column = iv.distinct_pairs(window, step)
    cells, cell = iv.numbered(row * len(steps) + column)
    offset, stride = iv.apart(cell, enter, enter + wait)
    start = enter + offset[cell]
    waits = iv.union(start, start + wait)
    by_cell = np.zeros(len(cells), np.int64)
    np.add.at(by_cell, waits[:, 0] // stride, waits[:, 1] - waits[:, 0])
    table = np.full((len(ranks), len(steps)), -1)
    table.flat[cells] = by_cell
    windows, numbers = steps.T.tolist()
    return StepWaits(ranks=tuple(ranks), windows=windows, steps=numbers, wait_ns=table)
