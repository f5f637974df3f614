"""PMNF: c0 + c1 p^i log2(p)^j, the term that explains a time best, or the constant when none does.

Performance model normal form and its exponents: Calotoiu, Hoefler, Poke, Wolf, SC'13 (Extra-P); here with
negative i too, for times that fall with p or level out. A term is only kept when it
  1. beats the constant 1.3 times on points left out one by one (SMAPE),
  2. does so by more than 98 % of the same figures in shuffled order do: noise has an order too.
Otherwise the answer is the constant. Of terms about as good, the one that changes least further out is taken.
Points that differ by less than a quarter do not show an exponent: there "about as good" is twice the error,
no term steeper than the square root of p is taken and none steeper than p widens the interval, so that
nothing lives off one noisy point at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from math import factorial

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.scaling.fit import (
    EXTRAPOLATION_LIMIT,
    GUARD_RATIO,
    Fit,
    Term,
    basis,
    percentiles,
    refused_fit,
)
from perfscope.analysis.scaling.least_squares import bounded_fit, resampled_targets, smape_of
from perfscope.analysis.scaling.points import is_measurement
from perfscope.vocabulary.scaling import FitNote, FitRefusal, FitRemark, Fitted, RefusedFit

Floats = NDArray[np.float64]

NUM_POINTS = 5
_DRAWS = 1000
_DRAWS_PER_TERM = 200
_SEED = 20_240_503
_SHUFFLES = 400
_CHANCE = 0.02
_AS_GOOD = 1.1  # among terms this close to the best, the one that changes least further out is taken
_SHOWS_EXPONENT = 0.25
_GENTLE, _LINEAR = 0.5, 1.0
_PLAUSIBLE = 2.0  # terms this close to the best widen the interval
_DRIFT = Term(power=0.0, log_power=1)
_TINY = 1e-9


class _Terms(Struct, frozen=True):
    """Every hypothesis: its term and its column, (hypotheses, points), over num_ranks (points,)."""

    num_ranks: Floats
    terms: tuple[Term, ...]
    columns: Floats


def exponents() -> tuple[Term, ...]:
    """The search set, without the constant: falling terms, logarithms, powers with and without logarithms."""
    quarters_and_thirds = (3, 4, 6, 8, 9, 12, 15, 16, 18, 20, 21, 24, 27, 28, 30, 32, 33, 36)
    powers = sorted([*(twelfths / 12 for twelfths in quarters_and_thirds), 4 / 5])
    falling = (-1.0, -4 / 5, -3 / 4, -2 / 3, -1 / 2, -1 / 3, -1 / 4)
    terms = [Term(power=power, log_power=0) for power in falling]
    terms += [Term(power=0.0, log_power=log_power) for log_power in (1, 2)]
    terms += [Term(power=float(power), log_power=log_power) for power in powers for log_power in (0, 1, 2)]
    return tuple(terms)


def fit_pmnf(values: Mapping[int, Sequence[float]], *, what: Fitted = Fitted.STEP_TIME) -> Fit:
    """The PMNF model of a time (or another figure above 0) over p.

    Args:
        values: p -> its repeats. Figures that are not finite or not above 0 are left out, and counted in a
        note.
        what: of what, with its unit.

    Returns:
        A Fit named pmnf, or constant; refused with fewer than 5 usable p.
    """
    usable = {
        num: tuple(float(value) for value in each if is_measurement(value))
        for num, each in sorted(values.items())
        if num >= 1
    }
    usable = {num: each for num, each in usable.items() if each}
    lost = sum(len(each) for each in values.values()) - sum(len(each) for each in usable.values())
    notes = [FitRemark(FitNote.LEFT_OUT, lost)] if lost else []
    measured = tuple(usable)
    if len(measured) < NUM_POINTS:
        few = RefusedFit(FitRefusal.TOO_FEW_SIZES, needed=NUM_POINTS, available=len(measured))
        return refused_fit("pmnf", what, measured, few)
    num = np.asarray(measured, dtype=np.float64)
    typical = np.asarray([np.median(each) for each in usable.values()])
    repeats = list(usable.values())
    if all(len(each) == 1 for each in repeats):
        notes.append(FitRemark(FitNote.ONE_REPEAT))
    search = _search_set(num)
    candidates = _candidates(search, typical)
    if candidates and _by_chance(search, typical) <= _CHANCE:
        return _term_fit(num, typical, repeats, [search.terms[index] for index in candidates], what, notes)
    notes.append(FitRemark(FitNote.NO_TERM))
    return _constant_fit(num, typical, repeats, what, notes)


def _search_set(num: Floats) -> _Terms:
    terms = exponents()
    columns = np.stack([basis("pmnf", term, num)[:, 1] for term in terms])
    return _Terms(num_ranks=num, terms=terms, columns=columns)


def _scores(search: _Terms, series: Floats) -> Floats:
    """SMAPE on points left out one by one.

    Args:
        series: (many, points).

    Returns:
        (many, hypotheses + 1); the constant comes last.
    """
    num_points = series.shape[1]
    left_out = np.empty((num_points, series.shape[0], search.columns.shape[0] + 1))
    for index in range(num_points):
        keep = np.arange(num_points) != index
        left_out[index] = _errors_at(search.columns, series, keep, index)
    return np.asarray(left_out.mean(axis=0), dtype=np.float64)


def _errors_at(columns: Floats, series: Floats, keep: NDArray[np.bool_], index: int) -> Floats:
    """Relative error at `place` of every hypothesis fitted to `keep`: (many, hypotheses + 1)."""
    weight = 1 / series[:, keep] ** 2
    part = columns[:, keep]
    total = weight.sum(axis=1)[:, None]
    level = (weight * series[:, keep]).sum(axis=1)[:, None] / total
    mean = weight @ part.T / total
    spread = weight @ (part**2).T / total - mean**2
    common = (weight * series[:, keep]) @ part.T / total - mean * level
    slope = np.divide(common, spread, out=np.zeros_like(common), where=spread > 0)
    offset = level - slope * mean
    forecast = offset + slope * columns[:, index]
    measured = series[:, index, None]
    errors = np.minimum(2.0, 2 * np.abs(forecast - measured) / (np.abs(forecast) + np.abs(measured)))
    errors[~np.isfinite(errors)] = 2.0
    constant = 2 * np.abs(level - measured) / (level + measured)
    return np.concatenate((errors, constant), axis=1)


def _allowed(search: _Terms, series: Floats) -> NDArray[np.bool_]:
    """Which signs make sense, on all points: growing terms are added, a falling time levels out above 0."""
    growing = np.asarray([term.power >= 0 for term in search.terms])
    weight = 1 / series**2
    total = weight.sum(axis=1)[:, None]
    level = (weight * series).sum(axis=1)[:, None] / total
    mean = weight @ search.columns.T / total
    spread = weight @ (search.columns**2).T / total - mean**2
    common = (weight * series) @ search.columns.T / total - mean * level
    slope = np.divide(common, spread, out=np.zeros_like(common), where=spread > 0)
    offset = level - slope * mean
    allowed: NDArray[np.bool_] = np.where(growing, slope >= 0, offset >= 0)
    return allowed


def _candidates(search: _Terms, typical: Floats) -> list[int]:
    """Terms that pass the first test and are nearly as good as the best, the one to take first."""
    scores = _scores(search, typical[None, :])
    errors, constant = scores[0, :-1], float(scores[0, -1])
    if constant < _TINY:
        return []
    allowed = _allowed(search, typical[None, :])[0]
    flat = typical.max() < (1 + _SHOWS_EXPONENT) * typical.min()
    powers = np.asarray([term.power for term in search.terms])
    if flat:
        allowed &= powers <= _LINEAR
    passing = allowed & (errors * GUARD_RATIO <= constant)
    if flat:
        passing &= powers <= _GENTLE
    if not passing.any():
        return []
    best = float(errors[passing].min())
    as_good = _PLAUSIBLE if flat else _AS_GOOD
    close = np.flatnonzero(passing & (errors <= max(as_good * best, best + _TINY)))
    taken = min((int(index) for index in close), key=lambda index: _change(search, typical, index))
    near = np.flatnonzero(allowed & (errors <= min(constant, max(_PLAUSIBLE * best, best + _TINY))))
    return [taken, *(int(index) for index in near if index != taken)]


def _change(search: _Terms, typical: Floats, index: int) -> float:
    """How far the term goes from the last point to where it may still be asked: 4 times the largest p."""
    term = search.terms[index]
    ends = search.num_ranks[-1] * np.asarray([1.0, EXTRAPOLATION_LIMIT])
    design = basis("pmnf", term, search.num_ranks)
    coefficients = bounded_fit(design, typical[None, :], _bounds(term))[0]
    last, asked = basis("pmnf", term, ends) @ coefficients
    return float(abs(asked - last))


def _by_chance(search: _Terms, typical: Floats) -> float:
    """Share of orders of the same figures in which the best term beats the constant by as much as here."""
    orders = _orders(typical.size)
    series = np.concatenate((typical[None, :], typical[orders]))
    scores = _scores(search, series)
    errors = np.where(_allowed(search, series), scores[:, :-1], np.inf)
    gain = (scores[:, -1] + _TINY) / (errors.min(axis=1) + _TINY)
    return float((gain[1:] >= gain[0] * (1 - 1e-9)).mean())


def _orders(num_points: int) -> NDArray[np.int64]:
    """Every order of up to 5 points, else a fixed draw of them."""
    if factorial(num_points) <= _SHUFFLES:
        return np.asarray(list(permutations(range(num_points))), dtype=np.int64)
    random = np.random.default_rng(_SEED)
    return np.stack([random.permutation(num_points) for _ in range(_SHUFFLES)])


def _bounds(term: Term) -> list[bool]:
    return [False, True] if term.power >= 0 else [True, False]


def _term_fit(
    num: Floats,
    typical: Floats,
    repeats: list[tuple[float, ...]],
    terms: list[Term],
    what: Fitted,
    notes: list[FitRemark],
) -> Fit:
    chosen = terms[0]
    design = basis("pmnf", chosen, num)
    coefficients = bounded_fit(design, typical[None, :], _bounds(chosen))[0]
    fitted = design @ coefficients
    # Which term it is belongs to what is not known: every term nearly as good brings draws of its own.
    draws = tuple((term, _term_draws(num, typical, repeats, term, _DRAWS_PER_TERM)) for term in terms)
    term_draws = _term_draws(num, typical, repeats, chosen, _DRAWS)
    level = _level(typical)
    return Fit(
        name="pmnf",
        what=what,
        parameters={
            "c0": float(coefficients[0]), "c1": float(coefficients[1]),
            "i": chosen.power, "j": float(chosen.log_power),
        },
        intervals={
            "c0": percentiles(term_draws[:, 0]), "c1": percentiles(term_draws[:, 1]), "i": None, "j": None,
        },
        smape=float(smape_of(fitted, typical)),
        constant_smape=float(smape_of(np.full_like(typical, level), typical)),
        measured_ranks=tuple(int(value) for value in num),
        notes=tuple(notes),
        formula=f"{coefficients[0]:.4g} + {coefficients[1]:.4g} {_term_text(chosen)}",
        term=chosen,
        coefficients=coefficients,
        draws=draws,
    )  # fmt: skip


def _term_draws(
    num: Floats, typical: Floats, repeats: list[tuple[float, ...]], term: Term, draws: int
) -> Floats:
    """Coefficients of one term on resampled series, (draws, 2)."""
    design = basis("pmnf", term, num)
    fitted = design @ bounded_fit(design, typical[None, :], _bounds(term))[0]
    targets = resampled_targets(np.maximum(fitted, _TINY), repeats, 2, draws, _SEED)
    return bounded_fit(design, targets, _bounds(term))


def _constant_fit(
    num: Floats, typical: Floats, repeats: list[tuple[float, ...]], what: Fitted, notes: list[FitRemark]
) -> Fit:
    level = _level(typical)
    fitted = np.full_like(typical, level)
    targets = resampled_targets(fitted, repeats, 1, _DRAWS, _SEED)
    fit = bounded_fit(np.ones((num.size, 1)), targets, [True])
    # A drift of the size that the points leave open widens the interval beyond them, at the pace of log2 p.
    drift = basis("pmnf", _DRIFT, num)
    drifting = bounded_fit(drift, targets, [False, False])
    smape = float(smape_of(fitted, typical))
    return Fit(
        name="constant", what=what, parameters={"c0": level}, intervals={"c0": percentiles(fit[:, 0])},
        smape=smape, constant_smape=smape, measured_ranks=tuple(int(value) for value in num),
        notes=tuple(notes), formula=f"{level:.4g}", coefficients=np.asarray([level]), draws=((None, fit),
        (_DRIFT, drifting)),
    )  # fmt: skip


def _level(typical: Floats) -> float:
    return float(bounded_fit(np.ones((typical.size, 1)), typical[None, :], [True])[0, 0])


def _term_text(term: Term) -> str:
    power = "" if term.power == 0 else "p" if term.power == 1 else f"p^{term.power:.3g}"
    log = "" if term.log_power == 0 else "log2(p)" if term.log_power == 1 else f"log2(p)^{term.log_power}"
    return " ".join(part for part in (power, log) if part)
