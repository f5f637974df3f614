"""What a TensorFlow rank says about itself: its place, devices, variables, sizes of batches."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ..ranks import Identity

GROUP = "workers"
_TRAINING_TASKS = ("chief", "master", "worker")  # in the order of their ranks


class Cluster(NamedTuple):
    """TF_CONFIG: the training processes by rank."""

    addresses: Tuple[str, ...]
    rank: int


def cluster() -> Optional[Cluster]:
    """Of TF_CONFIG; None where it is not set or this process is none that trains (ps, evaluator)."""
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        tasks, task = config["cluster"], config["task"]
        order = [
            (kind, index, str(address))
            for kind in _TRAINING_TASKS
            for index, address in enumerate(tasks.get(kind) or ())
        ]
        own_task = (str(task["type"]), int(task["index"]))
        rank = next(at for at, (kind, index, _) in enumerate(order) if (kind, index) == own_task)
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration):
        return None
    return Cluster(tuple(address for _, _, address in order), rank)


def identity() -> Optional[Identity]:
    """Rank by TF_CONFIG; the chief, where there is one, is rank 0."""
    cluster_ = cluster()
    if cluster_ is None:
        return None
    host = _host(cluster_.addresses[cluster_.rank])
    local = sum(_host(address) == host for address in cluster_.addresses[: cluster_.rank])
    return Identity(cluster_.rank, local, len(cluster_.addresses), "TF_CONFIG")


def _host(address: str) -> str:
    return address.rpartition(":")[0] or address


def facts() -> Dict[str, Any]:
    """For rank.json."""
    tf = sys.modules["tensorflow"]
    facts: Dict[str, Any] = {
        "framework": {"name": "tensorflow", "version": str(tf.__version__)},
        "device": _device(tf),
    }
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    if threads:  # 0: as many as TensorFlow finds fit
        facts["num_threads"] = int(threads)
    cluster_ = cluster()
    if cluster_ is not None and len(cluster_.addresses) > 1:
        facts["backend"] = "grpc"
        ranks = list(range(len(cluster_.addresses)))
        facts["groups"] = [{"name": GROUP, "desc": "TF_CONFIG", "backend": "grpc", "ranks": ranks}]
    return facts


def has_gpu(tf: Any) -> bool:
    """True when the eager runtime has a GPU to use."""
    return bool(tf.config.list_logical_devices("GPU"))


def _device(tf: Any) -> str:
    devices = tf.config.list_logical_devices("GPU")
    if not devices:
        return "cpu"
    physical = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(physical[0]) if physical else {}
    return ("gpu:0 %s" % details.get("device_name", "")).strip()


def samples_of(values: Any, depth: int = 3) -> Optional[int]:
    """Batch size of a step's arguments: the leading dimension of the first tensor found.

    Of values on several replicas the sum. None: there is no tensor, or its shape is not known. Arrays of
    other kinds count, too; a tensor without dimensions is passed over.
    """
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, (str, bytes)):
            continue
        spec = getattr(value, "element_spec", None)
        if spec is not None and hasattr(value, "__next__"):
            samples = static_batch(spec)
        elif isinstance(value, (list, tuple, dict)):
            samples = samples_of(value, depth - 1) if depth else None
        else:
            samples = _leading(value)
        if samples is not None:
            return samples
    return None


def _leading(value: Any) -> Optional[int]:
    if type(value).__name__ in ("PerReplica", "Mirrored", "DistributedValues"):
        parts = [
            _leading(part) if not isinstance(part, (list, tuple)) else samples_of(part)
            for part in value.values
        ]
        return None if None in parts or not parts else sum(part for part in parts if part is not None)
    if callable(value) or hasattr(value, "assign") or hasattr(value, "trainable_variables"):
        return None  # a model, an optimizer, a variable: no batch
    shape = getattr(value, "shape", None)
    if shape is None or not hasattr(value, "dtype"):
        return None
    try:
        return int(shape[0]) if len(shape) else None
    except (TypeError, ValueError, IndexError):  # unknown rank or dimension
        return None


def static_batch(element_spec: Any) -> Optional[int]:
    """Batch size that the type of an iterator's elements tells (`drop_remainder=True`); else None."""
    values = element_spec if isinstance(element_spec, (list, tuple, dict)) else (element_spec,)
    return samples_of(values)


class Variables:
    """The variables that optimizers update, described as layers."""

    def __init__(self) -> None:
        self._seen: Dict[int, bool] = {}
        self.layers: Dict[str, Dict[str, Any]] = {}
        self.optimizers: List[str] = []

    def add(self, optimizer: Any, variables: Any) -> bool:
        """Take in what one update is for; True when there was something new."""
        name = str(getattr(optimizer, "name", "") or getattr(optimizer, "_name", "") or "")
        new = bool(name) and name not in self.optimizers
        if new:
            self.optimizers.append(name)
        for variable in variables:
            if id(variable) in self._seen:
                continue
            self._seen[id(variable)] = new = True
            self._add(variable)
        return new

    def _add(self, variable: Any) -> None:
        path = str(getattr(variable, "path", "") or getattr(variable, "name", "")).split(":")[0]
        layer = path.rpartition("/")[0] or path
        shape = [int(extent) for extent in variable.shape]
        count = 1
        for extent in shape:
            count *= extent
        row = self.layers.setdefault(
            layer, {"layer": layer, "type": "", "params": 0, "param_bytes": 0, "param_shapes": []}
        )
        row["params"] += count
        row["param_bytes"] += count * item_size(variable.dtype)
        row["param_shapes"].append(shape)

    @property
    def total_bytes(self) -> int:
        """Of all parameters: what a step's gradients amount to."""
        return sum(int(row["param_bytes"]) for row in self.layers.values())

    def rows(self) -> Tuple[str, List[Dict[str, Any]]]:
        """(name of the model, rows of layers.json): the part that all paths begin with is the model's."""
        paths = [(layer, layer.split("/")) for layer in self.layers]
        firsts = {path[0] for _, path in paths if len(path) > 1}
        shared = len(firsts) == 1 and all(len(path) > 1 for _, path in paths)
        root = firsts.pop() if shared else ""
        skip = 1 if root else 0
        rows = [dict(self.layers[layer], layer=".".join(path[skip:])) for layer, path in paths]
        return root, rows


def item_size(dtype: Any) -> int:
    """Bytes of one element of a TensorFlow or numpy dtype, or of its name."""
    size = getattr(dtype, "size", None) or getattr(dtype, "itemsize", None)
    if isinstance(size, int):
        return size
    digits = "".join(letter for letter in str(dtype) if letter.isdigit())
    return max(1, int(digits) // 8) if digits else 1


def width() -> Optional[int]:
    """Over how many processes a batch is split, by TF_CONFIG; None: parameter servers hand it out."""
    cluster_ = cluster()
    if cluster_ is None:
        return None if os.environ.get("TF_CONFIG") else 1
    return len(cluster_.addresses)
