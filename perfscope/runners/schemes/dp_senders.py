"""In which order gradients leave: as they become ready, or the ones needed next first (+prio)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

from perfscope.runners.comm import Group
from perfscope.runners.config import BenchConfig
from perfscope.runners.exchange import Exchange, PendingExchange
from perfscope.runners.schemes.chunks import chunk_bytes
from perfscope.runners.schemes.dp_gradients import LayerGradients

Piece = tuple[Hashable, int, int]  # key across steps, first element, number of elements


def pieces_of(config: BenchConfig, name: str, numel: int, element_size: int) -> Sequence[Piece]:
    """How a layer's gradient is cut: not at all, or with +prio into chunks (`chunks.chunk_bytes`)."""
    if config.modifier("prio") is None:
        return [(name, 0, numel)]
    length = chunk_bytes(config) // element_size
    return [
        (f"{name}#{number}", start, min(length, numel - start))
        for number, start in enumerate(range(0, numel, length))
    ]


class Sender:
    """Starts a layer's exchange when its gradient is ready."""

    def __init__(
        self, config: BenchConfig, exchange: Exchange, group: Group, layers: Iterable[LayerGradients]
    ) -> None:
        self._exchange, self._group = exchange, group
        self._pieces = {
            layer.index: pieces_of(config, layer.name, layer.flat.numel(), layer.flat.element_size())
            for layer in layers
        }
        self._pending: dict[int, list[tuple[int, PendingExchange]]] = {}

    def ready(self, layer: LayerGradients) -> None:
        """The layer's gradient is complete: a backward event."""
        for piece in self._pieces[layer.index]:
            self._start(layer, piece)

    def flush(self) -> None:
        """The backward pass is over: start what is left."""

    def wait(self, layer: LayerGradients) -> bool:
        """Leaves the mean in layer.flat; False if nothing of the layer is on its way."""
        pending = self._pending.pop(layer.index, ())
        for start, request in pending:
            layer.take(request.wait(), start)
        return bool(pending)

    def _start(self, layer: LayerGradients, piece: Piece) -> None:
        key, start, numel = piece
        pending = self._exchange.start(
            key, layer.flat[start : start + numel], self._group.serving(layer.name)
        )
        self._pending.setdefault(layer.index, []).append((start, pending))


class NewestFirst(Sender):
    """MLSL's message priority without clocks, because gloo wants the same order of calls on every rank.

    Each backward event lets a chunk go, from the newest layers; what is left when the backward pass ends
    goes in forward order. MLSL lets new messages overtake whatever is queued at that moment, which differs
    by rank.
    """

    def __init__(
        self, config: BenchConfig, exchange: Exchange, group: Group, layers: Iterable[LayerGradients]
    ) -> None:
        super().__init__(config, exchange, group, layers)
        self._chunk_bytes = chunk_bytes(config)
        self._queue: list[
            tuple[LayerGradients, Iterator[Piece], Piece]
        ] = []  # newest last; iterator, its head

    def ready(self, layer: LayerGradients) -> None:
        """See Sender."""
        self._push(layer, iter(self._pieces[layer.index]))
        allowed = self._chunk_bytes
        while self._queue:
            size = self._queue[-1][2][2] * layer.flat.element_size()
            if size > allowed:
                break
            allowed -= size
            self._next()

    def flush(self) -> None:
        """See Sender."""
        self._queue.sort(key=lambda entry: -entry[0].index)
        while self._queue:
            self._next()

    def _push(self, layer: LayerGradients, pieces: Iterator[Piece]) -> None:
        head = next(pieces, None)
        if head is not None:
            self._queue.append((layer, pieces, head))

    def _next(self) -> None:
        layer, remaining, head = self._queue.pop()
        self._start(layer, head)
        self._push(layer, remaining)


def make_sender(
    config: BenchConfig, exchange: Exchange, group: Group, layers: Sequence[LayerGradients]
) -> Sender:
    """The one that the modifiers ask for."""
    kind = Sender if config.modifier("prio") is None else NewestFirst
    return kind(config, exchange, group, layers)
