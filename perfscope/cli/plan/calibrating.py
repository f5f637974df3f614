"""The calibrations that a plan needs, or why there is none; and what they say of links inside a host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from perfscope.cli.plan.joining import Speeds
from perfscope.cli.plan.machine import Machine
from perfscope.messages.plan import NO_ROOM, calibrated, links_from, not_calibrated, too_many_copies
from perfscope.runners.memory.footprint import footprint
from perfscope.runners.plans.calibration import Calibration, calibrate, chosen_batches, threads_of_rank
from perfscope.runners.plans.space import Space, Way
from perfscope.runners.plans.work import pass_times, undivided

_LONGEST_S = 1.0  # of a step by its rates: real ones take a few times as long, and some are needed
_MOST_COPIES = 16
# Of repetitions of an all-reduce: disturbances only make them slower.
_UNDISTURBED, _AS_IT_IS = (0.1, 0.2, 0.3, 0.4, 0.5), (0.1, 0.3, 0.5, 0.7, 0.9)
_MEMORY_SHARE = 0.5  # of what this host has left


class Calibrated(NamedTuple):
    """What a plan uses, and says of it."""

    speeds: Speeds | None
    machine: Machine
    sentence: str


def calibrated_machine(
    ways: Sequence[Way], space: Space, machine: Machine, *, for_trials: bool = False
) -> Calibrated:
    """Trains the model here for some seconds.

    Args:
        ways: that will be computed.
        space: of them.
        machine: whose rates are this host's.
        for_trials: all ranks of each way are on this host, as it is now: for trials that follow.
    """
    num_cores = len(os.sched_getaffinity(0))
    per_host = max(space.ranks) if for_trials else space.ranks_per_host
    shared: dict[tuple[str, int], Calibration] = {}
    alone: dict[str, Calibration] = {}
    by_kind: dict[tuple[str, int], list[Way]] = {}
    for way in ways:
        config = way.job.config
        by_kind.setdefault((config.dtype, min(config.num_ranks, per_host)), []).append(way)
    for (dtype, copies), alike in sorted(by_kind.items()):
        batches = _batches(alike, machine, copies)
        if not batches or copies > _MOST_COPIES:
            reason = NO_ROOM if not batches else too_many_copies(_MOST_COPIES)
            return Calibrated(None, machine, not_calibrated(copies, reason))
        threads = threads_of_rank(copies)
        config = replace(space.like, dtype=alike[0].job.config.dtype)
        shared_speed = calibrate(config, batches, copies, threads, as_it_is=for_trials)
        fewer = min(copies, num_cores)
        few = (
            shared_speed
            if fewer == copies
            else calibrate(config, batches, fewer, threads, as_it_is=for_trials)
        )
        if isinstance(shared_speed, str) or isinstance(few, str):
            reason = shared_speed if isinstance(shared_speed, str) else str(few)
            return Calibrated(None, machine, not_calibrated(copies, reason))
        shared[dtype, copies] = shared_speed
        alone[dtype] = few
    speeds = Speeds(shared=shared, alone=alone)
    most = max(shared.values(), key=lambda each: each.copies)
    sentence = calibrated(sorted({each.copies for each in shared.values()}), most.batches, most.threads)
    return Calibrated(
        speeds, _with_links(machine, most, space.backend, _AS_IT_IS if for_trials else _UNDISTURBED), sentence
    )


def _batches(ways: Sequence[Way], machine: Machine, copies: int) -> tuple[int, ...]:
    """Of a calibration: what is computed in time, and fits in this host's memory; none: nothing does."""
    undone = sorted({way.at_once for way in ways})
    job = undivided(ways[0].job)
    pace, limit = machine.paces[job.config.dtype], _MEMORY_SHARE * _free_bytes() / copies

    def is_short(samples: float) -> bool:
        sized_job = replace(job, config=replace(job.config, batch=max(1, round(samples))))
        seconds = sum(pass_times(ways[0].tape, sized_job, 0, pace))
        return seconds <= _LONGEST_S and footprint(ways[0].tape, sized_job).peak <= limit

    usable = [samples for samples in undone if is_short(samples)]
    return chosen_batches(usable, round(usable[-1])) if usable else ()


def _free_bytes() -> float:
    return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _with_links(machine: Machine, measured: Calibration, backend: str, quantiles: Sequence[float]) -> Machine:
    """Links inside a host: as given, else of `doctor --links`, else of the calibration's own all-reduces."""
    if machine.inside_is_given:
        return machine
    import numpy as np

    from perfscope.analysis.predict.links import fit_link
    from perfscope.analysis.predict.measured_links import fit_measured
    from perfscope.analysis.predict.records import INSIDE_HOST, MeasuredCall
    from perfscope.cli.doctor.links import kept_records

    rng = np.random.default_rng(0)
    fitted = None if quantiles is _AS_IT_IS else fit_measured(kept_records(), INSIDE_HOST, backend, rng)
    is_kept = fitted is not None
    if fitted is None and measured.all_reduces:
        calls = [
            MeasuredCall(
                collective="all_reduce",
                num_ranks=row["num_ranks"],
                bytes=float(row["bytes"]),
                link_class=INSIDE_HOST,
                transfer_ns=1e9 * seconds,
            )
            for row in measured.all_reduces
            for seconds in np.quantile(row["seconds"], quantiles).tolist()
        ]
        fitted = fit_link(INSIDE_HOST, calls, backend, rng, by_size=True)
    if fitted is None:
        return machine
    cost = fitted.used.cost
    sentence = links_from(cost.alpha_s, cost.bandwidth_bytes_per_s, is_kept=is_kept)
    return replace(machine, inside=(cost.alpha_s, cost.beta_s_per_byte), about_inside=sentence)
