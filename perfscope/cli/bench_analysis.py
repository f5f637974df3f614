"""What the analysis of a bench run adds to its figures: the one place where runners meet analysis."""

from __future__ import annotations

import gc
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.runners.sweep.figures import Analysed

if TYPE_CHECKING:
    from perfscope.analysis.results import RunAnalysis


def analysed(run_dir: Path) -> Analysed:
    """Step times and exposed communication of a run, as its report shows them.

    Raises:
        RunDirectoryError: the run cannot be read, or brought up to date.
    """
    from perfscope.analysis.run import analyse_run
    from perfscope.ingest import ingest_run
    from perfscope.rundir.reader import RunReader

    ingest_run(run_dir)
    found = _of(analyse_run(RunReader(run_dir)))
    gc.collect()
    return found


def _of(analysis: RunAnalysis) -> Analysed:
    breakdowns = [rank.breakdown_ns for rank in analysis.ranks if rank.breakdown_ns is not None]
    total = sum(one.step for one in breakdowns)
    exposed = sum(one.exposed_comm for one in breakdowns)
    traced_steps = breakdowns[0].num_steps if breakdowns else 0
    sizes: dict[str, float] = defaultdict(float)
    if traced_steps:
        for one in analysis.collectives:
            # a result holds the mean member's bytes; in a pipeline every stage is a sender
            sizes[one.collective] += (one.bytes or 0) * one.group_size / traced_steps
    num_ranks = max(1, len(analysis.ranks))
    return Analysed(
        step_p10_ns=analysis.step_ns.p10 if analysis.step_ns else None,
        step_median_ns=analysis.step_ns.median if analysis.step_ns else None,
        rank_step_ns={rank.rank: rank.step_ns.median for rank in analysis.ranks if rank.step_ns},
        exposed_comm_ns=exposed / len(breakdowns) if total else None,
        exposed_comm_ratio=exposed / total if total else None,
        traced_bytes={name: amount / num_ranks for name, amount in sizes.items()},
        reason=next((one.reason for one in analysis.missing if "window" in one.reason), ""),
    )
