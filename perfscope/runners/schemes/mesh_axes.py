"""Any of dp, tp, pp and cp at once, by torch's DeviceMesh, parallelize_module and pipelining."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.collect import collect_state, layout_of
from perfscope.runners.comm import local_part
from perfscope.runners.composed.pairs import TensorPair, local_shape, tensor_pairs
from perfscope.runners.config import BenchError
from perfscope.runners.inputs import InputKind
from perfscope.runners.job import Job
from perfscope.runners.mesh import Mesh
from perfscope.runners.models.registry import find_model
from perfscope.runners.models.shapes import ATTENTION
from perfscope.runners.models.transformer import DotProductAttention
from perfscope.runners.schemes.base import NO_WHOLE_GRADIENT, Axes, Batch, Scheme
from perfscope.runners.schemes.cp_gather import GatheredAttention, require_attention
from perfscope.runners.schemes.dp_ddp import require_torch_group
from perfscope.runners.schemes.local import loss_of
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
from perfscope.vocabulary.traffic import ScalesWith

_GRADIENT_AXES = (Axis.DP, Axis.CP)  # along which ranks have samples or tokens of their own


class _ZeroBubble(Interleaved):
    schedule = "ScheduleInterleavedZeroBubble"


_PIPELINES: Mapping[str, type[Pipeline]] = {
    "gpipe": GPipe,
    "1f1b": OneForwardOneBackward,
    "interleaved": Interleaved,
    "zero-bubble": _ZeroBubble,
}


def _pipeline(job: Job) -> type[Pipeline]:
    return _PIPELINES[job.config.pipeline]


class MeshParallel(Scheme):
    """Data, tensor, pipeline and context parallelism together."""

    name = "mesh"
    summary = "Any of dp, tp, pp and cp at once: `--mesh dp=2,tp=2,pp=2`."
    rule = (
        "tp: in each transformer block the first linear layers of attention (by heads) and of the "
        "feed-forward part are cut along outputs, the last along inputs (torch's parallelize_module). pp: "
        "stages as pp.* cut them, in the schedule of `--pipeline`. cp: as cp.gather; torch's "
        "context_parallel has no attention for CPUs. Gradients are packed and averaged first along dp, then "
        "along cp."
    )
    volume = (
        "tp: per pair of linear layers an all-reduce of b T/c |y| e forward and one backward; pp: b/c "
        "|y_cut| e per cut and direction; cp: 4(c-1)/c b T d/M e per attention layer with d features "
        "of the keys; dp and cp: 2(n-1)/n of the rank's own parameters each"
    )
    source = "torch.distributed.tensor.parallel, torch.distributed.pipelining; arXiv 2410.06511 (torchtitan)"
    axes = Axes(
        (Parallelism.DATA, Parallelism.MODEL, Parallelism.PIPELINE, Parallelism.CONTEXT),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.ALL_REDUCE,
        StatePlacement.SHARDED,
        "groups along each axis of the mesh",
    )
    splits = (Axis.DP, Axis.TP, Axis.PP, Axis.CP)
    refused_updates = NO_WHOLE_GRADIENT
    whole_layers = False

    @classmethod
    def default_mesh(cls, num_ranks: int) -> Mesh:
        """See Scheme: data parallel."""
        return Mesh({Axis.DP: num_ranks})

    @classmethod
    def num_microbatches(cls, job: Job) -> int:
        """See Scheme."""
        return _pipeline(job).num_microbatches(job) if job.mesh.size(Axis.PP) > 1 else 1

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        mesh, model = job.mesh, job.config.model
        if (parts := mesh.size(Axis.CP)) > 1:
            if find_model(model).input is not InputKind.TOKENS:
                raise BenchError(f"{cls.name}: {model} has no sequence that cp could cut; leave out cp")
            require_attention(cls.name, job)
            if (length := job.config.input_shape[0]) % parts:
                raise BenchError(
                    f"{cls.name}: {length} tokens cannot be cut into {parts} equal parts; change cp"
                )
        if (parts := mesh.size(Axis.TP)) > 1:
            pairs = tensor_pairs(job.shape)
            if not pairs or find_model(model).input is not InputKind.TOKENS:
                raise BenchError(
                    f"{cls.name}: {model} has no transformer block that tp could cut; "
                    f"use a language model, or mp.* and hy.*"
                )
            require_divisible(cls.name, parts, [unit for pair in pairs for unit in pair.units])
        if mesh.size(Axis.PP) > 1:
            _pipeline(job).check(job)

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
        blocks, m, mesh = cls.own_blocks(job, rank), cls.num_microbatches(job), job.mesh
        parts = mesh.size(Axis.CP)
        per_element = job.group_batch // m * job.element_size
        calls: list[Traffic] = []
        if mesh.size(Axis.PP) > 1:
            calls += [replace(sent, bytes=sent.bytes // parts) for sent in _pipeline(job).traffic(job, rank)]

        def inside(collective: str, axis: Axis, size: int, count: int, what: str, library: bool) -> Traffic:
            return Traffic(
                collective=collective,
                axis=axis,
                members=mesh.group(axis, rank),
                bytes=size * per_element,
                count=count * m,
                what=what,
                scales_with=ScalesWith.SAMPLES,
                by_library=library,
            )

        if mesh.size(Axis.TP) > 1:
            for pair in tensor_pairs(job.shape):
                if pair.block in blocks:
                    what = f"{pair.block}.{pair.child}"
                    calls.append(inside("all_reduce", Axis.TP, pair.size // parts, 2, what, True))
        if parts > 1:
            for layer in job.shape.products:
                if layer.kind == ATTENTION and layer.name.split(".")[0] in blocks:
                    size = layer.kv_size // mesh.size(Axis.TP)
                    calls.append(inside("all_gather", Axis.CP, size, 2, "keys and values", False))
                    calls.append(inside("reduce_scatter", Axis.CP, size, 2, "their gradients", False))
        gradients = cls.own_params(job, rank) * job.element_size
        calls += [
            Traffic(
                collective="all_reduce",
                axis=axis,
                members=mesh.group(axis, rank),
                bytes=gradients,
                what="gradients",
            )
            for axis in _GRADIENT_AXES
            if mesh.size(axis) > 1
        ]
        return calls

    @classmethod
    def own_params(cls, job: Job, rank: int) -> int:
        """Parameters that a rank holds."""
        blocks, parts = cls.own_blocks(job, rank), job.mesh.size(Axis.TP)
        return sum(
            prod(local_shape(job.shape, name, whole, parts))
            for name, whole in job.shape.params
            if name.split(".")[0] in blocks
        )

    # --- on a rank --------------------------------------------------------------------------------------

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        require_torch_group(self.name)
        job, mesh = self.job, self.job.mesh
        self._layout = layout_of(model.state_dict(), self._owners(model))
        self._groups = [
            self.world.groups(axis, mesh.groups(axis)) for axis in _GRADIENT_AXES if mesh.size(axis) > 1
        ]
        self._divide_sequence(model)
        self._divide_layers(model)
        blocks = {
            name: block
            for name, block in model.named_children()
            if name in self.own_blocks(job, self.world.rank)
        }
        self.model = nn.Sequential(OrderedDict(blocks))
        self._schedule: Any = self._open_pipeline(model) if mesh.size(Axis.PP) > 1 else None
        self._params = list(self.model.parameters())
        self._flat = self.world.ledger.flat(self.model) if self._groups else None
        comm.name_groups(self.model)
        self.optimizer = make_optimizer(self, self._params)

    def step(self, batch: Batch) -> torch.Tensor | None:
        """See Scheme."""
        self.optimizer.zero_grad(set_to_none=True)
        blocks = batch
        if self._tokens is not None:
            blocks = Batch(batch.inputs[:, self._tokens], batch.targets[:, self._tokens])
        loss = self._run_pipeline(blocks) if self._schedule is not None else self._run_model(blocks)
        if self._flat is not None:
            gradients = [local_part(value.grad) for value in self._params]
            packed = comm.flatten(gradients, self._flat)
            for group in self._groups:
                comm.all_reduce(packed, group)
                packed.div_(group.size)
            comm.unflatten(packed, gradients)
        self.optimizer.step()
        return loss

    def _run_model(self, batch: Batch) -> torch.Tensor:
        loss = loss_of(self.model, batch)
        loss.backward()
        return loss.detach()

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
        """See Scheme. Whole along tp on each rank, then from the stages to rank 0."""
        blocks = {}
        for name, value in self.model.state_dict().items():
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            order = self._orders.get(name.rpartition(".")[0])
            blocks[name] = whole if order is None else whole[order.argsort()]
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
                    setattr(module, name, GatheredAttention(group))

    def _divide_layers(self, model: nn.Sequential) -> None:
        self._orders: dict[str, torch.Tensor] = {}
        mesh = self.job.mesh
        if mesh.size(Axis.TP) == 1:
            return
        from torch.distributed.device_mesh import init_device_mesh

        sizes, names = tuple(mesh.axes.values()), tuple(map(str, mesh.axes))
        device_mesh = init_device_mesh(self.world.device.type, sizes, mesh_dim_names=names)[str(Axis.TP)]
        blocks = self.own_blocks(self.job, self.world.rank)
        for pair in tensor_pairs(self.job.shape):
            if pair.block in blocks:
                self._divide_pair(model.get_submodule(f"{pair.block}.{pair.child}"), pair, device_mesh)

    def _divide_pair(self, module: nn.Module, pair: TensorPair, device_mesh: Any) -> None:
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor import parallel as tensor_parallel

        if pair.columns == ("qkv",):  # rows of queries, keys and values of one rank's heads side by side
            layer, parts = module.get_submodule("qkv"), self.job.mesh.size(Axis.TP)
            width = layer.out_features
            order = torch.arange(width).view(3, parts, -1).transpose(0, 1).flatten()
            with torch.no_grad():
                for value in layer.parameters():
                    value.copy_(value[order].clone())
            self._orders[f"{pair.block}.{pair.child}.qkv"] = order
        whole = tensor_parallel.PrepareModuleInput(
            input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)
        )
        tensor_parallel.parallelize_module(
            module,
            device_mesh,
            {
                "": whole,
                **{name: tensor_parallel.ColwiseParallel() for name in pair.columns},
                pair.row: tensor_parallel.RowwiseParallel(),
            },
        )

    def _open_pipeline(self, model: nn.Sequential) -> Any:
        job, kind = self.job, _pipeline(self.job)
        stages, mine = kind.stages(job), kind.stages_of(job, self.world.rank)
        self._is_first, self._is_last = 0 in mine, len(stages) - 1 in mine
        m = self.num_microbatches(job)
        blocks = dict(self.model.named_children())
        parts = {i: nn.Sequential(OrderedDict((n, blocks[n]) for n in stages[i].blocks)) for i in mine}
        shapes = [stages[0].in_shape, *(stage.out_shape for stage in stages)]
        if self._tokens is not None:
            shapes = [(shape[0] // job.mesh.size(Axis.CP), *shape[1:]) for shape in shapes]
        ends = [example_activation(model, shape, job.group_batch // m, i) for i, shape in enumerate(shapes)]
        group = self.world.groups(Axis.PP, job.mesh.groups(Axis.PP))
        return open_schedule(kind.schedule, parts, ends, m, group.handle, self.world.device)
