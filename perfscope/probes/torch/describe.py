"""What a PyTorch rank says about itself in rank.json."""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Mapping, Optional

from ..memory import peak_rss
from .held import HeldMemory
from .layers import class_name, unwrap
from .parallel import data_parallel, mesh

_MESH = "mesh_"


def framework() -> Dict[str, Any]:
    torch = sys.modules["torch"]
    device = "cpu"
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        index = torch.cuda.current_device()
        device = "cuda:%d %s" % (index, torch.cuda.get_device_name(index))
    return {
        "framework": {"name": "torch", "version": str(torch.__version__)},
        "device": device,
        "num_threads": torch.get_num_threads(),
    }


def memory(held: HeldMemory) -> Dict[str, Any]:
    """The most memory this process held so far, and what its tensors take, bytes; None: not measured."""
    torch = sys.modules["torch"]
    device = reserved = None
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        device = int(torch.cuda.max_memory_allocated())
        reserved = int(torch.cuda.max_memory_reserved())
    peaks = {"peak_rss_bytes": peak_rss(), "peak_device_bytes": device, "peak_reserved_bytes": reserved}
    return dict(peaks, **held.bytes)


def groups(axes: Mapping[str, str]) -> Dict[str, Any]:
    """Backend and process groups, empty when torch.distributed is not in use.

    Args:
        axes: group name -> axis of a device mesh; such a group is described as torch does its meshes' own.
    """
    dist = sys.modules["torch"].distributed
    if not (dist.is_available() and dist.is_initialized()):
        return {}
    rows = [
        {
            "name": config.get("pg_name"),
            "desc": _MESH + axes[name] if (name := config.get("pg_name")) in axes else config.get("pg_desc"),
            "backend": config.get("backend_config"),
            "ranks": list(config.get("ranks", ())),
        }
        for config in getattr(dist.distributed_c10d, "_get_all_pg_configs", list)()
    ]
    return {"backend": dist.get_backend(), "groups": rows, "mesh": _mesh()}


def _mesh() -> Optional[Dict[str, Any]]:
    """Names and shape of the device mesh that the training is inside of (`with mesh:`)."""
    module = sys.modules.get("torch.distributed.device_mesh")
    resources = getattr(module, "_mesh_resources", None)
    stack = getattr(resources, "mesh_stack", None)
    if not stack:
        return None
    return {"axes": list(stack[-1].mesh_dim_names or ()), "shape": list(stack[-1].mesh.shape)}


def root(module: Any, pipeline: Optional[List[int]] = None) -> Dict[str, Any]:
    """The outermost module, and over how many ranks its input is split (`dp_size`, None = unknown).

    Args:
        pipeline: ranks that share a batch with this one as stages of a pipeline; None: no pipeline was seen.
    """
    dist = sys.modules["torch"].distributed
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    width = data_parallel(module, world, pipeline)
    facts = {
        "name": class_name(unwrap(module)),
        "type": type(module).__name__,
        "data_parallel": width.is_wrapped or world == 1,
        "dp_size": width.size,
        "compiled": type(module).__name__ in ("OptimizedModule", "function")
        or object.__getattribute__(module, "__dict__").get("_compiled_call_impl") is not None,
    }
    if width.reason:
        facts["dp_unknown"] = width.reason
    mesh_ = mesh(module)
    if mesh_ is not None:
        facts["mesh"] = mesh_
    return facts
