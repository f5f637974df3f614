"""Embedding tables divided over all ranks, MLPs data parallel: whole tables, rows or columns of each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from perfscope.runners import comm
from perfscope.runners.comm import Group
from perfscope.runners.config import BenchError
from perfscope.runners.inputs import InputKind
from perfscope.runners.job import Job
from perfscope.runners.mesh import Mesh
from perfscope.runners.model_parallel.operators import exchange_rows, gather_parts, scatter_sum
from perfscope.runners.model_parallel.pieces import Pieces, assemble
from perfscope.runners.models.shapes import LayerShape
from perfscope.runners.schemes.base import DIVIDED_MODEL, NO_WHOLE_GRADIENT, Batch, Scheme, hybrid_axes
from perfscope.runners.schemes.local import loss_of
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Parallelism, Topology
from perfscope.vocabulary.traffic import ScalesWith

_PREFIX = "features.tables"
_CATEGORY_BYTES = 8  # int64


class DividedTables(nn.Module):
    """What a rank holds of the tables, by the names of the whole ones; (b, T) categories to (b, T, width)."""

    def __init__(self, tables: nn.ModuleList, group: Group, pieces: Pieces) -> None:
        super().__init__()
        self.group, self.pieces = group, pieces
        self.num_tables, self.width = len(tables), tables[0].embedding_dim

    def _keep(self, number: int, table: nn.Embedding, dim: int, first: int, end: int) -> None:
        """Rows or columns first .. end - 1 of a table, which may be none."""
        name = f"{_PREFIX}.{number}.weight"
        part = self.pieces.keep(name, table.weight, dim, torch.arange(first, end))
        if part.numel():
            held = nn.Module()
            held.weight = part
            self.add_module(str(number), held)


class WholeTables(DividedTables):
    """Some tables as a whole: categories go to the rank of their table, its rows come back."""

    def __init__(self, tables: nn.ModuleList, group: Group, pieces: Pieces) -> None:
        super().__init__(tables, group, pieces)
        owners = table_owners([table.num_embeddings for table in tables], group.size)
        by_rank = [[i for i, owner in enumerate(owners) if owner == rank] for rank in range(group.size)]
        self.counts = [len(numbers) for numbers in by_rank]
        order = torch.tensor([number for numbers in by_rank for number in numbers])
        self.register_buffer("order", order.to(tables[0].weight.device), persistent=False)
        self.register_buffer("back", self.order.argsort(), persistent=False)
        for number, table in enumerate(tables):
            is_own = owners[number] == group.index
            self._keep(number, table, 0, 0, table.num_embeddings if is_own else 0)

    def forward(self, categories: torch.Tensor) -> torch.Tensor:
        """Three all-to-alls: categories, rows, and backward the gradients of the rows."""
        num, num_held = len(categories), self.counts[self.group.index]
        sizes, from_each = [num * count for count in self.counts], [num * num_held] * self.group.size
        ordered = categories[:, self.order].split(self.counts, dim=1)
        asked = categories.new_empty(sum(from_each))
        comm.all_to_all(
            *(asked, torch.cat([part.flatten() for part in ordered]), self.group), splits=(from_each, sizes)
        )
        wanted = asked.view(-1, num_held).unbind(dim=1)
        tables = [held.weight for held in self.children()]
        found = [functional.embedding(numbers, table) for numbers, table in zip(wanted, tables, strict=True)]
        rows = torch.stack(found, dim=1).flatten(0, 1)
        parts = exchange_rows(rows, from_each, sizes, self.group).split(sizes)
        of_ranks = [part.view(num, -1, self.width) for part in parts]
        return torch.cat(of_ranks, dim=1)[:, self.back]


class RowsOfTables(DividedTables):
    """Consecutive rows of every table: each rank adds the rows that it has to a sum of otherwise zeros."""

    def __init__(self, tables: nn.ModuleList, group: Group, pieces: Pieces) -> None:
        super().__init__(tables, group, pieces)
        self.firsts = []
        for number, table in enumerate(tables):
            length = -(-table.num_embeddings // group.size)
            first, end = (min(at * length, table.num_embeddings) for at in (group.index, group.index + 1))
            self._keep(number, table, 0, first, end)
            self.firsts.append(first)

    def forward(self, categories: torch.Tensor) -> torch.Tensor:
        """all_gather of categories, reduce_scatter of rows; backward all_gather of their gradients."""
        everyone = gather_parts(categories, 0, self.group)
        held = dict(self.named_children())
        empty = next(iter(held.values())).weight.new_zeros(len(everyone), self.width)
        found = [
            _own_rows(held[str(number)].weight, everyone[:, number] - first) if str(number) in held else empty
            for number, first in enumerate(self.firsts)
        ]
        return scatter_sum(torch.stack(found, dim=1), 0, self.group)


class ColumnsOfTables(DividedTables):
    """Equal parts of the width of every table."""

    def __init__(self, tables: nn.ModuleList, group: Group, pieces: Pieces) -> None:
        super().__init__(tables, group, pieces)
        length = self.width // group.size
        for number, table in enumerate(tables):
            self._keep(number, table, 1, group.index * length, (group.index + 1) * length)

    def forward(self, categories: torch.Tensor) -> torch.Tensor:
        """all_gather of categories, all-to-all of parts of rows; backward one of their gradients."""
        everyone = gather_parts(categories, 0, self.group)
        tables = [held.weight for held in self.children()]
        found = [functional.embedding(everyone[:, number], table) for number, table in enumerate(tables)]
        sizes = [len(categories)] * self.group.size
        parts = exchange_rows(torch.stack(found, dim=1), sizes, sizes, self.group).split(sizes)
        return torch.cat(parts, dim=2)


def _own_rows(weight: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Rows (n, width) at places counted from the first that is held; zeros for the others."""
    is_own = (places >= 0) & (places < len(weight))
    return functional.embedding(places.where(is_own, 0), weight) * is_own[:, None]


def table_owners(rows: Sequence[int], num_ranks: int) -> list[int]:
    """Rank of each table: the largest first, each to the rank with the fewest rows so far."""
    owners, loads = [0] * len(rows), [0] * num_ranks
    for number in sorted(range(len(rows)), key=lambda index: -rows[index]):
        owners[number] = rank = loads.index(min(loads))
        loads[rank] += rows[number]
    return owners


class TableParallel(Scheme):
    """All ranks hold the MLPs and their part of the batch, and each some of the tables."""

    splits: ClassVar[tuple[Axis, ...]] = (Axis.DP,)
    inputs = frozenset((InputKind.CLICKS,))
    refused_updates = NO_WHOLE_GRADIENT
    refused_passes = DIVIDED_MODEL
    divided: ClassVar[type[DividedTables]]

    @classmethod
    def default_mesh(cls, num_ranks: int) -> Mesh:
        """See Scheme: the tables are divided over the ranks that also divide the batch."""
        return Mesh({Axis.DP: num_ranks})

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        self.group = self.world.groups(Axis.DP, self.job.mesh.groups(Axis.DP))
        self.shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        self.pieces = Pieces()
        model.features.tables = self.divided(model.features.tables, self.group, self.pieces)
        self.pieces.keep_rest(model)
        self.model = model
        self._tables = list(model.features.tables.parameters())
        of_tables = set(map(id, self._tables))
        self._dense = [param for param in model.parameters() if id(param) not in of_tables]
        self._flat = self.world.ledger.flat(model, self._dense)
        comm.name_groups(model)
        self.optimizer = make_optimizer(self, model.parameters())

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self.model, batch)
        loss.backward()
        gradients = [param.grad for param in self._dense]
        packed = comm.flatten(gradients, self._flat)
        comm.all_reduce(packed, self.group)
        comm.unflatten(packed.div_(self.group.size), gradients)
        for table in self._tables:  # of the sum over ranks of their mean losses
            table.grad.div_(self.group.size)
        self.optimizer.step()
        return loss.detach()

    def full_state(self) -> dict[str, torch.Tensor] | None:
        """See Scheme."""
        held = self.world.peers.gather(self.pieces.values())
        return None if held is None else assemble(self.shapes, held)

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        dense = job.shape.num_params - sum(table.num_params for table in _tables_of(job))
        gradients = Traffic(
            collective="all_reduce",
            axis=Axis.DP,
            members=job.mesh.group(Axis.DP, rank),
            bytes=dense * job.element_size,
            what="gradients of the MLPs",
        )
        return [*cls.lookups(job, rank), gradients]

    @classmethod
    @abstractmethod
    def lookups(cls, job: Job, rank: int) -> list[Traffic]:
        """What `rank` sends in a step for the rows that its samples and those of others need."""

    @classmethod
    def _call(cls, job: Job, rank: int, collective: str, size: int, what: str) -> Traffic:
        return Traffic(
            collective=collective,
            axis=Axis.DP,
            members=job.mesh.group(Axis.DP, rank),
            bytes=size,
            what=what,
            scales_with=ScalesWith.SAMPLES,
        )


class TableWise(TableParallel):
    """Whole tables."""

    name = "emb.table"
    summary = "Each rank holds some embedding tables as a whole; all-to-all of categories and rows."
    rule = (
        "Tables are placed largest first, each on the rank with the fewest rows so far. Every rank trains "
        "the MLPs on its part of the batch. It sends each category to the rank of its table and gets the "
        "rows back; backward their gradients go the same way (three all-to-alls with unequal parts). "
        "Gradients of the MLPs are packed and averaged over all ranks."
    )
    volume = (
        "(P-1)/P * (b T (8 + d e) + B T_r d e) of T tables of width d, T_r of them its own, and "
        "2(P-1)/P * |W_MLP| e"
    )
    source = "Naumov et al. 2019 (arXiv 1906.00091), section 4; table-wise sharding of TorchRec"
    axes = hybrid_axes(
        Topology.ALL_TO_ALL, "all-to-all of rows, ring all-reduce of the MLPs", Parallelism.EMBEDDING
    )
    divided = WholeTables

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        num_tables = len(_tables_of(job))
        if num_tables < job.num_ranks:
            raise BenchError(
                f"{cls.name}: {job.num_ranks} ranks cannot share the {num_tables} tables of "
                f"{job.config.model}; use {num_tables} ranks at most, or emb.row"
            )

    @classmethod
    def layout(cls, job: Job) -> Mapping[str, Any]:
        """See Scheme: the rank of each table."""
        tables = _tables_of(job)
        owners = table_owners([table.weight_shape[0] for table in tables], job.num_ranks)
        return {"tables": {table.name: owner for table, owner in zip(tables, owners, strict=True)}}

    @classmethod
    def lookups(cls, job: Job, rank: int) -> list[Traffic]:
        """See TableParallel."""
        num_held = list(cls.layout(job)["tables"].values()).count(rank)
        row, num = job.element_size * _width(job), len(_tables_of(job))
        return [
            cls._call(job, rank, "all_to_all", job.group_batch * num * _CATEGORY_BYTES, "categories"),
            cls._call(job, rank, "all_to_all", job.config.batch * num_held * row, "rows"),
            cls._call(job, rank, "all_to_all", job.group_batch * num * row, "gradients of rows"),
        ]


class RowWise(TableParallel):
    """Rows of each table."""

    name = "emb.row"
    summary = "Each rank holds consecutive rows of every embedding table; reduce-scatter of rows."
    rule = (
        "Rank r holds rows r n .. (r+1) n - 1 of each table of R rows, n = ceil(R/P). Every rank gathers "
        "the categories of all (all_gather), looks up those that it holds, zeros elsewhere; the sum over "
        "ranks of a rank's samples goes to it (reduce_scatter). Backward gradients of rows are gathered. "
        "MLPs as in emb.table. Of a table of fewer rows than ranks some ranks hold none."
    )
    volume = "(P-1)/P * B T (8 + 2 d e) of T tables of width d, and 2(P-1)/P * |W_MLP| e"
    source = "row-wise sharding of TorchRec (Ivchenko et al., RecSys 2022)"
    axes = hybrid_axes(
        Topology.ALL_GATHER, "reduce-scatter of rows, ring all-reduce of the MLPs", Parallelism.EMBEDDING
    )
    whole_layers = False
    divided = RowsOfTables

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        most = max(table.weight_shape[0] for table in _tables_of(job))
        if -(-most // -(-most // job.num_ranks)) < job.num_ranks:
            raise BenchError(
                f"{cls.name}: the largest table of {job.config.model} has {most} rows, which {job.num_ranks} "
                f"ranks cannot share; use fewer ranks"
            )

    @classmethod
    def lookups(cls, job: Job, rank: int) -> list[Traffic]:
        """See TableParallel."""
        num = job.config.batch * len(_tables_of(job))
        row = job.element_size * _width(job)
        return [
            cls._call(job, rank, "all_gather", num * _CATEGORY_BYTES, "categories"),
            cls._call(job, rank, "reduce_scatter", num * row, "rows"),
            cls._call(job, rank, "all_gather", num * row, "gradients of rows"),
        ]


class ColumnWise(TableParallel):
    """Columns of each table."""

    name = "emb.column"
    summary = "Each rank holds part of the width of every embedding table; all-to-all of parts of rows."
    rule = (
        "Each rank holds d/P columns of every table of width d. It gathers the categories of all ranks "
        "(all_gather), looks up its part of every row, and an all-to-all brings each rank all parts of its "
        "samples' rows; backward their gradients go the same way. MLPs as in emb.table."
    )
    volume = "(P-1)/P * (8 B T + 2 b T d e) of T tables of width d, and 2(P-1)/P * |W_MLP| e"
    source = "column-wise sharding of TorchRec (Ivchenko et al., RecSys 2022)"
    axes = hybrid_axes(
        Topology.ALL_TO_ALL, "all-to-all of parts of rows, ring all-reduce of the MLPs", Parallelism.EMBEDDING
    )
    whole_layers = False
    divided = ColumnsOfTables

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        width = _width(job)
        if width % job.num_ranks:
            raise BenchError(
                f"{cls.name}: {job.num_ranks} ranks cannot share embeddings of width {width} equally; use a "
                f"number of ranks that divides {width}"
            )

    @classmethod
    def lookups(cls, job: Job, rank: int) -> list[Traffic]:
        """See TableParallel."""
        num = len(_tables_of(job))
        rows = job.group_batch * num * job.element_size * _width(job)
        return [
            cls._call(job, rank, "all_gather", job.config.batch * num * _CATEGORY_BYTES, "categories"),
            cls._call(job, rank, "all_to_all", rows, "rows"),
            cls._call(job, rank, "all_to_all", rows, "gradients of rows"),
        ]


def _tables_of(job: Job) -> list[LayerShape]:
    return [layer for layer in job.shape.layers if layer.kind == "embedding"]


def _width(job: Job) -> int:
    return _tables_of(job)[0].weight_shape[1]
