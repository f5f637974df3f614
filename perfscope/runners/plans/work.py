"""Seconds of one rank's own work in a step: by a machine's rates, or by a calibration of the model on it.

    by rates        SUM over operators of max(FLOPs / rate, bytes / bandwidth) + least time of an operator
    by calibration  SUM over blocks of measured seconds of the whole block at the samples at once
                    * (rank's share of the block by rates / the whole block by rates)

With a calibration the rates only say what a mesh, or computing activations again, makes of a block's time.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from perfscope.runners.job import Job
from perfscope.runners.memory.footprint import RankShare
from perfscope.runners.memory.tape import Operator, Tape, record_tape
from perfscope.runners.mesh import Mesh
from perfscope.runners.plans.calibration import Calibration
from perfscope.runners.schemes.dp_ddp import ddp_buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What one rank computes and moves in a second.

    Attributes:
        flops_per_s: of products.
        bytes_per_s: of memory; None: only arithmetic counts.
        operator_s: that each operator takes at least.
    """

    flops_per_s: float
    bytes_per_s: float | None = None
    operator_s: float = 0.0


class PassTimes(NamedTuple):
    """Of one rank, seconds per step: both passes, and the update with what else a step is made of."""

    forward: float
    backward: float
    update: float

    @property
    def work(self) -> float:
        """Both passes."""
        return self.forward + self.backward


def pass_times(tape: Tape, job: Job, rank: int, pace: Pace) -> PassTimes:
    """A rank's own work in a step by rates: each operator at the slower of arithmetic and memory.

    Args:
        tape: of the job's model.
        job: checked.
        rank: global.
        pace: of one rank.
    """
    share = RankShare(job, rank)
    blocks = _by_block(tape, share, pace)
    return PassTimes(
        share.num_passes * sum(blocks[False].values()),
        share.num_passes * sum(blocks[True].values()),
        _update(tape, share, pace),
    )


def calibrated_times(tape: Tape, job: Job, rank: int, pace: Pace, measured: Calibration) -> PassTimes:
    """A rank's own work in a step by a calibration of the model.

    Args:
        tape: of the job's model, as it is trained.
        job: checked.
        rank: global.
        pace: for the shares alone.
        measured: see Calibration.
    """
    share, undivided_share = RankShare(job, rank), RankShare(undivided(job), 0)
    plain = record_tape(undivided(job).config)
    ours, all_of_it = _by_block(tape, share, pace), _by_block(plain, undivided_share, pace, share.at_once)
    passes = {
        is_backward: sum(
            measured.seconds(f"{'backward' if is_backward else 'forward'} {block}", share.at_once)
            * seconds
            / all_of_it[is_backward][block]
            for block, seconds in ours[is_backward].items()
            if all_of_it[is_backward].get(block)
        )
        for is_backward in (False, True)
    }
    loss = measured.seconds("loss", share.at_once) if share.has(len(job.shape.blocks) - 1) else 0.0
    all_updates = _update(plain, undivided_share, pace)
    update = measured.update_s * (_update(tape, share, pace) / all_updates if all_updates else 1.0)
    samples = measured.seconds("input", job.group_batch)
    return PassTimes(
        share.num_passes * passes[False], share.num_passes * (passes[True] + loss), update + samples
    )


def bucket_readiness(tape: Tape, job: Job, pace: Pace) -> list[float]:
    """Share of the backward pass after which each of DDP's buckets is full, in the order they are sent.

    A gradient is there when the backward pass of its block has ended.
    """
    share = RankShare(job, 0)
    seconds = _by_block(tape, share, pace)[True]
    total = sum(seconds.values()) or 1.0
    ended, so_far = {}, 0.0
    for block in sorted(range(len(job.shape.blocks)), reverse=True):
        so_far += seconds.get(block, 0.0)
        ended[job.shape.blocks[block]] = so_far / total
    params = list(reversed(job.shape.params))
    sizes = [prod(shape) * job.element_size for _, shape in params]
    readiness, taken = [], 0
    for bucket in ddp_buckets(sizes, job.config.bucket_mb):
        filled = 0
        while filled < bucket:
            filled, taken = filled + sizes[taken], taken + 1
        readiness.append(ended[params[taken - 1][0].split(".")[0]])
    return readiness


def undivided(job: Job) -> Job:
    """The same model and batch, trained by one rank as it is."""
    config = replace(
        job.config,
        scheme="serial",
        mesh=None,
        num_ranks=1,
        num_hosts=1,
        activation_checkpointing=False,
        accumulate=1,
        num_microbatches=None,
    )
    return Job(config=config, mesh=Mesh(), shape=job.shape)


def _by_block(
    tape: Tape, share: RankShare, pace: Pace, samples: float | None = None
) -> dict[bool, dict[int, float]]:
    """Seconds of one pass over the samples at once: whether backward -> block -> seconds."""
    at_once = share.at_once if samples is None else samples
    seconds: dict[bool, dict[int, float]] = {False: defaultdict(float), True: defaultdict(float)}
    for op in tape.operators:
        if op.place < tape.backward_ends and (part := share.of_activation(op)):
            seconds[op.is_backward][op.block] += _seconds(op, at_once, part, pace)
    return seconds


def _update(tape: Tape, share: RankShare, pace: Pace) -> float:
    return sum(
        _seconds(op, 0.0, share.of_param(op.param) / share.shards if op.param else 1.0, pace)
        for op in tape.operators
        if op.place >= tape.backward_ends
    )


def _seconds(op: Operator, at_once: float, part: float, pace: Pace) -> float:
    flops = (op.flops + op.flops_per_sample * at_once) * part
    moved = (op.bytes + op.bytes_per_sample * at_once) * part
    in_memory = 0.0 if pace.bytes_per_s is None else moved / pace.bytes_per_s
    return max(flops / pace.flops_per_s, in_memory) + (pace.operator_s if part else 0.0)
