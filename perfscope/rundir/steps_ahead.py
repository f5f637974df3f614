"""Steps of many ranks, read in order: those of several ranks in one call of the reader of numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from perfscope.rundir.rows import StepLines, read_step_files

_RANKS_AHEAD = 32
_FEW_BYTES = 1 << 18  # larger files are read alone


class StepsAhead:
    """Once two ranks were asked for in order, the next ones are read with the rank that is asked for."""

    def __init__(self) -> None:
        self._steps: dict[int, StepLines] = {}
        self._last = -1

    def of(self, rank: int, ranks: Sequence[int], read: Callable[[int], bytes]) -> StepLines:
        """The steps of a rank.

        Args:
            rank: one of `ranks`.
            ranks: of the run, in order.
            read: steps.jsonl of a rank; empty where there is none.
        """
        if rank not in self._steps:
            at = bisect_left(ranks, rank)
            follows = at > 0 and ranks[at - 1] == self._last
            files = {rank: read(rank)}
            for number in ranks[at + 1 : at + _RANKS_AHEAD] if follows else ():
                if len(files[rank]) > _FEW_BYTES or not 0 < len(data := read(number)) <= _FEW_BYTES:
                    break
                files[number] = data
            self._steps = dict(zip(files, read_step_files(list(files.values())), strict=True))
        self._last = rank
        return self._steps.pop(rank)
