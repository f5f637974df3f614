"""The link that the chunks of +prio are cut for, where it is known before the run starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from perfscope.messages.bench import CHUNKS_AT_START, chunk_words

if TYPE_CHECKING:
    from perfscope.runners.cluster.spec import ClusterSpec
    from perfscope.runners.job import Job
    from perfscope.runners.schemes.chunks import Link


def with_known_link(job: Job, cluster: ClusterSpec | None, environment: Mapping[str, str]) -> Job:
    """The job with a chunk for the emulated cluster, or for what `doctor --links` measured of these hosts.

    Where neither is known the job is left as it is: its ranks measure the link at the start.
    """
    from perfscope.runners.schemes.chunks import link_of, needs_chunk, with_chunk

    if not needs_chunk(job.config):
        return job
    link = _measured_before(job, environment) if cluster is None else link_of(cluster)
    return job if link is None else replace(job, config=with_chunk(job.config, link))


def chunk_notes(job: Job) -> list[str]:
    """For the plan: the chunk of +prio and what it is from."""
    if job.config.modifier("prio") is None or job.num_ranks == 1:
        return []
    from perfscope.runners.schemes.chunks import chunk_bytes

    if job.config.chunk_kb is None:
        return [CHUNKS_AT_START]
    return [chunk_words(chunk_bytes(job.config), job.config.chunk_from or "--chunk-kb")]


def _measured_before(job: Job, environment: Mapping[str, str]) -> Link | None:
    """Of gloo alone: what else carries calls (NCCL, MPI) has links of its own, which ranks measure."""
    import numpy as np

    from perfscope.analysis.predict.measured_links import fit_measured
    from perfscope.analysis.predict.records import BETWEEN_HOSTS, INSIDE_HOST
    from perfscope.cli.doctor.links import kept_records
    from perfscope.runners.schemes.chunks import Link
    from perfscope.runners.starting.outer_launcher import find_outer
    from perfscope.runners.world import choose_device

    backend = job.config.backend
    if backend != "gloo" and (backend != "auto" or choose_device(job.config, 0, 1).type != "cpu"):
        return None
    outer = find_outer(environment)
    link_class = INSIDE_HOST if outer is None or outer.is_one_host else BETWEEN_HOSTS
    fitted = fit_measured(kept_records(), link_class, "gloo", np.random.default_rng(0))
    if fitted is None or not fitted.used.cost.beta_s_per_byte:
        return None
    return Link(fitted.used.cost.alpha_s, fitted.used.cost.beta_s_per_byte, "doctor --links")
