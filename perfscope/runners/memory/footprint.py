"""Bytes that one rank holds at most in a step, from the tape of the undivided model.

    live(t) = sum over allocations that live at t of share * (fixed + per sample * samples at once)

The share is what a mesh leaves a rank of an allocation: 1/tp between the divided layers, 1/sp also between
those, 1/cp of each sequence, of weights, gradients and optimizer state what the rank holds, 1/fsdp of that.
What a scheme holds beside the step's own tensors (buckets, gathered weights) is added where it lives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from perfscope.runners.composed.volumes import RankPart, average_axes, layer_axis
from perfscope.runners.job import Job
from perfscope.runners.memory.tape import Allocation, Operator, Owner, Tape
from perfscope.runners.models.shapes import ATTENTION
from perfscope.runners.schemes.dp_ddp import DDP
from perfscope.runners.schemes.mesh_axes import MeshParallel
from perfscope.vocabulary.axes import Axis

_LASTING = (Owner.WEIGHT, Owner.GRADIENT, Owner.STATE)
_FOREVER = 1 << 60


class _Span(NamedTuple):
    """Bytes from one place on the tape to another."""

    begin: int
    end: int
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What the fullest rank holds where it holds most, bytes.

    Attributes:
        weights, gradients, state: of the parameters.
        activations: of the passes, with their temporary tensors.
        buffers: of the scheme: buckets, gathered weights, flat gradients.
    """

    weights: float
    gradients: float
    state: float
    activations: float
    buffers: float

    @property
    def peak(self) -> float:
        """All of it."""
        return self.weights + self.gradients + self.state + self.activations + self.buffers


class RankShare:
    """What a mesh leaves one rank of the undivided step.

    Args:
        job: checked.
        rank: global.
    """

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank, mesh = job, rank, job.mesh
        self.blocks = self._own_blocks(job, rank)
        self.num_passes = max(job.config.accumulate, 1)
        if mesh.size(Axis.PP) > 1:
            self.num_passes = MeshParallel.num_microbatches(job)
        self.at_once = job.group_batch / self.num_passes
        self.stage = mesh.index(Axis.PP, rank)
        part = RankPart(job=job, rank=rank, blocks=self.blocks, num_microbatches=self.num_passes)
        self.held = part.held
        self._whole = {name: prod(shape) for name, shape in job.shape.params}
        self.shards = mesh.size(Axis.FSDP)
        self.layer_parts = mesh.size(layer_axis(mesh))
        names = job.shape.blocks
        self._indices = {names.index(name) for name in self.blocks}
        self.splits_backward = mesh.size(Axis.PP) > 1 and job.config.pipeline == "zero-bubble"
        self._ends = (0, len(names) - 1)

    @staticmethod
    def _own_blocks(job: Job, rank: int) -> frozenset[str]:
        if job.config.scheme == MeshParallel.name:
            return MeshParallel.own_blocks(job, rank)
        return frozenset(job.shape.blocks)

    def has(self, block: int) -> bool:
        """Whether the rank has this block."""
        return block in self._indices

    def first_of_stage(self, block: int) -> int:
        """The block that the stage of this one begins with, where a rank has two stages."""
        indices = sorted(self._indices)
        middle = indices[len(indices) // 2]
        return indices[0] if block < middle else middle

    def of_param(self, name: str) -> float:
        """Before fully_shard has cut it; 0: it is another stage's."""
        if name not in self._whole:  # a buffer
            return 1.0
        shape = self.held.get(name)
        return 0.0 if shape is None else prod(shape) / self._whole[name]

    def of_activation(self, row: Allocation | Operator) -> float:
        """Of what is part of, or computes on, the samples at once."""
        if not self.has(row.block):
            return 0.0
        share = 1 / self.job.mesh.size(Axis.CP)
        if row.is_divided:
            return share / self.layer_parts
        keeps = row.block in self._ends or getattr(row, "enters_pair", False)
        return share / (1 if keeps else self.job.mesh.size(Axis.SP))


def footprint(tape: Tape, job: Job) -> Footprint:
    """Of the rank that holds most; `tape` is that of the job's model."""
    mesh = job.mesh
    ranks = [mesh.rank_of({Axis.PP: stage}) for stage in range(mesh.size(Axis.PP))]
    footprints = [_of_rank(tape, RankShare(job, rank)) for rank in ranks]
    return max(footprints, key=lambda held: held.peak)


def _of_rank(tape: Tape, share: RankShare) -> Footprint:
    length = max(row.begin for row in tape.allocations) + 3
    changes = {kind: np.zeros(length + 1) for kind in ("weight", "gradient", "state", "activation", "buffer")}
    lasting = share.num_passes > 1  # gradients of earlier passes live through later ones
    for row in tape.allocations:
        for kind, span in _spans_of(row, tape, share, lasting=lasting):
            _add(changes[kind], span, length)
    for span in _buffers(tape, share):
        _add(changes["buffer"], span, length)
    live = {kind: np.cumsum(values)[:-1] for kind, values in changes.items()}
    behind = _waiting(tape, share, live["activation"])
    total = sum(live.values()) + behind
    top = int(np.argmax(total))
    return Footprint(
        weights=float(live["weight"][top]),
        gradients=float(live["gradient"][top]),
        state=float(live["state"][top]),
        activations=float(live["activation"][top] + behind[top]),
        buffers=float(live["buffer"][top]),
    )


def _add(changes: np.ndarray, span: _Span, length: int) -> None:
    if span.begin < length:
        changes[max(span.begin, 0)] += span.bytes
        changes[min(max(span.end, 0), length)] -= span.bytes


def _spans_of(row: Allocation, tape: Tape, share: RankShare, *, lasting: bool) -> Iterator[tuple[str, _Span]]:
    if row.owner not in _LASTING:
        if row.begin < 0:  # the samples of a step, whole on each rank
            yield "activation", _Span(row.begin, row.end, row.per_sample * share.at_once * share.num_passes)
            return
        if row.begin >= tape.backward_ends and row.param:
            part = share.of_param(row.param) / share.shards
        else:
            part = share.of_activation(row)
        size = (row.fixed + row.per_sample * share.at_once) * part
        yield "activation", _Span(row.begin, _end(row, tape, share), size)
        return
    size = row.fixed * (share.of_param(row.param) if share.has(row.block) else 0.0)
    if row.owner != Owner.GRADIENT:
        yield row.owner.value, _Span(row.begin, row.end, size / share.shards)
    elif share.shards > 1:
        ends = _backward_end(tape, row.block)
        yield "gradient", _Span(row.begin, ends + 1, size)  # until it is in the buffer that is sent
        yield "gradient", _Span(-1 if lasting else ends, row.end, size / share.shards)
    elif lasting:
        yield "gradient", _Span(-1, row.end, size)
        yield "activation", _Span(row.begin, row.begin + 1, size)  # before it is added
    else:
        yield "gradient", _Span(row.begin, row.end, size)


def _end(row: Allocation, tape: Tape, share: RankShare) -> int:
    """Where a tensor is freed. Stages that compute the gradients of weights after those of all their inputs
    keep the whole graph for it, and the gradients of their layers' outputs."""
    if not (share.splits_backward and share.has(row.block)) or row.begin >= tape.backward_ends:
        return row.end
    is_saved = row.begin < tape.forward_ends < row.end
    if not is_saved and not row.gives_weights:
        return row.end
    return max(row.end, _backward_end(tape, share.first_of_stage(row.block)))


def _waiting(tape: Tape, share: RankShare, live: np.ndarray) -> np.ndarray:
    """Activations of the other microbatches that a stage has in flight, while it computes one."""
    waiting = np.zeros_like(live)
    stages = share.job.mesh.size(Axis.PP)
    if stages > 1:
        in_flight = _in_flight(share.job.config.pipeline, share.num_passes, stages, share.stage)
        first = max(index for index in tape.backward_begins if share.has(index))
        kept = float(live[tape.backward_begins[first] - 1])
        waiting[: tape.backward_ends] = (in_flight - 1) * kept
    return waiting


def _in_flight(schedule: str, num_microbatches: int, stages: int, stage: int) -> float:
    """Microbatches whose activations a rank holds; of interleaved stages each holds its part of them.

    These begin with as many forward passes as torch's ScheduleInterleaved1F1B, v = 2 stages per rank: (v-1)
    rounds of microbatches, and two for each rank behind this one. Zero-bubble computes the gradients of
    weights a microbatch later for each rank before this one.
    """
    if schedule == "gpipe":
        return num_microbatches
    if schedule == "1f1b":
        return min(num_microbatches, stages - stage)
    round_size = num_microbatches // max(1, num_microbatches // stages)
    delayed = stage if schedule == "zero-bubble" else 0
    return min(num_microbatches, (round_size + 2 * (stages - 1 - stage) + 1 + delayed) / 2)


def _backward_end(tape: Tape, block: int) -> int:
    """Where the backward pass of a block ends: that of the block before it begins."""
    earlier = [index for index in tape.backward_begins if index < block]
    return tape.backward_begins[max(earlier)] if earlier else tape.backward_ends


def _buffers(tape: Tape, share: RankShare) -> Iterator[_Span]:
    """What the scheme holds beside the step's own tensors."""
    job, element = share.job, share.job.element_size
    held = sum(prod(shape) for shape in share.held.values()) * element
    if job.config.scheme == DDP.name:
        yield _Span(-1, _FOREVER, held)  # buckets of all gradients
    elif job.config.scheme == MeshParallel.name and (
        average_axes(job.mesh, experts=False) or average_axes(job.mesh, experts=True)
    ):
        yield _Span(-1, _FOREVER, held / share.shards)
    if share.shards > 1:
        yield from _gathered(tape, share, element)
    if job.mesh.size(Axis.PP) > 1:
        yield _Span(-1, _FOREVER, _between_stages(share))
    if job.mesh.size(Axis.CP) > 1 and job.config.cp_attention == "gather":
        yield from _keys_and_values(tape, share, element)


def _between_stages(share: RankShare) -> float:
    """What torch's stages keep from step to step.

    Tensors to receive every microbatch and its gradient in, and the outputs of the last stage, of which the
    microbatch at work has its own.
    """
    job, rank = share.job, share.rank
    received = sum(
        sent.bytes * sent.calls_in(1)
        for other in job.mesh.group(Axis.PP, rank)
        for sent in MeshParallel.sent_between_stages(job, other)
        if sent.members[-1] == rank and other != rank
    )
    if not share.has(len(job.shape.blocks) - 1):
        return received
    outputs = prod(job.shape.cuts[-1]) * job.group_batch * job.element_size / job.mesh.size(Axis.CP)
    return received + outputs * (1 - 1 / share.num_passes)


def _keys_and_values(tape: Tape, share: RankShare, element: int) -> Iterator[_Span]:
    """Of all positions, in each attention layer."""
    job = share.job
    for layer in job.shape.products:
        if layer.kind == ATTENTION and share.has(layer.block):
            size = 2 * layer.kv_size / share.layer_parts * share.at_once * element
            yield _Span(tape.forward_begins[layer.block], _backward_end(tape, layer.block), size)


def _gathered(tape: Tape, share: RankShare, element: int) -> Iterator[_Span]:
    """Whole weights of the blocks that fully_shard has gathered, and what it sends of them.

    While one block computes in the backward pass the next one's weights arrive, and the gradients of the one
    before it are still in the buffer that they are sent from.
    """
    sizes: dict[int, float] = {}
    for name, shape in share.held.items():
        index = share.job.shape.blocks.index(name.split(".")[0])
        sizes[index] = sizes.get(index, 0.0) + prod(shape) * element
    pipelined = share.job.mesh.size(Axis.PP) > 1
    tied = share.job.shape.tied_block
    kept = set(sizes) if pipelined else {share.job.shape.blocks.index(tied)} if tied else set()
    for index, size in sizes.items():
        yield from _gathered_block(tape, index, size, is_kept=index in kept)


def _gathered_block(tape: Tape, index: int, size: float, *, is_kept: bool) -> Iterator[_Span]:
    begins, after = tape.forward_begins[index], tape.forward_begins.get(index + 1, tape.forward_ends)
    back, ends = tape.backward_begins.get(index, tape.forward_ends), _backward_end(tape, index)
    later = _previous_begin(tape.backward_begins, index)
    if is_kept:
        yield _Span(begins, ends, size)
    else:
        yield _Span(begins, after, size)
        yield _Span(later if later is not None else back, ends, size)
        yield _Span(back, back + 1, size)  # as it arrives, before it is copied
    yield _Span(begins, begins + 1, size)  # likewise
    sent = _backward_end(tape, index - 1) if index else ends + 1
    yield _Span(ends, max(sent, ends + 1), size)


def _previous_begin(begins: Mapping[int, int], index: int) -> int | None:
    """Where the block behind this one begins its backward pass."""
    later: Sequence[int] = [other for other in begins if other > index]
    return begins[min(later)] if later else None
