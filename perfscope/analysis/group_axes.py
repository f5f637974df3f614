"""Along which axis of the device mesh each process group communicates.

In order of trust: the groups that a bench scheme lists; the description that DeviceMesh or Megatron-LM gives
a group; the calls that are made on it. Only the last one is inferred: sends and receives alone are a
pipeline, an all-to-all is expert parallelism, gradient buckets are data parallelism, FSDP2's ranges are
fully sharded data parallelism, and other collectives of the forward pass are tensor parallelism. A group
that none of these names keeps its own name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from perfscope.rundir.scheme_records import SchemeRecord
from perfscope.vocabulary.axes import Axis

_MESH = "mesh_"  # torch.distributed.DeviceMesh: `mesh_<name of the dimension>`
_NO_DESCRIPTION = frozenset({"", "undefined", "default_pg"})
# Megatron-LM's descriptions, without `_GROUP` and what follows it.
_MEGATRON = {
    "TENSOR_MODEL_PARALLEL": Axis.TP,
    "PIPELINE_MODEL_PARALLEL": Axis.PP,
    "DATA_PARALLEL": Axis.DP,
    "CONTEXT_PARALLEL": Axis.CP,
    "EXPERT_MODEL_PARALLEL": Axis.EP,
}
_POINT_TO_POINT = frozenset({"send", "recv"})
WORLD = "world"


class CommGroup(NamedTuple):
    """A process group; `members` () and `size` 0: not known."""

    name: str
    members: tuple[int, ...]
    size: int


class GroupAxis(NamedTuple):
    """What a group is called; `inferred`: from its calls, because nothing names it."""

    name: str
    inferred: bool = False


class GroupUse(Struct):
    """The calls that ranks made on a group.

    Attributes:
        collectives: that were called.
        forward: that were called in the forward pass of a layer.
        has_buckets: gradient buckets were reduced.
        has_units: FSDP2 was at work in the same window.
    """

    collectives: set[str] = set()
    forward: set[str] = set()
    has_buckets: bool = False
    has_units: bool = False


class GroupAxes:
    """The axis of each group of a run.

    Args:
        scheme: of a bench run; None for others.
        descriptions: group name -> description.
        uses: of the groups.
        world_size: number of ranks; None = not known.
    """

    def __init__(
        self,
        scheme: SchemeRecord | None,
        descriptions: Mapping[str, str],
        uses: Mapping[CommGroup, GroupUse],
        world_size: int | None,
    ) -> None:
        self._scheme = scheme
        self._descriptions = descriptions
        self._uses = uses
        self._world_size = world_size
        self._axes: dict[CommGroup, GroupAxis] = {}

    def of(self, group: CommGroup) -> GroupAxis:
        """What the group is called."""
        if group not in self._axes:
            self._axes[group] = self._find(group)
        return self._axes[group]

    def _find(self, group: CommGroup) -> GroupAxis:
        use = self._uses.get(group, GroupUse())
        named = self._of_scheme(group, use.collectives) or _described(self._descriptions.get(group.name, ""))
        if named:
            return GroupAxis(named)
        inferred = _inferred(use)
        if inferred:
            return GroupAxis(inferred, inferred=True)
        description = self._descriptions.get(group.name, "")
        if description not in _NO_DESCRIPTION:
            return GroupAxis(description)
        is_world = bool(group.size) and group.size == self._world_size
        return GroupAxis(WORLD if is_world else group.name)

    def _of_scheme(self, group: CommGroup, collectives: Iterable[str]) -> str:
        """The axis that the scheme gives these ranks; of several the one whose calls it predicts."""
        if self._scheme is None or not group.members:
            return ""
        members = frozenset(group.members)
        axes = {entry.axis for entry in self._scheme.groups if frozenset(entry.ranks) == members}
        if len(axes) > 1:
            wanted = set(collectives)
            predicted = (call for calls in self._scheme.calls_of_rank.values() for call in calls)
            axes = {call.axis for call in predicted if call.axis in axes and call.collective in wanted}
        return next(iter(axes)) if len(axes) == 1 else ""


def _described(description: str) -> str:
    """The axis that a description names; "" if none."""
    if description.startswith(_MESH):
        return description[len(_MESH) :]
    return str(_MEGATRON.get(description.partition("_GROUP")[0], ""))


def _inferred(use: GroupUse) -> str:
    collectives = use.collectives - {"barrier"}
    if not collectives:
        return ""
    if collectives <= _POINT_TO_POINT:
        return Axis.PP
    if "all_to_all" in collectives:
        return Axis.EP
    if use.has_buckets:
        return Axis.DP
    if use.has_units and collectives & {"all_gather", "reduce_scatter"}:
        return Axis.FSDP
    return Axis.TP if use.forward & {"all_reduce", "all_gather", "reduce_scatter"} else ""
