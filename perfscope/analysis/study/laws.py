"""Scaling laws fitted to a series (analysis/scaling), as the study shows them: in speedups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfscope.analysis.scaling.fit import EXTRAPOLATION_LIMIT, Fit
from perfscope.analysis.scaling.fits import fit_all
from perfscope.analysis.scaling.points import ScalePoint
from perfscope.analysis.study.results import STRONG, FitCurvePoint, FitParameter, ScalingFit
from perfscope.messages.scaling import (
    FORMULAS,
    PARAMETERS,
    TITLES,
    note_text,
    refusal_text,
    throughput_falls,
)
from perfscope.messages.sentences import capital
from perfscope.vocabulary.scaling import FitRefusal, Fitted, RefusedFit

NUM_CURVE = 25  # points of a curve, beside the measured ones
FALLS = 0.95  # times the throughput of the fewest ranks: beyond noise
GROWTH = ("amdahl", "gustafson")  # laws that know no loss


def fitted_laws(points: Sequence[ScalePoint], mode: str, reference: float) -> tuple[ScalingFit, ...]:
    """Amdahl (strong) or Gustafson (weak), USL and PMNF; those that were refused say why.

    Args:
        points: by number of ranks; the law that the mode does not speak of is left out.
        mode: STRONG or WEAK.
        reference: samples/s that are speedup 1.
    """
    other = "gustafson" if mode == STRONG else "amdahl"
    return tuple(_shown(fit, points, reference) for fit in fit_all(points) if fit.name != other)


def _shown(fit: Fit, points: Sequence[ScalePoint], reference: float) -> ScalingFit:
    title, formula = TITLES.get(fit.name, fit.name), FORMULAS.get(fit.name, "")
    if fit.refused is not None:
        return ScalingFit(
            law=fit.name, title=title, formula=formula, refused=_refusal(fit, fit.refused, points)
        )
    parameters = []
    for name, value in fit.parameters.items():
        interval = fit.intervals.get(name)
        if value is not None:
            parameters.append(
                FitParameter(
                    name=name,
                    meaning=PARAMETERS.get((fit.name, name), ""),
                    value=value,
                    low=interval.low if interval else None,
                    high=interval.high if interval else None,
                )
            )
    return ScalingFit(
        law=fit.name,
        title=title,
        formula=fit.formula or formula,
        parameters=tuple(parameters),
        curve=_curve(fit, points, reference),
        error_ratio=fit.smape,
        sentence=". ".join(capital(note_text(note, fit.name)) for note in fit.notes),
    )


def _refusal(fit: Fit, refused: RefusedFit, points: Sequence[ScalePoint]) -> str:
    """Why the law is not shown."""
    first, last = (pick(points, key=lambda point: point.num_ranks) for pick in (min, max))
    is_constant = refused.kind is FitRefusal.CONSTANT_AS_GOOD
    if is_constant and fit.name in GROWTH and last.throughput < FALLS * first.throughput:
        ends = ((point.num_ranks, point.throughput) for point in (first, last))
        return throughput_falls(*ends)
    return refusal_text(refused, fit.name)


def _curve(fit: Fit, points: Sequence[ScalePoint], reference: float) -> tuple[FitCurvePoint, ...]:
    """From the fewest measured ranks to as far as the fit may be stretched."""
    first, last = min(fit.measured_ranks), max(fit.measured_ranks)
    grid = np.geomspace(first, EXTRAPOLATION_LIMIT * last, NUM_CURVE).tolist()
    curve = []
    for size in sorted({*map(float, fit.measured_ranks), *grid[:-1], float(EXTRAPOLATION_LIMIT * last)}):
        value, low, high = fit.predict(size)
        if value is None or low is None or high is None:
            continue
        if fit.what is not Fitted.THROUGHPUT:  # a time: the longer, the slower
            work = _samples(points, size) if fit.what is Fitted.STEP_TIME else 1.0
            value, low, high = (
                work / divisor if divisor > 0 else float("nan") for divisor in (value, high, low)
            )
        if not np.isfinite((value, low, high)).all():
            continue
        curve.append(
            FitCurvePoint(
                world_size=size,
                speedup=value / reference,
                low=low / reference,
                high=high / reference,
                extrapolated=size > last,
            )
        )
    return tuple(curve)


def _samples(points: Sequence[ScalePoint], size: float) -> float:
    """Samples of a step at `size` ranks: those of all (strong), or of each rank, times ranks (weak)."""
    each = [(point.samples_per_rank or 0.0, point.num_ranks) for point in points]
    is_weak = max(samples for samples, _ in each) <= 1.01 * min(samples for samples, _ in each)
    return each[0][0] * (size if is_weak else each[0][1])
