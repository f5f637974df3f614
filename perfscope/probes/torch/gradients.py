"""Marks collectives on parameters and gradients with the layers that these are of. In traced windows only.

A program that averages gradients after the backward pass, or an optimizer that hands around the parameters it
has updated, calls collectives while no layer runs. What such a call carries is known by the memory of its
tensors: that of a parameter or of a gradient (or of `main_grad`, which Megatron-LM adds up), whole or in
part, or of a tensor into which `_flatten_dense_tensors` packed several. Other copies are not recognized.
"""

from __future__ import annotations

import bisect
import functools
import sys
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple
from urllib.parse import urlencode

from ...rundir import layout
from ..frames import around
from .layers import LayerMarks, field, parts, unwrap
from .wrapped_calls import WrappedCalls

_METHODS = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "_allgather_base"),
    *("all_gather_single", "allgather_coalesced", "allgather_into_tensor_coalesced", "reduce_scatter"),
    *("_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced"),
)
# What packs tensors into one, in torch._C._nn. Never `torch.cat`: a compiled function that calls it would be
# compiled again.
_PACKING = "flatten_dense_tensors"
_SAMPLE = 16  # parameters by which it is noticed that gradients have moved
_Range = Tuple[int, int]  # addresses of the first byte and of that after the last; (0, 0) = no memory
_NO_MEMORY = (0, 0)


class GradientMarks:
    """Wraps the methods of process groups, and takes the wraps off.

    Args:
        calls: of its own.
        layers: the marks of layers.
    """

    def __init__(self, calls: WrappedCalls, layers: LayerMarks) -> None:
        self._calls = calls
        self._marks = layers
        self._roots: Sequence[Any] = ()
        self._starts: List[int] = []  # of the ranges below, in order
        self._ranges: List[Tuple[int, str, Any]] = []  # end, layer, weak reference to the parameter
        self._sample: List[Tuple[Any, Tuple[_Range, ...]]] = []
        self._packed: List[Tuple[Any, List[Tuple[_Range, str]]]] = []  # weak reference to it, what it holds

    def install(self, roots: Sequence[Any]) -> None:
        """From now on mark calls.

        Args:
            roots: the models, if known.
        """
        torch = sys.modules["torch"]
        dist: Any = getattr(torch, "distributed", None)
        if not roots or self._calls.broken or self._calls.active or not _is_in_use(dist):
            return
        self._roots = roots
        for name in _METHODS:
            self._calls.wrap(dist.ProcessGroup, name, self._text)
        self._calls.wrap(dist.ProcessGroup, "send", functools.partial(self._text, is_message=True))
        self._calls.replace(torch._C._nn, _PACKING, self._packing)

    def remove(self) -> None:
        """The class as it was before."""
        self._calls.remove()
        self._roots, self._starts, self._ranges, self._sample, self._packed = (), [], [], [], []

    def _text(self, args: tuple, kwargs: dict, *, is_message: bool = False) -> Optional[str]:
        """Of a call; a message is looked for among what is known already, because pipelines send many."""
        layers: Dict[str, int] = {}
        if self._marks.idle:
            tensors = list(_tensors((*args[1:], *kwargs.values())))
            for (start, stop), layer in self._parts(tensors, look=not is_message or not self._sample):
                layers[layer] = layers.get(layer, 0) + stop - start
        return layout.MARK_SERVES + urlencode(layers) if layers else None

    def _parts(
        self, tensors: Sequence[Any], *, packs: bool = False, look: bool = True
    ) -> List[Tuple[_Range, str]]:
        """Where in the tensors, one after the other (offset of the first byte and after the last), what of
        layers is.

        Args:
            tensors: of a call.
            packs: the call puts them into one tensor.
            look: for gradients that have moved.
        """
        ranges = [_range(tensor) for tensor in tensors]
        parts = self._packed_in(ranges)
        is_backward = sys.modules["torch"]._C._current_graph_task_id() != -1
        if parts or (is_backward and not packs):
            return parts  # in backward the layer of a call is known, but for packed gradients of several
        parts = self._known_in(ranges)
        if not parts and look and self._have_moved():
            self._look_up()
            parts = self._known_in(ranges)
        return parts

    def _packed_in(self, ranges: Sequence[_Range]) -> List[Tuple[_Range, str]]:
        if not self._packed:
            return []
        self._packed = [entry for entry in self._packed if entry[0]() is not None]
        packed = []
        for reference, held in self._packed:
            tensor = reference()
            start = tensor.data_ptr() if tensor is not None else 0
            packed += [((start + a, start + b), layer) for (a, b), layer in held if start]
        return _overlaps(ranges, lambda begin, end: packed)

    def _known_in(self, ranges: Sequence[_Range]) -> List[Tuple[_Range, str]]:
        return _overlaps(ranges, self._known_between)

    def _known_between(self, begin: int, end: int) -> Iterator[Tuple[_Range, str]]:
        index = max(bisect.bisect_right(self._starts, begin) - 1, 0)
        while index < len(self._starts) and self._starts[index] < end:
            start = self._starts[index]
            stop, layer, reference = self._ranges[index]
            parameter = reference()
            # Else something else is there now.
            if parameter is not None and (start, stop) in _memory(parameter):
                yield (start, stop), layer
            index += 1

    def _packing(self, original: Any) -> Any:
        @around(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            packed = original(*args, **kwargs)
            if self._calls.active and self._marks.idle and not self._calls.unseen():
                try:
                    self._remember(list(_tensors(args)), packed)
                except Exception as error:  # noqa: BLE001 - the boundary: the training gets its tensor
                    self._calls.fail(error)
            return packed

        return call

    def _remember(self, tensors: Sequence[Any], packed: Any) -> None:
        parts = self._parts(tensors, packs=True)
        if parts:
            self._packed.append((weakref.ref(packed), parts))

    def _have_moved(self) -> bool:
        return not self._sample or any(
            parameter is not None and _memory(parameter) != memory
            for parameter, memory in ((reference(), memory) for reference, memory in self._sample)
        )

    def _look_up(self) -> None:
        by_parameter: Dict[int, Tuple[str, Any]] = {}  # a shared parameter is of the layer that comes first
        for module in (part for root in self._roots for part in parts(root)):
            layer = self._marks.name_of(unwrap(module))
            for parameter in field(module, "_parameters").values():
                if layer is not None and parameter is not None:
                    by_parameter.setdefault(id(parameter), (layer, weakref.ref(parameter)))
        parameters = [(layer, reference, _memory(reference())) for layer, reference in by_parameter.values()]
        ranges = [
            (memory_range, layer, reference)
            for layer, reference, memory in parameters
            for memory_range in memory
            if memory_range != _NO_MEMORY
        ]
        ranges.sort(key=lambda entry: entry[0])
        self._starts = [start for (start, _), *_ in ranges]
        self._ranges = [(stop, layer, reference) for (_, stop), layer, reference in ranges]
        self._sample = [
            (reference, memory) for _, reference, memory in parameters[:: len(parameters) // _SAMPLE + 1]
        ]


def _is_in_use(dist: Any) -> bool:
    return dist is not None and dist.is_available() and dist.is_initialized()


def _overlaps(ranges: Sequence[_Range], layers_in: Callable[[int, int], Any]) -> List[Tuple[_Range, str]]:
    """The layers of ranges that follow each other, by offset; `layers_in` gives them by address."""
    parts, offset = [], 0
    for begin, end in ranges:
        for (start, stop), layer in layers_in(begin, end):
            if start < end and stop > begin:
                parts.append(((offset + max(start, begin) - begin, offset + min(stop, end) - begin), layer))
        offset += end - begin
    return parts


def _memory(parameter: Any) -> Tuple[_Range, ...]:
    """Of a parameter and of its gradients."""
    grad = parameter.grad if parameter.is_leaf else None  # torch warns elsewhere
    return _range(parameter), _range(grad), _range(getattr(parameter, "main_grad", None))


def _range(tensor: Any) -> _Range:
    """Where a tensor, or this rank's part of a DTensor, lies."""
    if tensor is None:
        return _NO_MEMORY
    local = getattr(tensor, "_local_tensor", tensor)
    start = local.data_ptr()
    return (start, start + local.numel() * local.element_size()) if start else _NO_MEMORY


def _tensors(values: Sequence[Any]) -> Iterator[Any]:
    """The tensors among arguments, and in the lists among them."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif hasattr(value, "data_ptr"):
            yield value
