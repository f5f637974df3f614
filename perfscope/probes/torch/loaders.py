"""Which batches the training's data loaders gave, and how many samples each holds.

The size is what the loader's sampler drew, so it holds for a last smaller batch, a batch sampler and any
layout that a collate function chooses. Only weak references to the batches are kept.
"""

from __future__ import annotations

import collections
import weakref
from collections import abc
from typing import Any, Callable, Deque, List, Optional, Tuple

from .asks import Asks

Shape = Tuple[int, ...]
MAX_TENSORS = 16  # of one batch that are looked at
MAX_WAITING = 512  # batches loaded and not trained on (an evaluation's)
_ITERABLE = 1  # torch's _DatasetKind.Iterable: its sampler draws full batches always


def tensors_of(torch: Any, value: Any, depth: int = 3) -> List[Any]:
    """The tensors in a batch or in a module's arguments, in order, at most MAX_TENSORS."""
    if isinstance(value, torch.Tensor):
        return [value]
    if depth == 0 or isinstance(value, (str, bytes)):
        return []
    if isinstance(value, abc.Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    tensors: List[Any] = []
    for item in value:
        tensors += tensors_of(torch, item, depth - 1)
        if len(tensors) >= MAX_TENSORS:
            break
    return tensors[:MAX_TENSORS]


def shape_of(torch: Any, tensor: Any) -> Optional[Shape]:
    """Shape of what this rank holds of a tensor; None for nested tensors, which have none."""
    try:
        # The training's own tensor subclasses and function modes must not see us look.
        with torch._C.DisableTorchFunction():
            local = tensor._local_tensor if type(tensor).__name__ == "DTensor" else tensor
            return tuple(map(int, local.shape))
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return None


class LoaderBatch:
    """One batch that a loader gave.

    Attributes:
        size: its samples.
        shapes: of its tensors.
        passed: a model ran on it or after it without gradients, and none with gradients yet: an evaluation's,
            or a teacher's.
        counted: samples of it that steps have been given already.
    """

    __slots__ = ("_tensors", "counted", "passed", "shapes", "size")

    def __init__(self, size: int, tensors: List[Any], shapes: List[Shape]) -> None:
        self.size = size
        self.shapes = shapes
        self.passed = False
        self.counted = 0
        self._tensors = [weakref.ref(tensor) for tensor in tensors]

    def holds(self, tensors: List[Any]) -> bool:
        """One of `tensors` is part of this batch."""
        mine = [tensor() for tensor in self._tensors]
        return any(tensor is kept for tensor in tensors for kept in mine if kept is not None)

    def part(self, shapes: List[Shape]) -> Optional[int]:
        """How many samples inputs of these shapes are, if they are this batch or a slice of it; else None.

        Samples lie along the first axis that is as long as the batch: a batch of 8 with 8 features is not
        cut along its features.
        """
        for given in shapes:
            for kept_shape in self.shapes:
                if len(kept_shape) != len(given) or self.size not in kept_shape:
                    continue
                differ = [axis for axis, extent in enumerate(kept_shape) if extent != given[axis]]
                if not differ:
                    return self.size
                if differ == [kept_shape.index(self.size)] and given[differ[0]] < self.size:
                    return given[differ[0]]
        return None


class Loaders:
    """Batches in the order in which they were loaded, until a training step takes them.

    Args:
        failed: called with an error of ours; the training goes on.

    Attributes:
        asks: when loaders with workers were asked.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self.asks = Asks()
        self.reset()

    def reset(self) -> None:
        """In a forked child: nothing was loaded."""
        self.asks.reset()
        self.waiting: Deque[LoaderBatch] = collections.deque(maxlen=MAX_WAITING)
        # iterator -> (its sampler's iterator, sizes drawn and not yet given out)
        self._drawn: Any = weakref.WeakKeyDictionary()

    def drew(self, iterator: Any, index: Any) -> None:
        """A loader's sampler drew the indices of one batch (workers fetch it later, in this order)."""
        try:
            sampler = iterator._sampler_iter
            cached = self._drawn.get(iterator)
            if cached is None or cached[0] is not sampler:  # another epoch: batches left over will not come
                cached = self._drawn[iterator] = (sampler, collections.deque())
            cached[1].append(len(index) if iterator._auto_collation and hasattr(index, "__len__") else None)
        except Exception as error:  # noqa: BLE001 - the boundary: the training gets its batch
            self._failed(error)

    def gave(self, torch: Any, iterator: Any, data: Any) -> None:
        """A loader gave the training a batch."""
        cached = self._drawn.get(iterator)
        drawn = cached[1].popleft() if cached is not None and cached[1] else None
        tensors = tensors_of(torch, data)
        shapes = [shape_of(torch, tensor) or () for tensor in tensors]
        size = _size(drawn, [shape for shape in shapes if shape], data, iterator._dataset_kind == _ITERABLE)
        if size is not None:
            self.waiting.append(LoaderBatch(size, tensors, shapes))

    def evaluated(self) -> None:
        """A model has run without gradients: what is waiting may be an evaluation's."""
        if self.waiting and not self.waiting[-1].passed:
            for batch in list(self.waiting):
                batch.passed = True

    def fresh(self) -> List[LoaderBatch]:
        """Batches that the forward pass about to run may be on, oldest first."""
        waiting = list(self.waiting)
        return [batch for batch in waiting if not batch.passed] or waiting[-1:]

    def take(self, last: LoaderBatch) -> None:
        """Training is on `last`: it and what came before it wait no more."""
        while self.waiting:
            if self.waiting.popleft() is last:
                break


def _size(drawn: Optional[int], shapes: List[Shape], data: Any, may_end_short: bool) -> Optional[int]:
    """Samples of a batch, from what the sampler drew and from what came of it."""
    leading = shapes[0][0] if shapes else None
    if drawn is None:  # the dataset makes batches itself
        shared = [
            extent for extent in (shapes[0] if shapes else ()) if all(extent in sizes for sizes in shapes)
        ]
        return shared[0] if shared else leading
    lengths = [len(data)] if isinstance(data, (list, tuple)) else []
    lengths += [len(item) for item in data if isinstance(item, (list, tuple))] if lengths else []
    ends_short = may_end_short and leading is not None and leading < drawn
    if not ends_short and (leading is None or drawn in lengths or any(drawn in shape for shape in shapes)):
        return drawn
    same = all(
        shape[0] == leading for shape in shapes
    )  # the collate function left samples out, or added some
    return leading if same or may_end_short else drawn
