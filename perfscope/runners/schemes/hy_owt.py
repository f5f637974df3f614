"""One weird trick: convolutions data parallel, fully connected layers model parallel, over the same ranks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.collect import collect_state, layout_of
from perfscope.runners.compression.registry import make_exchange
from perfscope.runners.config import BenchError
from perfscope.runners.hybrid.chain import (
    DATA_MODE,
    MODEL_MODE,
    Chain,
    ChainPlan,
    plan_chain,
    split_parameters,
    trained_blocks,
)
from perfscope.runners.inputs import InputKind
from perfscope.runners.job import Job
from perfscope.runners.schemes.base import DIVIDED_MODEL, NO_WHOLE_GRADIENT, Batch, Scheme, hybrid_axes
from perfscope.runners.schemes.dp_gradients import CODECS, exchange_traffic
from perfscope.runners.schemes.local import cross_entropy
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Topology
from perfscope.vocabulary.traffic import ScalesWith


class HybridChain(Scheme):
    """Every block is a data block or a model block; subclasses choose. All P ranks are both groups."""

    axes = hybrid_axes(Topology.ALL_GATHER, "ring all-reduce; all-gather and reduce-scatter of activations")
    splits = (Axis.DP,)
    refused_updates = NO_WHOLE_GRADIENT
    refused_passes = DIVIDED_MODEL
    whole_layers = False
    cuts_layers = True
    inputs = frozenset((InputKind.IMAGE, InputKind.TABLE))
    modifiers = CODECS

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
        """See Scheme: all ranks, as the group of the data blocks and as that of the model blocks."""
        everybody = tuple(range(job.num_ranks))
        modes = cls.modes(job).values() if job.num_ranks > 1 else ()
        axes = {Axis.DP: DATA_MODE, Axis.TP: MODEL_MODE}
        return {axis: (everybody,) for axis, mode in axes.items() if mode in modes}

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        members, plan = tuple(range(job.num_ranks)), cls.chain_plan(job)
        calls = []
        for move in plan.moves:
            size = move.elements(job.config.batch, job.num_ranks) * job.element_size
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
        replicated = sum(
            job.shape.block_params(index, index + 1)
            for index, block in enumerate(job.shape.blocks)
            if block not in plan.sliced
        )
        if replicated:
            calls += exchange_traffic(job, members, [("data blocks", replicated)])
        return calls

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
        """See Scheme: all samples where the chain begins with a model block."""
        return (0, 1) if self.chain_plan(self.job).starts_whole else (self.world.rank, self.job.num_ranks)

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        everybody = tuple(range(self.world.size))
        self._data = self.world.groups(Axis.DP, [everybody])
        self._model = self.world.groups(Axis.TP, [everybody])
        self._plan = self.chain_plan(self.job)
        state = model.state_dict()
        self._layout = layout_of(
            state, {name: everybody for name in state if name.split(".")[0] in self._plan.sliced}
        )
        self.model = Chain(model, self._plan, self._model)
        self._replicated, self._sliced = split_parameters(self.model, self._plan)
        self._exchange = make_exchange(self.config)
        if self._replicated:
            self._flat = self.world.ledger.flat(self.model, self._replicated)
        self.optimizer = make_optimizer(self, self.model.parameters())

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        self.optimizer.zero_grad(set_to_none=True)
        targets = batch.targets
        if self._plan.starts_whole:
            targets = targets.chunk(self.world.size)[self.world.rank]
        loss = cross_entropy(self.model(batch.inputs), targets)
        loss.backward()
        if self._replicated:
            gradients = [value.grad for value in self._replicated]
            flat = comm.flatten(gradients, self._flat)
            comm.unflatten(self._exchange.start("data blocks", flat, self._data).wait(), gradients)
        for value in self._sliced:
            value.grad /= (
                self.world.size
            )  # it is the sum over the ranks' losses, each a mean over B/P samples
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
        "samples' ranks by all-to-all."
    )
    volume = "2(P-1)/P * (|w_conv| + SUM_fc B*F_in + B*K_last/P) * e (the last term: the logits)"
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
            if layer.kind == "linear" and layer.out_shape[0] % job.num_ranks:
                raise BenchError(
                    f"{cls.name}: the {layer.out_shape[0]} outputs of {layer.name} cannot be cut into "
                    f"{job.num_ranks} equal parts; change the number of ranks or of classes"
                )
