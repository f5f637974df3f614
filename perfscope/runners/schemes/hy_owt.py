"""One weird trick: convolutions data parallel, fully connected layers model parallel, over the same ranks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from perfscope.runners.collect import collect_state, layout_of
from perfscope.runners.config import BenchError
from perfscope.runners.hybrid.chain import (
    DATA_MODE,
    MODEL_MODE,
    Chain,
    ChainPlan,
    plan_chain,
    trained_blocks,
)
from perfscope.runners.inputs import InputKind
from perfscope.runners.job import Job
from perfscope.runners.mesh import WORLD, Mesh
from perfscope.runners.schemes.base import DIVIDED_MODEL, NO_WHOLE_GRADIENT, Batch, Scheme, hybrid_axes
from perfscope.runners.schemes.data_average import OVERLAP, average_traffic, open_average
from perfscope.runners.schemes.dp_gradients import CODECS
from perfscope.runners.schemes.local import cross_entropy
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Topology
from perfscope.vocabulary.traffic import ScalesWith

_DATA, _MODEL = "data blocks", "model blocks"


class HybridChain(Scheme):
    """Every block is a data block or a model block; subclasses choose.

    All P ranks average the gradients of data blocks. Model blocks are cut over groups of M ranks, and their
    gradients averaged over the P/M ranks with the same part.
    """

    axes = hybrid_axes(Topology.ALL_GATHER, "ring all-reduce; all-gather and reduce-scatter of activations")
    splits = (Axis.DP, Axis.TP)
    refused_updates = NO_WHOLE_GRADIENT
    refused_passes = DIVIDED_MODEL
    whole_layers = False
    cuts_layers = True
    inputs = frozenset((InputKind.IMAGE, InputKind.TABLE))
    modifiers = CODECS | {OVERLAP}

    @classmethod
    def default_mesh(cls, num_ranks: int) -> Mesh:
        """See Scheme."""
        return Mesh({Axis.DP: num_ranks})

    @classmethod
    def num_parts(cls, mesh: Mesh, servers: int = 1) -> int:
        """See Scheme: data blocks have as many as there are ranks."""
        return mesh.num_ranks

    @classmethod
    def model_groups(cls, job: Job) -> tuple[tuple[int, ...], ...]:
        """Ranks that share model blocks: groups along tp, all ranks where there is no tp."""
        return job.mesh.groups(Axis.TP if job.mesh.size(Axis.TP) > 1 else WORLD)

    @classmethod
    def replica_groups(cls, job: Job) -> tuple[tuple[int, ...], ...]:
        """Ranks that have the same part of the model blocks."""
        return tuple(zip(*cls.model_groups(job), strict=True))

    @classmethod
    def model_batch(cls, job: Job) -> int:
        """b, samples that a model group has together."""
        return job.config.batch // len(cls.model_groups(job))

    @classmethod
    @abstractmethod
    def modes(cls, job: Job) -> dict[str, str]:
        """DATA_MODE or MODEL_MODE of each top-level block with parameters."""

    @classmethod
    def chain_plan(cls, job: Job) -> ChainPlan:
        """Which activations move where."""
        return plan_chain(job.shape, cls.modes(job))

    @classmethod
    def placement_groups(cls, job: Job) -> Mapping[str, tuple[tuple[int, ...], ...]]:
        """See Scheme: all ranks for the data blocks, and the groups of the model blocks."""
        modes = cls.modes(job).values() if job.num_ranks > 1 else ()
        of_data = job.mesh.groups(WORLD) if DATA_MODE in modes else ()
        of_model = cls.model_groups(job) if MODEL_MODE in modes else ()
        if len(of_model) > 1:
            of_data = (*of_data, *cls.replica_groups(job))
        return {axis: groups for axis, groups in ((Axis.DP, of_data), (Axis.TP, of_model)) if groups}

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        everybody, plan = job.mesh.group(WORLD, rank), cls.chain_plan(job)
        members, replicas = (
            next(group for group in groups if rank in group)
            for groups in (cls.model_groups(job), cls.replica_groups(job))
        )
        calls = []
        for move in plan.moves:
            size = move.elements(cls.model_batch(job), len(members)) * job.element_size
            subject = "logits" if move.before is None else f"input of {move.before}"
            for collective, way in zip(move.calls(), ("", "gradient of the "), strict=True):
                calls.append(
                    Traffic(
                        collective=collective,
                        axis=Axis.TP,
                        members=members,
                        bytes=size,
                        what=way + subject,
                        scales_with=ScalesWith.SAMPLES,
                    )
                )
        layers = [
            (layer.name, layer.num_params, job.shape.blocks[layer.block] in plan.sliced)
            for layer in job.shape.layers
        ]
        replicated = [(name, size) for name, size, is_sliced in layers if not is_sliced]
        parts = [(name, size // len(members)) for name, size, is_sliced in layers if is_sliced]
        return [
            *calls,
            *average_traffic(job, everybody, _DATA, replicated),
            *average_traffic(job, replicas, _MODEL, parts),
        ]

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        codec = next((modifier for modifier in job.config.modifiers if modifier.name in CODECS), None)
        if codec and DATA_MODE not in cls.modes(job).values():
            raise BenchError(
                f"{cls.name}: every layer of {job.config.model} is model parallel here, so +{codec} has no "
                f"gradients to squeeze; leave it out"
            )

    @property
    def data_part(self) -> tuple[int, int]:
        """See Scheme: all samples of the model group where the chain begins with a model block."""
        if not self.chain_plan(self.job).starts_whole:
            return self.world.rank, self.job.num_ranks
        groups = self.model_groups(self.job)
        return self.world.rank // len(groups[0]), len(groups)

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        model_groups = self.model_groups(self.job)
        self._data = self.world.groups(Axis.DP, self.job.mesh.groups(WORLD))
        self._model = self.world.groups(Axis.TP, model_groups)
        self._alike = self.world.groups(Axis.DP, self.replica_groups(self.job))
        self._plan = self.chain_plan(self.job)
        state = model.state_dict()
        self._layout = layout_of(
            state, {name: model_groups[0] for name in state if name.split(".")[0] in self._plan.sliced}
        )
        self.model = Chain(model, self._plan, self._model)
        named: dict[str, list[tuple[str, nn.Parameter]]] = {_DATA: [], _MODEL: []}
        for name, value in self.model.named_parameters():
            named[_MODEL if name.split(".")[0] in self._plan.sliced else _DATA].append((name, value))
        # A slice's gradient is the sum over the losses of M ranks, each a mean over B/P samples.
        kinds = ((_DATA, self._data, 1), (_MODEL, self._alike, self._model.size))
        self._averages = [
            open_average(self, self.model, named[key], group, key=key, divisor=divisor)
            for key, group, divisor in kinds
        ]
        self.optimizer = make_optimizer(self, self.model.parameters())

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        for average in self._averages:
            average.clear()
        targets = batch.targets
        if self._plan.starts_whole:
            targets = targets.chunk(self._model.size)[self._model.index]
        loss = cross_entropy(self.model(batch.inputs), targets)
        loss.backward()
        for average in self._averages:
            average.finish()
        self.optimizer.step()
        return loss.detach()

    def full_state(self) -> dict[str, torch.Tensor] | None:
        """See Scheme."""
        return collect_state(self._layout, self.model.state_dict(), self.world)

    @classmethod
    def layout(cls, job: Job) -> dict[str, Any]:
        """What is decided for each layer, before anything runs; JSON values."""
        return {"modes": cls.modes(job)}

    def details(self) -> Mapping[str, Any]:
        """See Scheme."""
        return self.layout(self.job)


class OneWeirdTrick(HybridChain):
    """Krizhevsky's rule: convolutions have few weights and many activations, fully connected layers not."""

    name = "hy.owt"
    summary = "One weird trick: convolutions data parallel, fully connected layers model parallel."
    rule = (
        "Convolutions see B/P samples per rank; their gradients are packed and averaged. Each fully "
        "connected layer gathers its input of all B samples, computes 1/P of its outputs, and returns "
        "partial input gradients by reduce-scatter; its weights never move. The logits go back to the "
        "samples' ranks by all-to-all. --mesh dp=D,tp=M: groups of M consecutive ranks do so with their B/D "
        "samples, and the gradients of fully connected layers are averaged over the D groups. With +overlap "
        "each layer's gradient is averaged as soon as the backward pass has completed it."
    )
    volume = (
        "2(P-1)/P * (|w_conv| + SUM_fc B*F_in + B*K_last/P) * e (the last term: the logits); in groups M for "
        "P and B/D for B but with |w_conv|, and 2(D-1)/D |w_fc|/M e more"
    )
    source = "Krizhevsky 2014 (arXiv 1404.5997)"

    @classmethod
    def modes(cls, job: Job) -> dict[str, str]:
        """See HybridChain."""
        linear = {layer.name for layer in job.shape.layers if layer.kind == "linear"}
        return {block: MODEL_MODE if block in linear else DATA_MODE for block in trained_blocks(job.shape)}

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        super().check(job)
        for layer in job.shape.layers:
            parts = len(cls.model_groups(job)[0])
            if layer.kind == "linear" and layer.out_shape[0] % parts:
                raise BenchError(
                    f"{cls.name}: the {layer.out_shape[0]} outputs of {layer.name} cannot be cut into "
                    f"{parts} equal parts; change the number of ranks, tp or the number of classes"
                )
