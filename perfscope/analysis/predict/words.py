"""What is said with a prediction: what it assumes, what the data do not carry, which scheme is best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from perfscope.analysis.predict.compute import ComputeModel
from perfscope.analysis.predict.links import FittedLink
from perfscope.analysis.predict.records import INSIDE_HOST, MeasuredRun, Plan, Refusal
from perfscope.analysis.predict.results import Prediction
from perfscope.analysis.predict.step_model import Traits
from perfscope.messages.links import WHERE
from perfscope.messages.lists import counted, joined

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
    said = list(plan.notes)
    if plan.num_ranks > largest:
        said.append(f"{plan.num_ranks} ranks are beyond the {largest} measured")
    own = [run for run in runs if run.plan.scheme == plan.scheme]
    if not own:
        said.append(f"{plan.scheme} did not run: its compute is taken from the other schemes' runs")
    if not compute.is_affine(plan.scheme):
        said.append(
            "only one local batch was measured: layers are taken as proportional to the samples; "
            "record another batch per rank"
        )
    if plan.whole is not None and all(run.plan.whole is not None for run in runs):
        said.append(
            "layers are divided in all runs: what ranks do with gathered activations is taken as divided, "
            "too, so the step may be longer; record dp.ddp as well"
        )
    if INSIDE_HOST not in known_links and any(call.inside_too for calls in plan.ranks for call in calls):
        said.append(
            "its calls use links inside hosts, too, which no run's calls tell of: those are taken as no "
            "slower than the ones between hosts"
        )
    said += _of_compute(own, plan.scheme, compute)
    works = [run.plan.work for run in (own or runs)]
    if compute.is_affine(plan.scheme) and not 0.5 * min(works) <= plan.work <= 2 * max(works):
        said.append(
            f"{plan.work:g} samples per rank are far from the {min(works):g} to {max(works):g} measured"
        )
    if any(plan.ranks) and not traits.observed:
        taken = f"that of {traits.overlap_from}.*" if traits.overlap_from else "none"
        said.append(
            f"no run shows how {plan.scheme} overlaps on several ranks: its overlap is taken as {taken}"
        )
    if traits.observed and not 1 / _ODD_RATIO <= traits.ratio <= _ODD_RATIO:
        said.append(
            f"its recorded communication takes {traits.ratio:.1f} x what the formulas say; carried over"
        )
    return tuple(said)


def _of_compute(own: Sequence[MeasuredRun], scheme: str, compute: ComputeModel) -> list[str]:
    said = []
    if any(run.begun_before for run in own):
        said.append(
            "its traced steps idle, waiting for exchanges begun before them: a part of its compute is "
            "communication"
        )
    if compute.curve(scheme).assumed:
        said.append(
            "in the runs more samples took no longer: the time per sample is assumed as half of the layers'"
        )
    return said + _upside_down(own)


def _upside_down(runs: Sequence[MeasuredRun]) -> list[str]:
    """A line if less work on as many ranks took clearly longer: no model of compute holds that."""
    steps: dict[tuple[int, float], list[float]] = defaultdict(list)
    for run in runs:
        steps[run.plan.num_ranks, run.plan.work].append(run.step_ns)
    typical = {cell: float(np.median(found)) for cell, found in steps.items()}
    for (ranks, less), longer in sorted(typical.items()):
        for (others, more), shorter in typical.items():
            if ranks == others and less < more and longer > _LONGER * shorter:
                return [
                    f"{less:g} samples per rank took longer than {more:g} ({longer / 1e6:.1f} and "
                    f"{shorter / 1e6:.1f} ms): some of its runs were disturbed; record them again"
                ]
    return []


def general_warnings(
    runs: Sequence[MeasuredRun],
    links: Mapping[str, FittedLink],
    slowdown: float,
    cores_per_rank: float | None,
) -> tuple[str, ...]:
    """What holds for all predictions."""
    said = _problems(runs)
    for name, link in sorted(links.items()):
        where = WHERE.get(name, name)
        if not link.used.separable:
            said.append(
                f"the calls {where} have one size and one group size: "
                "latency and bandwidth cannot be told apart"
            )
        if (link.used.residual_ratio or 0) > _POOR_FIT:
            said.append(
                f"the calls {where} scatter by {link.used.residual_ratio:.0%} around their fit (median)"
            )
    if any(run.cores_per_rank is None for run in runs):
        said.append("some runs do not tell how many cores a rank had: the target's share is taken as theirs")
    if slowdown != 1:
        said.append(
            f"with {cores_per_rank:g} cores per rank compute is taken as {slowdown:.2f} x that of the runs; "
            f"memory bandwidth that ranks share is not modelled"
        )
    cells: dict[tuple[str, int, float], int] = defaultdict(int)
    for run in runs:
        cells[run.cell] += 1
    if max(cells.values()) < 2:
        said.append(
            "every run stands alone: the intervals hold no run-to-run spread; record repeats to widen them"
        )
    return tuple(said)


def _problems(runs: Sequence[MeasuredRun]) -> list[str]:
    """A line per problem with the runs that have it."""
    having: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        for problem in run.problems:
            having[problem].append(run.name)
    return [
        (f"all {len(runs)} runs" if len(names) == len(runs) > 1 else _listed(names)) + f": {problem}"
        for problem, names in having.items()
    ]


def best_sentences(
    predictions: Sequence[Prediction], refusals: Sequence[Refusal]
) -> tuple[tuple[int, str], ...]:
    """(N, which scheme has most samples/s, by how much, and whether the intervals decide).

    Nothing is said where one scheme was all that was asked for.
    """
    refused: dict[int, int] = defaultdict(int)
    for refusal in refusals:
        refused[refusal.num_ranks] += 1
    by_size: dict[int, list[Prediction]] = defaultdict(list)
    for one in predictions:
        by_size[one.num_ranks].append(one)
    return tuple(
        (num, _best(num, by_size[num])) for num in sorted(by_size) if len(by_size[num]) > 1 or refused[num]
    )


def _best(num: int, found: Sequence[Prediction]) -> str:
    first, *others = sorted(found, key=lambda one: one.step_ns / (one.batch or 1))
    ranks = counted(num, "rank")
    if not others:
        return f"At {ranks} only {first.scheme} of the schemes asked for could be predicted."
    second = others[0]
    ahead = second.step_ns / (second.batch or 1) / (first.step_ns / (first.batch or 1)) - 1
    open_ones = [
        one.scheme
        for one in others
        if one.step_interval_ns.low / (one.batch or 1) < first.step_interval_ns.high / (first.batch or 1)
    ]
    lead = f"{100 * ahead:.0f} % ahead of" if ahead >= _LEVEL else "level with"
    text = f"At {ranks} {first.scheme} is predicted best, {lead} {second.scheme}"
    if open_ones:
        return f"{text}; its interval overlaps with {_listed(open_ones)}, so this is not decided."
    return f"{text}; no interval overlaps with its own."


def _listed(words: Sequence[str]) -> str:
    return joined(words)
