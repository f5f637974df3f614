"""Context parallelism: each rank has part of every sequence, and attention gathers keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from perfscope.runners import comm
from perfscope.runners.comm import Group
from perfscope.runners.config import BenchError
from perfscope.runners.inputs import InputKind
from perfscope.runners.job import Job
from perfscope.runners.mesh import WORLD, Mesh
from perfscope.runners.model_parallel.operators import gather_partial
from perfscope.runners.models.llama import Rotary
from perfscope.runners.models.shapes import ATTENTION
from perfscope.runners.models.transformer import DotProductAttention, TokenEmbedding, repeated
from perfscope.runners.schemes.base import DIVIDED_MODEL, Axes, Batch
from perfscope.runners.schemes.dp_gradients import Replicas
from perfscope.runners.schemes.local import loss_of
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology
from perfscope.vocabulary.traffic import ScalesWith


class GatheredAttention(nn.Module):
    """Causal attention of the rank's queries to the keys and values of all positions before them.

    all_gather of keys and values forward, reduce_scatter of their gradients backward.
    """

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """(b, heads, T / cp, head width) of each to the shape of the queries."""
        keys, values = (repeated(gather_partial(part, 2, self.group), q.shape[1]) for part in (k, v))
        length = q.shape[2]
        mask = torch.ones(length, keys.shape[2], dtype=torch.bool, device=q.device)
        mask = mask.tril(diagonal=self.group.index * length)  # the first query's position
        return functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)


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

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        members, everyone = job.mesh.group(Axis.CP, rank), job.mesh.group(WORLD, rank)
        attentions = [layer for layer in job.shape.products if layer.kind == ATTENTION]
        sizes = [layer.kv_size * job.group_batch * job.element_size for layer in attentions]
        inside = [
            Traffic(
                collective=collective,
                axis=Axis.CP,
                members=members,
                bytes=size,
                count=2,
                what=what,
                scales_with=ScalesWith.SAMPLES,
            )
            for collective, what in (("all_gather", "keys and values"), ("reduce_scatter", "their gradients"))
            for size in sizes
        ]
        gradients = Traffic(
            collective="all_reduce", axis=WORLD, members=everyone, bytes=job.model_bytes, what="gradients"
        )
        return [*inside, gradients]

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
                    setattr(module, name, GatheredAttention(group))
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


def require_attention(scheme: str, job: Job) -> None:
    """Raises BenchError for a model in which positions meet elsewhere than in attention."""
    if not any(layer.kind == ATTENTION for layer in job.shape.products):
        raise BenchError(f"{scheme}: {job.config.model} has no attention that cp could cut; leave out cp")
