"""What a rank does itself in a step, against the samples it has: fixed + per sample.

    host part H of a run  = its untraced step - its exposed transfers
    mean part M           = H - waiting for the last rank to enter
    M(work)               = fixed + slope * work, both >= 0, on logarithms, over a scheme's runs

Ranks that divide layers among them compute `work` samples each, but gather and copy the activations of all
samples of their group: M = fixed + slope * work + whole_ns * whole, with fixed and slope from schemes that do
not divide layers, where such ran.

A scheme that ran with one amount of work only takes the shape of those that ran with several; if none did,
the part that no layer has (optimizer, gaps) stays and the layers are proportional to the samples. Schemes
with one amount each tell no shape together: what differs among them is the schemes.

More samples never take no time: where runs say so (the one with fewer was disturbed, or overhead hides it),
half of the layers' share is taken as growing with the samples, and draws take from little to all of it.

The waiting is that of N ranks of which the last one counts: with independent, normally distributed times
M * spread * e_N, e_N the mean largest of N standard normal values. The spread is the median over the runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis.predict.fitting import Floats, expected_maximum, non_negative
from perfscope.analysis.predict.records import MeasuredRun

_LEAST = 0.05  # of a step that is compute, whatever the traces say of communication
_ROUNDS = 12  # of weights
_ALL = ""  # the runs of all schemes together
_FLAT = 0.05  # of M at the most work, below which a slope is none
_LEAST_GROWING = 0.1  # of M, in draws
_DIFFERENT = 1.05  # amounts of work


class WorkCurve(Struct, frozen=True, kw_only=True):
    """M = fixed_ns + slope_ns * work + whole_ns * whole."""

    fixed_ns: float
    slope_ns: float
    whole_ns: float = 0.0
    assumed: bool = False  # the slope: the runs say that more samples take no longer

    def at(self, work: float, full: float | None = None) -> float:
        return self.fixed_ns + self.slope_ns * work + self.whole_ns * (full or 0.0)


class ComputeModel(Struct, frozen=True, kw_only=True):
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
    runs: Sequence[MeasuredRun], steps_ns: Floats | None = None, more_fixed: float = 0.0, growing: float = 0.5
) -> ComputeModel:
    """Fits all curves.

    Args:
        runs: at least one, of one model.
        steps_ns: shape (runs,), their typical steps in this draw; None: as measured.
        more_fixed: of the layers' share, what is taken as fixed where one amount of work is all there is.
        growing: of the layers' share, what is taken as growing with the samples where none seems to.
    """
    typical = np.array([run.step_ns for run in runs]) if steps_ns is None else steps_ns
    host = np.array(
        [max(step - exposed_transfer_ns(run), _LEAST * step) for step, run in zip(typical, runs, strict=True)]
    )
    waits = np.array(
        [min(run.wait_ns, 0.5 * host_ns) for run, host_ns in zip(runs, host.tolist(), strict=True)]
    )
    mean = host - waits
    e_of = np.array([expected_maximum(run.plan.num_ranks) for run in runs])
    work = np.array([run.plan.work for run in runs])
    layers = np.array([1 - run.fixed_share for run in runs])
    several = _of_several_amounts(runs)

    def fitted(rows: Sequence[int]) -> WorkCurve | None:
        if not rows:
            return None
        share = max(growing * float(np.median(layers[rows])), _LEAST_GROWING)
        return _curve(work[rows], mean[rows], share)

    plain = fitted([row for row in several if runs[row].plan.whole is None])
    everything = plain or fitted(several)
    curves: dict[str, WorkCurve] = {}
    affine = set()
    if everything is not None:
        affine.add(_ALL)
    usual = [row for row, run in enumerate(runs) if not run.begun_before] or list(range(len(runs)))
    curves[_ALL] = everything or _proportional(
        work[usual], mean[usual], [runs[row] for row in usual], more_fixed
    )
    of_scheme: dict[str, list[int]] = defaultdict(list)
    for row, run in enumerate(runs):
        of_scheme[run.plan.scheme].append(row)
    for scheme, rows in of_scheme.items():
        full = [held for row in rows if (held := runs[row].plan.whole) is not None]
        gathered = None
        if plain is not None and len(full) == len(rows):
            gathered = _gathered(plain, work[rows], full, mean[rows])
        gathered = gathered or fitted(rows)
        if gathered is not None or everything is not None:
            affine.add(scheme)
        if gathered is None:
            gathered = (
                _scaled(everything, work[rows], mean[rows])
                if everything is not None
                else _proportional(work[rows], mean[rows], [runs[row] for row in rows], more_fixed)
            )
        curves[scheme] = gathered
    spreads = _spreads(of_scheme, waits, e_of * mean)
    return ComputeModel(curves=curves, spreads=spreads, affine=frozenset(affine))


def _spreads(of_scheme: Mapping[str, Sequence[int]], waits: Floats, units: Floats) -> dict[str, float]:
    """By scheme where its runs tell, and of all."""
    spreads = {_ALL: _spread(waits, units) or 0.0}
    for scheme, rows in of_scheme.items():
        observed = _spread(waits[list(rows)], units[list(rows)])
        if observed is not None:
            spreads[scheme] = observed
    return spreads


def _of_several_amounts(runs: Sequence[MeasuredRun]) -> list[int]:
    """Rows of the schemes that ran with several amounts of work, those aside whose computing is not known."""
    amounts: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        amounts[run.plan.scheme].append(run.plan.work)
    telling = {scheme for scheme, works in amounts.items() if max(works) >= _DIFFERENT * min(works)}
    return [row for row, run in enumerate(runs) if run.plan.scheme in telling and not run.begun_before]


def _gathered(plain: WorkCurve, work: Floats, full: Sequence[float], mean: Floats) -> WorkCurve | None:
    """What a scheme that divides layers takes beyond undivided ones of equal work, per sample held whole.

    Runs of one group size cannot tell the two apart by themselves. None where they take less than undivided
    ones do.
    """
    more = mean - (plain.fixed_ns + plain.slope_ns * work)
    each = float(np.median(more / np.array(full)))
    return replace(plain, whole_ns=each) if each >= 0 else None


def _spread(waits: Floats, units: Floats) -> float | None:
    """Median of waiting per e_N * M; None where no rank ran beside others."""
    several = units > 0
    return float(np.median(waits[several] / units[several])) if several.any() else None


def _curve(work: Floats, mean: Floats, growing: float = 0.5) -> WorkCurve | None:
    """Least squares on logarithms, by weights; None where all runs have the same work.

    Residuals relative to what was measured would make twice too short as bad as half too long is good: fits
    to runs that scatter would lie too low. Where nothing grows with the samples, the share `growing` does.
    """
    if work.max() < _DIFFERENT * work.min():
        return None
    design = np.stack((np.ones_like(work), work), axis=1)
    expected = mean
    for _ in range(_ROUNDS):
        near = np.maximum(expected, 1e-3 * mean)
        # (near - mean) / logarithmic mean = log(near / mean): the sum's zero is that of the logarithms' slope
        weights = 1 / np.sqrt(near * _logarithmic_mean(near, mean))
        solution = non_negative(design * weights[:, None], mean * weights)
        before, expected = expected, design @ solution
        if np.abs(expected - before).max() <= 1e-4 * expected.max():
            break
    fixed, slope = solution.tolist()
    if slope * work.max() >= _FLAT * (fixed + slope * work.max()):
        return WorkCurve(fixed_ns=fixed, slope_ns=slope)
    middle = float(np.exp(np.mean(np.log(work))))
    shape = WorkCurve(fixed_ns=1 - growing, slope_ns=growing / middle, assumed=True)
    level = float(np.exp(np.mean(np.log(mean / (shape.fixed_ns + shape.slope_ns * work)))))
    return replace(shape, fixed_ns=shape.fixed_ns * level, slope_ns=shape.slope_ns * level)


def _logarithmic_mean(first: Floats, other: Floats) -> Floats:
    logs = np.log(first / other)
    equal = np.abs(logs) < 1e-6
    result: Floats = np.where(equal, first, (first - other) / np.where(equal, 1.0, logs))
    return result


def _proportional(work: Floats, mean: Floats, runs: Sequence[MeasuredRun], more_fixed: float) -> WorkCurve:
    level, samples = float(np.median(mean)), float(np.median(work))
    fixed = float(np.median([run.fixed_share for run in runs]))
    fixed += more_fixed * (1 - fixed)
    return WorkCurve(fixed_ns=level * fixed, slope_ns=level * (1 - fixed) / samples)


def _scaled(shape: WorkCurve, work: Floats, mean: Floats) -> WorkCurve:
    factor = float(np.median(mean / (shape.fixed_ns + shape.slope_ns * work)))
    return replace(shape, fixed_ns=shape.fixed_ns * factor, slope_ns=shape.slope_ns * factor)


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
    layers = {name: _layer_at(np.array(points), work) for name, points in times.items()}
    total = sum(layers.values())
    return tuple((name, value * layers_ns / total) for name, value in layers.items()) if total else ()


def _layer_at(points: Floats, work: float) -> float:
    samples, times = points[:, 0], np.maximum(points[:, 1], 1.0)
    curve = _curve(samples, times)
    if curve is not None:
        return curve.at(work)
    return float(np.median(times) * work / np.median(samples))
