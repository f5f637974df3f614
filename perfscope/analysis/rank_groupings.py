"""Ways to group the ranks of a run: by host, and by their coordinate along each axis of the mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from perfscope.analysis.pipeline.results import Pipeline
from perfscope.analysis.source import RunSource
from perfscope.rundir.records import RankRecord
from perfscope.rundir.scheme_records import SchemeRecord
from perfscope.vocabulary.axes import LAYOUT, Axis

HOST = "host"


class RankGrouping(Struct, frozen=True, kw_only=True):
    """One way to group ranks.

    Attributes:
        by: HOST, or an axis of the mesh.
        group_of: rank -> number of its group, from 0; ranks that belong to none are left out.
        names: of the groups, by number; (): they have only numbers.
    """

    by: str
    group_of: Mapping[int, int]
    names: tuple[str, ...] = ()


def rank_groupings(source: RunSource, pipeline: Pipeline | None = None) -> tuple[RankGrouping, ...]:
    """Groupings with at least two groups; those that would only part every rank from all others are left out.

    Args:
        source: the run.
        pipeline: stages of the run, where the mesh does not name them.
    """
    hosts = tuple(dict.fromkeys(source.rank_records[rank].host for rank in source.ranks))
    number = {host: index for index, host in enumerate(hosts)}
    by_host = {rank: number[source.rank_records[rank].host] for rank in source.ranks}
    groupings = [RankGrouping(by=HOST, group_of=by_host, names=hosts)] if len(hosts) > 1 else []
    coordinates = _of_scheme(source.run.scheme) or _of_mesh(source.rank_records)
    if pipeline is not None and Axis.PP.value not in coordinates:
        coordinates = {**coordinates, Axis.PP.value: _of_stages(pipeline)}
    for axis, group_of in coordinates.items():
        num_groups = len(set(group_of.values()))
        if num_groups > 1 and (num_groups < len(group_of) or axis == Axis.PP.value):
            groupings.append(RankGrouping(by=axis, group_of=group_of))
    return tuple(groupings)


def _of_scheme(scheme: SchemeRecord | None) -> dict[str, dict[int, int]]:
    """Axis -> rank -> coordinate; {} where the scheme records no mesh, or another number of ranks."""
    if scheme is None or not scheme.mesh or math.prod(scheme.mesh.values()) != scheme.num_ranks:
        return {}
    axes = [axis.value for axis in LAYOUT if scheme.mesh.get(axis.value, 1) > 1]
    return _coordinates(axes, [scheme.mesh[axis] for axis in axes])


def _of_mesh(records: Mapping[int, RankRecord]) -> dict[str, dict[int, int]]:
    """The same of the device mesh that the program works in; all ranks must have recorded the same one."""
    meshes = [record.mesh for record in records.values()]
    mesh = meshes[0] if meshes else None
    if mesh is None or any(other != mesh for other in meshes):
        return {}
    sizes = {record.world_size for record in records.values() if record.world_size is not None}
    if len(mesh.axes) != len(mesh.shape) or sizes - {math.prod(mesh.shape)}:
        return {}
    return _coordinates(mesh.axes, mesh.shape)


def _coordinates(axes: Sequence[str], shape: Sequence[int]) -> dict[str, dict[int, int]]:
    """Ranks are laid out row by row, as torch's init_device_mesh does."""
    group_of_axis: dict[str, dict[int, int]] = {}
    stride = math.prod(shape)
    for axis, size in zip(axes, shape, strict=True):
        stride //= size
        group_of_axis[axis] = {rank: rank // stride % size for rank in range(math.prod(shape))}
    return group_of_axis


def _of_stages(pipeline: Pipeline) -> dict[int, int]:
    """Rank -> stage; {} where a rank has several stages."""
    stages: dict[int, int] = {}
    for stage in pipeline.stages:
        for rank in stage.ranks:
            if rank in stages:
                return {}
            stages[rank] = stage.stage
    return stages
