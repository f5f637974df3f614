"""Gradients averaged by our own calls: layer by layer, packed, or overlapped with the next forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from perfscope.runners.compression.registry import make_exchange
from perfscope.runners.job import Job
from perfscope.runners.schemes.base import NO_SKIP, Batch
from perfscope.runners.schemes.chunks import chunk_bytes
from perfscope.runners.schemes.dp_gradients import (
    CODECS,
    LayerGradients,
    Replicas,
    clear,
    collect_gradients,
    exchange_traffic,
    gradients_by_layer,
    on_ready,
)
from perfscope.runners.schemes.dp_senders import make_sender, pieces_of
from perfscope.runners.schemes.local import scaled_learning_rate
from perfscope.runners.schemes.update_rules import follow_schedule, make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis

_PACKED = "all"


class Packed(Replicas):
    """All gradients in one message."""

    name = "dp.packed"
    summary = "Data parallel; all gradients in one buffer, one all-reduce after the backward pass."
    rule = (
        "Gradients of all layers are in one contiguous buffer. After the backward pass one all-reduce "
        "averages it; then every rank makes the same update. No overlap, but one latency per step instead "
        "of one per layer."
    )
    volume = "2 (P-1)/P |W| e in 1 call"
    source = "You, Buluc, Demmel, SC'17 (arXiv 1708.02983), packed single-layer communication"
    modifiers = CODECS

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        self.model = model
        self._group = self.data_group()
        self._exchange = make_exchange(self.config)
        params = list(model.parameters())
        self._flat = self.world.ledger.flat(model)
        collect_gradients(params, self._flat)
        self._optimizer = make_optimizer(self, params)

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        self._flat.zero_()
        loss = self.passes.run(self.model, batch)
        mean = self._exchange.start(_PACKED, self._flat, self._group).wait()
        if mean.data_ptr() != self._flat.data_ptr():
            self._flat.copy_(mean)
        self.passes.update(self._optimizer)
        return loss

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        return exchange_traffic(job, job.mesh.group(Axis.DP, rank), [(_PACKED, job.shape.num_params)])


class PerLayer(Replicas):
    """One message per layer, during the backward pass."""

    name = "dp.perlayer"
    summary = "Data parallel; one all-reduce per layer, started as soon as its gradient is ready."
    rule = (
        "As the backward pass completes a layer's gradient (weight and bias together) its all-reduce is "
        "started; all are waited for before the one update. +prio cuts gradients into chunks (--chunk-kb; "
        "else of 9 P alpha / beta, 64 KiB to 16 MiB: the latency alpha is a tenth of the time of each of the "
        "all-reduce's messages, beta the time per byte). Each finished layer lets one chunk go, newest layer "
        "first, and what is left after the backward pass goes in forward order. The order follows backward "
        "events and not clocks, so that it is the same on every rank; MLSL decides by what is queued. The "
        "price: a link that could carry more than a chunk per finished layer is idle meanwhile."
    )
    volume = "2 (P-1)/P |W| e in one call per layer (per chunk with +prio)"
    source = "Intel MLSL ParameterSet (StartGradientComm in backward); MLSL_MSG_PRIORITY for +prio"
    modifiers = CODECS | {"prio"}

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        self.model = model
        self._layers = gradients_by_layer(model.named_parameters())
        self._sender = make_sender(self.config, make_exchange(self.config), self.data_group(), self._layers)
        on_ready(self._layers, self._sender.ready, self.passes)
        self._optimizer = self._make_optimizer()

    def _make_optimizer(self) -> torch.optim.Optimizer:
        return make_optimizer(self, self.model.parameters())

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        clear(self._layers)
        loss = self.passes.run(self.model, batch)
        self._sender.flush()
        for layer in reversed(self._layers):
            self._sender.wait(layer)
        self.passes.update(self._optimizer)
        return loss

    def details(self) -> Mapping[str, Any]:
        """With +prio among several ranks: the chunk, and what it is from."""
        if self.config.modifier("prio") is None or self.world.size == 1:
            return {}
        return {"chunk_bytes": chunk_bytes(self.config), "chunk_from": self.config.chunk_from or "--chunk-kb"}

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        return exchange_traffic(
            job,
            job.mesh.group(Axis.DP, rank),
            [
                (key, numel)
                for layer in job.shape.layers
                for key, _, numel in pieces_of(job.config, layer.name, layer.num_params, job.element_size)
            ],
        )


class LayerwiseSGD(torch.optim.SGD):
    """SGD with one parameter group per layer, each updated when its gradient has arrived.

    `step` only tells, once per training step, that its gradients are computed; `apply` makes a layer's
    update, later. So who counts optimizer steps counts training steps, and sees updates where they happen.
    """

    def step(self, closure: None = None) -> None:
        """The backward pass of this step is over. Changes no weight."""

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def apply(self, index: int) -> None:
        """v <- mu v + g, w <- w - eta v, for the parameters of one group."""
        group = self.param_groups[index]
        for param in group["params"]:
            change = param.grad
            if group["momentum"]:
                state = self.state[param]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(param)
                change = state["momentum_buffer"].mul_(group["momentum"]).add_(change)
            param.add_(change, alpha=-group["lr"])


class ForwardOverlap(PerLayer):
    """The all-reduce may last until the layer is needed again."""

    name = "dp.fwd_overlap"
    summary = "Data parallel; a layer's all-reduce is waited for just before its next forward pass."
    rule = (
        "As dp.perlayer, but nothing is waited for at the end of a step: just before a layer's next forward"
        " pass its all-reduce is completed and its update made. The weights are those of synchronous SGD in"
        " every forward pass. The optimizer's step only marks the end of a step. +prio as in dp.perlayer: "
        "here it lets the first layers, which are needed first, overtake large last ones."
    )
    source = "Intel Caffe on MLSL, FW_OVERLAP_OPT; MLSL_MSG_PRIORITY for +prio"
    refused_updates = dict.fromkeys(
        ("optimizer", "weight_decay", "clip_norm"), "it updates layer by layer, with SGD of its own"
    )

    refused_passes: ClassVar[Mapping[str, str]] = {
        **NO_SKIP,
        "compile": "weights change between the layers of a pass, which are compiled as one; use dp.perlayer",
    }

    _optimizer: LayerwiseSGD

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        super().build(model)
        for layer in self._layers:
            model.get_submodule(layer.name).register_forward_pre_hook(partial(self._before_forward, layer))

    def _make_optimizer(self) -> LayerwiseSGD:
        rate = scaled_learning_rate(self.config, self.effective_batch(self.job))
        groups = [{"params": layer.params} for layer in self._layers]
        optimizer = LayerwiseSGD(groups, lr=rate, momentum=self.config.momentum, foreach=False)
        follow_schedule(optimizer, self.config, rate)
        return optimizer

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        loss = self.passes.run(self.model, batch)
        self._sender.flush()
        self.passes.update(self._optimizer)
        return loss

    def _before_forward(self, layer: LayerGradients, *_: object) -> None:
        if self._sender.wait(layer):
            self._optimizer.apply(layer.index)
            layer.flat.zero_()

    def finish(self) -> None:
        """Completes the last step."""
        for layer in self._layers:
            self._before_forward(layer)
