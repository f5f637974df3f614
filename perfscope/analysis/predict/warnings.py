"""What a prediction assumes, what the runs do not support, and which scheme is best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from perfscope.analysis.predict.compute import ComputeModel
from perfscope.analysis.predict.links import FittedLink
from perfscope.analysis.predict.records import INSIDE_HOST, MeasuredRun, Plan, Refusal
from perfscope.analysis.predict.results import Prediction
from perfscope.analysis.predict.step_model import Traits
from perfscope.messages import predict as texts

_POOR_FIT = 0.3
_ODD_RATIO = 2.0
_LONGER = 1.15
_LEVEL = 0.005


def plan_warnings(
    plan: Plan,
    runs: Sequence[MeasuredRun],
    traits: Traits,
    compute: ComputeModel,
    largest: int,
    known_links: frozenset[str],
) -> tuple[str, ...]:
    """What the user should know of one prediction."""
    warnings = list(plan.notes)
    if plan.num_ranks > largest:
        warnings.append(texts.beyond(plan.num_ranks, largest))
    same_scheme = [run for run in runs if run.plan.scheme == plan.scheme]
    if not same_scheme:
        warnings.append(texts.did_not_run(plan.scheme))
    if not compute.is_affine(plan.scheme):
        warnings.append(texts.ONE_BATCH)
    if plan.whole is not None and all(run.plan.whole is not None for run in runs):
        warnings.append(texts.LAYERS_DIVIDED)
    if INSIDE_HOST not in known_links and any(call.inside_too for calls in plan.ranks for call in calls):
        warnings.append(texts.LINKS_INSIDE_UNKNOWN)
    warnings += _of_compute(same_scheme, compute.curve(plan.scheme).assumed)
    works = [run.plan.work for run in (same_scheme or runs)]
    least, most = min(works), max(works)
    if compute.is_affine(plan.scheme) and not 0.5 * least <= plan.work <= 2 * most:
        warnings.append(texts.far_batch(plan.work, least, most))
    if any(plan.ranks) and not traits.observed:
        warnings.append(texts.overlap_unknown(plan.scheme, traits.overlap_from or ""))
    if traits.observed and not 1 / _ODD_RATIO <= traits.ratio <= _ODD_RATIO:
        warnings.append(texts.odd_ratio(traits.ratio))
    return tuple(warnings)


def _of_compute(runs: Sequence[MeasuredRun], is_assumed: bool) -> list[str]:
    warnings = [texts.BEGUN_BEFORE] if any(run.begun_before for run in runs) else []
    if is_assumed:
        warnings.append(texts.TIME_ASSUMED)
    return warnings + _upside_down(runs)


def _upside_down(runs: Sequence[MeasuredRun]) -> list[str]:
    """A line if less work on as many ranks took clearly longer: no model of compute holds that."""
    steps: dict[tuple[int, float], list[float]] = defaultdict(list)
    for run in runs:
        steps[run.plan.num_ranks, run.plan.work].append(run.step_ns)
    typical = {cell: float(np.median(step_times)) for cell, step_times in steps.items()}
    for (ranks, less), longer in sorted(typical.items()):
        for (held, more), shorter in typical.items():
            if ranks == held and less < more and longer > _LONGER * shorter:
                return [texts.upside_down(less, more, longer, shorter)]
    return []


def general_warnings(
    runs: Sequence[MeasuredRun],
    links: Mapping[str, FittedLink],
    slowdown: float,
    cores_per_rank: float | None,
) -> tuple[str, ...]:
    """What holds for all predictions."""
    warnings = _problems(runs)
    for name, link in sorted(links.items()):
        residual = link.used.residual_ratio or 0
        if not link.used.separable:
            warnings.append(texts.not_separable(name))
        if residual > _POOR_FIT:
            warnings.append(texts.poor_fit(name, residual))
    if any(run.cores_per_rank is None for run in runs):
        warnings.append(texts.CORES_UNKNOWN)
    if slowdown != 1:
        warnings.append(texts.slowdown(cores_per_rank, slowdown))
    cells: dict[tuple[str, int, float], int] = defaultdict(int)
    for run in runs:
        cells[run.cell] += 1
    if max(cells.values()) < 2:
        warnings.append(texts.NO_REPEATS)
    return tuple(warnings)


def _problems(runs: Sequence[MeasuredRun]) -> list[str]:
    """A line per problem with the runs that have it."""
    having: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        for problem in run.problems:
            having[problem].append(run.name)
    return [texts.of_runs(problem, names, len(runs)) for problem, names in having.items()]


def best_sentences(
    predictions: Sequence[Prediction], refusals: Sequence[Refusal]
) -> tuple[tuple[int, str], ...]:
    """(N, which scheme has most samples/s, by how much, and whether the intervals decide).

    Nothing is stated where one scheme was all that was asked for.
    """
    refused: dict[int, int] = defaultdict(int)
    for refusal in refusals:
        refused[refusal.num_ranks] += 1
    by_size: dict[int, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        by_size[prediction.num_ranks].append(prediction)
    return tuple(
        (num, _best(num, by_size[num])) for num in sorted(by_size) if len(by_size[num]) > 1 or refused[num]
    )


def _best(num: int, predictions: Sequence[Prediction]) -> str:
    first, *slower = sorted(predictions, key=lambda prediction: prediction.step_ns / (prediction.batch or 1))
    if not slower:
        return texts.only_scheme(num, first.scheme)
    second = slower[0]
    ahead = second.step_ns / (second.batch or 1) / (first.step_ns / (first.batch or 1)) - 1
    undecided = [
        other.scheme
        for other in slower
        if other.step_interval_ns.low / (other.batch or 1) < first.step_interval_ns.high / (first.batch or 1)
    ]
    return texts.best_scheme(num, first.scheme, second.scheme, ahead if ahead >= _LEVEL else None, undecided)
