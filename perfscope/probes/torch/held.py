"""How many bytes the training's tensors take: parameters, gradients, the optimizers' state, buffers."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, Optional

from .layers import field, parts

# By then an optimizer has its state, and when its update begins, gradients are there.
_MEASURED_AT = 3
CATEGORIES = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "buffer_bytes")


class HeldMemory:
    """Measured once, when an optimizer begins its third update.

    Attributes:
        bytes: of each of CATEGORIES; None: not measured.
        problem: why it could not be measured; "": it could, or was not tried yet.
    """

    def __init__(self) -> None:
        self.bytes: Dict[str, Optional[int]] = dict.fromkeys(CATEGORIES)
        self.problem = ""
        self._updates: Dict[int, int] = {}

    def update_begins(self, serial: int, optimizers: List[Any], roots: List[Any]) -> None:
        """An optimizer's update begins.

        Args:
            serial: of that optimizer.
            optimizers: all that are alive.
            roots: the models.
        """
        count = self._updates[serial] = self._updates.get(serial, 0) + 1
        if count != _MEASURED_AT:
            return
        try:
            self.bytes = measured(optimizers, roots)
        except Exception as error:  # noqa: BLE001 - tensors of any kind: what they lack is no fault
            self.problem = "%s: %s" % (type(error).__name__, error)


def measured(optimizers: List[Any], roots: List[Any]) -> Dict[str, Optional[int]]:
    """Bytes of each of CATEGORIES; memory that several tensors share counts once, in the first of them."""
    seen: set = set()
    modules = [part for root in roots for part in parts(root)]
    of_optimizers = [
        parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]
    of_models = [parameter for module in modules for parameter in field(module, "_parameters").values()]
    parameters = of_optimizers + [parameter for parameter in of_models if parameter is not None]
    gradients = [parameter.grad for parameter in parameters if parameter.is_leaf]
    states = (value for optimizer in optimizers for value in _tensors(getattr(optimizer, "state", {})))
    buffers = (buffer for module in modules for buffer in field(module, "_buffers").values())
    kinds = (parameters, gradients, states, buffers)
    return {name: _bytes(kinds[index], seen) for index, name in enumerate(CATEGORIES)}


def _tensors(value: Any) -> Iterator[Any]:
    """Those in nested dicts and lists."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "element_size"):
        yield value


def _bytes(tensors: Iterable[Any], seen: set) -> int:
    total = 0
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)  # a DTensor's own part
        if local is None or local.device.type == "meta":
            continue
        if not hasattr(local, "untyped_storage"):  # torch < 2
            key, size = local.data_ptr(), local.numel() * local.element_size()
        else:
            storage = local.untyped_storage()
            key, size = storage.data_ptr(), storage.nbytes()
        if (local.device, key) not in seen:
            seen.add((local.device, key))
            total += size
    return total
