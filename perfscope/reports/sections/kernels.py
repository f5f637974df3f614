"""Section "Kernels": where device time goes by type, layer class, kernel, operator, copy and graph.

Without a device it is "Operators": the same for the host's operators, each without those inside it.
"""

from __future__ import annotations

from perfscope import units
from perfscope.analysis.kernels.results import (
    CopyTime,
    Kernels,
    KernelTime,
    LayerClassTime,
    OperatorTime,
    TypeTime,
)
from perfscope.analysis.results import RunAnalysis
from perfscope.messages.kernels import COPIES, TITLES, in_graphs, launches_absent, short_name
from perfscope.messages.lists import joined
from perfscope.reports.display import beginning, visible
from perfscope.reports.model import Block, Column, Note, Section, Table, Unit, Value
from perfscope.reports.sections.flame import module_icicle
from perfscope.vocabulary.kernels import KernelType

MOST_OTHERS = 8
LONGEST_NAME = 110
LONGEST_KERNEL = 84
NOTABLE = 0.01  # of the device time; less is not worth a sentence
_TYPE = Column(key="type", title="Type", primary=True)


def kernels_section(analysis: RunAnalysis) -> Section | None:
    """None where nothing was traced."""
    kernels = analysis.kernels
    if kernels is None:
        return None
    tables = [
        _by_type(kernels),
        *_by_layer_class(kernels),
        _by_name(kernels, kernels.by_name),
        *_others(kernels),
        *_by_operator(kernels),
        *_copies(kernels),
        *_graphs(kernels),
    ]
    notes = [Note(text=text) for text in _notes(kernels)]
    blocks: list[Block] = [*notes, *module_icicle(kernels), *tables]
    title = "Kernels" if kernels.of_device else "Operators"
    return Section(id="kernels", title=title, lead=_lead(kernels), blocks=tuple(blocks))


def _lead(kernels: Kernels) -> str:
    top = [f"{TITLES[row.type]} {units.format_ratio(row.share, 0)}" for row in kernels.by_type[:3]]
    total = units.format_ns(kernels.total_ns)
    if not kernels.of_device:
        return f"In the traced steps, operators and communication of all ranks take {total}: {joined(top)}."
    text = f"{kernels.calls:,} kernels, copies and sets take {total}: {joined(top)}."
    concurrent = (kernels.concurrent_ns or 0) / kernels.total_ns
    if concurrent >= NOTABLE:
        text += f" {units.format_ratio(concurrent)} of that ran at the same time as something else."
    if kernels.occupancy is not None:
        text += f" The mean occupancy is {kernels.occupancy:.0f} %."
    return text


def _notes(kernels: Kernels) -> list[str]:
    notes = []
    if kernels.graph_ns:
        replays = sum(graph.replays for graph in kernels.graphs)
        notes.append(in_graphs(kernels.graph_ns / kernels.total_ns, replays))
    if kernels.launches_absent_ns >= NOTABLE * kernels.total_ns:
        ratio = kernels.launches_absent_ns / kernels.total_ns
        notes.append(launches_absent(kernels.launches_absent, ratio))
    return notes


def _times(kernels: Kernels, *, calls: str = "Calls") -> tuple[Column, ...]:
    total = "device time" if kernels.of_device else "time"
    return (
        Column(key="time", title="Time", unit=Unit.TIME, bar="compute", primary=True),
        Column(key="share", title=f"Of {total}", unit=Unit.RATIO, primary=True),
        Column(key="calls", title=calls, unit=Unit.COUNT, primary=True),
        Column(key="mean", title="Mean", unit=Unit.TIME, hint="of one call"),
    )


def _cells(row: TypeTime | KernelTime | OperatorTime | LayerClassTime | CopyTime) -> tuple[Value, ...]:
    """Under the columns of `_times`."""
    return row.total_ns, row.share, row.calls, row.mean_ns


def _by_type(kernels: Kernels) -> Table:
    rows: list[tuple[Value, ...]] = [
        (
            TITLES[row.type],
            *_cells(row),
            None if row.matrix_ns is None else row.matrix_ns / row.total_ns,
            None if row.matrix_unknown_ns is None else row.matrix_unknown_ns / row.total_ns,
        )
        for row in kernels.by_type
    ]
    mean = kernels.total_ns / kernels.calls
    rows.append(("Total", kernels.total_ns, 1.0, kernels.calls, mean, None, None))
    columns = (
        _TYPE,
        *_times(kernels),
        Column(
            key="matrix",
            title="Tensor cores",
            unit=Unit.RATIO,
            hint="share of the time in kernels whose names say that they use tensor cores or matrix cores",
        ),
        Column(key="unclear", title="Cores not known", unit=Unit.RATIO, hint="names do not tell"),
    )
    names_tell = any(row.matrix_ns is not None for row in kernels.by_type)
    width = len(columns) if names_tell else len(columns) - 2
    over = "every kernel, copy and set in the files" if kernels.of_device else "the traced windows"
    return Table(
        id="kernels-by-type",
        title="Time by type",
        columns=columns[:width],
        rows=tuple(row[:width] for row in rows),
        terminal_rows=len(TITLES) + 1,
        caption=f"Sum over {over} and all ranks; totals, not per step. What runs at the same time counts "
        "several times.",
    )


def _by_layer_class(kernels: Kernels) -> tuple[Table, ...]:
    if not kernels.by_layer_class:
        return ()
    rows: list[tuple[Value, ...]] = []
    for row in kernels.by_layer_class:
        none = "(no layer)" if not row.layers else "(class not known)"
        name = none if row.layer_class is None else visible(row.layer_class)
        passes = (row.forward_ns or None, row.backward_ns or None)
        rows.append((name, row.layers or None, *_cells(row), *passes))
    columns = (
        Column(key="class", title="Layer class", unit=Unit.CODE, primary=True),
        Column(key="layers", title="Layers", unit=Unit.COUNT, primary=True),
        *_times(kernels),
        Column(key="forward", title="Forward", unit=Unit.TIME),
        Column(key="backward", title="Backward", unit=Unit.TIME),
    )
    return (
        Table(
            id="kernels-by-layer-class",
            title="Time by class of layer",
            columns=columns,
            rows=tuple(rows),
            terminal_rows=5,
            terminal_title=True,
            caption="Each layer without the layers inside it.",
        ),
    )


def _by_name(kernels: Kernels, entries: tuple[KernelTime, ...]) -> Table:
    what = "Kernel" if kernels.of_device else "Operator"
    columns = (
        Column(key="name", title=what, unit=Unit.CODE, primary=True),
        *_times(kernels),
        _TYPE,
        Column(key="operator", title="Launched by", unit=Unit.CODE, hint="operator with most of its time"),
        Column(key="occupancy", title="Occupancy %", unit=Unit.NUMBER, hint="achieved, as estimated"),
        Column(key="registers", title="Registers", unit=Unit.COUNT, hint="per thread", on_paper=False),
        Column(
            key="grid",
            title="Grid",
            unit=Unit.CODE,
            hint="blocks, of the calls with most time",
            on_paper=False,
        ),
        Column(key="block", title="Block", unit=Unit.CODE, hint="threads, likewise", on_paper=False),
        Column(key="matrix", title="Tensor cores", hint="as the kernel's name says"),
    )
    return Table(
        id="kernels-by-name",
        title=f"Time by {what.lower()}",
        columns=columns,
        rows=tuple(_name_row(row) for row in entries),
        terminal_rows=6,
        terminal_title=True,
        print_rows=30,
    )


def _name_row(row: KernelTime) -> tuple[Value, ...]:
    uses = {True: "yes", False: "no", None: None}[row.matrix_units]
    return (
        "(others)" if row.name is None else _shown(row.name),
        *_cells(row),
        None if row.type is None else TITLES[row.type],
        None if row.operator is None else visible(row.operator, LONGEST_NAME),
        row.occupancy,
        row.registers,
        row.grid,
        row.block,
        uses,
    )


def _shown(name: str) -> str:
    return visible(beginning(short_name(name), LONGEST_KERNEL)) or "(no name)"


def _others(kernels: Kernels) -> tuple[Table, ...]:
    """What the type "Other" consists of."""
    other_kernels = [row for row in kernels.by_name if row.type is KernelType.OTHER]
    if not other_kernels:
        return ()
    columns = (Column(key="name", title="Name", unit=Unit.CODE, primary=True), *_times(kernels))
    rows: list[tuple[Value, ...]] = [
        (
            _shown(row.name or ""),
            *_cells(row),
        )
        for row in other_kernels[:MOST_OTHERS]
    ]
    more = len(other_kernels) - MOST_OTHERS
    return (
        Table(
            id="kernels-other",
            title="Of type “Other”",
            columns=columns,
            rows=tuple(rows),
            caption=f"The {MOST_OTHERS} longest of {len(other_kernels)}." if more > 0 else "",
        ),
    )


def _by_operator(kernels: Kernels) -> tuple[Table, ...]:
    if not kernels.by_operator:
        return ()
    columns = (
        Column(key="operator", title="Operator", unit=Unit.CODE, primary=True),
        *_times(kernels, calls="Kernels"),
        _TYPE,
    )
    rows: list[tuple[Value, ...]] = []
    for row in kernels.by_operator:
        none = "(launch not in the trace)" if row.launch_absent else "(no operator, and others)"
        name = none if row.operator is None else visible(row.operator, LONGEST_NAME)
        kind = None if row.type is None else TITLES[row.type]
        rows.append((name, *_cells(row), kind))
    return (
        Table(
            id="kernels-by-operator",
            title="Device time by launching operator",
            columns=columns,
            rows=tuple(rows),
            terminal_rows=6,
            terminal_title=True,
            print_rows=30,
            caption="The innermost operator around the launch; type: that of most of its time.",
        ),
    )


def _copies(kernels: Kernels) -> tuple[Table, ...]:
    if not kernels.copies:
        return ()
    columns = (
        Column(key="kind", title="Copy", primary=True),
        *_times(kernels),
        Column(key="bytes", title="Bytes", unit=Unit.BYTES, primary=True),
        Column(key="rate", title="Bytes/s", unit=Unit.RATE, primary=True),
        Column(key="unsized", title="Without size", unit=Unit.COUNT, hint="calls: not in bytes, nor rate"),
    )
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (
            COPIES[row.kind],
            *_cells(row),
            *(row.bytes, row.bytes_per_s, row.num_unsized or None),
        )
        for row in kernels.copies
    )
    return (
        Table(
            id="kernels-copies",
            title="Copies by kind",
            columns=columns,
            rows=rows,
            terminal_rows=7,
            terminal_title=True,
        ),
    )


def _graphs(kernels: Kernels) -> tuple[Table, ...]:
    if not kernels.graphs:
        return ()
    columns = (
        Column(key="graph", title="Graph", primary=True),
        Column(key="call", title="Call", unit=Unit.CODE),
        Column(key="place", title="Replayed in", unit=Unit.CODE, hint="operator, else layer"),
        Column(key="replays", title="Replays", unit=Unit.COUNT, primary=True),
        Column(key="kernels", title="Kernels", unit=Unit.COUNT, hint="of one replay", primary=True),
        Column(key="time", title="Time", unit=Unit.TIME, bar="compute", primary=True),
        Column(key="mean", title="Mean", unit=Unit.TIME, hint="of one replay"),
        Column(key="share", title="Of device time", unit=Unit.RATIO, primary=True),
    )
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (
            row.name,
            row.call,
            None if row.place is None else visible(row.place, LONGEST_NAME),
            *(row.replays, row.kernels, row.total_ns, row.mean_ns, row.share),
        )
        for row in kernels.graphs
    )
    return (
        Table(
            id="kernels-graphs",
            title="Graph replays",
            columns=columns,
            rows=rows,
            terminal_rows=6,
            terminal_title=True,
            caption="Replays that launch the same kernels count as one graph.",
        ),
    )
