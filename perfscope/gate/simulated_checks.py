"""Checks put together from runs of the same code: how often they are wrong, what they find and cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfscope.gate.metrics import DECIDES
from perfscope.gate.sequential import fewest_pairs, looks
from perfscope.gate.settings import EXTENDED, Settings
from perfscope.gate.statistics import Floats
from perfscope.gate.stopping import sequential_rule

# (ratios of head to base, shape (checks, pairs); threshold; alpha) -> whether each check is a regression.
# What it finds it must also find where the head is slower still, or the threshold lower.
Rule = Callable[[Floats, float, float], NDArray[np.bool_]]
# (ratios, threshold) -> whether each check is a regression, and how many pairs it took.
Judge = Callable[[Floats, float], tuple[NDArray[np.bool_], NDArray[np.int64]]]

THRESHOLDS = (0.03, 0.04, 0.05, 0.075, 0.10, 0.15)
EFFECTS = tuple(round(0.005 * step, 3) for step in range(2, 61))  # 1 % to 30 %
TARGET, TARGET_POWER = 0.10, 0.80
SURE_POWER = 0.97
_REACH = 3.0  # runs: one is paired with one of the next few, as a check runs both sides of a pair in a row
Z_95 = 1.959964


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTrial:
    """One kind of check, tried out.

    Attributes:
        pairs: planned, the setting.
        most, wanted: pairs that a check in doubt went on to here, and would by the settings: more where there
            are too few runs for that.
        needed, needed_slower: pairs that a check takes on average where nothing changed, and at +10 %.
        false_alarms: share of A/A checks that the rule calls a regression; low, high: 95 % Wilson interval of
            the resampling. It does not hold what other runs would have said: see `num_apart`.
        power: share of checks that find a slow-down, for each of EFFECTS.
        visible, sure: smallest slow-down that is found in 80 % and in 97 % of the checks; None = beyond
            EFFECTS.
        num_apart: checks of `most` pairs which the runs could make without sharing a run.
    """

    pairs: int
    most: int
    wanted: int
    needed: float
    needed_slower: float
    threshold: float
    false_alarms: float
    low: float
    high: float
    power: tuple[float, ...]
    visible: float | None
    sure: float | None
    num_apart: int

    def finds(self, effect: float) -> float:
        """Share of checks that find a slow-down of `effect`; between EFFECTS by straight lines."""
        return float(np.interp(effect, (0.0, *EFFECTS), (self.false_alarms, *self.power)))


def gate_judge(settings: Settings, pairs: int, most: int) -> Judge:
    """What `perfscope check` does with checks of `pairs` pairs that may go on to `most`."""
    at = looks(pairs, most)
    fewest = settings.fewest if settings.early_stop else pairs

    def judge(ratios: Floats, threshold: float) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        return sequential_rule(ratios, at, threshold, settings.alpha, fewest)

    return judge


def _judge_by(rule: Rule, alpha: float, pairs: int) -> Judge:
    def judge(ratios: Floats, threshold: float) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        return rule(ratios[:, :pairs], threshold, alpha), np.full(len(ratios), pairs)

    return judge


def most_of(settings: Settings, pairs: int) -> int:
    """How far a check of `pairs` pairs would go on, in the settings' own proportion."""
    if settings.most_pairs is None:
        return EXTENDED * pairs
    return max(pairs, round(pairs * settings.most_pairs / settings.pairs))


def wilson(hits: int, total: int) -> tuple[float, float]:
    """95 % interval of a share (E. B. Wilson, Probable inference, 1927)."""
    if not total:
        return 0.0, 1.0
    share, squared = hits / total, Z_95**2
    center = (share + squared / (2 * total)) / (1 + squared / total)
    half = Z_95 / (1 + squared / total) * math.sqrt(share * (1 - share) / total + squared / (4 * total**2))
    return max(0.0, center - half), min(1.0, center + half)


def draw_pairs(logs: Floats, pairs: int, draws: int, rng: np.random.Generator) -> Floats:
    """Log ratios of resampled A/A checks, shape (draws, pairs).

    Each draw takes a stretch of 2 * `pairs` neighboring runs and pairs those that lie close in time, no
    run twice; a coin says which of the two is the base. Pairs follow each other in time from any pair of the
    stretch on, so that checks which end early are of all the runs, not of the first.

    Args:
        logs: log step_p10 in time order, shape (runs,), at least 2 * `pairs`.
    """
    # A few runs more than are needed, so that also which runs of a stretch are left out is drawn.
    width = min(len(logs), 2 * pairs + int(_REACH))
    order = np.argsort(np.arange(width) + rng.uniform(0.0, _REACH, (draws, width)), axis=1)
    skipped = rng.integers(0, width - 2 * pairs + 1, (draws, 1))
    positions = np.take_along_axis(order, skipped + np.arange(2 * pairs), axis=1)
    chosen = logs[rng.integers(0, len(logs) - width + 1, (draws, 1)) + positions]
    coin = rng.integers(0, 2, (draws, pairs)) * 2 - 1
    turned = (rng.integers(0, pairs, (draws, 1)) + np.arange(pairs)) % pairs
    result: Floats = np.take_along_axis((chosen[:, 1::2] - chosen[:, ::2]) * coin, turned, axis=1)
    return result


def tried(
    logs: Floats, settings: Settings, rule: Rule | None, pairs_tried: Sequence[int], seeding: tuple[int, int]
) -> tuple[CheckTrial, ...]:
    seed, draws = seeding
    thresholds = sorted({*THRESHOLDS, settings.metrics[DECIDES].threshold})
    least = max(settings.fewest, fewest_pairs(settings.alpha))
    trials: list[CheckTrial] = []
    for pairs in sorted({*pairs_tried, settings.pairs}):
        if not least <= pairs <= len(logs) // 2:
            continue
        wanted = pairs if rule else most_of(settings, pairs)
        most = min(len(logs) // 2, wanted)
        judge = _judge_by(rule, settings.alpha, pairs) if rule else gate_judge(settings, pairs, most)
        # A generator for each number of pairs: what else is tried does not change its draws.
        ratios = np.exp(draw_pairs(logs, most, draws, np.random.default_rng((seed, pairs))))
        smallest, before = np.zeros(draws, dtype=np.int64), thresholds[0]
        for threshold in thresholds:
            smallest = _smallest(ratios, threshold, judge, smallest, _grown(smallest, threshold, before))
            before = threshold
            trials.append(_trial(ratios, (pairs, wanted), threshold, judge, smallest, len(logs)))
    return tuple(trials)


def _trial(
    ratios: Floats,
    planned: tuple[int, int],
    threshold: float,
    judge: Judge,
    smallest: NDArray[np.int64],
    num_runs: int,
) -> CheckTrial:
    pairs, wanted = planned
    draws, most = ratios.shape
    is_wrong, needed = judge(ratios, threshold)
    _, needed_slower = judge(ratios * (1 + TARGET), threshold)
    wrong = int(is_wrong.sum())
    low, high = wilson(wrong, draws)
    counts = np.bincount(smallest, minlength=len(EFFECTS) + 1)[: len(EFFECTS)]
    power = tuple(float(share) for share in np.cumsum(counts) / draws)
    curve = (wrong / draws, *power)
    return CheckTrial(
        pairs=pairs,
        most=most,
        wanted=wanted,
        needed=float(needed.mean()),
        needed_slower=float(needed_slower.mean()),
        threshold=threshold,
        false_alarms=wrong / draws,
        low=low,
        high=high,
        power=power,
        visible=_reaches(curve, TARGET_POWER),
        sure=_reaches(curve, SURE_POWER),
        num_apart=num_runs // (2 * most),
    )


def _smallest(
    ratios: Floats, threshold: float, judge: Judge, least: NDArray[np.int64], guess: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Place in EFFECTS of the smallest that each check finds; their number where it finds none.

    A slower head is never found less often than a faster one, so halving finds it.

    Args:
        least: places below which it cannot be.
        guess: where it is probably not above.
    """
    slower = 1 + np.asarray(EFFECTS)
    low, high = least.copy(), np.full(len(ratios), len(slower), dtype=np.int64)
    middle = np.clip(guess, low, len(slower) - 1)
    while len(rows := np.flatnonzero(low < high)):
        effect = middle[rows]
        is_found, _ = judge(ratios[rows] * slower[effect][:, None], threshold)
        high[rows[is_found]] = effect[is_found]
        low[rows[~is_found]] = effect[~is_found] + 1
        middle = (low + high) // 2
    return low


def _grown(effect_indices: NDArray[np.int64], threshold: float, before: float) -> NDArray[np.int64]:
    """Indices into EFFECTS of checks that found `effect_indices` at threshold `before`, by the median."""
    if threshold == before:
        return np.full(len(effect_indices), len(EFFECTS) // 2, dtype=np.int64)
    effects = np.asarray((*EFFECTS, math.inf))
    return np.searchsorted(EFFECTS, (1 + effects[effect_indices]) * (1 + threshold) / (1 + before) - 1)


def _reaches(curve: Sequence[float], power: float) -> float | None:
    """The smallest slow-down that is found as often as `power`, between the points by straight lines."""
    effects = (0.0, *EFFECTS)
    for at in range(1, len(effects)):
        if curve[at] >= power:
            rise = curve[at] - curve[at - 1]
            part = (power - curve[at - 1]) / rise if rise > 0 and curve[at - 1] < power else 0.0
            return effects[at - 1] + part * (effects[at] - effects[at - 1])
    return None
