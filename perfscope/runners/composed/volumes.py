"""What a rank of a mesh holds and sends, from the model's shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from perfscope.runners.composed.experts import ExpertLayers, expert_layers
from perfscope.runners.composed.layers import mixtures, norms
from perfscope.runners.composed.pairs import local_shape, tensor_pairs
from perfscope.runners.composed.shards import Shape, shard_calls, shard_elements
from perfscope.runners.job import Job
from perfscope.runners.mesh import Mesh
from perfscope.runners.model_parallel.context import CONTEXT_ATTENTION
from perfscope.runners.models.shapes import ATTENTION, LayerShape
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.traffic import ScalesWith

_COUNTER_BYTES = 8  # of a number of rows, int64


def layer_axis(mesh: Mesh) -> Axis:
    """The axis along which layers are divided: sp does what tp does, and divides sequences between them."""
    return Axis.SP if mesh.size(Axis.SP) > 1 else Axis.TP


def average_axes(mesh: Mesh, *, experts: bool) -> tuple[Axis, ...]:
    """Axes along which a scheme averages gradients by itself, those of size 1 left out.

    fully_shard averages along fsdp and dp. The gradient of an expert has the tokens of all ranks along ep.
    """
    axes = [] if mesh.size(Axis.FSDP) > 1 else [Axis.DP]
    axes += [Axis.CP] if experts else [Axis.EP, Axis.CP]
    return tuple(axis for axis in axes if mesh.size(axis) > 1)


def attention_calls(
    job: Job, rank: int, attention: str, layers: Iterable[LayerShape], num_microbatches: int = 1
) -> Iterator[Traffic]:
    """What a rank calls along cp in attention layers, in a step."""
    mesh = job.mesh
    members = mesh.group(Axis.CP, rank)
    if len(members) == 1:
        return
    after = members[(members.index(rank) + 1) % len(members)]
    per_element = job.group_batch // num_microbatches * job.element_size
    for layer in layers:
        if layer.kind != ATTENTION:
            continue
        for call in CONTEXT_ATTENTION[attention].calls(layer, len(members), mesh.size(layer_axis(mesh))):
            is_message = call.collective == "send"
            yield Traffic(
                collective=call.collective,
                axis=Axis.CP,
                members=(rank, after) if is_message else members,
                bytes=call.size * per_element,
                count=call.times * num_microbatches,
                what=call.what,
                scales_with=ScalesWith.SAMPLES,
                group_size=len(members) if is_message else None,
            )


@dataclass(frozen=True, kw_only=True)
class RankPart:
    """One rank's part of a job.

    Attributes:
        job: of all ranks.
        rank: global.
        blocks: that it has.
        num_microbatches: m, in which its samples go through them.
    """

    job: Job
    rank: int
    blocks: frozenset[str]
    num_microbatches: int

    def traffic(self) -> list[Traffic]:
        """Everything that the rank sends in a step, but for what goes from stage to stage."""
        return [
            *self._inside_pairs(),
            *self._between_pairs(),
            *self._attention(),
            *self._tokens(),
            *self._shards(),
            *self._gradients(),
        ]

    @cached_property
    def _experts(self) -> list[ExpertLayers]:
        return [layer for layer in expert_layers(self.job.shape) if layer.path.split(".")[0] in self.blocks]

    @cached_property
    def held(self) -> dict[str, Shape]:
        """Parameters of the rank before fully_shard has cut them."""
        mesh, shape = self.job.mesh, self.job.shape
        parts, experts = mesh.size(layer_axis(mesh)), self._names_of_experts
        held = {}
        for name, full in shape.params:
            if name in experts:
                held[name] = (full[0] // mesh.size(Axis.EP), *full[1:])
            elif name.split(".")[0] in self.blocks:
                held[name] = local_shape(shape, name, full, parts)
        return held

    @cached_property
    def _names_of_experts(self) -> frozenset[str]:
        return frozenset().union(*(layer.params for layer in self._experts))

    def _call(self, collective: str, axis: Axis, size: int, what: str, *, times: int) -> Traffic:
        """So many calls per microbatch, of `size` elements per sample."""
        per_element = self.job.group_batch // self.num_microbatches * self.job.element_size
        return Traffic(
            collective=collective,
            axis=axis,
            members=self.job.mesh.group(axis, self.rank),
            bytes=size * per_element,
            count=times * self.num_microbatches,
            what=what,
            scales_with=ScalesWith.SAMPLES,
            by_library=True,
        )

    def _inside_pairs(self) -> Iterator[Traffic]:
        axis = layer_axis(self.job.mesh)
        if self.job.mesh.size(axis) == 1:
            return
        kinds = ("all_gather", "reduce_scatter") if axis == Axis.SP else ("all_reduce",)
        for pair in tensor_pairs(self.job.shape):
            if pair.block in self.blocks:
                size, what = pair.size // self.job.mesh.size(Axis.CP), f"{pair.block}.{pair.child}"
                yield from (self._call(kind, axis, size, what, times=2) for kind in kinds)

    def _between_pairs(self) -> Iterator[Traffic]:
        """Along sp: the sequence is cut once and gathered once, and for each mixture."""
        shape, mesh = self.job.shape, self.job.mesh
        if mesh.size(Axis.SP) == 1:
            return
        size = tensor_pairs(shape)[0].size // mesh.size(Axis.CP)
        gathers = {**dict.fromkeys(mixtures(shape), 2), shape.blocks[0]: 1, shape.blocks[-1]: 1}
        for name, times in gathers.items():
            if name.split(".")[0] in self.blocks:
                yield self._call("all_gather", Axis.SP, size, name, times=times)
        partial = set(norms(shape))
        for param, held in self.held.items():
            if param.rpartition(".")[0] in partial:
                yield self._whole(Axis.SP, held[0], f"gradients of {param}", library=True)

    def _attention(self) -> Iterator[Traffic]:
        job = self.job
        if job.mesh.size(Axis.CP) > 1:
            layers = [layer for layer in job.shape.products if job.shape.blocks[layer.block] in self.blocks]
            kind = job.config.cp_attention
            yield from attention_calls(job, self.rank, kind, layers, self.num_microbatches)

    def _tokens(self) -> Iterator[Traffic]:
        """Along ep. What a rank gets depends on the routers: a call's bytes are the mean of the group."""
        mesh = self.job.mesh
        for layer in self._experts if mesh.size(Axis.EP) > 1 else ():
            size = layer.size // mesh.size(Axis.CP)
            yield self._call("all_to_all", Axis.EP, size, f"tokens of {layer.path}", times=4)
            yield Traffic(
                collective="all_to_all",
                axis=Axis.EP,
                members=mesh.group(Axis.EP, self.rank),
                bytes=layer.num_experts * _COUNTER_BYTES,
                count=self.num_microbatches,
                what="tokens per expert",
            )

    def _shards(self) -> list[Traffic]:
        job, mesh = self.job, self.job.mesh
        if mesh.size(Axis.FSDP) == 1:
            return []
        is_kept = mesh.size(Axis.PP) > 1 or self.num_microbatches > 1
        kept = self.blocks if is_kept else (job.shape.tied_block,)
        shards, replicas = ((axis, mesh.group(axis, self.rank)) for axis in (Axis.FSDP, Axis.DP))
        return shard_calls(self.held.items(), job.element_size, shards, replicas, kept)

    def _gradients(self) -> Iterator[Traffic]:
        mesh = self.job.mesh
        index, parts = mesh.index(Axis.FSDP, self.rank), mesh.size(Axis.FSDP)
        apart = self._names_of_experts if mesh.size(Axis.EP) > 1 else frozenset()
        for experts in (False, True):
            held = [shape for name, shape in self.held.items() if (name in apart) == experts]
            size = sum(shard_elements(shape, parts, index) for shape in held)
            what = "gradients of experts" if experts else "gradients"
            if held:
                for axis in average_axes(mesh, experts=experts):
                    yield self._whole(axis, size, what)

    def _whole(self, axis: Axis, size: int, what: str, *, library: bool = False) -> Traffic:
        """One sum per step, of `size` elements."""
        return Traffic(
            collective="all_reduce",
            axis=axis,
            members=self.job.mesh.group(axis, self.rank),
            bytes=size * self.job.element_size,
            what=what,
            by_library=library,
        )
