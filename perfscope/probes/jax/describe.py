"""What a JAX process says about itself, and what of its arrays is its own share.

Nothing here may start a backend: asked too early, JAX would be on another device than the program wants, or
`jax.distributed.initialize()` would fail.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List, Optional, Set, Tuple

from ..ranks import Identity
from .steps import Path

WORLD = "jax"  # name of the group of all processes


def _backends() -> Dict[str, Any]:
    """Platforms in use so far."""
    return dict(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None) or {})


def in_use() -> bool:
    """Whether the program computes with JAX: a backend has been started."""
    return bool(_backends())


def identity() -> Optional[Identity]:
    """This process among those of jax.distributed; None where it runs by itself."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if state is not None and getattr(state, "client", None) is not None:
        return Identity(int(state.process_id), None, int(state.num_processes), "jax.distributed")
    jax = sys.modules["jax"]
    if _backends() and jax.process_count() > 1:  # a TPU pod knows it without
        return Identity(int(jax.process_index()), None, int(jax.process_count()), "jax")
    return None


def facts() -> Dict[str, Any]:
    """framework, device, threads, backend of communication and the group of all processes, for rank.json."""
    jax = sys.modules["jax"]
    facts: Dict[str, Any] = {"framework": {"name": "jax", "version": str(jax.__version__)}}
    if not _backends():
        return facts
    devices = jax.local_devices()
    platform = str(devices[0].platform)
    kind = str(getattr(devices[0], "device_kind", platform))
    facts["device"] = platform if platform == "cpu" else "%s:%d %s" % (platform, devices[0].id, kind)
    facts["num_devices"] = len(devices)
    facts["num_threads"] = _num_threads()
    if jax.process_count() > 1:
        facts["backend"] = _collectives(jax, platform)
        facts["groups"] = [
            {
                "name": WORLD,
                "desc": "all processes",
                "backend": facts["backend"],
                "ranks": list(range(jax.process_count())),
            }
        ]
    return facts


def _num_threads() -> Optional[int]:
    """Threads of XLA's pool on CPUs: NPROC, else the CPUs it may use."""
    wanted = os.environ.get("NPROC", "")
    if wanted.isdigit() and int(wanted):
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _collectives(jax: Any, platform: str) -> str:
    if platform == "cpu":
        return str(getattr(jax.config, "jax_cpu_collectives_implementation", None) or "unknown")
    return "nccl" if platform in ("gpu", "cuda") else "rccl" if platform == "rocm" else platform


def device_memory() -> Optional[int]:
    """Most bytes in use on a local device so far; None where the platform does not count."""
    most = [_peak(device) for device in sys.modules["jax"].local_devices()] if _backends() else []
    peaks = [peak for peak in most if peak is not None]
    return max(peaks) if peaks else None


def _peak(device: Any) -> Optional[int]:
    try:
        stats = device.memory_stats()
    except Exception:  # noqa: BLE001 - platforms raise errors of their own where they count nothing
        return None
    peak = (stats or {}).get("peak_bytes_in_use")
    return int(peak) if peak is not None else None


def local_samples(array: Any, mapped: bool) -> Optional[int]:
    """The leading dimension, as far as it is this process's share.

    Args:
        array: an argument, shape (samples, ...); where `mapped` (devices, samples, ...).
    """
    shape = array.shape
    if not shape:
        return None
    if mapped:
        return int(shape[0]) * int(shape[1]) if len(shape) > 1 else None
    if getattr(array, "is_fully_addressable", True):
        return int(shape[0])
    slices = array.sharding.addressable_devices_indices_map(tuple(shape)).values()
    parts = {(part[0].start or 0, shape[0] if part[0].stop is None else part[0].stop) for part in slices}
    return int(sum(stop - start for start, stop in parts))


def root(name: str, batch: Any, mapped: bool, world_size: Optional[int]) -> Dict[str, Any]:
    """The step function, and over how many processes its batch is split (`dp_size`; None: not known).

    Args:
        name: of the function.
        batch: the argument that is the batch.
        mapped: the function is a pmap.
        world_size: processes that were started together, as far as their launcher says.
    """
    processes = int(sys.modules["jax"].process_count())
    split: Optional[int] = None
    if processes == 1:
        split = 1 if (world_size or 1) == 1 else None
    elif mapped:
        split = processes
    elif not getattr(batch, "is_fully_addressable", True):
        local = local_samples(batch, mapped)
        split = int(batch.shape[0]) // local if local else None
    return {
        "name": name,
        "type": "jitted function",
        "data_parallel": split is not None,
        "dp_size": split,
        "compiled": True,
    }


class Argument:
    """Finds one leaf of a call's arguments again, without flattening all of them.

    Args:
        path: of the leaf, from (args, kwargs); keys of jax.tree_util.
    """

    def __init__(self, path: Path) -> None:
        self._walk = [_way(key) for key in path]

    def of(self, args: Any, kwargs: Any) -> Any:
        """The leaf; None where these arguments have none in its place."""
        value: Any = (args, kwargs)
        try:
            for kind, key in self._walk:
                value = getattr(value, key) if kind == "attribute" else value[key]
        except (AttributeError, IndexError, KeyError, TypeError):
            return None
        return value


def _way(key: Any) -> Tuple[str, Any]:
    if hasattr(key, "idx"):
        return "item", key.idx
    if hasattr(key, "name"):
        return "attribute", key.name
    return "item", getattr(key, "key", key)


def words_of(path: Path) -> List[str]:
    return [str(value) for _, value in map(_way, path)]


def width(dtype: str) -> int:
    """Bytes of an element: the digits of the type's name are its bits."""
    bits = "".join(letter for letter in dtype.partition("_")[0] if letter.isdigit())
    return max(1, int(bits) // 8) if bits else 1


def layers(state: List[Tuple[Path, Tuple[int, ...], str]]) -> List[Dict[str, Any]]:
    """Rows of layers.json from the tree of a step's state: `conv1/w` is a parameter of the layer conv1.

    The parameters are what lies under `params`; without such a word the first argument that holds state (the
    optimizer's state comes after it, as a rule). Empty where parameters have numbers only, no names (lists of
    arrays; what nnx.jit and filter_jit hand to JAX).
    """
    named = [(words_of(path), shape, dtype) for path, shape, dtype in state]
    under = [
        (keys[keys.index("params") + 1 :], shape, dtype) for keys, shape, dtype in named if "params" in keys
    ]
    if not under and named:
        first = named[0][0][:2]
        under = [(keys[2:], shape, dtype) for keys, shape, dtype in named if keys[:2] == first]
    if any(not keys or keys[-1].isdigit() for keys, _, _ in under):
        return []
    rows: Dict[str, Dict[str, Any]] = {}
    for keys, shape, dtype in under:
        path = [word for word in keys if word not in ("value", "params")] or keys
        # Flat trees have the whole path in one word: `features.conv1.weight`.
        layer = "/".join(path[:-1]) or path[0].rpartition(".")[0] or path[0]
        row = rows.setdefault(
            layer, {"layer": layer, "type": "", "params": 0, "param_bytes": 0, "param_shapes": []}
        )
        count = 1
        for extent in shape:
            count *= extent
        row["params"] += count
        row["param_bytes"] += count * width(dtype)
        row["param_shapes"].append(list(shape))
    return list(rows.values())


def is_stacked(
    inner: Any, args: Any, kwargs: Any, batch: Any, state: List[Tuple[Path, Tuple[int, ...], str]]
) -> bool:
    """Whether a call makes an update for each part of its batch: a scan goes through the leading dimension.

    A scan counts that carries all of the step's state; one through the time of a recurrent layer does not.

    Args:
        inner: the jitted function; traced already with these arguments, so that JAX only looks it up.
        batch: which of the arguments is the batch.
        state: what the function is given back.
    """
    trace = getattr(inner, "trace", None)
    if trace is None or not state or len(batch.shape) < 2:
        return False
    jaxpr = trace(*args, **kwargs).jaxpr.jaxpr
    kind = (tuple(batch.shape), str(batch.dtype))
    leaves = {id(variable) for variable in jaxpr.invars if _kind_of(variable) == kind}
    return _is_scanned(jaxpr, leaves, {(shape, dtype) for _, shape, dtype in state}, 4)


def _kind_of(variable: Any) -> Tuple[Tuple[int, ...], str]:
    return tuple(getattr(variable.aval, "shape", ())), str(getattr(variable.aval, "dtype", ""))


def _is_scanned(jaxpr: Any, leaves: Set[int], state: Set[Tuple[Tuple[int, ...], str]], depth: int) -> bool:
    for equation in jaxpr.eqns:
        given = [id(variable) in leaves for variable in equation.invars]
        if not any(given):
            continue
        if equation.primitive.name == "scan":
            first = equation.params["num_consts"]
            last = first + equation.params["num_carry"]
            carried = {_kind_of(variable) for variable in equation.invars[first:last]}
            if any(given[last:]) and state <= carried:
                return True
        for value in equation.params.values() if depth else ():
            inside = getattr(value, "jaxpr", value)
            if len(getattr(inside, "invars", ())) == len(given):
                passed = {id(variable) for variable, wanted in zip(inside.invars, given) if wanted}  # noqa: B905 - Python 3.8
                if _is_scanned(inside, passed, state, depth - 1):
                    return True
    return False
