"""Context parallelism: each rank has part of every sequence, and attention sees those of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.composed.pairs import tensor_pairs
from perfscope.runners.composed.volumes import attention_calls, layer_axis
from perfscope.runners.config import BenchError
from perfscope.runners.inputs import InputKind
from perfscope.runners.job import Job
from perfscope.runners.mesh import WORLD, Mesh
from perfscope.runners.model_parallel.context import CONTEXT_ATTENTION
from perfscope.runners.models.llama import Rotary
from perfscope.runners.models.shapes import ATTENTION
from perfscope.runners.models.transformer import DotProductAttention, TokenEmbedding
from perfscope.runners.schemes.base import DIVIDED_MODEL, Axes, Batch
from perfscope.runners.schemes.dp_gradients import Replicas
from perfscope.runners.schemes.local import loss_of
from perfscope.runners.schemes.mp_base import require_divisible
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology


class ContextParallel(Replicas):
    """Sequences divided over ranks."""

    name = "cp.gather"
    summary = "Each rank has T/cp positions of every sequence; attention gathers keys and values."
    rule = (
        "Every rank holds the whole model. Layers on single positions need nothing. In each attention layer "
        "keys and values of all positions are gathered (all_gather), backward their gradients are summed and "
        "scattered (reduce_scatter). Gradients are packed and averaged over all ranks, as each has its part "
        "of the tokens."
    )
    volume = (
        "per attention layer 4(c-1)/c * b T d e with c = cp and d features of the keys, and "
        "2(P-1)/P * |W| e for the gradients"
    )
    source = "Llama 3 (arXiv 2407.21783, section 3.3.2); torch's context_parallel does the same"
    axes = Axes(
        (Parallelism.CONTEXT,),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.ALL_GATHER,
        StatePlacement.REPLICATED,
        "all-gather and reduce-scatter of keys and values",
    )
    splits = (Axis.DP, Axis.CP)
    inputs = frozenset((InputKind.TOKENS,))
    refused_passes = DIVIDED_MODEL
    attention: ClassVar[str] = "gather"

    @classmethod
    def default_mesh(cls, num_ranks: int) -> Mesh:
        """See Scheme: all ranks along the sequence."""
        return Mesh({Axis.CP: num_ranks})

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        require_attention(cls.name, job)
        (length,), parts = job.config.input_shape, job.mesh.size(Axis.CP)
        if length % parts:
            raise BenchError(f"{cls.name}: {length} tokens cannot be cut into {parts} equal parts; change cp")
        require_heads(cls.name, job, cls.attention)

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        everyone = job.mesh.group(WORLD, rank)
        gradients = Traffic(
            collective="all_reduce", axis=WORLD, members=everyone, bytes=job.model_bytes, what="gradients"
        )
        return [*attention_calls(job, rank, cls.attention, job.shape.products), gradients]

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        mesh = self.job.mesh
        group = self.world.groups(Axis.CP, mesh.groups(Axis.CP))
        self._everyone = self.world.groups(WORLD, mesh.groups(WORLD))
        length = self.config.input_shape[0] // group.size
        self._own = slice(group.index * length, (group.index + 1) * length)
        for module in list(model.modules()):
            if isinstance(module, TokenEmbedding | Rotary):
                module.first_position = self._own.start
            for name, child in list(module.named_children()):
                if isinstance(child, DotProductAttention):
                    setattr(module, name, CONTEXT_ATTENTION[self.attention](group))
        self.model, self._params = model, list(model.parameters())
        self._flat = self.world.ledger.flat(model)
        comm.name_groups(model)
        self.optimizer = make_optimizer(self, self._params)

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self.model, Batch(batch.inputs[:, self._own], batch.targets[:, self._own]))
        loss.backward()
        gradients = [value.grad for value in self._params]
        packed = comm.flatten(gradients, self._flat)
        comm.all_reduce(packed, self._everyone)
        comm.unflatten(packed.div_(self._everyone.size), gradients)
        self.optimizer.step()
        return loss.detach()


class ContextRing(ContextParallel):
    """The same with keys and values that go around."""

    name = "cp.ring"
    summary = "As cp.gather, but keys and values go from rank to rank in a ring."
    rule = (
        "As cp.gather. In each attention layer the keys and values of c = cp parts go around the ring in "
        "c - 1 hops, while each rank computes with those that it has and merges softmaxes block by block; "
        "backward they go around again, and their gradients follow in c hops. A rank never holds more than "
        "two parts. Parts are consecutive: the first rank skips all blocks but its own."
    )
    volume = "per attention layer (6c-4)/c * b T d e with d features of the keys, and 2(P-1)/P * |W| e"
    source = "Ring attention (Liu et al., arXiv 2310.01889)"
    axes = ContextParallel.axes._replace(
        topology=Topology.POINT_TO_POINT, pattern="ring of keys and values, neighbor to neighbor"
    )
    attention = "ring"


class ContextAllToAll(ContextParallel):
    """The same with heads divided during attention."""

    name = "cp.all_to_all"
    summary = "As cp.gather, but during attention ranks have all positions of some of the heads."
    rule = (
        "As cp.gather. Before each attention an all-to-all gives every rank its heads' queries, keys and "
        "values of all positions, after it another one gives each its positions back; backward the same. "
        "cp must divide the heads of queries and of keys."
    )
    volume = (
        "per attention layer 4(c-1)/c^2 * b T (d_q + d) e with d_q and d features of queries and keys, and "
        "2(P-1)/P * |W| e"
    )
    source = "DeepSpeed-Ulysses (Jacobs et al., arXiv 2309.14509)"
    axes = ContextParallel.axes._replace(
        topology=Topology.ALL_TO_ALL, pattern="all-to-all of positions against heads"
    )
    attention = "all-to-all"


def require_heads(scheme: str, job: Job, attention: str) -> None:
    """Raises BenchError where ranks along cp cannot share the heads that a rank along tp has."""
    mesh = job.mesh
    if not CONTEXT_ATTENTION[attention].shares_heads:
        return
    tensor_parts = mesh.size(layer_axis(mesh))
    units = [
        (layer, number // tensor_parts, of)
        for pair in tensor_pairs(job.shape)
        for layer, number, of in pair.units
        if of == "heads"
    ]
    require_divisible(scheme, mesh.size(Axis.CP), units, Axis.CP)


def require_attention(scheme: str, job: Job) -> None:
    """Raises BenchError for a model in which positions meet elsewhere than in attention."""
    if not any(layer.kind == ATTENTION for layer in job.shape.products):
        raise BenchError(f"{scheme}: {job.config.model} has no attention that cp could cut; leave out cp")
