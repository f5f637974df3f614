"""What a plan should say before it is run: settings the scheme does not read, threads, whole periods."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfscope.runners.config import BenchError
from perfscope.vocabulary.axes import Axis

if TYPE_CHECKING:
    from perfscope.runners.job import Job

_TOO_MUCH = 10**8  # no pipeline has as many microbatches, no moving rate is as large


def period_of(record: Mapping[str, Any]) -> int:
    """After how many steps a scheme's communication repeats; 1: every step is like the next.

    Args:
        record: identity of the job.
    """
    rows = (row for rows in record["predicted"]["calls_of_rank"].values() for row in rows)
    return math.lcm(*(int(row["every"]) for row in rows))


def ignored_settings(job: Job) -> list[str]:
    """One line for each setting that was given and that the scheme does not read.

    The scheme is asked, not a list: a setting is read if an absurd value of it is refused, or changes what is
    sent.
    """
    config, name = job.config, job.config.scheme
    lines = []
    if config.period is not None and not _has_period(job):
        lines.append(f"{name} has no period; --period is ignored")
    if config.num_microbatches is not None and not _refuses(job, num_microbatches=_TOO_MUCH):
        lines.append(f"{name} is no pipeline; --microbatches is ignored")
    if config.moving_rate is not None and not _refuses(job, moving_rate=float(_TOO_MUCH)):
        lines.append(f"{name} has no moving rate; --moving-rate is ignored")
    if config.bucket_mb is not None and name != "dp.ddp":
        lines.append(f"{name} has no buckets of DDP; --bucket-mb is ignored")
    if config.chunk_kb is not None and config.modifier("prio") is None:
        lines.append(f"{config.full_name} is without +prio; --chunk-kb is ignored")
    if config.cp_attention != "gather" and (name != "mesh" or job.mesh.size(Axis.CP) == 1):
        lines.append(f"{name} {job.mesh} has no cp to choose for; --cp-attention is ignored")
    return lines


def _has_period(job: Job) -> bool:
    from perfscope.runners.identity import all_traffic
    from perfscope.runners.planning import plan

    if job.num_ranks == 1:
        return True  # nothing is sent, so that there is nothing to report
    try:
        other = plan(replace(job.config, period=2))
    except BenchError:
        return True
    return any(call.every == 2 for calls in all_traffic(other).values() for call in calls)


def _refuses(job: Job, **absurd: Any) -> bool:
    from perfscope.runners.planning import plan

    try:
        plan(replace(job.config, **absurd))
    except BenchError:
        return True
    return False
