"""Over how many ranks a torch training splits its batch: by its wrappers, device mesh and pipeline."""

from __future__ import annotations

import math
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .layers import field, parts

_DATA_AXES = frozenset(
    ("dp", "data", "ddp", "fsdp", "dp_replicate", "dp_shard", "replicate", "shard", "hsdp")
)
_CONTEXT_AXES = ("cp", "context", "sp")
_PIPELINE_AXES = ("pp", "pipeline", "stage")
_NOT_KNOWN = "%s; give `--samples-per-step`"


class Width(NamedTuple):
    """`size` ranks have batches of their own; None: not known, for `reason`."""

    size: Optional[int]
    reason: str
    is_wrapped: bool  # DistributedDataParallel, FSDP or the like splits the batch


def data_parallel(module: Any, world: int, pipeline: Optional[List[int]]) -> Width:
    """Over how many of `world` ranks the batch is split.

    Args:
        module: the root.
        pipeline: ranks that share a batch with this one as stages of a pipeline; None: no pipeline was seen.
    """
    if world == 1:
        return Width(1, "", False)
    wrapped = [size for part in parts(module) for size in _of_wrapper(part, world)]
    if wrapped:
        return Width(max(wrapped), "", True)
    stages = len(pipeline) if pipeline else 1
    if stages == world:
        return Width(1, "", False)
    mesh_ = _parameter_mesh(module)
    if mesh_ is None:
        return _by_groups(world, pipeline)
    if math.prod(mesh_[1]) not in (world, world // stages):
        return Width(None, _NOT_KNOWN % "the device mesh of the parameters does not cover all ranks", False)
    return _by_axes(*mesh_)


def _by_axes(names: List[str], sizes: List[int], divided: List[bool]) -> Width:
    """Of a mesh without wrappers: axes that parameters are divided along are the model's."""
    size = 1
    for name, extent, is_model in zip(names, sizes, divided):  # noqa: B905 - Python 3.8 has no `strict`
        if is_model or extent == 1 or name in _PIPELINE_AXES:
            continue
        if name not in _DATA_AXES:
            why = "what axis %r of the device mesh divides is not known" % name
            return Width(None, _NOT_KNOWN % why, False)
        size *= extent
    return Width(size, "", False)


def _by_groups(world: int, pipeline: Optional[List[int]]) -> Width:
    """Beside a pipeline: one other group, of a rank of each of the other pipelines, averages gradients."""
    unknown = Width(None, _NOT_KNOWN % "no wrapper and no device mesh says which ranks share a batch", False)
    if not pipeline:
        return unknown
    dist = sys.modules["torch"].distributed
    configs: List[Any] = getattr(dist.distributed_c10d, "_get_all_pg_configs", list)()
    me = dist.get_rank()
    groups_ = {frozenset(config.get("ranks", ())) for config in configs}
    groups_ = {
        group
        for group in groups_
        if me in group and len(group) not in (1, world) and group != frozenset(pipeline)
    }
    if len(groups_) != 1:
        return unknown
    (peers,) = groups_
    fits = len(peers) * len(pipeline) == world and peers & frozenset(pipeline) == {me}
    return Width(len(peers), "", False) if fits else unknown


def mesh(module: Any) -> Optional[Dict[str, Any]]:
    """Names and shape of the whole device mesh that the parameters of `module` lie on; None without one."""
    mesh_ = _parameter_mesh(module)
    return None if mesh_ is None else {"axes": mesh_[0], "shape": mesh_[1]}


def _of_wrapper(module: Any, world: int) -> List[int]:
    """Ranks that a data-parallel wrapper, if `module` is one, splits a batch over."""
    kinds = {kind.__name__ for kind in type(module).__mro__}
    attributes_ = object.__getattribute__(module, "__dict__")
    if "DistributedDataParallel" in kinds or "FullyShardedDataParallel" in kinds:
        group, across = (
            attributes_.get("process_group"),
            attributes_.get("_inter_node_pg"),
        )  # the latter: hybrid sharding
        size = world if group is None else group.size()
        return [size * (across.size() if across is not None else 1)]
    if "DeepSpeedEngine" in kinds:
        return [int(getattr(module, "dp_world_size", world) or world)]
    if "FSDPModule" in kinds or "ReplicateModule" in kinds:
        info = _mesh_info(module)
        if info is None:
            return []
        sizes = [getattr(info, name, None) for name in ("replicate_mesh_size", "shard_mesh_size")]
        size = math.prod(size for size in sizes if isinstance(size, int))
        return [max(1, size // _context(info.mesh))]
    return []


def _mesh_info(module: Any) -> Any:
    """FSDP2's own record of the mesh that it splits `module`'s batch over; None where this torch has none."""
    try:
        state = module._get_fsdp_state()
    except (AttributeError, AssertionError):
        return None
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    for group in groups:
        info = getattr(group, "mesh_info", None)
        if info is not None:
            return info
    return getattr(state, "_mesh_info", None)


def _context(mesh: Any) -> int:
    """Ranks of FSDP's mesh that share a batch: those of a context axis that was flattened into it."""
    names = mesh.mesh_dim_names or ()
    if not any(part in _CONTEXT_AXES for name in names for part in name.split("_")):
        return 1
    root_mesh = _root_mesh(mesh)
    named = {name: root_mesh.mesh.shape[axis] for axis, name in enumerate(root_mesh.mesh_dim_names or ())}
    return math.prod(int(size) for name, size in named.items() if name in _CONTEXT_AXES)


def _root_mesh(mesh: Any) -> Any:
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    resources: Any = getattr(sys.modules["torch.distributed.device_mesh"], "_mesh_resources", None)
    return resources.get_root_mesh(mesh) if hasattr(resources, "get_root_mesh") else mesh


def _parameter_mesh(module: Any) -> Optional[Tuple[List[str], List[int], List[bool]]]:
    """Of the mesh of `module`'s parameters: names and sizes of axes, and which of them divide parameters."""
    largest: Any = None
    divided: Dict[str, bool] = {}
    for module_ in parts(module):
        for parameter in field(module_, "_parameters").values():
            parameter_mesh = getattr(parameter, "device_mesh", None)
            if parameter_mesh is None:
                continue
            root = _root_mesh(parameter_mesh)
            if largest is None or root.mesh.numel() > largest.mesh.numel():
                largest = root
            names = parameter_mesh.mesh_dim_names or [str(axis) for axis in range(parameter_mesh.mesh.dim())]
            for name, placement in zip(names, parameter.placements):  # noqa: B905 - Python 3.8 has no `strict`
                divided[name] = divided.get(name, False) or not placement.is_replicate()
    if largest is None:
        return None
    names = list(largest.mesh_dim_names or [str(axis) for axis in range(largest.mesh.dim())])
    sizes = [int(size) for size in largest.mesh.shape]
    return names, sizes, [divided.get(name, False) for name in names]
