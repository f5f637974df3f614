"""Marks collectives on parameters and gradients with the layers that these are of. In traced windows only.

A program that averages gradients after the backward pass, or an optimizer that hands around the parameters it
has updated, calls collectives while no layer runs. What such a call carries is known by the memory of its
tensors: that of a parameter or of a gradient, whole or in part. Copies are not recognized.
"""

from __future__ import annotations

import bisect
import sys
import weakref
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple
from urllib.parse import urlencode

from ...rundir import layout
from .layers import LayerMarks, field, parts, unwrap
from .wrapped_calls import WrappedCalls

_METHODS = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "_allgather_base"),
    *("all_gather_single", "allgather_coalesced", "allgather_into_tensor_coalesced", "reduce_scatter"),
    *("_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced"),
)
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
        self._sample: List[Tuple[Any, Tuple[_Range, _Range]]] = []

    def install(self, roots: Sequence[Any]) -> None:
        """From now on mark calls.

        Args:
            roots: the models, if known.
        """
        dist: Any = getattr(sys.modules["torch"], "distributed", None)
        if not roots or self._calls.broken or self._calls.active or not _is_in_use(dist):
            return
        self._roots = roots
        for name in _METHODS:
            self._calls.wrap(dist.ProcessGroup, name, self._text)

    def remove(self) -> None:
        """The class as it was before."""
        self._calls.remove()
        self._roots, self._starts, self._ranges, self._sample = (), [], [], []

    def _text(self, args: tuple, kwargs: dict) -> Optional[str]:
        if not self._marks.idle or sys.modules["torch"]._C._current_graph_task_id() != -1:
            return None  # the layer of the call is known
        tensors = list(_tensors((*args[1:], *kwargs.values())))
        layers = self._layers_of(tensors)
        if not layers and self._have_moved():
            self._look_up()
            layers = self._layers_of(tensors)
        return layout.MARK_SERVES + urlencode(layers) if layers else None

    def _layers_of(self, tensors: Sequence[Any]) -> Dict[str, int]:
        """Layer -> bytes, of what of the tensors is known."""
        layers: Dict[str, int] = {}
        for begin, end in map(_range, tensors):
            index = max(bisect.bisect_right(self._starts, begin) - 1, 0)
            while index < len(self._starts) and self._starts[index] < end:
                start = self._starts[index]
                stop, layer, reference = self._ranges[index]
                parameter = reference()
                # Else something else is there now.
                if stop > begin and parameter is not None and (start, stop) in _memory(parameter):
                    layers[layer] = layers.get(layer, 0) + min(stop, end) - max(start, begin)
                index += 1
        return layers

    def _have_moved(self) -> bool:
        return not self._sample or any(
            parameter is not None and _memory(parameter) != memory
            for parameter, memory in ((reference(), memory) for reference, memory in self._sample)
        )

    def _look_up(self) -> None:
        found: Dict[int, Tuple[str, Any]] = {}  # a shared parameter is of the layer that comes first
        for module in (part for root in self._roots for part in parts(root)):
            layer = self._marks.name_of(unwrap(module))
            for parameter in field(module, "_parameters").values():
                if layer is not None and parameter is not None:
                    found.setdefault(id(parameter), (layer, weakref.ref(parameter)))
        known = [(layer, reference, _memory(reference())) for layer, reference in found.values()]
        ranges = [
            (place, layer, reference)
            for layer, reference, memory in known
            for place in memory
            if place != _NO_MEMORY
        ]
        ranges.sort(key=lambda entry: entry[0])
        self._starts = [start for (start, _), *_ in ranges]
        self._ranges = [(stop, layer, reference) for (_, stop), layer, reference in ranges]
        self._sample = [(reference, memory) for _, reference, memory in known[:: len(known) // _SAMPLE + 1]]


def _is_in_use(dist: Any) -> bool:
    return dist is not None and dist.is_available() and dist.is_initialized()


def _memory(parameter: Any) -> Tuple[_Range, _Range]:
    """Of a parameter and of its gradient."""
    return _range(parameter), _range(parameter.grad if parameter.is_leaf else None)  # torch warns elsewhere


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
