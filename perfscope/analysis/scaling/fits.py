"""Amdahl, Gustafson and USL fitted to throughput over N, with bootstrap intervals and a constant to beat.

Amdahl, AFIPS 1967: X = X_1 / (f + (1-f)/N). Gustafson, CACM 31(5), 1988: X = X_1 (N - f (N-1)). Universal
Scalability Law, Gunther, 2007: X = gamma N / (1 + alpha (N-1) + beta N (N-1)), largest at
N* = sqrt((1-alpha)/beta). Each is linear in its coefficients after a transformation, so it is solved and not
searched for (`least_squares`). The term model is in `pmnf`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfscope.analysis.scaling.fit import GUARD_RATIO, Fit, basis, percentiles, refused_fit
from perfscope.analysis.scaling.least_squares import bounded_fit, resampled_targets, smape_of
from perfscope.analysis.scaling.pmnf import fit_pmnf
from perfscope.analysis.scaling.points import ScalePoint, clean_points
from perfscope.analysis.scaling.speedup import Interval
from perfscope.vocabulary.scaling import FitNote, FitRefusal, FitRemark, Fitted, RefusedFit

Floats = NDArray[np.float64]

_DRAWS = 1000
_SEED = 20_240_502
_TINY = 1e-9


class _Law(NamedTuple):
    name: str
    num_points: int  # distinct N it takes: one more than it has parameters
    to_target: Callable[[Floats, Floats], Floats]  # (N, X) -> what is linear; its own inverse
    parameters: Callable[[Floats], dict[str, Floats]]  # (many, k) -> name -> (many,), NaN where there is none
    formula: Callable[[dict[str, float | None]], str]


def fit_amdahl(points: Iterable[ScalePoint]) -> Fit:
    """Serial part f in [0, 1] and one-rank throughput, from at least 3 different N."""
    return _fit(_amdahl(), points)


def fit_gustafson(points: Iterable[ScalePoint]) -> Fit:
    """Part f in [0, 1] of the work that N does not grow, and one-rank throughput; 3 different N at least."""
    return _fit(_gustafson(), points)


def fit_usl(points: Iterable[ScalePoint]) -> Fit:
    """gamma (X of one rank), alpha (contention), beta (coherency), N* (peak); 4 different N at least."""
    return _fit(_usl(), points)


def fit_all(points: Iterable[ScalePoint]) -> tuple[Fit, ...]:
    """Amdahl, Gustafson, USL of throughput, PMNF of the time per step (per sample if steps are not known)."""
    clean = clean_points(points)
    per_step = bool(clean) and all(point.samples_per_rank for point in clean)
    times = {
        point.num_ranks: tuple(
            (point.samples_per_rank or 1.0) * (point.num_ranks if per_step else 1) / value
            for value in point.throughputs
        )
        for point in clean
    }
    what = Fitted.STEP_TIME if per_step else Fitted.SAMPLE_TIME
    return fit_amdahl(clean), fit_gustafson(clean), fit_usl(clean), fit_pmnf(times, what=what)


def _fit(law: _Law, points: Iterable[ScalePoint]) -> Fit:
    clean = clean_points(points)
    measured = tuple(point.num_ranks for point in clean)
    if len(clean) < law.num_points:
        few = RefusedFit(FitRefusal.TOO_FEW_SIZES, needed=law.num_points, available=len(clean))
        return refused_fit(law.name, Fitted.THROUGHPUT, measured, few)
    num = np.asarray(measured, dtype=np.float64)
    typical = np.asarray([point.throughput for point in clean])
    design = basis(law.name, None, num)
    bounds = [True] * design.shape[1]
    coefficients = bounded_fit(design, law.to_target(num, typical)[None, :], bounds)
    if coefficients[0, 0] == 0 and law.name == "usl":
        why = RefusedFit(FitRefusal.ONE_RANK_NOT_KNOWN)
        return refused_fit(law.name, Fitted.THROUGHPUT, measured, why)
    fitted = law.to_target(num, (coefficients @ design.T)[0])
    smape = float(smape_of(fitted, typical))
    level = 1 / float(bounded_fit(np.ones((num.size, 1)), 1 / typical[None, :], [True])[0, 0])
    constant_smape = float(smape_of(np.full_like(typical, level), typical))
    if constant_smape < max(GUARD_RATIO * smape, _TINY):
        as_good = RefusedFit(
            FitRefusal.CONSTANT_AS_GOOD, level=level, constant_error=constant_smape, error=smape
        )
        return refused_fit(law.name, Fitted.THROUGHPUT, measured, as_good)
    repeats = [point.throughputs for point in clean]
    targets = resampled_targets(fitted, repeats, design.shape[1], _DRAWS, _SEED)
    draws = bounded_fit(design, law.to_target(num[None, :], targets), bounds)
    parameters, intervals = _parameters(law, coefficients, draws)
    return Fit(
        name=law.name, what=Fitted.THROUGHPUT, parameters=parameters, intervals=intervals, smape=smape,
        constant_smape=constant_smape, measured_ranks=measured, notes=_notes(law, parameters, clean),
        formula=law.formula(parameters), coefficients=coefficients[0], draws=((None, draws),),
    )  # fmt: skip


def _parameters(
    law: _Law, coefficients: Floats, draws: Floats
) -> tuple[dict[str, float | None], dict[str, Interval | None]]:
    values = law.parameters(coefficients)
    drawn = law.parameters(draws)
    parameters: dict[str, float | None] = {}
    intervals: dict[str, Interval | None] = {}
    for name, value in values.items():
        there = bool(np.isfinite(value[0]))
        finite = drawn[name][np.isfinite(drawn[name])]
        parameters[name] = float(value[0]) if there else None
        # A peak that one draw in forty does not have is no peak with a 95 % interval.
        enough = finite.size >= 0.975 * drawn[name].size
        intervals[name] = percentiles(finite) if there and enough else None
    return parameters, intervals


def _notes(
    law: _Law, parameters: dict[str, float | None], points: tuple[ScalePoint, ...]
) -> tuple[FitRemark, ...]:
    notes = []
    if all(len(point.throughputs) == 1 for point in points):
        notes.append(FitNote.ONE_REPEAT)
    if parameters.get("f") == 0.0:
        notes.append(FitNote.NO_SERIAL_PART)
    if law.name == "usl" and parameters["N_peak"] is None:
        notes.append(FitNote.NO_PEAK)
    return tuple(map(FitRemark, notes))


def _ratio(part: Floats, total: Floats) -> Floats:
    return np.divide(part, total, out=np.full_like(part, np.nan), where=total > 0)


def _amdahl() -> _Law:
    def parameters(coefficients: Floats) -> dict[str, Floats]:
        serial, parallel = coefficients[:, 0], coefficients[:, 1]
        one_rank = _ratio(np.ones_like(serial), serial + parallel)
        return {"f": _ratio(serial, serial + parallel), "throughput_1": one_rank}

    return _Law(
        name="amdahl",
        num_points=3,
        to_target=lambda _num, value: 1 / value,
        parameters=parameters,
        formula=lambda values: (
            f"X = {values['throughput_1']:.4g} / ({values['f']:.4g} + {1 - (values['f'] or 0):.4g}/N)"
        ),
    )


def _gustafson() -> _Law:
    def parameters(coefficients: Floats) -> dict[str, Floats]:
        grows, fixed = coefficients[:, 0], coefficients[:, 1]
        return {"f": _ratio(fixed, grows + fixed), "throughput_1": grows + fixed}

    return _Law(
        name="gustafson",
        num_points=3,
        to_target=lambda _num, value: value,
        parameters=parameters,
        formula=lambda values: f"X = {values['throughput_1']:.4g} (N - {values['f']:.4g} (N-1))",
    )


def _usl() -> _Law:
    def parameters(coefficients: Floats) -> dict[str, Floats]:
        constant, linear, square = coefficients.T
        alpha, beta = _ratio(linear, constant), _ratio(square, constant)
        inside = (beta > 1e-12) & (alpha < 1)
        peak = np.sqrt(np.divide(1 - alpha, beta, out=np.full_like(alpha, np.nan), where=inside))
        return {
            "gamma": _ratio(np.ones_like(constant), constant),
            "alpha": alpha,
            "beta": beta,
            "N_peak": peak,
        }

    return _Law(
        name="usl",
        num_points=4,
        to_target=lambda num, value: num / value,
        parameters=parameters,
        formula=lambda values: (
            f"X = {values['gamma']:.4g} N / (1 + {values['alpha']:.4g} (N-1) + {values['beta']:.4g} N (N-1))"
        ),
    )
