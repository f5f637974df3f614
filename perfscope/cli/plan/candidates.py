"""Every way to train a model on so many ranks that the bench runners know, with its parts of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from perfscope.analysis.plan.records import Candidate, Excluded, Memory, Unfit
from perfscope.analysis.predict.records import BETWEEN_HOSTS, INSIDE_HOST
from perfscope.analysis.predict.step_model import rank_terms, transfer_by_link
from perfscope.cli.plan.machine import Machine
from perfscope.cli.predict.plans import plan_of
from perfscope.runners.config import BenchConfig, BenchError, Dtype
from perfscope.runners.job import Job
from perfscope.runners.memory.footprint import Footprint, footprint, pass_times
from perfscope.runners.memory.tape import record_tape
from perfscope.runners.mesh import Mesh
from perfscope.runners.planning import plan
from perfscope.runners.schemes.mesh_axes import MeshParallel
from perfscope.vocabulary.axes import Axis

_MOST_AXES = 3  # of a mesh, above 1
_OVERLAPPING = ("dp.ddp", "dp.fsdp", "dp.hsdp")
_DEPTHS = (1, 2, 4)  # microbatches per stage of a pipeline
_WHOLE = {Axis.DP: "dp.ddp", Axis.FSDP: "dp.fsdp"}
_PASS_FACTOR = 3  # a backward pass is twice the arithmetic of a forward pass


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
        for depth in _DEPTHS:
            yield replace(base, num_microbatches=depth * stages)
        return
    yield base
    if base.scheme in ("serial", "dp.ddp"):
        yield replace(base, activation_checkpointing=True)
        for parts in (2, 4):
            yield replace(base, accumulate=parts)


def assess(config: BenchConfig, space: Space, machine: Machine) -> Candidate | Excluded:
    """One candidate with its parts of the step, or why it is none."""
    name = f"{config.scheme} {config.mesh or ''}".strip()
    try:
        job = plan(config, writes=False)
        _refuse_far_layers(job, space)
    except BenchError as error:
        return Excluded(
            name=name,
            num_ranks=config.num_ranks,
            batch=config.batch,
            why=Unfit.REFUSED,
            reason=str(error),
        )
    memory = _memory(footprint(record_tape(config), job), job.mesh)
    if space.memory_limit is not None and memory.peak > space.memory_limit:
        return Excluded(
            name=name, num_ranks=config.num_ranks, batch=config.batch, why=Unfit.MEMORY, memory=memory
        )
    return candidate(job, space, machine, memory)


def _refuse_far_layers(job: Job, space: Space) -> None:
    inside = job.mesh.size(Axis.TP) * job.mesh.size(Axis.SP)
    if inside > space.ranks_per_host:
        raise BenchError(
            f"layers are divided inside a host only, whose {space.ranks_per_host} ranks are too few"
        )


def candidate(job: Job, space: Space, machine: Machine, memory: Memory) -> Candidate:
    """Its parts of the step."""
    config, mesh = job.config, job.mesh
    tape, pace = record_tape(config), machine.paces[config.dtype]
    ranks = [mesh.rank_of({Axis.PP: stage}) for stage in range(mesh.size(Axis.PP))]
    times = max((pass_times(tape, job, rank, pace) for rank in ranks), key=lambda t: t.forward + t.backward)
    scheme_class_microbatches = MeshParallel.num_microbatches(job) if mesh.size(Axis.PP) > 1 else 0
    return Candidate(
        scheme=config.scheme,
        mesh=str(mesh),
        num_ranks=config.num_ranks,
        batch=config.batch,
        microbatches=scheme_class_microbatches or config.accumulate,
        dtype=config.dtype,
        checkpointing=config.activation_checkpointing,
        stages=mesh.size(Axis.PP),
        forward_s=times.forward,
        backward_s=times.backward,
        update_s=times.update,
        transfer_s=_transfer_s(config, space, machine),
        overlaps=config.scheme in _OVERLAPPING,
        flops=float(_PASS_FACTOR * job.shape.flops() * config.batch),
        memory=memory,
    )


def _transfer_s(config: BenchConfig, space: Space, machine: Machine) -> float:
    if config.num_ranks == 1:
        return 0.0
    hosts = [rank // space.ranks_per_host for rank in range(config.num_ranks)]
    links = {BETWEEN_HOSTS: machine.between, INSIDE_HOST: machine.inside}
    terms = rank_terms(plan_of(config, hosts), space.backend)
    return sum(transfer_by_link(terms, links).values()) * 1e-9


def _memory(held: Footprint, mesh: Mesh) -> Memory:
    return Memory(
        weights=held.weights,
        gradients=held.gradients,
        state=held.state,
        activations=held.activations,
        buffers=held.buffers,
        peak=held.peak,
        is_verified=len(mesh.axes) <= 1,
    )


def config_of_candidate(option: Candidate, space: Space) -> BenchConfig:
    """The run that a candidate is."""
    pipelined = option.stages > 1
    return replace(
        space.like,
        scheme=option.scheme,
        mesh=None if option.scheme == "serial" else Mesh.parse(option.mesh),
        num_ranks=option.num_ranks,
        num_hosts=max(1, option.num_ranks // space.ranks_per_host),
        batch=option.batch,
        dtype=next(dtype for dtype in space.dtypes if dtype == option.dtype),
        activation_checkpointing=option.checkpointing,
        num_microbatches=option.microbatches if pipelined else None,
        accumulate=1 if pipelined else option.microbatches,
    )


def explore(space: Space, machine: Machine) -> tuple[list[Candidate], list[Excluded]]:
    """All candidates, and what is none.

    A refusal counts once per mesh: the batch does not change most of them.
    """
    candidates: list[Candidate] = []
    excluded: dict[tuple[object, ...], Excluded] = {}
    for config in configs(space):
        option = assess(config, space, machine)
        if isinstance(option, Candidate):
            candidates.append(option)
        else:
            key = (option.name, option.batch if option.why is Unfit.MEMORY else None, option.reason)
            before = excluded.get(key)
            if before is None or _peak(option) < _peak(before):
                excluded[key] = option
    return candidates, list(excluded.values())


def _peak(option: Excluded) -> float:
    return 0.0 if option.memory is None else option.memory.peak


def by_reason(excluded: Sequence[Excluded]) -> Mapping[Unfit, list[Excluded]]:
    """Excluded candidates by why."""
    return {why: [option for option in excluded if option.why is why] for why in Unfit}
