"""Gradients of a hybrid's ranks averaged along the data axis: packed, or layer by layer (+overlap)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from perfscope.runners import comm
from perfscope.runners.comm import Group
from perfscope.runners.compression.registry import make_exchange
from perfscope.runners.job import Job
from perfscope.runners.schemes.base import Scheme
from perfscope.runners.schemes.dp_gradients import (
    clear,
    exchange_traffic,
    gradients_by_layer,
    on_ready,
)
from perfscope.runners.schemes.dp_senders import Sender
from perfscope.runners.traffic import Traffic

OVERLAP = "overlap"
Named = Sequence[tuple[str, nn.Parameter]]  # by the names of the undivided model


def average_traffic(
    job: Job, members: tuple[int, ...], key: str, layers: Iterable[tuple[str, int]]
) -> Sequence[Traffic]:
    """What averaging over `members` sends, given (layer, number of elements that the rank has of it)."""
    sizes = [(name, size) for name, size in layers if size]
    if job.config.modifier(OVERLAP) is None:
        sizes = [(key, sum(size for _, size in sizes))] if sizes else []
    return exchange_traffic(job, members, sizes) if len(members) > 1 else []


class GradientAverage(ABC):
    """Of some parameters: one object per rank and run."""

    @abstractmethod
    def clear(self) -> None:
        """Before the first backward pass of a step."""

    @abstractmethod
    def finish(self) -> None:
        """Behind the last backward pass: leaves the means in the parameters' `.grad`."""


class _Packed(GradientAverage):
    def __init__(self, scheme: Scheme, model: nn.Module, named: Named, key: str, group: Group, divisor: int):
        self._params = [value for _, value in named]
        self._key, self._group, self._divisor = key, group, divisor
        self._exchange = make_exchange(scheme.config)
        sends = bool(named) and group.size > 1
        self._flat: Any = scheme.world.ledger.flat(model, self._params) if sends else None

    def clear(self) -> None:
        for value in self._params:
            value.grad = None

    def finish(self) -> None:
        gradients = [value.grad for value in self._params]
        if self._divisor > 1:
            for gradient in gradients:
                gradient.div_(self._divisor)
        if self._flat is not None:
            flat = comm.flatten(gradients, self._flat)
            comm.unflatten(self._exchange.start(self._key, flat, self._group).wait(), gradients)


class _Overlapped(GradientAverage):
    def __init__(self, scheme: Scheme, named: Named, group: Group, divisor: int, num_passes: int):
        self._layers = gradients_by_layer(named)
        self._sender = Sender(scheme.config, make_exchange(scheme.config), group, self._layers)
        self._divisor = divisor
        on_ready(self._layers, self._send, scheme.passes, num_passes)

    def _send(self, layer: Any) -> None:
        if self._divisor > 1:
            layer.flat /= self._divisor
        self._sender.ready(layer)

    def clear(self) -> None:
        clear(self._layers)

    def finish(self) -> None:
        for layer in reversed(self._layers):
            self._sender.wait(layer)


def open_average(
    scheme: Scheme,
    model: nn.Module,
    named: Named,
    group: Group,
    *,
    key: str,
    divisor: int = 1,
    num_passes: int = 1,
) -> GradientAverage:
    """The average that the run's modifiers ask for.

    Args:
        scheme: of this rank.
        model: holds the parameters; names the layers that a packed exchange serves.
        named: (name in the undivided model, parameter); a layer's message holds all of its parameters.
        group: of M >= 1 ranks with the same parts of the model.
        key: of the packed exchange.
        divisor: of the gradients, besides M.
        num_passes: backward passes of a step.
    """
    if scheme.config.modifier(OVERLAP) is None or group.size == 1:
        return _Packed(scheme, model, named, key, group, divisor)
    return _Overlapped(scheme, named, group, divisor, num_passes)
