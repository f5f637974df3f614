"""Several axes at once, by torch's DeviceMesh, fully_shard, parallelize_module and pipelining."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.collect import collect_state, layout_of
from perfscope.runners.comm import Group, local_part
from perfscope.runners.composed.experts import divide_experts, expert_layers
from perfscope.runners.composed.layers import divide_layers, settle_gradients, whole_tensor
from perfscope.runners.composed.pairs import tensor_pairs
from perfscope.runners.composed.shards import kept_whole, shard_blocks
from perfscope.runners.composed.volumes import RankPart, average_axes, layer_axis
from perfscope.runners.config import BenchError
from perfscope.runners.inputs import InputKind
from perfscope.runners.job import Job
from perfscope.runners.mesh import Mesh
from perfscope.runners.model_parallel.context import CONTEXT_ATTENTION
from perfscope.runners.model_parallel.operators import gather_parts
from perfscope.runners.models.registry import find_model
from perfscope.runners.models.transformer import DotProductAttention
from perfscope.runners.schemes.base import (
    DIVIDED_MODEL,
    NO_SKIP,
    NO_WHOLE_GRADIENT,
    OF_TORCH,
    Axes,
    Batch,
    Scheme,
    passes_options,
)
from perfscope.runners.schemes.compilation import require_blocks
from perfscope.runners.schemes.cp_sequence import require_attention, require_heads
from perfscope.runners.schemes.dp_ddp import require_torch_group
from perfscope.runners.schemes.mp_base import require_divisible
from perfscope.runners.schemes.pp_schedules import (
    GPipe,
    Interleaved,
    OneForwardOneBackward,
    Pipeline,
    example_activation,
    open_schedule,
)
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology


class _ZeroBubble(Interleaved):
    schedule = "ScheduleInterleavedZeroBubble"


_PIPELINES: Mapping[str, type[Pipeline]] = {
    "gpipe": GPipe,
    "1f1b": OneForwardOneBackward,
    "interleaved": Interleaved,
    "zero-bubble": _ZeroBubble,
}


_LAYER_AXES = (Axis.TP, Axis.SP, Axis.CP, Axis.EP)  # exchange inside of layers
_REFUSED_ALONG: Mapping[str, tuple[tuple[Axis, ...], str]] = {
    "accumulate": ((Axis.PP,), "its schedule has microbatches; use --microbatches"),
    "activation_checkpointing": (_LAYER_AXES, DIVIDED_MODEL["activation_checkpointing"]),
    "mixed": ((*_LAYER_AXES, Axis.PP), DIVIDED_MODEL["mixed"]),
    "float16": ((Axis.FSDP,), NO_SKIP["float16"]),
    "compile": (_LAYER_AXES, f"{DIVIDED_MODEL['compile']} of dp, fsdp and pp"),
}


def _pipeline(job: Job) -> type[Pipeline]:
    return _PIPELINES[job.config.pipeline]


def _torch_mesh(mesh: Mesh, device_type: str) -> Any:
    """torch's, of the axes that are split, by their names."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device_type, tuple(mesh.axes.values()), mesh_dim_names=tuple(map(str, mesh.axes)))


class _Average(NamedTuple):
    """Gradients that are averaged over groups of ranks, one group after the other.

    Attributes:
        params: whose gradients.
        groups: none: nothing is sent.
        flat: for all of them; None without groups.
        divisor: besides the sizes of the groups.
    """

    params: list[nn.Parameter]
    groups: list[Group]
    flat: torch.Tensor | None
    divisor: int

    def apply(self) -> None:
        """In place."""
        gradients = [local_part(value.grad) for value in self.params]
        if self.flat is not None:
            comm.flatten(gradients, self.flat)
            for group in self.groups:
                comm.all_reduce(self.flat, group)
                self.flat.div_(group.size)
            comm.unflatten(self.flat, gradients)
        if self.divisor > 1:
            for gradient in gradients:
                gradient.div_(self.divisor)


class MeshParallel(Scheme):
    """Any axes of a mesh together."""

    name = "mesh"
    summary = "Several axes at once: `--mesh dp=2,tp=2,pp=2`, of dp, fsdp, tp, sp, pp, cp and ep."
    rule = (
        "tp: in each transformer block the first linear layers of attention (by heads) and of the "
        "feed-forward part are cut along outputs, the last along inputs (torch's parallelize_module). "
        "sp: the same, and between these layers each rank has its part of the sequence (torch's "
        "SequenceParallel). fsdp: torch's fully_shard over blocks; with dp, dp has replicas of the "
        "shards. pp: stages as pp.* cut them, in the schedule of `--pipeline`. cp: as cp.gather, cp.ring "
        "or cp.all_to_all, by `--cp-attention`; torch's context_parallel has no attention for CPUs. ep: "
        "each rank has its part of the batch and E/n of the experts; tokens go to them and back by "
        "all-to-all. Gradients are packed and averaged along dp (without fsdp), ep (but those of experts) "
        "and cp, in this order."
    )
    volume = (
        "tp: per pair of linear layers an all-reduce of b T/c |y| e forward and one backward; sp: "
        "instead an all-gather and a reduce-scatter each way, and all-gathers of b T/c |y| e for the "
        "first and the last layer; fsdp: 3(n-1)/n of the rank's parameters, 2(n-1)/n with pp; pp: b/c "
        "|y_cut| e per cut and direction; cp: 4(c-1)/c b T d/M e per attention layer with d features of "
        "the keys (ring: (6c-4)/c; all-to-all: 4(c-1)/c^2 b T (d_q + d)/M e); ep: 4(n-1)/n b T/c k |y| e "
        "per mixture with k experts per token, on average over the ranks: the routers decide; dp, ep and "
        "cp: 2(n-1)/n of the rank's own parameters each"
    )
    source = (
        "torch.distributed.fsdp, torch.distributed.tensor.parallel, torch.distributed.pipelining; arXiv "
        "2410.06511 (torchtitan); GShard (arXiv 2006.16668) for ep"
    )
    axes = Axes(
        (
            Parallelism.DATA,
            Parallelism.MODEL,
            Parallelism.PIPELINE,
            Parallelism.CONTEXT,
            Parallelism.EXPERT,
        ),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.ALL_REDUCE,
        StatePlacement.SHARDED,
        "groups along each axis of the mesh",
    )
    splits = (Axis.DP, Axis.FSDP, Axis.TP, Axis.SP, Axis.PP, Axis.CP, Axis.EP)
    refused_updates = NO_WHOLE_GRADIENT
    whole_layers = False
    backends = OF_TORCH

    @classmethod
    def default_mesh(cls, num_ranks: int) -> Mesh:
        """See Scheme: data parallel."""
        return Mesh({Axis.DP: num_ranks})

    @classmethod
    def num_microbatches(cls, job: Job) -> int:
        """See Scheme."""
        return _pipeline(job).num_microbatches(job) if job.mesh.size(Axis.PP) > 1 else job.config.accumulate

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        cls._check_sequence(job)
        cls._check_layers(job)
        cls._check_experts(job)
        cls._check_options(job)
        if job.mesh.size(Axis.PP) > 1:
            _pipeline(job).check(job)

    @classmethod
    def _check_sequence(cls, job: Job) -> None:
        axes = [axis for axis in (Axis.CP, Axis.SP) if job.mesh.size(axis) > 1]
        if not axes:
            return
        names, model = " and ".join(axes), job.config.model
        if find_model(model).input is not InputKind.TOKENS:
            raise BenchError(f"{cls.name}: {model} has no sequence that {names} could cut; leave out {names}")
        if Axis.CP in axes:
            require_attention(cls.name, job)
        length, parts = job.config.input_shape[0], prod(map(job.mesh.size, axes))
        if length % parts:
            raise BenchError(
                f"{cls.name}: {length} tokens cannot be cut into {parts} equal parts; change {names}"
            )

    @classmethod
    def _check_layers(cls, job: Job) -> None:
        axis, model = layer_axis(job.mesh), job.config.model
        if axis == Axis.SP and job.mesh.size(Axis.TP) > 1:
            raise BenchError(
                f"{cls.name}: sp divides layers as tp does, over the same ranks, and sequences between them; "
                f"leave out tp"
            )
        if (parts := job.mesh.size(axis)) > 1:
            pairs = tensor_pairs(job.shape)
            if not pairs or find_model(model).input is not InputKind.TOKENS:
                raise BenchError(
                    f"{cls.name}: {model} has no transformer block that {axis} could cut; "
                    f"use a language model, or mp.* and hy.*"
                )
            require_divisible(cls.name, parts, [unit for pair in pairs for unit in pair.units], axis)
        if job.mesh.size(Axis.CP) > 1:
            require_heads(cls.name, job, job.config.cp_attention)

    @classmethod
    def _check_experts(cls, job: Job) -> None:
        if (parts := job.mesh.size(Axis.EP)) == 1:
            return
        experts = expert_layers(job.shape)
        if not experts:
            raise BenchError(
                f"{cls.name}: {job.config.model} has no experts that ep could divide; leave out ep, or use "
                f"one with experts, as moe-nano"
            )
        require_divisible(
            cls.name, parts, [(layer.path, layer.num_experts, "experts") for layer in experts], Axis.EP
        )

    @classmethod
    def _check_options(cls, job: Job) -> None:
        sizes, options = job.mesh.size, passes_options(job.config)
        for name, (refused, reason) in _REFUSED_ALONG.items():
            axes = [axis for axis in refused if sizes(axis) > 1]
            if name in options and axes:
                raise BenchError(
                    f"{cls.name} cannot take {options[name]} along {' and '.join(axes)}: {reason}"
                )
        if "compile" in options and (sizes(Axis.FSDP) > 1 or sizes(Axis.PP) > 1):
            require_blocks(cls.name, job, options["compile"], "fsdp and pp divide it into its layers")
        if (option := options.get("activation_checkpointing")) is not None:
            require_blocks(cls.name, job, option, "a mesh takes it apart into its layers")

    @classmethod
    def layout(cls, job: Job) -> Mapping[str, Any]:
        """See Scheme."""
        return _pipeline(job).layout(job) if job.mesh.size(Axis.PP) > 1 else {}

    @classmethod
    def own_blocks(cls, job: Job, rank: int) -> frozenset[str]:
        """Names of the blocks that a rank has."""
        if job.mesh.size(Axis.PP) == 1:
            return frozenset(job.shape.blocks)
        kind = _pipeline(job)
        stages = kind.stages(job)
        return frozenset(block for index in kind.stages_of(job, rank) for block in stages[index].blocks)

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        blocks, m = cls.own_blocks(job, rank), cls.num_microbatches(job)
        part = RankPart(job=job, rank=rank, blocks=blocks, num_microbatches=m)
        return [*cls.sent_between_stages(job, rank), *part.traffic()]

    @classmethod
    def sent_between_stages(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """What a rank sends to the stages before and behind its own in a step."""
        mesh = job.mesh
        if mesh.size(Axis.PP) == 1:
            return ()
        parts = mesh.size(Axis.CP) * mesh.size(Axis.SP)
        return [replace(sent, bytes=sent.bytes // parts) for sent in _pipeline(job).traffic(job, rank)]

    # --- on a rank --------------------------------------------------------------------------------------

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        require_torch_group(self.name)
        job, mesh = self.job, self.job.mesh
        self._layout = layout_of(model.state_dict(), self._owners(model))
        names_of_experts = frozenset().union(*(layer.params for layer in expert_layers(job.shape)))
        self._device_mesh = _torch_mesh(mesh, self.world.device.type)
        self._divide_sequence(model)
        self._divide_experts(model)
        self._orders: dict[str, torch.Tensor] = {}
        blocks, axis = self.own_blocks(job, self.world.rank), layer_axis(mesh)
        if mesh.size(axis) > 1:
            self._orders = divide_layers(
                model, job.shape, blocks, self._device_mesh[axis.value], sequence=axis == Axis.SP
            )
        held = [(name, block) for name, block in model.named_children() if name in blocks]
        self.model = nn.Sequential(OrderedDict(held))
        self._schedule: Any = None
        if mesh.size(Axis.PP) > 1:
            self._schedule = self._open_pipeline(model)
        elif mesh.size(Axis.FSDP) > 1:
            whole = job.config.accumulate > 1
            self.model = shard_blocks(self.model, self._shard_mesh(), job.shape.tied_block, keep=whole)
        self._params = list(self.model.parameters())
        self._averages = self._open_averages(names_of_experts if mesh.size(Axis.EP) > 1 else frozenset())
        comm.name_groups(self.model)
        self.optimizer = make_optimizer(self, self._params)

    def step(self, batch: Batch) -> torch.Tensor | None:
        """See Scheme."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._run(batch)
        settle_gradients(self._params)
        for average in self._averages:
            average.apply()
        self.passes.update(self.optimizer)
        return loss

    def rehearse(self, batch: Batch) -> None:
        """See Scheme."""
        if self._schedule is not None:
            self._run_pipeline(self._own_tokens(batch))
        else:
            self.passes.rehearse(self.model, self._own_tokens(batch))

    def _run(self, batch: Batch) -> torch.Tensor | None:
        own = self._own_tokens(batch)
        if self._schedule is not None:
            return self._run_pipeline(own)
        is_sharded = self.job.mesh.size(Axis.FSDP) > 1
        return self.passes.run(
            self.model, own, partial(kept_whole, self.model) if is_sharded else nullcontext
        )

    def _own_tokens(self, batch: Batch) -> Batch:
        """What the rank has of each sequence."""
        if self._tokens is None:
            return batch
        return Batch(batch.inputs[:, self._tokens], batch.targets[:, self._tokens])

    def _open_averages(self, names_of_experts: frozenset[str]) -> list[_Average]:
        """Of the gradients of experts, and of all others."""
        mesh, averages = self.job.mesh, []
        for experts in (False, True):
            named = self.model.named_parameters()
            params = [value for name, value in named if (name in names_of_experts) == experts]
            axes = average_axes(mesh, experts=experts) if params else ()
            groups = [self.world.groups(axis, mesh.groups(axis)) for axis in axes]
            flat = self.world.ledger.flat(self.model, params) if groups else None
            averages.append(_Average(params, groups, flat, mesh.size(Axis.EP) if experts else 1))
        return averages

    def _run_pipeline(self, batch: Batch) -> torch.Tensor | None:
        losses: list[torch.Tensor] = []
        self._schedule.step(
            *((batch.inputs,) if self._is_first else ()),
            target=batch.targets if self._is_last else None,
            losses=losses if self._is_last else None,
            return_outputs=False,
        )
        return torch.stack([loss.detach() for loss in losses]).mean() if self._is_last else None

    def full_state(self) -> dict[str, torch.Tensor] | None:
        """See Scheme. Whole along fsdp, tp and ep on each rank, then from the stages to rank 0."""
        blocks = {}
        for name, value in self.model.state_dict().items():
            full = whole_tensor(value)
            if full.shape != self._layout[name].shape:
                full = gather_parts(full, 0, self._expert_group)
            order = self._orders.get(name.rpartition(".")[0])
            blocks[name] = full if order is None else full[order.argsort()]
        return collect_state(self._layout, blocks, self.world)

    def _owners(self, model: nn.Sequential) -> dict[str, tuple[int, ...]]:
        mesh = self.job.mesh
        stage_ranks = [mesh.rank_of({Axis.PP: stage}) for stage in range(mesh.size(Axis.PP))]
        owner = {block: rank for rank in stage_ranks for block in self.own_blocks(self.job, rank)}
        return {name: (owner[name.split(".")[0]],) for name in model.state_dict()}

    def _divide_sequence(self, model: nn.Sequential) -> None:
        mesh = self.job.mesh
        self._tokens: slice | None = None
        if mesh.size(Axis.CP) == 1:
            return
        group = self.world.groups(Axis.CP, mesh.groups(Axis.CP))
        length = self.config.input_shape[0] // group.size
        self._tokens = slice(group.index * length, (group.index + 1) * length)
        for module in list(model.modules()):
            if hasattr(module, "first_position"):
                module.first_position = self._tokens.start
            for name, child in list(module.named_children()):
                if isinstance(child, DotProductAttention):
                    setattr(module, name, CONTEXT_ATTENTION[self.config.cp_attention](group))

    def _divide_experts(self, model: nn.Sequential) -> None:
        mesh = self.job.mesh
        if mesh.size(Axis.EP) > 1:
            self._expert_group = self.world.groups(Axis.EP, mesh.groups(Axis.EP))
            divide_experts(model, self._expert_group)

    def _shard_mesh(self) -> Any:
        """Of one dim, or of replicas and shards."""
        has_replicas = self.job.mesh.size(Axis.DP) > 1
        return self._device_mesh[(Axis.DP.value, Axis.FSDP.value) if has_replicas else Axis.FSDP.value]

    def _open_pipeline(self, model: nn.Sequential) -> Any:
        job, kind = self.job, _pipeline(self.job)
        stages, mine = kind.stages(job), kind.stages_of(job, self.world.rank)
        self._is_first, self._is_last = 0 in mine, len(stages) - 1 in mine
        m = self.num_microbatches(job)
        blocks = dict(self.model.named_children())
        parts = {i: nn.Sequential(OrderedDict((n, blocks[n]) for n in stages[i].blocks)) for i in mine}
        if job.mesh.size(Axis.FSDP) > 1:
            parts = {i: shard_blocks(part, self._shard_mesh(), None, keep=True) for i, part in parts.items()}
        shapes = [stages[0].in_shape, *(stage.out_shape for stage in stages)]
        if self._tokens is not None:
            shapes = [(shape[0] // job.mesh.size(Axis.CP), *shape[1:]) for shape in shapes]
        for i in range(1, len(stages)):  # between stages sequences stay cut
            shapes[i] = (shapes[i][0] // job.mesh.size(Axis.SP), *shapes[i][1:])
        ends = [example_activation(model, shape, job.group_batch // m, i) for i, shape in enumerate(shapes)]
        group = self.world.groups(Axis.PP, job.mesh.groups(Axis.PP))
        return open_schedule(kind.schedule, parts, ends, m, group.handle, self.world.device)
