"""Which runs may be compared with the target and with each other, and what predictions are compared with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analysis.predict.records import BETWEEN_HOSTS, MeasuredRun, Plan
from perfscope.analysis.predict.results import BestRun
from perfscope.messages.predict import different_cores

_SERIAL = "serial"  # what every scheme is on one rank
_SAME_SHARE = 1.05
_SAME_BATCH = 1.01
_BESIDE_THREADS = 1  # more cores than threads help by one: the backend's own thread


class Comparable(Struct, frozen=True, kw_only=True):
    """Runs whose compute may be put together.

    Attributes:
        runs: at least one.
        cores_per_rank: that their ranks have; None: not recorded.
        warning: why the others are left out; None where none is.
    """

    runs: tuple[MeasuredRun, ...]
    cores_per_rank: float | None
    warning: str | None = None


def usable_cores(run: MeasuredRun) -> float | None:
    """Cores that a rank of the run can make use of; None: not recorded."""
    if run.cores_per_rank is None or run.threads is None:
        return run.cores_per_rank
    return min(run.cores_per_rank, float(run.threads + _BESIDE_THREADS))


def comparable_runs(runs: Sequence[MeasuredRun], asked: float | None) -> Comparable:
    """Those whose ranks have the target's share of cores; of none the nearest.

    Args:
        runs: at least one.
        asked: cores per rank of the target; None: those of the largest run.
    """
    shares = [usable_cores(run) for run in runs]
    shares_seen = sorted({round(share, 3) for share in shares if share is not None})
    if not shares_seen or shares_seen[-1] <= _SAME_SHARE * shares_seen[0]:
        return Comparable(runs=tuple(runs), cores_per_rank=shares_seen[-1] if shares_seen else None)
    largest = max(
        (run for run, share in zip(runs, shares, strict=True) if share is not None),
        key=lambda run: run.plan.num_ranks,
    )
    wanted = asked if asked is not None else (usable_cores(largest) or shares_seen[0])
    nearest = min(shares_seen, key=lambda share: abs(np.log(share / wanted)))
    chosen = tuple(
        run
        for run, share in zip(runs, shares, strict=True)
        if share is not None and nearest / _SAME_SHARE <= share <= nearest * _SAME_SHARE
    )
    return Comparable(
        runs=chosen,
        cores_per_rank=nearest,
        warning=different_cores(list(shares_seen), nearest, [run.name for run in chosen]),
    )


def same_batch(first: float | None, other: float | None) -> bool:
    """To 1 %: a script's batch follows from measured samples/s."""
    if first is None or other is None:
        return first is other
    return max(first, other) <= _SAME_BATCH * min(first, other)


def measured_step(plan: Plan, runs: Sequence[MeasuredRun], given_network: bool) -> float | None:
    """Median step, ns, of the runs that were what is planned; None where none was.

    Args:
        plan: to look for.
        runs: comparable ones.
        given_network: links between hosts are not those of the runs.
    """
    classes = _classes(plan)
    if given_network and BETWEEN_HOSTS in classes:
        return None
    steps = [
        run.step_ns
        for run in runs
        if (run.plan.scheme, run.plan.num_ranks) == (plan.scheme, plan.num_ranks)
        and same_batch(run.plan.batch, plan.batch)
        and (not any(run.plan.ranks) or _classes(run.plan) == classes)
    ]
    return float(np.median(steps)) if steps else None


def _classes(plan: Plan) -> set[str]:
    return {call.link_class for calls in plan.ranks for call in calls}


def smallest_runs(
    plan: Plan, runs: Sequence[MeasuredRun], mode: str
) -> tuple[MeasuredRun, float, tuple[MeasuredRun, ...]] | None:
    """A scheme's run with the fewest ranks, the batch wanted of it, and all equally small ones that have it.

    Args:
        plan: of the scheme.
        runs: comparable ones.
        mode: strong: the plan's batch is wanted; weak: its batch per rank.

    Returns:
        Those of `serial` for a scheme that did not run. None where neither ran, or a batch is not known.
    """
    measured_runs = [run for run in runs if run.plan.batch]
    of_scheme = [run for run in measured_runs if run.plan.scheme == plan.scheme]
    of_scheme = of_scheme or [run for run in measured_runs if run.plan.scheme == _SERIAL]
    if not of_scheme or not plan.batch:
        return None
    fewest = min(run.plan.num_ranks for run in of_scheme)
    wanted = plan.batch if mode == "strong" else plan.batch / plan.num_ranks * fewest
    few = [run for run in of_scheme if run.plan.num_ranks == fewest]
    return few[0], wanted, tuple(run for run in few if same_batch(run.plan.batch, wanted))


def best_run(runs: Sequence[MeasuredRun]) -> BestRun | None:
    """Most samples/s of all that was measured (median of repeats); None where no batch is known."""
    cells: Mapping[tuple[str, int, float], list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        if run.plan.batch:
            cells[run.cell].append(run)
    best_runs = [
        BestRun(
            scheme=scheme,
            num_ranks=num,
            batch=same[0].plan.batch or 0.0,
            samples_per_s=(same[0].plan.batch or 0.0) * 1e9 / float(np.median([run.step_ns for run in same])),
        )
        for (scheme, num, _), same in cells.items()
    ]
    return max(best_runs, key=lambda best_run: best_run.samples_per_s, default=None)
