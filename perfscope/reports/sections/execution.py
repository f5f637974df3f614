"""Section "Operators and dependencies": what execution traces of PyTorch say."""

from __future__ import annotations

from typing import Any

from perfscope.analysis.execution import ExecutionStructure
from perfscope.analysis.results import RunAnalysis
from perfscope.messages.execution import (
    chain_sentence,
    filled_sentence,
    no_times_action,
    no_times_sentence,
    structure_headline,
)
from perfscope.reports.display import visible
from perfscope.reports.model import Block, Column, Note, Section, Table, Unit, Value, Verdict

_MOST_ROWS, _MOST_RANKS = 100, 64  # drawn; all are in the JSON report
_MOST_NAMES = 3


def execution_verdict(structure: ExecutionStructure) -> Verdict:
    """Of a run that has nothing but execution traces."""
    longest = max(structure.ranks, key=lambda row: row.chain)
    ranks = len({row.rank for row in structure.ranks})
    headline = structure_headline(longest.num_operators, ranks, longest.chain)
    return Verdict(headline=headline, detail=no_times_sentence(), action=no_times_action(), tone="plain")


def execution_section(analysis: RunAnalysis) -> Section | None:
    """None without execution traces."""
    structure = analysis.execution
    if structure is None:
        return None
    longest = max(structure.ranks, key=lambda row: row.chain)
    names = [(visible(name), count) for name, count in longest.chain_names[:_MOST_NAMES]]
    notes = [Note(text=chain_sentence(longest.rank, longest.chain, longest.num_operators, names))]
    filled = sum(row.num_filled for row in structure.ranks)
    if filled:
        notes.append(Note(text=filled_sentence(filled)))
    if not structure.has_times:
        notes.append(Note(text=f"{no_times_sentence()} {no_times_action()}", tone="caution"))
    blocks: list[Block] = [*notes, _ranks(structure), _operators(structure)]
    if structure.collectives:
        blocks.append(_collectives(structure))
    return Section(id="operators", title="Operators and dependencies", blocks=tuple(blocks))


def _without_empty(
    *, columns: tuple[Column, ...], rows: tuple[tuple[Value, ...], ...], **options: Any
) -> Table:
    """A table without columns that have no value at all, or window 0 in every row."""
    values = [{row[at] for row in rows} for at in range(len(columns))]
    empty = [
        seen == {None} or (column.key == "window" and seen == {0})
        for column, seen in zip(columns, values, strict=True)
    ]
    kept = [at for at, is_empty in enumerate(empty) if not is_empty]
    return Table(
        columns=tuple(columns[at] for at in kept),
        rows=tuple(tuple(row[at] for at in kept) for row in rows),
        **options,
    )


def _ranks(structure: ExecutionStructure) -> Table:
    return _without_empty(
        id="execution_traces",
        title="Execution traces",
        terminal_rows=8,
        terminal_title=True,
        columns=(
            Column(key="rank", title="Rank", unit=Unit.COUNT, primary=True),
            Column(key="window", title="Window", unit=Unit.COUNT),
            Column(key="nodes", title="Nodes", unit=Unit.COUNT),
            Column(
                key="joined", title="In the Kineto trace", unit=Unit.COUNT, hint="same process, id and name"
            ),
            Column(key="operators", title="Operators", unit=Unit.COUNT, primary=True, hint="outermost ones"),
            Column(key="dependencies", title="Dependencies", unit=Unit.COUNT, primary=True),
            Column(key="chain", title="Longest chain", unit=Unit.COUNT, primary=True),
            Column(key="chain_time", title="Its host time", unit=Unit.TIME),
        ),
        rows=tuple(
            (
                *(row.rank, row.window, row.num_nodes, row.num_joined),
                *(row.num_operators, row.num_dependencies, row.chain, row.chain_ns),
            )
            for row in structure.ranks[:_MOST_RANKS]
        ),
    )


def _operators(structure: ExecutionStructure) -> Table:
    return _without_empty(
        id="traced_operators",
        title="Operators by input, all ranks",
        terminal_rows=8,
        terminal_title=True,
        columns=(
            Column(key="name", title="Operator", unit=Unit.CODE, primary=True),
            Column(key="shapes", title="Shapes", unit=Unit.CODE, primary=True),
            Column(key="dtype", title="Data type", unit=Unit.CODE),
            Column(key="calls", title="Calls", unit=Unit.COUNT, primary=True),
            Column(
                key="host", title="Host time", unit=Unit.TIME, primary=True, hint="operators inside included"
            ),
        ),
        rows=tuple(
            (visible(row.name), row.shapes or None, visible(row.dtype) or None, row.calls, row.host_ns)
            for row in structure.operators[:_MOST_ROWS]
        ),
    )


def _collectives(structure: ExecutionStructure) -> Table:
    return _without_empty(
        id="traced_collectives",
        title="Collectives by group, all ranks",
        terminal_rows=8,
        terminal_title=True,
        columns=(
            Column(key="name", title="Collective", unit=Unit.CODE, primary=True),
            Column(key="group", title="Group", unit=Unit.CODE, primary=True),
            Column(key="dtype", title="Data type", unit=Unit.CODE),
            Column(key="calls", title="Calls", unit=Unit.COUNT, primary=True),
            Column(key="bytes", title="Bytes", unit=Unit.BYTES, primary=True, hint="of all inputs"),
        ),
        rows=tuple(
            (visible(row.name), visible(row.group) or None, visible(row.dtype) or None, row.calls, row.bytes)
            for row in structure.collectives[:_MOST_ROWS]
        ),
    )
