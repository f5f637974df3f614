"""What a rank does itself in a step, against the samples it has: fixed + per sample.

    host part H of a run  = its untraced step - its exposed transfers
    mean part M           = H - waiting for the last rank to enter
    M(work)               = fixed + slope * work, both >= 0, on logarithms, over a scheme's runs

Ranks that divide layers among them compute `work` samples each, but gather and copy the activations of all
samples of their group: M = fixed + slope * work + whole_ns * whole, with fixed and slope from schemes that do
not divide layers, where such ran.

A scheme that ran with one amount of work only takes the shape of all runs together; if those have only one,
too, the part that no layer has (optimizer, gaps) stays and the layers are proportional to the samples.

The waiting is that of N ranks of which the last one counts: with independent, normally distributed times
M * spread * e_N, e_N the mean largest of N standard normal values. The spread is the median over the runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfscope.analysis.predict.fitting import Floats, expected_maximum, non_negative
from perfscope.analysis.predict.records import MeasuredRun

_LEAST = 0.05  # of a step that is compute, whatever the traces say of communication
_ROUNDS = 12  # of weights
_ALL = ""  # the runs of all schemes together


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkCurve:
    """M = fixed_ns + slope_ns * work + whole_ns * whole."""

    fixed_ns: float
    slope_ns: float
    whole_ns: float = 0.0

    def at(self, work: float, whole: float | None = None) -> float:
        return self.fixed_ns + self.slope_ns * work + self.whole_ns * (whole or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeModel:
    """Curves and spreads of the ranks' times (relative to M) by scheme, and for all runs together."""

    curves: Mapping[str, WorkCurve]
    spreads: Mapping[str, float]
    affine: frozenset[str]  # schemes that have a curve of two or more amounts of work, their own or borrowed

    def curve(self, scheme: str) -> WorkCurve:
        return self.curves.get(scheme) or self.curves[_ALL]

    def spread(self, scheme: str) -> float:
        return self.spreads.get(scheme, self.spreads[_ALL])

    def is_affine(self, scheme: str) -> bool:
        return (scheme if scheme in self.curves else _ALL) in self.affine


def exposed_transfer_ns(run: MeasuredRun) -> float:
    """Communication of a mean step that nothing hides, without waiting."""
    return run.comm_ns * (1 - (run.overlap_ratio or 0.0))


def fit_compute(
    runs: Sequence[MeasuredRun], steps_ns: Floats | None = None, more_fixed: float = 0.0
) -> ComputeModel:
    """Fits all curves.

    Args:
        runs: at least one, of one model.
        steps_ns: shape (runs,), their typical steps in this draw; None: as measured.
        more_fixed: of the layers' share, what is taken as fixed where one amount of work is all there is.
    """
    typical = np.array([run.step_ns for run in runs]) if steps_ns is None else steps_ns
    host = np.array(
        [max(step - exposed_transfer_ns(run), _LEAST * step) for step, run in zip(typical, runs, strict=True)]
    )
    waits = np.array([min(run.wait_ns, 0.5 * own) for run, own in zip(runs, host.tolist(), strict=True)])
    mean = host - waits
    e_of = np.array([expected_maximum(run.plan.num_ranks) for run in runs])
    work = np.array([run.plan.work for run in runs])
    undivided = [row for row, run in enumerate(runs) if run.plan.whole is None]
    plain = _curve(work[undivided], mean[undivided]) if undivided else None
    everything = plain or _curve(work, mean)
    curves: dict[str, WorkCurve] = {}
    affine = set()
    if everything is not None:
        affine.add(_ALL)
    curves[_ALL] = everything or _proportional(work, mean, runs, more_fixed)
    of_scheme: dict[str, list[int]] = defaultdict(list)
    for row, run in enumerate(runs):
        of_scheme[run.plan.scheme].append(row)
    spreads = {_ALL: _spread(waits, e_of * mean) or 0.0}
    for scheme, rows in of_scheme.items():
        observed = _spread(waits[rows], e_of[rows] * mean[rows])
        if observed is not None:
            spreads[scheme] = observed
        whole = [runs[row].plan.whole for row in rows]
        own = (
            _gathered(plain, work[rows], [one for one in whole if one is not None], mean[rows])
            if plain is not None and None not in whole
            else _curve(work[rows], mean[rows])
        )
        if own is not None or everything is not None:
            affine.add(scheme)
        if own is None:
            own = (
                _scaled(everything, work[rows], mean[rows])
                if everything is not None
                else _proportional(work[rows], mean[rows], [runs[row] for row in rows], more_fixed)
            )
        curves[scheme] = own
    return ComputeModel(curves=curves, spreads=spreads, affine=frozenset(affine))


def _gathered(plain: WorkCurve, work: Floats, whole: Sequence[float], mean: Floats) -> WorkCurve:
    """What a scheme that divides layers takes beyond undivided ones of equal work, per sample held whole.

    Runs of one group size cannot tell the two apart by themselves.
    """
    more = mean - (plain.fixed_ns + plain.slope_ns * work)
    return replace(plain, whole_ns=max(float(np.median(more / np.array(whole))), 0.0))


def _spread(waits: Floats, units: Floats) -> float | None:
    """Median of waiting per e_N * M; None where nobody ran with others."""
    several = units > 0
    return float(np.median(waits[several] / units[several])) if several.any() else None


def _curve(work: Floats, mean: Floats) -> WorkCurve | None:
    """Least squares on logarithms, by weights; None where all runs have the same work.

    Residuals relative to what was measured would make twice too short as bad as half too long is good: fits
    to runs that scatter would lie too low.
    """
    if work.max() < 1.05 * work.min():
        return None
    design = np.stack((np.ones_like(work), work), axis=1)
    expected = mean
    for _ in range(_ROUNDS):
        near = np.maximum(expected, 1e-3 * mean)
        # (near - mean) / logarithmic mean = log(near / mean): the sum's zero is that of the logarithms' slope
        weights = 1 / np.sqrt(near * _logarithmic_mean(near, mean))
        found = non_negative(design * weights[:, None], mean * weights)
        before, expected = expected, design @ found
        if np.abs(expected - before).max() <= 1e-4 * expected.max():
            break
    fixed, slope = found.tolist()
    return WorkCurve(fixed_ns=fixed, slope_ns=slope)


def _logarithmic_mean(one: Floats, other: Floats) -> Floats:
    logs = np.log(one / other)
    equal = np.abs(logs) < 1e-6
    result: Floats = np.where(equal, one, (one - other) / np.where(equal, 1.0, logs))
    return result


def _proportional(work: Floats, mean: Floats, runs: Sequence[MeasuredRun], more_fixed: float) -> WorkCurve:
    level, samples = float(np.median(mean)), float(np.median(work))
    fixed = float(np.median([run.fixed_share for run in runs]))
    fixed += more_fixed * (1 - fixed)
    return WorkCurve(fixed_ns=level * fixed, slope_ns=level * (1 - fixed) / samples)


def _scaled(shape: WorkCurve, work: Floats, mean: Floats) -> WorkCurve:
    factor = float(np.median(mean / (shape.fixed_ns + shape.slope_ns * work)))
    return WorkCurve(fixed_ns=shape.fixed_ns * factor, slope_ns=shape.slope_ns * factor)


def layers_at(runs: Sequence[MeasuredRun], work: float, layers_ns: float) -> tuple[tuple[str, float], ...]:
    """Each layer's forward + backward at this amount of work, so scaled that they add up to `layers_ns`.

    Each layer is fixed + per sample by itself where the runs have several amounts of work.

    Args:
        runs: whose layers count.
        work: samples of the rank.
        layers_ns: what is left of a step's compute without optimizer, loading and gaps.
    """
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        for layer in run.layers:
            times[layer.layer].append((run.plan.work, layer.forward_ns + layer.backward_ns))
    found = {name: _layer_at(np.array(points), work) for name, points in times.items()}
    total = sum(found.values())
    return tuple((name, value * layers_ns / total) for name, value in found.items()) if total else ()


def _layer_at(points: Floats, work: float) -> float:
    samples, times = points[:, 0], np.maximum(points[:, 1], 1.0)
    curve = _curve(samples, times)
    if curve is not None:
        return curve.at(work)
    return float(np.median(times) * work / np.median(samples))
