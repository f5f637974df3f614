"""Section "Communication": which axis of the mesh, and which layer, the exposed communication belongs to."""

from __future__ import annotations

from perfscope import units
from perfscope.analysis.results import CommByAxis, Communication, RunAnalysis
from perfscope.messages.collectives import UNATTRIBUTED
from perfscope.messages.links import NO_LINK, TITLES
from perfscope.messages.lists import counted, joined
from perfscope.reports.display import visible
from perfscope.reports.model import (
    Bar,
    Block,
    ChartPart,
    Column,
    RowNote,
    Section,
    StackedBars,
    Table,
    Unit,
    Value,
)
from perfscope.reports.sections.layers import ROOT_NAME
from perfscope.reports.sections.steps import mean_shares, scope_of

PARTS = (
    ChartPart(key="exposed_comm", title="Exposed", hint="not overlapped with computation"),
    ChartPart(key="wait", title="Hidden", hint="overlapped with computation"),
)
_TONES = ((0.5, "bad3"), (0.2, "bad2"), (0.05, "bad1"))  # from that share of the largest cell on
INFERRED = " (inferred)"
MOST_PRIMARY = 3  # axes beside their sum: more do not fit a narrow terminal


def communication_section(analysis: RunAnalysis) -> Section | None:
    """None where no rank communicated in a traced step."""
    communication = analysis.communication
    if communication is None or not communication.by_axis:
        return None
    blocks: list[Block] = [_axis_table(analysis, communication)]
    if len(communication.by_axis) > 1:
        blocks.insert(0, _chart(communication))
    if communication.exposed_ns:
        blocks.append(_layer_table(communication))
    return Section(
        id="communication",
        title="Communication by axis",
        lead=_lead(analysis, communication),
        blocks=tuple(blocks),
    )


def axis_name(entry: CommByAxis) -> str:
    """``tp``, or ``tp (inferred)``."""
    return visible(entry.axis) + (INFERRED if entry.inferred else "")


def _lead(analysis: RunAnalysis, communication: Communication) -> str:
    total = communication.exposed_ns + communication.hidden_ns
    if not communication.exposed_ns:
        return f"All communication, {units.format_ns(total)} per step, is hidden under computation."
    step = mean_shares(analysis)
    share = (
        f" ({units.format_ratio(communication.exposed_ns / step[0], 0)} of it)" if step and step[0] else ""
    )
    parts = [
        f"{axis_name(entry)} {units.format_ratio(entry.exposed_ns / communication.exposed_ns, 0)}"
        for entry in communication.by_axis[:3]
        if entry.exposed_ns
    ]
    of_axes = f": {joined(parts)}" if len(communication.by_axis) > 1 else ""
    exposed = units.format_ns(communication.exposed_ns)
    return f"{exposed} of the {scope_of(analysis).full}{share} is exposed communication{of_axes}."


def _chart(communication: Communication) -> StackedBars:
    return StackedBars(
        id="communication-chart",
        title="Communication per step of each axis",
        parts=PARTS,
        bars=tuple(
            Bar(
                label=axis_name(entry),
                values=(entry.exposed_ns, entry.hidden_ns),
                note=_group_words(entry),
            )
            for entry in communication.by_axis
        ),
        caption="Mean per step and rank. Calls under way at once share the time.",
    )


def _group_words(entry: CommByAxis) -> str:
    if entry.group_size is None:
        return ""
    return f"groups of {counted(entry.group_size, 'rank')}"


def _link_words(entry: CommByAxis) -> str | None:
    """The class of the axis' links with the ports, or what is known instead."""
    if entry.link_class is None:
        return NO_LINK[entry.no_link] if entry.no_link is not None else None
    ports = f" ({', '.join(map(visible, entry.ports))})" if entry.ports else ""
    return TITLES[entry.link_class] + ports


def _axis_table(analysis: RunAnalysis, communication: Communication) -> Table:
    scope, step = scope_of(analysis), mean_shares(analysis)
    columns = (
        Column(key="axis", title="Axis", unit=Unit.CODE, primary=True),
        Column(key="size", title="Ranks", unit=Unit.COUNT, hint="of one group"),
        Column(key="link", title="Link"),
        Column(key="calls", title="Calls", unit=Unit.NUMBER, primary=True, hint="per step and rank"),
        Column(key="bytes", title="Bytes", unit=Unit.BYTES, primary=True, hint="per step and rank"),
        Column(key="busbw", title="busbw", unit=Unit.RATE, hint="while data moves: waits are not counted"),
        Column(key="wait", title="Wait", unit=Unit.TIME, hint="for the last rank to enter"),
        Column(key="transfer", title="Transfer", unit=Unit.TIME),
        Column(key="hidden", title="Hidden", unit=Unit.TIME, bar="wait"),
        Column(key="exposed", title="Exposed", unit=Unit.TIME, bar="exposed_comm", primary=True),
        Column(key="share", title=f"Of {scope.short}", unit=Unit.RATIO, primary=True, hint="exposed time"),
    )
    step_ns = step[0] if step else None
    rows: list[tuple[Value, ...]] = [
        (
            axis_name(entry),
            entry.group_size,
            _link_words(entry),
            entry.calls,
            entry.bytes,
            entry.busbw_bytes_per_s,
            entry.wait_ns,
            entry.transfer_ns,
            entry.hidden_ns,
            entry.exposed_ns,
            entry.exposed_ns / step_ns if step_ns else None,
        )
        for entry in communication.by_axis
    ]
    inferred = any(entry.inferred for entry in communication.by_axis)
    return Table(
        id="communication-axes",
        title="Communication by axis, mean per step and rank",
        columns=columns,
        rows=tuple(rows),
        terminal_rows=8,
        caption="Wait and transfer are durations of the calls; hidden and exposed divide the time in which "
        "any call was under way."
        + (" Inferred: nothing names the axis; it follows from the calls." if inferred else ""),
    )


def _layer_table(communication: Communication) -> Table:
    """Exposed time by layer and axis; what belongs to no layer comes last, with its reason."""
    axes = [entry for entry in communication.by_axis if entry.exposed_ns]
    num_primary = len(axes) if len(axes) <= MOST_PRIMARY else MOST_PRIMARY - 1
    columns = (
        Column(key="layer", title="Layer", unit=Unit.CODE, primary=True),
        *(
            Column(key=f"axis{index}", title=axis_name(entry), unit=Unit.TIME, primary=index < num_primary)
            for index, entry in enumerate(axes)
        ),
        *((Column(key="all", title="All axes", unit=Unit.TIME, primary=True),) if len(axes) > 1 else ()),
        Column(key="share", title="Of exposed", unit=Unit.RATIO, primary=True),
    )
    named = [
        (visible(entry.layer) or ROOT_NAME, entry.axes, entry.exposed_ns)
        for entry in communication.by_layer
        if entry.exposed_ns
    ]
    reasons = [UNATTRIBUTED[entry.reason] for entry in communication.unattributed if entry.exposed_ns]
    notes = [*(None for _ in named), *(RowNote(text=reason, name="(no layer)") for reason in reasons)]
    named += [
        (f"(no layer: {UNATTRIBUTED[entry.reason]})", entry.axes, entry.exposed_ns)
        for entry in communication.unattributed
        if entry.exposed_ns
    ]
    largest = max((time for _, times, _ in named for time in times.values()), default=0)
    rows: list[tuple[Value, ...]] = []
    heat: list[tuple[str, ...]] = []
    for name, times, total in named:
        cells = [times.get(entry.axis) for entry in axes]
        more = (total,) if len(axes) > 1 else ()
        rows.append((name, *cells, *more, total / communication.exposed_ns))
        heat.append(("", *(heat_tone(cell, largest) for cell in cells), *("" for _ in more), ""))
    return Table(
        id="communication-layers",
        title="Exposed communication by layer and axis, mean per step and rank",
        columns=columns,
        rows=tuple(rows),
        heat=tuple(heat),
        row_notes=tuple(notes),
        terminal_rows=8,
        terminal_title=True,
        caption="A call that serves several layers is divided among them by bytes. "
        "Layers without exposed communication are left out.",
    )


def heat_tone(value: int | None, largest: int) -> str:
    """Tone of a time in a heat table whose largest time is `largest`."""
    share = (value or 0) / largest if largest else 0.0
    return next((tone for least, tone in _TONES if share >= least), "")
