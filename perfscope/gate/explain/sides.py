"""Two sides of runs, and by how much any figure of theirs moved from one to the other.

Runs are the unit. Where every run has a neighbor in time on the other side (the same `pair` number), the
change is taken within pairs, so that drift of the machine falls out; else over all pairs of a base and a
head run. Either way it is the Hodges-Lehmann center (median of Walsh averages or of pairwise differences)
with the exact-rank interval of gate.statistics: one bad run in five moves neither much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.gate.records import RunFigures
from perfscope.gate.statistics import shift_interval, walsh_interval

FEWEST = 3  # runs a side below which nothing is stated: two values have no middle
# Below five differences even the whole range covers the truth too rarely; it is widened around its center.
_WIDER = {3: 2.0, 4: 1.4}
Figure = Callable[[RunFigures], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How far a figure moved. All in the figure's unit.

    Attributes:
        base, head: medians over runs.
        change: center of the differences; low, high its 95 % interval.
    """

    base: float
    head: float
    change: float
    low: float
    high: float

    @property
    def deviation(self) -> float:
        """Standard deviation that an interval of this width stands for."""
        return (self.high - self.low) / 4

    @property
    def is_certain(self) -> bool:
        return self.low > 0 or self.high < 0

    def scaled(self, factor: float) -> Shift:
        """The same in another, positive unit."""
        return Shift(
            base=self.base * factor,
            head=self.head * factor,
            change=self.change * factor,
            low=self.low * factor,
            high=self.high * factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """`base` and `head` in pair order where `paired`."""

    base: tuple[RunFigures, ...]
    head: tuple[RunFigures, ...]
    paired: bool

    @property
    def runs(self) -> tuple[RunFigures, ...]:
        return (*self.base, *self.head)

    def shift(self, figure: Figure) -> Shift | None:
        """None where fewer than FEWEST runs of a side (or pairs) have the figure."""
        return shift_of([figure(run) for run in self.base], [figure(run) for run in self.head], self.paired)

    def all_have(self, figure: Figure) -> bool:
        """Whether FEWEST runs or more of each side have the figure."""
        return all(sum(figure(run) is not None for run in side) >= FEWEST for side in (self.base, self.head))


def sides_of(base: Sequence[RunFigures], head: Sequence[RunFigures]) -> Sides:
    """Paired where enough runs have a partner; runs without one are then left out."""
    numbered = [{run.pair: run for run in side if run.pair is not None} for side in (base, head)]
    all_numbered = all(
        len(numbers) == len(side) for numbers, side in zip(numbered, (base, head), strict=True)
    )
    shared = sorted(pair for pair in numbered[0] if pair in numbered[1] and pair is not None)
    if all_numbered and len(shared) >= FEWEST:
        return Sides(
            base=tuple(numbered[0][pair] for pair in shared),
            head=tuple(numbered[1][pair] for pair in shared),
            paired=True,
        )
    return Sides(base=tuple(base), head=tuple(head), paired=False)


def shift_of(base: Sequence[float | None], head: Sequence[float | None], paired: bool) -> Shift | None:
    """How far values moved; None stands for a run that does not know its value.

    Args:
        paired: the k-th of both sides belong together.
    """
    first = [value for value in base if value is not None and math.isfinite(value)]
    second = [value for value in head if value is not None and math.isfinite(value)]
    differences = [
        theirs - mine
        for mine, theirs in zip(base, head, strict=False)
        if mine is not None and theirs is not None
    ]
    if paired and len(differences) >= FEWEST:
        values = np.array(differences)
        upper = np.triu_indices(len(values))
        center = float(np.median((values[upper[0]] + values[upper[1]]) / 2))
        interval = walsh_interval(values)
    elif min(len(first), len(second)) >= FEWEST:
        center = float(np.median(np.subtract.outer(np.array(second), np.array(first))))
        interval = shift_interval(first, second)
    else:
        return None
    assert interval is not None  # FEWEST values have one
    wider = _WIDER.get(len(differences) if paired else min(len(first), len(second)), 1.0)
    return Shift(
        base=float(np.median(first)),
        head=float(np.median(second)),
        change=center,
        low=center - (center - interval[0]) * wider,
        high=center + (interval[1] - center) * wider,
    )


def weighted_median(values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The value below which half of the weight lies; not of nothing."""
    names = sorted(values, key=lambda name: values[name])
    half, below = sum(weights[name] for name in names) / 2, 0.0
    for name in names:
        below += weights[name]
        if below >= half:
            return values[name]
    return values[names[-1]]
