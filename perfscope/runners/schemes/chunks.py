"""How large the chunks of +prio are: as small as the latency of the link lets them be.

An all-reduce of n bytes over P ranks is 2(P-1) messages of n/P bytes (ring), each of which takes
alpha + n/P beta. The chunk is the n in which latency alpha is LATENCY_SHARE of that: a smaller one lets
urgent gradients overtake sooner, but wastes more of the link. Every rank must cut alike: rank 0 decides.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import torch

from perfscope.runners import comm
from perfscope.runners.cluster.ranks import ENV_CLUSTER
from perfscope.runners.cluster.spec import ClusterSpec, parse_cluster
from perfscope.runners.config import BenchConfig
from perfscope.runners.job import Job
from perfscope.runners.mesh import WORLD
from perfscope.runners.world import World
from perfscope.units import format_bytes, format_ns

LATENCY_SHARE = 0.1
DEFAULT_KIB, LEAST_KIB, MOST_KIB = 4096, 64, 16384
_SMALL, _LARGE = 256, 1 << 18  # elements of float32
_WARM_UP, _SMALL_CALLS, _LARGE_CALLS = 3, 20, 5


class Link(NamedTuple):
    """What a message costs.

    Attributes:
        alpha_s: latency of one message.
        beta_s_per_byte: time per byte.
        source: what both are from, for the run's record.
    """

    alpha_s: float
    beta_s_per_byte: float
    source: str


def chunk_bytes(config: BenchConfig) -> int:
    """Of +prio, at most; a whole number of KiB."""
    return (config.chunk_kb or DEFAULT_KIB) << 10


def needs_chunk(config: BenchConfig) -> bool:
    """Whether +prio is used among several ranks, and no chunk is set."""
    return config.modifier("prio") is not None and config.chunk_kb is None and config.num_ranks > 1


def chunk_kib(link: Link, num_ranks: int) -> int:
    """The chunk in which latency is LATENCY_SHARE, LEAST_KIB to MOST_KIB; DEFAULT_KIB without a rate."""
    if not link.beta_s_per_byte:
        return DEFAULT_KIB
    chunk = num_ranks * (1 / LATENCY_SHARE - 1) * link.alpha_s / link.beta_s_per_byte
    return min(max(round(chunk / 1024), LEAST_KIB), MOST_KIB)


def with_chunk(config: BenchConfig, link: Link) -> BenchConfig:
    """The run with the chunk of a link, and with where it is from."""
    rate = f"{format_bytes(1 / link.beta_s_per_byte)}/s" if link.beta_s_per_byte else "no time per byte"
    source = f"{link.source}: {format_ns(link.alpha_s * 1e9)}, {rate}"
    return replace(config, chunk_kb=chunk_kib(link, config.num_ranks), chunk_from=source)


def link_of(cluster: ClusterSpec) -> Link | None:
    """Between emulated hosts; None: it limits no rate or adds no latency, or there is one host."""
    if cluster.bits_per_s is None or not cluster.latency_us or cluster.num_hosts == 1:
        return None
    return Link(cluster.latency_us / 1e6, 8 / cluster.bits_per_s, "--cluster")


def settled(job: Job, world: World) -> Job:
    """The job with a chunk that all ranks share: rank 0's, else of a link that they measure now together.

    Every rank calls it, before the first step.
    """
    if job.config.modifier("prio") is None or world.size == 1:
        return job
    agreed = world.peers.agreed((job.config.chunk_kb, job.config.chunk_from))
    config = replace(job.config, chunk_kb=agreed[0], chunk_from=agreed[1])
    if needs_chunk(config):
        config = with_chunk(config, Link(*world.peers.agreed(_measured(job, world))))
    return replace(job, config=config)


def _measured(job: Job, world: World) -> Link:
    """By all-reduces among all ranks; the rate of an emulated cluster is known, and lets bursts through."""
    group = world.groups(WORLD, job.mesh.groups(WORLD))
    messages = 2 * (group.size - 1)
    small_s = _typical_s(group, torch.zeros(_SMALL, device=world.device), _SMALL_CALLS)
    spec = os.environ.get(ENV_CLUSTER)
    cluster = parse_cluster(spec) if spec else None
    if cluster is not None and cluster.bits_per_s is not None and cluster.num_hosts > 1:
        return Link(small_s / messages, 8 / cluster.bits_per_s, "measured latency, rate of --cluster")
    large = torch.zeros(_LARGE, device=world.device)
    rest_s = max(0.0, _typical_s(group, large, _LARGE_CALLS) - small_s)
    return Link(
        small_s / messages,
        rest_s / (messages / group.size * (_LARGE - _SMALL) * large.element_size()),
        "measured at the start",
    )


def _typical_s(group: comm.Group, tensor: torch.Tensor, calls: int) -> float:
    seconds = []
    for _ in range(_WARM_UP + calls):
        begin = time.perf_counter()
        comm.all_reduce(tensor, group)
        float(tensor[0])  # waits for a device
        seconds.append(time.perf_counter() - begin)
    return median(seconds[_WARM_UP:])
