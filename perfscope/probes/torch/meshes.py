"""Which axis of a device mesh each process group is, where the group itself does not say it.

torch describes the groups that it makes for a `DeviceMesh` (`mesh_tp`). An axis over all ranks, or of a mesh
that is made of groups the program already had, has no group of its own: only the mesh knows its name.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Set

from ..frames import around


class Meshes:
    """The device meshes of a process, from the moment they are made."""

    def __init__(self) -> None:
        self._alive: Dict[int, Any] = {}  # id -> weak reference
        self._axes: Dict[str, Set[str]] = {}  # group -> names of axes

    def install(self, module: Any, guarded: Callable[..., Any]) -> None:
        """Watches for new meshes.

        Args:
            module: torch.distributed.device_mesh.
            guarded: (place, function, arguments) calls the function, and keeps its faults from the training.
        """
        kind = module.DeviceMesh
        original = kind.__init__

        @around(original)
        def __init__(mesh: Any, *args: Any, **kwargs: Any) -> None:
            original(mesh, *args, **kwargs)
            guarded("mesh", self._made, mesh)

        kind.__init__ = __init__

    def _made(self, mesh: Any) -> None:
        if mesh.mesh_dim_names:
            key = id(mesh)
            self._alive[key] = weakref.ref(mesh, lambda _: self._alive.pop(key, None))

    def forget(self) -> None:
        """The process groups are destroyed: their names may be given to others."""
        self._axes.clear()

    def axes(self) -> Dict[str, str]:
        """Group name -> the axis that it is of all meshes so far; a group that is two axes has none."""
        for mesh in [reference() for reference in list(self._alive.values())]:
            for axis, group in zip(mesh.mesh_dim_names, _groups(mesh)) if mesh is not None else ():  # noqa: B905
                self._axes.setdefault(group, set()).add(axis)
        return {group: next(iter(axes)) for group, axes in self._axes.items() if len(axes) == 1}


def _groups(mesh: Any) -> List[str]:
    """The group of each of its axes that this process is in; none for a mesh without groups of its own."""
    try:
        return [str(group.group_name) for group in mesh.get_all_groups()]
    except (RuntimeError, AssertionError, LookupError, TypeError, AttributeError):  # by version of torch
        return []
