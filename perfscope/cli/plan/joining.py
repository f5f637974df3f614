"""Where ways of the bench runners meet the links of a machine: candidates with all parts of their step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perfscope.analysis.plan.records import Candidate, Excluded, Memory, Unfit
from perfscope.analysis.predict.links import terms
from perfscope.analysis.predict.records import BETWEEN_HOSTS, INSIDE_HOST
from perfscope.analysis.predict.step_model import rank_terms, transfer_by_link
from perfscope.cli.plan.machine import Machine
from perfscope.cli.predict.plans import plan_of
from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.job import Job
from perfscope.runners.memory.footprint import Footprint
from perfscope.runners.plans.calibration import Calibration
from perfscope.runners.plans.space import OVERLAPPING, Space, Way, configs, way_of
from perfscope.runners.plans.work import PassTimes, bucket_readiness, calibrated_times, pass_times
from perfscope.runners.schemes.dp_ddp import DDP
from perfscope.vocabulary.axes import Axis

_ROUGH = ("interleaved", "zero-bubble")  # whose memory real steps exceed by more than a tenth
_PASS_FACTOR = 3  # a backward pass is twice the arithmetic of a forward pass


class Choice(NamedTuple):
    """A candidate, and the run that it is."""

    candidate: Candidate
    config: BenchConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Calibrations of a model on this machine.

    Attributes:
        shared: (dtype, ranks of a host) -> as many copies at the same time.
        alone: dtype -> no more copies than cores.
    """

    shared: Mapping[tuple[str, int], Calibration]
    alone: Mapping[str, Calibration]


def explore(space: Space) -> tuple[list[Way], list[Excluded]]:
    """All ways that fit, and what is none.

    A refusal counts once per mesh: the batch does not change most of them.
    """
    ways: list[Way] = []
    excluded: dict[tuple[object, ...], Excluded] = {}
    for config in configs(space):
        assessed = _assessed(config, space)
        if isinstance(assessed, Way):
            ways.append(assessed)
        else:
            key = (assessed.name, assessed.batch if assessed.why is Unfit.MEMORY else None, assessed.reason)
            before = excluded.get(key)
            if before is None or _peak(assessed) < _peak(before):
                excluded[key] = assessed
    return ways, list(excluded.values())


def _peak(option: Excluded) -> float:
    return 0.0 if option.memory is None else option.memory.peak


def _assessed(config: BenchConfig, space: Space) -> Way | Excluded:
    name = f"{config.scheme} {config.mesh or ''}".strip()
    try:
        way = way_of(config, space)
    except BenchError as error:
        return Excluded(
            name=name,
            num_ranks=config.num_ranks,
            batch=config.batch,
            why=Unfit.REFUSED,
            reason=str(error),
        )
    if space.memory_limit is None or way.held.peak <= space.memory_limit:
        return way
    memory = _memory(way.held, way.job)
    return Excluded(
        name=name, num_ranks=config.num_ranks, batch=config.batch, why=Unfit.MEMORY, memory=memory
    )


def joined(way: Way, space: Space, machine: Machine, speeds: Speeds | None) -> Choice:
    """The parts of a way's step on a machine.

    Args:
        way: of the space.
        space: see Space.
        machine: see Machine.
        speeds: None: by the machine's rates.
    """
    config, mesh = way.job.config, way.job.mesh
    ranks = [mesh.rank_of({Axis.PP: stage}) for stage in range(mesh.size(Axis.PP))]
    alone = None
    if speeds is None:
        times = _slowest([pass_times(way.tape, way.job, rank, machine.paces[config.dtype]) for rank in ranks])
    else:
        shared = speeds.shared[config.dtype, min(config.num_ranks, space.ranks_per_host)]
        times = _calibrated(way, ranks, machine, shared)
        alone = _calibrated(way, ranks, machine, speeds.alone[config.dtype]).work
    return Choice(
        Candidate(
            scheme=config.scheme,
            mesh=str(mesh),
            num_ranks=config.num_ranks,
            batch=config.batch,
            microbatches=way.num_passes,
            dtype=config.dtype,
            checkpointing=config.activation_checkpointing,
            stages=mesh.size(Axis.PP),
            schedule=config.pipeline if mesh.size(Axis.PP) > 1 else "",
            forward_s=times.forward,
            backward_s=times.backward,
            update_s=times.update,
            alone_s=alone,
            transfer_s=_transfer_s(config, space, machine),
            bucket_mb=config.bucket_mb,
            buckets=_buckets(way, space, machine),
            overlaps=config.scheme in OVERLAPPING,
            flops=float(_PASS_FACTOR * way.job.shape.flops() * config.batch),
            memory=_memory(way.held, way.job),
        ),
        config,
    )


def _calibrated(way: Way, ranks: Sequence[int], machine: Machine, measured: Calibration) -> PassTimes:
    pace = machine.paces[way.job.config.dtype]
    return _slowest([calibrated_times(way.tape, way.job, rank, pace, measured) for rank in ranks])


def _slowest(times: Sequence[PassTimes]) -> PassTimes:
    return max(times, key=lambda time: time.work)


def _transfer_s(config: BenchConfig, space: Space, machine: Machine) -> float:
    if config.num_ranks == 1:
        return 0.0
    hosts = [rank // space.ranks_per_host for rank in range(config.num_ranks)]
    links = {BETWEEN_HOSTS: machine.between, INSIDE_HOST: machine.inside}
    terms = rank_terms(plan_of(config, hosts), space.backend)
    return sum(transfer_by_link(terms, links).values()) * 1e-9


def _buckets(way: Way, space: Space, machine: Machine) -> tuple[tuple[float, float], ...]:
    config = way.job.config
    if config.scheme != DDP.name or config.num_ranks == 1:
        return ()
    hosts = [rank // space.ranks_per_host for rank in range(config.num_ranks)]
    links = {BETWEEN_HOSTS: machine.between, INSIDE_HOST: machine.inside}
    calls = [call for call in plan_of(config, hosts).ranks[0] if call.collective == "all_reduce"]
    seconds = []
    for call in calls:
        messages, sent = terms(call, space.backend)
        alpha, beta = links[call.link_class]
        seconds.append(alpha * messages + beta * sent)
    readiness = bucket_readiness(way.tape, way.job, machine.paces[config.dtype])
    return tuple(zip(readiness, seconds, strict=True))


def _memory(held: Footprint, job: Job) -> Memory:
    return Memory(
        weights=held.weights,
        gradients=held.gradients,
        state=held.state,
        activations=held.activations,
        buffers=held.buffers,
        peak=held.peak,
        is_verified=len(job.mesh.axes) <= 1
        and not (job.mesh.size(Axis.PP) > 1 and job.config.pipeline in _ROUGH),
    )
