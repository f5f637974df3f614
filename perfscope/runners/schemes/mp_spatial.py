"""mp.spatial: every rank computes some rows of each map."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from torch import nn

from perfscope.runners import comm
from perfscope.runners.config import BenchError
from perfscope.runners.inputs import InputKind
from perfscope.runners.job import Job
from perfscope.runners.model_parallel.pieces import Pieces
from perfscope.runners.model_parallel.rows import WINDOWED, Halo, can_split, split_rows, window_of
from perfscope.runners.model_parallel.spatial import Layout, RowSurgeon
from perfscope.runners.model_parallel.structure import (
    Structure,
    is_container,
    join,
    paths_of,
    read_structure,
    steps_of,
)
from perfscope.runners.model_parallel.volumes import BACKWARD, FORWARD
from perfscope.runners.schemes.base import Axes
from perfscope.runners.schemes.mp_base import SplitModel
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology
from perfscope.vocabulary.traffic import ScalesWith

Passed = tuple[str, nn.Module, Layout]  # qualified name, module, how its input lies on the ranks


class Spatial(SplitModel):
    """Rows of maps split over the model group."""

    name = "mp.spatial"
    summary = "Each rank computes H/M rows of every map and gets halo rows from its neighbors."
    rule = (
        "Weights are on every rank. Before a convolution or pool a rank gets the rows it needs and does "
        "not hold (send), backward it returns their gradients; BatchNorm sums its statistics over the "
        "group. Where a map has fewer rows than ranks, or is averaged or flattened, all rows are gathered "
        "and every rank goes on alone. Gradients of the layers before that are packed and summed "
        "(all_reduce)."
    )
    volume = (
        "per split layer b * C * W * (k - s) e for each neighbor (odd kernel k, stride s, rows that "
        "divide; exactly: rows that one holds and another needs, and back), (M-1)/M * b|x| e for the map "
        "that is gathered, and 2(M-1)/M * |w_split| e"
    )
    source = "Kahira et al. 2021, arXiv 2104.09075, table 3 (spatial); Dryden et al. 2019, arXiv 1903.06681"
    axes = Axes(
        (Parallelism.MODEL,),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.POINT_TO_POINT,
        StatePlacement.REPLICATED,
        "halo exchange with neighbors; all_reduce",
    )
    inputs = frozenset((InputKind.IMAGE,))

    def split(self, model: nn.Sequential, structure: Structure) -> tuple[nn.Sequential, Pieces]:
        """See SplitModel."""
        surgeon = RowSurgeon(self.model_group, structure, seed=self.dropout_seed, device=self.world.device)
        made = surgeon.split(model)
        self.partial = surgeon.partial
        self.partial_packed = self.world.ledger.flat(made, self.partial)
        return made, surgeon.pieces

    def finish_gradients(self) -> None:
        """Sums the gradients of layers of which each rank saw its rows."""
        if self.model_group.size > 1:
            gradients = [param.grad for param in self.partial]
            comm.all_reduce(comm.flatten(gradients, self.partial_packed), self.model_group)
            comm.unflatten(self.partial_packed, gradients)

    @classmethod
    def own_layers(cls, job: Job) -> list[tuple[str, int]]:
        """See SplitModel."""
        return [(layer.name, layer.num_params) for layer in job.shape.layers]

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        num_ranks = job.mesh.size(Axis.TP)
        structure = read_structure(job.config)
        passed = list(_passed(structure, num_ranks))
        for path, module, _ in passed:
            if isinstance(module, WINDOWED):
                window_of(module, path)
        if not any(isinstance(module, nn.Conv2d) and how is not Layout.WHOLE for _, module, how in passed):
            convs = [path for path, module, _ in passed if isinstance(module, nn.Conv2d)]
            if not convs:
                raise BenchError(
                    f"mp.spatial: {job.config.model} has no convolution whose rows could be split"
                )
            rows = min(structure.in_shapes[convs[0]][1], structure.out_shapes[convs[0]][1])
            hint = f"tp={rows} would do" if rows > 1 else "no tp above 1 would do"
            raise BenchError(f"mp.spatial: {convs[0]} has {rows} rows, too few for {num_ranks} ranks; {hint}")

    @classmethod
    def inside(cls, job: Job, rank: int) -> list[Traffic]:
        """See SplitModel."""
        group = job.mesh.group(Axis.TP, rank)
        structure = read_structure(job.config)
        calls: list[Traffic] = []
        num_partial = 0
        for path, module, layout in _passed(structure, len(group)):
            if layout is Layout.WHOLE:
                continue
            if isinstance(module, WINDOWED):
                num_partial += sum(param.numel() for param in module.parameters())
                calls += (
                    _halo_traffic(job, group, rank, structure, path, layout) if layout is Layout.ROWS else []
                )
            elif isinstance(module, nn.BatchNorm2d):
                num_partial += 2 * module.num_features
                count = 2 if layout is Layout.ROWS else 1
                calls.append(_all(job, group, "all_reduce", 2 * module.num_features, "statistics", count))
        gathered = _gathered(structure, len(group))
        if gathered:
            channels, height, width = structure.in_shapes[gathered]
            most = max(rows.num for rows in split_rows(height, len(group)))
            size = len(group) * most * channels * width * job.group_batch
            gather = _all(job, group, "all_gather", size, "rows for all")
            calls.append(replace(gather, scales_with=ScalesWith.SAMPLES))
        calls.append(_all(job, group, "all_reduce", num_partial, "gradients of split layers"))
        return calls


def _passed(structure: Structure, num_ranks: int) -> Iterator[Passed]:
    """Every module without children in forward order, with the layout of what it takes in."""
    yield from _way(structure, structure.model, "", Layout.SAMPLES, num_ranks)


def _way(
    structure: Structure, way: nn.Module, prefix: str, layout: Layout, num_ranks: int
) -> Iterator[Passed]:
    for _, path, module in steps_of(way, prefix):
        if not can_split(structure, path, module, num_ranks):
            layout = Layout.WHOLE
        if is_container(module):
            for key, branch in paths_of(module):
                yield from _way(structure, branch, join(path, key), layout, num_ranks)
        else:
            yield path, module, layout
        mixes = is_container(module) or isinstance(module, (*WINDOWED, nn.BatchNorm2d))
        if layout is Layout.SAMPLES and mixes:
            layout = Layout.ROWS


def _gathered(structure: Structure, num_ranks: int) -> str | None:
    """The top-level child in front of which rows are gathered."""
    before_that = False
    for path, module in structure.model.named_children():
        if not can_split(structure, path, module, num_ranks):
            return path if before_that else None
        before_that |= is_container(module) or isinstance(module, (*WINDOWED, nn.BatchNorm2d))
    return None


def _halo_traffic(
    job: Job, group: tuple[int, ...], rank: int, structure: Structure, path: str, layout: Layout
) -> Iterator[Traffic]:
    module = structure.model.get_submodule(path)
    channels, height, width = structure.in_shapes[path]
    halo = Halo.of(height, window_of(module, path), len(group))
    me = group.index(rank)
    per_row = prod((channels, width, job.group_batch, job.element_size))
    for other, receiver in enumerate(group):
        if other == me:
            continue
        for rows, what in ((halo.sent(me, other), FORWARD), (halo.sent(other, me), BACKWARD)):
            if rows.num:
                yield Traffic(
                    collective="send",
                    axis=Axis.TP,
                    members=(rank, receiver),
                    bytes=rows.num * per_row,
                    what=f"halo rows, {what}",
                    scales_with=ScalesWith.SAMPLES,
                    group_size=len(group),
                )


def _all(job: Job, group: tuple[int, ...], collective: str, numel: int, what: str, count: int = 1) -> Traffic:
    return Traffic(
        collective=collective,
        axis=Axis.TP,
        members=group,
        bytes=numel * job.element_size,
        what=what,
        count=count,
    )
