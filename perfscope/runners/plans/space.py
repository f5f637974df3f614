"""Every way to train a model on so many ranks that the bench runners know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import torch

from perfscope.runners.config import PIPELINES, BenchConfig, BenchError, Dtype
from perfscope.runners.job import Job
from perfscope.runners.memory.footprint import Footprint, RankShare, footprint
from perfscope.runners.memory.tape import Tape, record_tape
from perfscope.runners.mesh import Mesh
from perfscope.runners.planning import describe_model, plan
from perfscope.runners.schemes.dp_ddp import DDP, ddp_buckets
from perfscope.runners.schemes.mesh_axes import MeshParallel
from perfscope.vocabulary.axes import Axis

_MOST_AXES = 3  # of a mesh, above 1
OVERLAPPING = ("dp.ddp", "dp.fsdp", "dp.hsdp")  # communicate during the backward pass
_BUCKETS_MB = (1.0, 5.0, 25.0, 100.0)
_DEPTHS = (1, 2, 4)  # microbatches per stage of a pipeline
_WHOLE = {Axis.DP: "dp.ddp", Axis.FSDP: "dp.fsdp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is enumerated.

    Attributes:
        like: model, input, optimizer ... of every candidate.
        ranks: numbers of ranks.
        ranks_per_host: of a whole host.
        batches: over all ranks; empty: per rank 1, 2, 4 ...
        dtypes: precisions.
        memory_limit: bytes of a rank; None: no limit.
        backend: whose collectives; gloo or nccl.
    """

    like: BenchConfig
    ranks: tuple[int, ...]
    ranks_per_host: int
    batches: tuple[int, ...]
    dtypes: tuple[Dtype, ...]
    memory_limit: float | None
    backend: str


_PER_RANK = (1, 2, 4, 8, 16, 32, 64)


def meshes(num_ranks: int) -> Iterator[Mesh]:
    """Every mesh of so many ranks with at most _MOST_AXES axes."""
    axes = MeshParallel.splits
    for sizes in _factors(num_ranks, len(axes)):
        if sum(size > 1 for size in sizes) <= _MOST_AXES:
            yield Mesh(dict(zip(axes, sizes, strict=True)))


@lru_cache(maxsize=256)
def _factors(number: int, parts: int) -> tuple[tuple[int, ...], ...]:
    if parts == 1:
        return ((number,),)
    return tuple(
        (first, *others)
        for first in range(1, number + 1)
        if number % first == 0
        for others in _factors(number // first, parts - 1)
    )


def scheme_of(mesh: Mesh) -> str:
    """The library's own scheme where it is one axis, else the scheme of any axes."""
    axes = set(mesh.axes)
    if not axes:
        return "serial"
    if axes == {Axis.DP, Axis.FSDP}:
        return "dp.hsdp"
    return _WHOLE.get(next(iter(axes)), MeshParallel.name) if len(axes) == 1 else MeshParallel.name


def configs(space: Space) -> Iterator[BenchConfig]:
    """Every candidate, also those that cannot be."""
    for num_ranks in space.ranks:
        batches = space.batches or tuple(num_ranks * each for each in _PER_RANK)
        for mesh in meshes(num_ranks):
            scheme = scheme_of(mesh)
            for batch in batches:
                for dtype in space.dtypes:
                    base = replace(
                        space.like,
                        scheme=scheme,
                        mesh=None if scheme == "serial" else mesh,
                        num_ranks=num_ranks,
                        num_hosts=max(1, num_ranks // space.ranks_per_host),
                        batch=batch,
                        dtype=dtype,
                    )
                    yield from _variants(base, mesh)


def _variants(base: BenchConfig, mesh: Mesh) -> Iterator[BenchConfig]:
    stages = mesh.size(Axis.PP)
    if stages > 1:
        for schedule in PIPELINES:
            for depth in _DEPTHS:
                yield replace(base, num_microbatches=depth * stages, pipeline=schedule)
        return
    yield base
    if base.scheme == DDP.name:
        for size in _other_buckets(base):
            yield replace(base, bucket_mb=size)
    if base.scheme in ("serial", "dp.ddp"):
        yield replace(base, activation_checkpointing=True)
        for parts in (2, 4):
            yield replace(base, accumulate=parts)


def _other_buckets(base: BenchConfig) -> Iterator[float]:
    """Sizes that divide the gradients otherwise than DDP's default and than each other."""
    shape, element = describe_model(base), getattr(torch, base.weight_dtype).itemsize
    sizes = [element * prod(size) for _, size in reversed(shape.params)]
    seen = [ddp_buckets(sizes)]
    for size in _BUCKETS_MB:
        if (buckets := ddp_buckets(sizes, size)) not in seen:
            seen.append(buckets)
            yield size


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to train that the schemes can do, before anything is said of its time.

    Attributes:
        job: checked.
        tape: of its model.
        held: bytes of the fullest rank.
    """

    job: Job
    tape: Tape
    held: Footprint

    @property
    def at_once(self) -> float:
        """Samples that a rank computes at once."""
        return RankShare(self.job, 0).at_once

    @property
    def num_passes(self) -> int:
        """Microbatches that a rank's samples are divided into."""
        return RankShare(self.job, 0).num_passes


def way_of(config: BenchConfig, space: Space) -> Way:
    """Checks a configuration and counts what it holds.

    Raises:
        BenchError: it cannot be; one line.
    """
    job = plan(config, writes=False)
    _refuse_far_layers(job, space)
    tape = record_tape(config)
    return Way(job=job, tape=tape, held=footprint(tape, job))


def _refuse_far_layers(job: Job, space: Space) -> None:
    inside = job.mesh.size(Axis.TP) * job.mesh.size(Axis.SP)
    if inside > space.ranks_per_host:
        raise BenchError(
            f"layers are divided inside a host only, whose {space.ranks_per_host} ranks are too few"
        )
