"""What Keras 3 and tf_keras say of a model, its batches and themselves."""

from __future__ import annotations

import sys
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from ..frames import hidden
from ..tensorflow.describe import cluster, item_size, samples_of, static_batch

_MAX_DEPTH = 12  # of layers in layers


def backend_name(keras: Any) -> str:
    """ "tensorflow", "jax", "torch", ... tf_keras has one only."""
    if keras.__name__ == "tf_keras":
        return "tensorflow"
    return str(keras.backend.backend())


def optimizers(keras: Any) -> Iterable[Tuple[Any, str]]:
    """(class, name of its method that updates), for custom loops on TensorFlow."""
    name = "apply_gradients" if keras.__name__ == "tf_keras" else "apply"
    yield keras.optimizers.Optimizer, name
    legacy = getattr(keras.optimizers, "legacy", None) if name == "apply_gradients" else None
    if legacy is not None:
        yield legacy.Optimizer, name
    # It does not update where a gradient is infinite: that step is one all the same.
    for owner in (keras.optimizers, getattr(keras, "mixed_precision", None)):
        scaling = getattr(owner, "LossScaleOptimizer", None)
        if scaling is not None and hasattr(scaling, name):  # tf_keras's is only asked for instances
            yield scaling, name


def batch_sources(keras: Any) -> List[Any]:
    """Classes of which `fit` makes one to get its batches from."""
    if keras.__name__ == "tf_keras":
        return [sys.modules["tf_keras.src.engine.data_adapter"].DataHandler]
    return [sys.modules["keras.src.trainers.epoch_iterator"].EpochIterator]


def batch_iterators(keras: Any) -> List[Any]:
    """Those of them (and their subclasses) whose `__next__` gives batches."""
    iterators, classes = [], list(batch_sources(keras))
    while classes:
        kind = classes.pop()
        classes += kind.__subclasses__()
        if "__next__" in vars(kind):
            iterators.append(kind)
    return iterators


def model_of(callbacks: Any) -> Any:
    """The model that a list of callbacks serves. Not `.model` of Keras 3: on JAX that copies its state."""
    held = vars(callbacks)
    model = held.get("_model", held.get("model"))
    inner = getattr(model, "module", None)
    return inner if type(model).__name__ == "DistributedDataParallel" else model


def steps_per_execution(model: Any) -> int:
    value: Any = getattr(model, "steps_per_execution", None)
    if value is None:
        value = getattr(model, "_steps_per_execution", 1)
    try:
        return max(1, int(value.numpy() if hasattr(value, "numpy") else value))
    except (TypeError, ValueError):
        return 1


def total_samples(batches: List[Any]) -> Optional[int]:
    """Of batches as they are handed to the train function; None where one does not tell."""
    sizes = [samples_of(batch if isinstance(batch, (list, tuple, dict)) else (batch,)) for batch in batches]
    return None if None in sizes or not sizes else sum(size for size in sizes if size is not None)


def local_samples(batch: Any) -> Optional[int]:
    """Samples of one batch; None where its arrays are spread over several processes."""
    parts = batch if isinstance(batch, (list, tuple, dict)) else (batch,)
    first = next(iter(parts.values() if isinstance(parts, dict) else parts), None)
    return samples_of(parts) if getattr(first, "is_fully_addressable", True) else None


class Watched:
    """An iterator that reports its batches: `took(batch, ns it was waited for)`."""

    def __init__(self, iterator: Any, took: Callable[[Any, int], Any]) -> None:
        self._iterator = iterator
        self._took = took

    def __iter__(self) -> "Watched":
        return self

    @hidden
    def __next__(self) -> Any:
        began = time.monotonic_ns()
        batch = next(self._iterator)
        self._took(batch, time.monotonic_ns() - began)
        return batch


class EpochBatches:
    """How many samples the batches of an epoch hold that are taken inside the train function.

    Args:
        source: an EpochIterator of Keras 3 or a DataHandler of tf_keras; None: unknown.
        per_execution: batches in one call of the train function.

    Attributes:
        known: the size of batches is known.
        exact: False when the last batch of an epoch may be smaller than the others.
    """

    def __init__(self, source: Any, per_execution: int) -> None:
        adapter = getattr(source, "data_adapter", None) or getattr(source, "_adapter", None)
        self._per_execution = per_execution
        self._size = _asked(adapter, "batch_size")
        self._count = _asked(adapter, "num_batches", "get_size")
        self._last = _asked(adapter, "partial_batch_size")
        self.exact = self._size is not None and self._count is not None
        if self._size is None:
            dataset = getattr(adapter, "_dataset", None)
            self._size, self.exact = _dataset_batch(dataset)
            self._last = None
        steps = getattr(source, "steps_per_epoch", None)
        if isinstance(steps, int) and self._count is not None and steps < self._count:
            self._last = None  # the epoch ends before the partial batch
            self._count = steps
        self.known = self._size is not None
        cluster_ = cluster()
        self._workers = len(cluster_.addresses) if cluster_ is not None else 1

    def of(self, first: int) -> Optional[int]:
        """Samples of the batches from number `first` of the epoch on that one call takes."""
        if self._size is None:
            return None
        number = self._per_execution
        if self._count is not None:
            number = max(0, min(number, self._count - first))
        total = number * self._size
        if self._last and self._count is not None and first + number >= self._count:
            total += self._last - self._size
        if total % self._workers:
            return None  # how the strategy shared it out is not known
        return total // self._workers


def _asked(adapter: Any, *names: str) -> Optional[int]:
    """An attribute of a data adapter: a property in Keras 3, a method in tf_keras."""
    for name in names:
        try:
            value = getattr(adapter, name, None)
            value = value() if callable(value) else value
        except NotImplementedError:
            continue
        if value is not None:
            return int(value)
    return None


def _dataset_batch(dataset: Any) -> Tuple[Optional[int], bool]:
    """(batch size of a tf.data pipeline, whether all batches have it)."""
    spec = getattr(dataset, "element_spec", None)
    if spec is not None:
        batch = static_batch(spec)
        if batch is not None:
            return batch, True
    for _ in range(32):
        size = getattr(dataset, "_batch_size", None)
        if size is not None:
            try:
                return int(size), False
            except (TypeError, ValueError):
                return None, False
        dataset = getattr(dataset, "_input_dataset", None)
    return None, False


def layers_of(model: Any) -> Tuple[str, List[Dict[str, Any]], List[Tuple[str, Any]]]:
    """(name of the root, rows of layers.json, (name, layer) of all).

    A layer is called by the names of the layers it is in, as in `encoder.conv1`; the model by its class.
    One that is used in two places keeps its first name.
    """
    root = type(model).__name__
    named = [(root, model)]
    seen = {id(model)}
    named += _inside(model, "", seen, 0)
    return root, [_row(name, layer) for name, layer in named], named


def _inside(layer: Any, path: str, seen: set, depth: int) -> Iterator[Tuple[str, Any]]:
    if depth > _MAX_DEPTH:
        return
    for child in _children(layer):
        if id(child) in seen or not hasattr(child, "name"):
            continue
        seen.add(id(child))
        name = path + "." + str(child.name) if path else str(child.name)
        yield name, child
        yield from _inside(child, name, seen, depth + 1)


def _children(layer: Any) -> List[Any]:
    direct = getattr(layer, "_layers", None)  # Keras 3; a Sequential of it keeps its Functional there, too
    if hasattr(layer, "_flatten_layers") and (direct is None or type(layer).__name__ == "Sequential"):
        public = getattr(layer, "layers", None)
        if public is not None:
            return list(public)
        return list(layer._flatten_layers(recursive=False, include_self=False))
    return list(direct or ())


def _row(name: str, layer: Any) -> Dict[str, Any]:
    variables = getattr(layer, "_trainable_variables", None)
    if variables is None:
        variables = getattr(layer, "_trainable_weights", None) or ()
    shapes, count, size = [], 0, 0
    for variable in variables:
        shape = [int(extent) for extent in variable.shape]
        number = 1
        for extent in shape:
            number *= extent
        shapes.append(shape)
        count += number
        size += number * item_size(variable.dtype)
    return {
        "layer": name,
        "type": type(layer).__name__,
        "params": count,
        "param_bytes": size,
        "param_shapes": shapes,
    }


def root(name: str, width: Optional[int]) -> Dict[str, Any]:
    """The entry `root` of rank.json: the model, and over how many ranks its input is split."""
    return {"name": name, "type": name, "data_parallel": width is not None, "dp_size": width}
