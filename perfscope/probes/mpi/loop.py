"""Finds the loop of a program that marks no steps: the sequence of its collectives repeats.

Pure arithmetic on numbers that stand for calls (same place in the program, same communicator, same size: same
number). All ranks of a communicator make the same collectives in the same order, so that each finds the same
loop at the same call, without a word between them.
"""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

REPEATS = 8  # of the period, before it counts as a loop
BARE_REPEATS = 64  # where a period is one call and no other call of MPI lies between: perhaps an inner loop
LONGEST = 512  # calls of a period
PATIENCE = 4096  # calls without a loop, after which the search ends
_LOOK_BACK = 8  # earlier places of a call that are tried


class Loop(NamedTuple):
    """A period found: the calls `first` ... `first + period - 1` repeat until now. Indices of calls seen."""

    first: int
    period: int


class LoopFinder:
    """Takes calls one by one; each costs a look at the periods that are still possible, a handful.

    Args:
        least: periods it must have seen at least, besides what REPEATS asks for.
    """

    def __init__(self, least: int = 0) -> None:
        self._repeats = max(REPEATS, least)
        self.symbols: List[int] = []
        self.moments: List[int] = []
        self._others: List[int] = []
        self._places: Dict[int, List[int]] = {}
        self._runs: Dict[int, int] = {}  # period -> how many calls in a row were as one period before

    def require(self, repeats: int) -> None:
        """From now on a period must come so often, at least."""
        self._repeats = max(self._repeats, repeats)

    @property
    def exhausted(self) -> bool:
        return len(self.symbols) >= PATIENCE

    def add(self, symbol: int, moment: int, num_others: int) -> Optional[Loop]:
        """A call.

        Args:
            symbol: what it is.
            moment: when, ns.
            num_others: calls of MPI so far that are no collectives.

        Returns:
            The loop, once its period has repeated often enough; the shortest if there are several.
        """
        at = len(self.symbols)
        self.symbols.append(symbol)
        self.moments.append(moment)
        self._others.append(num_others)
        runs = {
            period: length + 1 for period, length in self._runs.items() if self.symbols[at - period] == symbol
        }
        positions = self._places.setdefault(symbol, [])
        for position in positions:
            if at - position <= LONGEST:
                runs.setdefault(at - position, 1)
        positions.append(at)
        del positions[:-_LOOK_BACK]
        self._runs = runs
        for period in sorted(runs):
            if period > 1 and runs.get(1, 0) >= period - 1:
                continue  # one call over and over
            if runs[period] >= (self._needed(period, at) - 1) * period:
                return Loop(at + 1 - runs[period] - period, period)
        return None

    def _needed(self, period: int, at: int) -> int:
        alone = period == 1 and self._others[at] == self._others[at - 1]
        return max(self._repeats, BARE_REPEATS) if alone else self._repeats


def choose_mark(block: Sequence[int], wide: Sequence[bool]) -> Tuple[int, int]:
    """(index within the block, how often its place occurs in it) of the call behind which steps are cut.

    The rarest place, so that one occurrence is one step; of these one whose communicator holds all ranks, so
    that all ranks cut alike; of these the last, behind which the loop turns.

    Args:
        block: the places in the program of one period's calls.
        wide: whether each is on a communicator of all ranks.
    """
    times = Counter(block)
    counts = [times[symbol] for symbol in block]
    best = min(range(len(block)), key=lambda at: (counts[at], not wide[at], -at))
    return best, counts[best]
