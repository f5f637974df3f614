"""Windows whose steps are unlike those of the others: they stand for no usual step.

A window's ratio is its mean traced step over the median of the untraced steps beside it, so that a training
which becomes slower changes no ratio. How far ratios differ by chance is measured on blocks of as many
untraced steps, treated alike (A/A): nine of ten lie within the spread. A window further than that from
the median of the other windows is left out, the furthest first, as long as another one remains. Of two, the
one that is further from its untraced steps is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64, distinct
from perfscope.analysis.source import RunSource
from perfscope.analysis.spans import WindowFacts, whole_numbers
from perfscope.analysis.steps import counted_steps, rank_steps, steps_on_device
from perfscope.analysis.window_results import UnlikeWindow

BESIDE = 20  # untraced steps on either side that a window is compared with
FEWEST_BESIDE = 6  # in all
FEWEST_BLOCKS = 10
MOST_BLOCKS = 200  # of one rank
MOST_RANKS = 8  # whose steps are looked at: the other ranks trace the same
LEAST = 0.1  # a smaller difference is none
_QUANTILE = 0.9

Floats = NDArray[np.float64]


class _RankWindows(Struct, frozen=True, kw_only=True):
    ratios: dict[int, float]
    steps: dict[int, tuple[int, int]]  # first and last
    blocks: Floats  # ratios of blocks of untraced steps


def without_unlike(
    source: RunSource, windows: Mapping[int, Sequence[WindowFacts]]
) -> tuple[Mapping[int, Sequence[WindowFacts]], tuple[UnlikeWindow, ...]]:
    """The windows that stand for the usual step, by rank, and those that are left out, on all ranks.

    Args:
        source: the run.
        windows: all of them, by rank.
    """
    traced = [rank for rank in sorted(windows) if len(windows[rank]) > 1][:MOST_RANKS]
    ids = {facts.window for of_rank in windows.values() for facts in of_rank}
    seen = [_of_rank(source, rank, ids, windows[rank]) for rank in traced if rank in source.ranks]
    unlike = _unlike([rank for rank in seen if rank.ratios])
    gone = {entry.window for entry in unlike}
    if not gone:
        return windows, ()
    kept = {
        rank: [facts for facts in of_rank if facts.window not in gone] for rank, of_rank in windows.items()
    }
    return kept, unlike


def _of_rank(source: RunSource, rank: int, ids: set[int], windows: Sequence[WindowFacts]) -> _RankWindows:
    table = source.steps(rank)
    durations, window = (
        rank_steps(table, on_device=steps_on_device(windows)).reported,
        whole_numbers(table, "window"),
    )
    number = whole_numbers(table, "step")
    usual = np.flatnonzero(counted_steps(window) & (window < 0))
    ratios, step_ranges, length = {}, {}, 1
    for each in sorted(ids):
        traced = np.flatnonzero(window == each)
        beside = _beside(usual, traced) if len(traced) else usual[:0]
        median = float(np.median(durations[beside])) if len(beside) >= FEWEST_BESIDE else 0.0
        if median > 0:
            ratios[each] = float(durations[traced].mean()) / median
            step_ranges[each] = int(number[traced[0]]), int(number[traced[-1]])
            length = max(length, len(traced))
    return _RankWindows(ratios=ratios, steps=step_ranges, blocks=_blocks(durations[usual], length))


def _beside(usual: Int64, traced: Int64) -> Int64:
    """Of the untraced steps, those nearest before and after the traced ones."""
    first, end = np.searchsorted(usual, (traced[0], traced[-1]))
    return usual[max(0, int(first) - BESIDE) : int(end) + BESIDE]


def _blocks(durations: Int64, length: int) -> Floats:
    """Mean of each of up to MOST_BLOCKS blocks of `length` untraced steps / median of the steps beside it."""
    num = len(durations) // length
    if num < 2:
        return np.empty(0)
    chosen = distinct(np.linspace(0, num - 1, min(num, MOST_BLOCKS)).astype(np.int64)) * length
    ratios = []
    for start in chosen.tolist():
        end = start + length
        beside = np.concatenate((durations[max(0, start - BESIDE) : start], durations[end : end + BESIDE]))
        if len(beside) >= FEWEST_BESIDE and (median := float(np.median(beside))) > 0:
            ratios.append(float(durations[start:end].mean()) / median)
    return np.array(ratios)


def _unlike(ranks: Sequence[_RankWindows]) -> tuple[UnlikeWindow, ...]:
    """By means over ranks; none where untraced steps do not tell how far windows differ by chance."""
    blocks = np.concatenate([rank.blocks for rank in ranks]) if ranks else np.empty(0)
    if len(blocks) < FEWEST_BLOCKS:
        return ()
    spread = float(np.quantile(np.abs(blocks - 1), _QUANTILE))
    common_windows = set.intersection(*(set(rank.ratios) for rank in ranks))
    left = {
        window: float(np.mean([rank.ratios[window] for rank in ranks])) for window in sorted(common_windows)
    }
    gone: dict[int, float] = {}
    while len(left) > 1:
        window = _furthest(left)
        other_ratio = _median_of_others(left, window)
        if abs(left[window] / other_ratio - 1) <= max(spread, LEAST):
            break
        gone[window] = left.pop(window)
    other_ratio = float(np.median(list(left.values()))) if left else 1.0
    return tuple(
        UnlikeWindow(
            window=window,
            first_step=ranks[0].steps[window][0],
            last_step=ranks[0].steps[window][1],
            ratio=ratio,
            others_ratio=other_ratio,
            spread_ratio=spread,
        )
        for window, ratio in sorted(gone.items())
    )


def _median_of_others(ratios: Mapping[int, float], window: int) -> float:
    return float(np.median([ratio for other, ratio in ratios.items() if other != window]))


def _furthest(ratios: Mapping[int, float]) -> int:
    """From the median of the others; where that is as far for several, from 1: the untraced steps."""

    def distance(window: int) -> tuple[float, float]:
        ratio = ratios[window]
        from_others = round(abs(float(np.log(ratio / _median_of_others(ratios, window)))), 9)
        return from_others, abs(float(np.log(ratio)))

    return max(ratios, key=distance)
