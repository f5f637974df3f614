"""Operators of a run and their dependencies, from execution traces of PyTorch."""

from __future__ import annotations

from collections import defaultdict

from msgspec import Struct

from perfscope.analysis.source import RunSource
from perfscope.rundir.execution_records import ExecutionRecord, TracedOperator


class RankStructure(Struct, frozen=True, kw_only=True):
    """The execution trace of a rank's window.

    Attributes:
        num_operators: operators that no other contains; num_dependencies: pairs of them of which the second
            reads a storage that the first wrote last.
        chain: operators of the longest chain of those; chain_names: the most frequent, with their number.
        chain_ns: their time on the host; None: there is no Kineto trace beside it, or it lacks one of them.
        num_joined: nodes that the Kineto trace has, too; None: there is none beside it.
        num_filled: operators of the Kineto trace whose shapes are from the execution trace.
    """

    rank: int
    window: int
    schema: str
    num_nodes: int
    num_operators: int
    num_dependencies: int
    chain: int
    chain_names: tuple[tuple[str, int], ...]
    chain_ns: int | None
    num_joined: int | None
    num_filled: int


class OperatorCalls(Struct, frozen=True, kw_only=True):
    """Calls of an operator with the same input, of all ranks.

    Attributes:
        shapes: of its input tensors, as text; dtype: of the first.
        host_ns: time of all calls on the host, operators inside included; None: no Kineto trace has it.
    """

    name: str
    shapes: str
    dtype: str
    calls: int
    host_ns: int | None


class StructureCalls(Struct, frozen=True, kw_only=True):
    """Calls of a collective on a process group, of all ranks; `bytes`: of their inputs, None: not known."""

    name: str
    group: str
    dtype: str
    calls: int
    bytes: int | None


class ExecutionStructure(Struct, frozen=True, kw_only=True):
    """What execution traces say together.

    Attributes:
        num_left_out: rows of operators that are not listed.
        has_times: they have times of their own, or Kineto traces are beside them.
    """

    ranks: tuple[RankStructure, ...]
    operators: tuple[OperatorCalls, ...]
    collectives: tuple[StructureCalls, ...]
    num_left_out: int
    has_times: bool


def execution_of(source: RunSource) -> ExecutionStructure | None:
    """None: the run has no execution trace."""
    records = [
        (summary.rank, summary.window, summary.execution)
        for summary in source.summaries()
        if summary.execution is not None
    ]
    if not records:
        return None
    return ExecutionStructure(
        ranks=tuple(_rank(*entry) for entry in records),
        operators=_operators([record for _, _, record in records]),
        collectives=_collectives([record for _, _, record in records]),
        num_left_out=max(record.num_left_out for _, _, record in records),
        has_times=any(summary.lanes for summary in source.summaries()),
    )


def _rank(rank: int, window: int, record: ExecutionRecord) -> RankStructure:
    return RankStructure(
        rank=rank,
        window=window,
        schema=record.schema,
        num_nodes=record.num_nodes,
        num_operators=record.num_operators,
        num_dependencies=record.num_dependencies,
        chain=record.chain,
        chain_names=record.chain_names,
        chain_ns=record.chain_ns,
        num_joined=record.num_joined if record.is_joined else None,
        num_filled=record.num_filled,
    )


def _operators(records: list[ExecutionRecord]) -> tuple[OperatorCalls, ...]:
    """With the most time on the host, else the most calls, first."""
    alike: dict[tuple[str, str, str], list[TracedOperator]] = defaultdict(list)
    for record in records:
        for row in record.operators:
            alike[row.name, row.shapes, row.dtype].append(row)
    rows = [
        OperatorCalls(
            name=name,
            shapes=shapes,
            dtype=dtype,
            calls=sum(row.calls for row in same),
            host_ns=sum(row.host_ns for row in same) if any(row.num_timed for row in same) else None,
        )
        for (name, shapes, dtype), same in alike.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.host_ns or 0), -row.calls, row.name, row.shapes)))


def _collectives(records: list[ExecutionRecord]) -> tuple[StructureCalls, ...]:
    calls: dict[tuple[str, str, str], int] = defaultdict(int)
    sizes: dict[tuple[str, str, str], list[int | None]] = defaultdict(list)
    for record in records:
        for row in record.collectives:
            key = (row.name, row.group, row.dtype)
            calls[key] += row.calls
            sizes[key].append(row.bytes)
    return tuple(
        StructureCalls(
            name=key[0],
            group=key[1],
            dtype=key[2],
            calls=calls[key],
            bytes=None if None in sizes[key] else sum(size for size in sizes[key] if size is not None),
        )
        for key in sorted(calls)
    )
