"""Pipelines: consecutive blocks on consecutive ranks, microbatches going through torch's own schedules."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import nn

from perfscope.runners.collect import collect_state, layout_of
from perfscope.runners.config import BenchError
from perfscope.runners.job import Job
from perfscope.runners.mesh import Mesh
from perfscope.runners.models.shapes import example_input
from perfscope.runners.pipeline.partition import Stage, bubble_ratio, cut, default_microbatches, num_cuttable
from perfscope.runners.schemes.base import DIVIDED_MODEL, NO_WHOLE_GRADIENT, OF_TORCH, Axes, Batch, Scheme
from perfscope.runners.schemes.layer_rules import layers_of
from perfscope.runners.schemes.local import cross_entropy
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology
from perfscope.vocabulary.traffic import ScalesWith

_cut = lru_cache(maxsize=64)(cut)  # a job's cutting is asked for once per rank


class Pipeline(Scheme):
    """What all pipelines share. Subclasses name torch's schedule and how many stages a rank has.

    Class attributes:
        schedule: name in torch.distributed.pipelining.
        stages_per_rank: v; stage i of v * S sits on the pipeline's rank i mod S.
        scales_gradients: the schedule divides gradients by m behind the last backward pass.
    """

    axes = Axes(
        (Parallelism.PIPELINE,),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.POINT_TO_POINT,
        StatePlacement.SHARDED,
        "chain of stages, point to point",
    )
    splits: ClassVar[tuple[Axis, ...]] = (Axis.PP,)
    refused_updates = NO_WHOLE_GRADIENT
    refused_passes = DIVIDED_MODEL
    volume = (
        "per cut b*|y_cut|*e forward (activations) and as much backward (their gradients), in m messages "
        "each way; sent by torch's pipeline itself. Once, in the first step, 4 bytes each way."
    )
    schedule: ClassVar[str]
    stages_per_rank: ClassVar[int] = 1
    scales_gradients = True
    backends = OF_TORCH

    @classmethod
    def check_mesh(cls, mesh: Mesh) -> None:
        """See Scheme."""
        super().check_mesh(mesh)
        if mesh.size(Axis.PP) < 2:
            raise BenchError(f"{cls.name} needs at least 2 pipeline parts; pp is 1 in mesh {mesh}")

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        if job.shape.is_tied:
            raise BenchError(
                f"{cls.name}: the first and the last layer of {job.config.model} share their weights, "
                f"and would be in two stages; use a model with a head of its own, as llama-nano"
            )
        num_stages, most = job.mesh.size(Axis.PP) * cls.stages_per_rank, num_cuttable(job.shape)
        if num_stages > most:
            virtual = f" ({cls.stages_per_rank} on each of {job.mesh.size(Axis.PP)} ranks)"
            raise BenchError(
                f"{cls.name} needs {num_stages} stages{virtual if cls.stages_per_rank > 1 else ''}, but "
                f"{job.config.model} has {most} blocks with parameters; use a smaller pp or a deeper model"
            )
        given, b = cls.num_microbatches(job), job.group_batch
        if b % given:
            raise BenchError(
                f"{cls.name}: {b} samples of a data part cannot be cut into {given} equal microbatches; "
                f"choose a divisor of {b}"
            )
        if problem := cls.refused_microbatches(given, job.mesh.size(Axis.PP)):
            raise BenchError(f"{cls.name}: {problem}")
        if layer := _lonely_norm(job, b // given):
            raise BenchError(
                f"{cls.name}: {layer} would normalize over one value per microbatch; "
                f"use fewer microbatches, a larger batch or a larger input"
            )

    @classmethod
    def refused_microbatches(cls, num_microbatches: int, num_ranks: int) -> str | None:
        """Why the schedule cannot work with so many microbatches on so many ranks; None if it can."""
        return None

    @classmethod
    def num_microbatches(cls, job: Job) -> int:
        """m: what was asked for, or the default."""
        num_ranks, b = job.mesh.size(Axis.PP), job.group_batch

        def allowed(m: int) -> bool:
            return cls.refused_microbatches(m, num_ranks) is None and _lonely_norm(job, b // m) is None

        return job.config.num_microbatches or default_microbatches(b, num_ranks, allowed)

    @classmethod
    def stages(cls, job: Job) -> tuple[Stage, ...]:
        """All stages in order."""
        return _cut(job.shape, job.config.input_shape, job.mesh.size(Axis.PP) * cls.stages_per_rank)

    @classmethod
    def stages_of(cls, job: Job, rank: int) -> tuple[int, ...]:
        """Which stages a rank has."""
        s = job.mesh.index(Axis.PP, rank)
        return tuple(s + turn * job.mesh.size(Axis.PP) for turn in range(cls.stages_per_rank))

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        members, stages = job.mesh.group(Axis.PP, rank), cls.stages(job)
        m = cls.num_microbatches(job)
        bytes_per_element = job.group_batch // m * job.element_size

        def send(to_stage: int, size: int, what: str) -> Traffic:
            receiver = members[to_stage % len(members)]
            return Traffic(
                collective="send",
                axis=Axis.PP,
                members=(rank, receiver),
                bytes=size * bytes_per_element,
                count=m,
                what=what,
                scales_with=ScalesWith.SAMPLES,
                by_library=True,
                group_size=len(members),
            )

        sends = []
        for index in cls.stages_of(job, rank):
            if index + 1 < len(stages):
                sends.append(send(index + 1, stages[index].out_size, "activations forward"))
            if index > 0:
                sends.append(send(index - 1, stages[index].in_size, "activation gradients backward"))
        return sends

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        stages, mine = self.stages(self.job), self.stages_of(self.job, self.world.rank)
        self._m = self.num_microbatches(self.job)
        self._layout = layout_of(model.state_dict(), self._owners(model, stages))
        self._last = len(stages) - 1 in mine
        self._first = 0 in mine
        blocks = dict(model.named_children())
        self.parts = [nn.Sequential(OrderedDict((n, blocks[n]) for n in stages[i].blocks)) for i in mine]
        group = self.world.groups(Axis.PP, self.job.mesh.groups(Axis.PP))
        size = self.job.group_batch // self._m
        ends = [stages[0].in_shape, *(stage.out_shape for stage in stages)]
        self.schedule_object = open_schedule(
            self.schedule,
            dict(zip(mine, self.parts, strict=True)),
            [example_activation(model, shape, size, index) for index, shape in enumerate(ends)],
            self._m,
            group.handle,
            self.world.device,
            scale_grads=self.scales_gradients,
        )
        self._params = [value for part in self.parts for value in part.parameters()]
        self.optimizer = make_optimizer(self, self._params, layers_of(*self.parts))

    def step(self, batch: Batch) -> torch.Tensor | None:
        """See Scheme."""
        self.clear_gradients()
        losses: list[torch.Tensor] = []
        self.schedule_object.step(
            *((batch.inputs,) if self._first else ()),
            target=batch.targets if self._last else None,
            losses=losses if self._last else None,
            return_outputs=False,
        )
        self.exchange_gradients()
        self.optimizer.step()
        return torch.stack([loss.detach() for loss in losses]).mean() if self._last else None

    def clear_gradients(self) -> None:
        """Before the first microbatch."""
        self.optimizer.zero_grad(set_to_none=True)

    def exchange_gradients(self) -> None:
        """Between backward and update; gradients are the data part's means."""

    def full_state(self) -> dict[str, torch.Tensor] | None:
        """See Scheme."""
        own_state = {name: value for part in self.parts for name, value in part.state_dict().items()}
        return collect_state(self._layout, own_state, self.world)

    @classmethod
    def layout(cls, job: Job) -> dict[str, Any]:
        """How the model is cut, before anything runs; JSON values. `ranks` are places in the pipeline."""
        m = cls.num_microbatches(job)
        return {
            "num_microbatches": m,
            "microbatch": job.group_batch // m,
            "bubble_ratio": bubble_ratio(job.mesh.size(Axis.PP), m, cls.stages_per_rank),
            "stages": [
                {
                    "rank": index % job.mesh.size(Axis.PP),
                    "blocks": list(stage.blocks),
                    "forward_flops_per_sample": stage.flops,
                    "num_params": stage.params,
                }
                for index, stage in enumerate(cls.stages(job))
            ],
        }

    def details(self) -> Mapping[str, Any]:
        """See Scheme."""
        mine = self.stages_of(self.job, self.world.rank)
        return {**self.layout(self.job), "own_stages": list(mine)}

    def _owners(self, model: nn.Sequential, stages: Sequence[Stage]) -> dict[str, tuple[int, ...]]:
        mesh = self.job.mesh
        stage_of = {
            block: mesh.rank_of({Axis.PP: index % mesh.size(Axis.PP)})
            for index, stage in enumerate(stages)
            for block in stage.blocks
        }
        return {name: (stage_of[name.split(".")[0]],) for name in model.state_dict()}


def example_activation(model: nn.Module, shape: Sequence[int], size: int, index: int) -> torch.Tensor:
    """What stage `index` takes in of so many samples, without memory."""
    if index == 0:
        return example_input(model, shape, size).to("meta")
    dtype = next(model.parameters()).dtype
    return torch.empty((size, *shape), dtype=dtype, device="meta", requires_grad=True)


def open_schedule(
    kind: str,
    parts: Mapping[int, nn.Module],
    ends: Sequence[torch.Tensor],
    num_microbatches: int,
    group: Any,
    device: torch.device,
    *,
    scale_grads: bool = True,
) -> Any:
    """torch's schedule over this rank's stages.

    Args:
        kind: name in torch.distributed.pipelining.
        parts: modules of this rank, by stage.
        ends: on meta; `ends[i]` enters stage i, `ends[i + 1]` leaves it.
        num_microbatches: m.
        group: torch's.
        device: of the rank.
        scale_grads: gradients are divided by m behind the last backward pass.
    """
    from torch.distributed import pipelining  # half a second, for pipelines only

    # When a peer is gone, torch logs the whole schedule on every rank before it raises.
    logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)
    made = [
        pipelining.PipelineStage(
            part,
            index,
            len(ends) - 1,
            device,
            input_args=(ends[index],),
            output_args=(ends[index + 1],),
            group=group,
        )
        for index, part in parts.items()
    ]
    schedule = getattr(pipelining, kind)
    several = not issubclass(schedule, pipelining.schedules.PipelineScheduleSingle)
    stages = made if several else made[0]
    return schedule(stages, num_microbatches, loss_fn=cross_entropy, scale_grads=scale_grads)


def _lonely_norm(job: Job, microbatch: int) -> str | None:
    """A norm that would see one value per channel in a microbatch of that size."""
    for layer in job.shape.layers:
        if layer.kind == "norm" and microbatch * layer.in_size <= layer.in_shape[0]:
            return layer.name
    return None


_CUT_RULE = (
    "The blocks are cut into contiguous stages so that the largest has as few flops as possible. Gradients "
    "are summed over the microbatches and divided by m: the update is serial SGD's. BatchNorm uses each "
    "microbatch's statistics."
)


class GPipe(Pipeline):
    """All forwards, then all backwards."""

    name = "pp.gpipe"
    summary = "Pipeline, fill and drain: all m microbatches forward, then all backward."
    rule = _CUT_RULE + " Waiting share (S-1)/(m+S-1); activations of all m microbatches are kept."
    source = "Huang et al. 2019, GPipe (arXiv 1811.06965); torch.distributed.pipelining.ScheduleGPipe"
    schedule = "ScheduleGPipe"


class OneForwardOneBackward(Pipeline):
    """One forward, one backward in turn."""

    name = "pp.1f1b"
    summary = (
        "Pipeline that alternates one forward and one backward: at most S microbatches' activations are kept."
    )
    rule = _CUT_RULE + " Waiting share (S-1)/(m+S-1) as GPipe's; m must be at least S."
    source = "Narayanan et al. 2019, PipeDream (arXiv 1806.03377); torch.distributed.pipelining.Schedule1F1B"
    schedule = "Schedule1F1B"

    @classmethod
    def refused_microbatches(cls, num_microbatches: int, num_ranks: int) -> str | None:
        """See Pipeline."""
        if num_microbatches < num_ranks:
            return (
                f"{num_microbatches} microbatches are fewer than the {num_ranks} stages; "
                f"use at least {num_ranks}, or pp.gpipe"
            )
        return None


class Interleaved(Pipeline):
    """Two stages per rank, far apart."""

    name = "pp.interleaved"
    summary = "Pipeline with 2 stages per rank (i and i + S), one forward and one backward in turn."
    rule = _CUT_RULE + " Waiting share (S-1)/(2m+S-1); 2S-1 cuts instead of S-1."
    source = "Narayanan et al. 2021 (arXiv 2104.04473); torch.distributed.pipelining.ScheduleInterleaved1F1B"
    schedule = "ScheduleInterleaved1F1B"
    stages_per_rank = 2

    @classmethod
    def refused_microbatches(cls, num_microbatches: int, num_ranks: int) -> str | None:
        """See Pipeline."""
        rounds = max(1, num_microbatches // num_ranks)  # torch's rule
        if num_microbatches % rounds:
            return (
                f"{num_microbatches} microbatches cannot be cut into {rounds} equal rounds over {num_ranks} "
                f"ranks; use a multiple of {num_ranks}"
            )
        return None
