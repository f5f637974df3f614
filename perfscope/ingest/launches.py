"""Device work to the host call that launched it, by correlation id."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.ingest.scopes import NO_LAYER, OTHER
from perfscope.ingest.spill import Rows

Ints = npt.NDArray[np.int64]
MAX_PENDING = 1 << 15  # launches remembered; a device queue is far shorter


class Found(Struct):
    """The launches of some device rows. Where `is_known` is False the other fields say nothing of use."""

    is_known: npt.NDArray[np.bool_]
    start: Ints
    end: Ints
    call: Ints  # word of the host
    operator: Ints  # likewise, that the call was made in; -1 = none
    step: Ints
    phase: Ints
    layer: Ints
    collective: Ints


class Launches:
    """Remembers the latest launches of the slices so far.

    They are kept after they were found: one launch of a graph leads to many kernels.
    """

    def __init__(self) -> None:
        # correlation, start, end, call, operator, step, phase, layer, collective
        self._table = np.zeros((0, 9), np.int64)  # in the order of time
        self._order = np.zeros(0, np.intp)  # of the table, by correlation
        self._sorted = np.zeros(0, np.int64)

    def add(self, rows: Rows, steps: npt.NDArray[Any], operators: Ints, contexts: npt.NDArray[Any]) -> None:
        """Enter launches.

        Args:
            rows: `spill.LAUNCH`, later than the ones before.
            steps: step of each.
            operators: word of the operator that each is made in; -1 = none.
            contexts: (n, 3) phase, layer and collective of each.
        """
        if not len(rows):
            return
        new = np.column_stack(
            [
                rows["correlation"],
                rows["start"],
                rows["start"] + rows["dur"],
                rows["name"],
                operators,
                steps,
                contexts,
            ]
        )
        # Slices come in the order of time: what was entered last is the latest.
        self._table = np.concatenate([self._table, new])[-max(MAX_PENDING, len(new)) :]
        correlations = self._table[:, 0]
        self._order = np.argsort(correlations, kind="stable")
        self._sorted = correlations[self._order]

    def find(self, correlations: Ints) -> Found:
        """The launch of each correlation id."""
        if not len(self._table):
            nothing = np.full(len(correlations), -1, np.int64)
            return Found(
                np.zeros(len(correlations), np.bool_), nothing, nothing, nothing, nothing, nothing,
                np.full_like(nothing, OTHER), np.full_like(nothing, NO_LAYER), nothing,
            )  # fmt: skip
        index = np.searchsorted(self._sorted, correlations, side="right") - 1
        rows = self._table[self._order[np.maximum(index, 0)]]
        is_match = (index >= 0) & (rows[:, 0] == correlations) & (correlations > 0)
        return Found(
            is_match,
            rows[:, 1],
            rows[:, 2],
            rows[:, 3],
            np.where(is_match, rows[:, 4], -1),
            rows[:, 5],
            np.where(is_match, rows[:, 6], OTHER),
            np.where(is_match, rows[:, 7], NO_LAYER),
            np.where(is_match, rows[:, 8], -1),
        )
