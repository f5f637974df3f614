"""Section "Machine": was the run alone, what the hosts are made of, what they could do at most."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope import units
from perfscope.analysis.machine.results import Ceiling, Disturbance, MachineAnalysis
from perfscope.analysis.results import RunAnalysis
from perfscope.messages.disturbances import WORDS
from perfscope.messages.lists import counted, plural
from perfscope.messages.machine import ceiling_note, measured_under_pressure
from perfscope.messages.sentences import clause
from perfscope.reports.display import beginning, visible
from perfscope.reports.model import Block, Column, KeyFigure, Note, Section, Table, Unit, Value
from perfscope.reports.sections.links import paths_table
from perfscope.reports.sections.topology import topology_block

LONGEST_SENTENCE = 600
LONGEST_TILE = 90
MOST_EVIDENCE = 3
# Whether the disturbances hit the traced windows, which most figures are from.
TRACED_WORDS = {
    True: "The traced steps were disturbed: the values below include it.",
    False: "The traced steps were not hit; step times and throughput were.",
    None: "",
}


def machine_section(analysis: RunAnalysis) -> Section | None:
    """None where nothing of the machine was recorded: why is listed with “Not collected”."""
    machine = analysis.machine
    if machine is None:
        return None
    # The notice has the rest of it, and so has the table.
    is_summed_up = machine.disturbed_summary != "" and len(machine.disturbances) > 0
    text = _verdict_text(machine, machine.disturbed_summary if is_summed_up else machine.clean_reason)
    blocks: list[Block] = [Note(text=text, tone=_tone(machine))]
    if machine.disturbances:
        blocks.append(_disturbance_table(machine))
    topology = topology_block(machine.topologies)
    if topology is not None:
        blocks.append(topology)
        paths = paths_table(next(iter(machine.topologies.values())))
        if paths is not None:
            blocks.append(paths)
    if machine.ceilings:
        shared = _shared_pressure(machine.ceilings)
        blocks.append(_ceilings_table(machine, shared))
        if shared is not None:
            blocks.append(Note(text=f"For every peak: {measured_under_pressure(shared)}."))
    blocks += _sampler_blocks(machine)
    return Section(id="machine", title="Machine", blocks=tuple(blocks), tables="spaced")


def _tone(machine: MachineAnalysis) -> str:
    return {True: "good", False: "caution", None: "plain"}[machine.clean]


def _verdict_text(machine: MachineAnalysis, reason: str) -> str:
    head = {
        True: "Undisturbed run.",
        False: "Disturbed run.",
        None: "Whether the run was disturbed is not known.",
    }[machine.clean]
    return f"{head} {visible(reason, LONGEST_SENTENCE)}".strip()


def machine_notices(analysis: RunAnalysis) -> tuple[Note, ...]:
    """What must be said before the figures: that something disturbed them."""
    machine = analysis.machine
    if machine is None or machine.clean is not False:
        return ()
    verdict = _verdict_text(machine, machine.clean_reason)
    sentences = (verdict, TRACED_WORDS[machine.traced_disturbed], "See “Machine”.")
    return (Note(text=" ".join(filter(None, sentences)), tone="caution"),)


def machine_figures(analysis: RunAnalysis) -> tuple[KeyFigure, ...]:
    """The tile that says whether the run was alone."""
    machine = analysis.machine
    if machine is None:
        return ()
    if machine.clean:
        return (KeyFigure(id="machine", title="Machine", value="undisturbed", note=_span_note(machine)),)
    if machine.clean is None:
        return (KeyFigure(id="machine", title="Machine", value=units.MISSING, note="disturbances not known"),)
    within = [d for d in machine.disturbances if d.within_steps]
    worst = max(within or machine.disturbances, key=_weight, default=None)
    note = "" if worst is None else _tile_note(worst)
    return (KeyFigure(id="machine", title="Machine", value="disturbed", note=note),)


def _tile_note(disturbance: Disturbance) -> str:
    """The episode's own figures, then who: ``other processes: 55 % for 17.0 s, python``."""
    kind = WORDS[disturbance.kind].label
    lasted = units.format_ns(disturbance.end_ns - disturbance.start_ns)
    taken = f"{kind}: {units.format_ratio(disturbance.severity, 0)} for {lasted}"
    seen = visible(next(iter(disturbance.names or disturbance.evidence), ""), LONGEST_SENTENCE)
    return beginning(", ".join(filter(None, (taken, seen))), LONGEST_TILE)


def _weight(disturbance: Disturbance) -> float:
    return disturbance.severity * max(disturbance.end_ns - disturbance.start_ns, 1)


def _span_note(machine: MachineAnalysis) -> str:
    if machine.start_ns is None or machine.end_ns is None:
        return ""
    return f"watched for {units.format_ns(machine.end_ns - machine.start_ns)}"


def _disturbance_table(machine: MachineAnalysis) -> Table:
    start = origin_ns(machine)
    several = len(machine.hosts) > 1
    ranked = sorted(machine.disturbances, key=lambda d: (not d.within_steps, -_weight(d)))
    return Table(
        id="disturbance-table",
        terminal_form="episodes",
        title="Disturbances",
        caption=_disturbance_caption(ranked),
        columns=(
            Column(key="what", title="What", primary=True),
            Column(key="host", title="Host"),
            Column(key="from", title="From", unit=Unit.TIME, primary=True, hint="since the first reading"),
            Column(key="for", title="For", unit=Unit.TIME, primary=True),
            Column(
                key="severity",
                title="Share taken",
                unit=Unit.RATIO,
                bar="input_wait",
                hint="share of the resource",
            ),
            Column(
                key="during", title="Step time during", unit=Unit.TIME, hint="median over the host's ranks"
            ),
            Column(
                key="otherwise",
                title="Step time otherwise",
                unit=Unit.TIME,
                hint="steps outside every disturbance",
            ),
            Column(
                key="windows",
                title="Traced windows affected",
                hint="traced windows that the disturbance overlaps",
            ),
        ),
        rows=tuple(
            (
                _what(d),
                visible(d.host) if several else None,
                d.start_ns - start,
                d.end_ns - d.start_ns,
                d.severity,
                d.step_ns_during,
                d.step_ns_otherwise,
                _windows_hit(machine, d),
            )
            for d in ranked
        ),
        cards=True,
    )


def _disturbance_caption(ranked: list[Disturbance]) -> str:
    parts = []
    if any(d.step_ns_during is not None for d in ranked):
        parts.append(
            "A step during it, and otherwise (outside every disturbance): the median, without warm-up and "
            "traced steps."
        )
    if not all(d.within_steps for d in ranked):
        parts.append("What lay before the first step or after the last disturbed no step and comes last.")
    return " ".join(parts)


def _what(disturbance: Disturbance) -> str:
    """The sentence, and under the same heading what was seen: a column of its own would not fit a page."""
    title = visible(disturbance.title, LONGEST_SENTENCE)
    seen = _evidence(disturbance)
    return f"{clause(title)}: {seen}" if seen else title


def _windows_hit(machine: MachineAnalysis, disturbance: Disturbance) -> str | None:
    if not machine.windows:
        return None
    numbers = ", ".join(map(str, disturbance.windows[:12]))
    return f"{plural('window', len(disturbance.windows))} {numbers}" if numbers else "none"


def _evidence(disturbance: Disturbance) -> str:
    lines = [visible(line, LONGEST_SENTENCE) for line in disturbance.evidence[:MOST_EVIDENCE]]
    left = len(disturbance.evidence) - len(lines)
    return "; ".join(lines) + (f"; {left:,} more" if left > 0 else "")


def origin_ns(machine: MachineAnalysis) -> int:
    """Where the time axis of the machine's charts starts: the first step, else the first reading."""
    instants = (machine.start_ns, machine.steps_start_ns)
    return next((instant for instant in instants if instant is not None), 0)


def _ceilings_table(machine: MachineAnalysis, shared: float | None) -> Table:
    several = len({ceiling.host for ceiling in machine.ceilings}) > 1
    pressures = [
        f"{units.format_ratio(share)}{f' on {visible(host)}' if several else ''}"
        for host, share in machine.pressures.items()
        if share >= 0.05
    ]
    caption = (
        "Measured on this host before the training, and cached (perfscope run --ceilings "
        "refresh measures again); best of several repetitions. Theoretical peaks are for dense arithmetic."
    )
    if pressures:
        caption += f" During the run, CPU pressure {', '.join(pressures[:6])}."
    return Table(
        id="ceilings-table",
        terminal_rows=8,
        title="Measured and theoretical peaks",
        columns=(
            Column(key="what", title="What", primary=True),
            Column(key="where", title="Where", primary=True),
            Column(key="host", title="Host"),
            Column(key="threads", title="Threads", unit=Unit.COUNT, primary=True),
            Column(key="bandwidth", title="Bandwidth", unit=Unit.RATE, primary=True),
            Column(key="rate", title="Arithmetic", unit=Unit.FLOP_RATE, primary=True),
            Column(key="source", title="Source", primary=True),
            Column(key="note", title="Note"),
        ),
        rows=tuple(
            _ceiling_row(ceiling, several, shared) for ceiling in sorted(machine.ceilings, key=_ceiling_order)
        ),
        caption=caption,
    )


def _ceiling_order(ceiling: Ceiling) -> tuple[str, bool, str, str, int]:
    """By host, memory first, all nodes before single ones, many threads first."""
    arithmetic = ceiling.unit == "flops_per_s"
    return (ceiling.host, arithmetic, ceiling.what, ceiling.where, -(ceiling.threads or 0))


def _shared_pressure(ceilings: Sequence[Ceiling]) -> float | None:
    """CPU pressure that all rows were measured under, where there are more than two: a note for all."""
    ratios = {ceiling.pressure_ratio for ceiling in ceilings}
    return ratios.pop() if len(ceilings) > 2 and len(ratios) == 1 else None


def _ceiling_row(ceiling: Ceiling, several: bool, shared: float | None) -> tuple[Value, ...]:
    arithmetic = ceiling.unit == "flops_per_s"
    note = ceiling.note if shared is None else ceiling_note(ceiling.spread_ratio, None)
    return (
        visible(ceiling.what),
        visible(ceiling.where),
        visible(ceiling.host) if several else None,
        ceiling.threads,
        None if arithmetic else ceiling.value,
        ceiling.value if arithmetic else None,
        visible(ceiling.source),
        visible(note) or None,
    )


def _sampler_blocks(machine: MachineAnalysis) -> list[Block]:
    blocks: list[Block] = []
    if machine.costs:
        blocks.append(_costs_table(machine))
    if machine.stopped:
        blocks.append(_stopped_table(machine))
    if machine.missing:
        figures = counted(len(machine.missing), "value")
        text = f"{figures} unavailable; see “Not collected”."
        blocks.append(Note(text=text))
    return blocks


def _costs_table(machine: MachineAnalysis) -> Table:
    return Table(
        id="sampler-table",
        title="Sampling overhead",
        columns=(
            Column(key="host", title="Host", primary=True),
            Column(key="interval", title="Interval", unit=Unit.TIME, primary=True),
            Column(key="samples", title="Samples", unit=Unit.COUNT, primary=True),
            Column(key="cpu", title="Share of one CPU", unit=Unit.RATIO, primary=True),
            Column(key="late", title="Late", unit=Unit.RATIO, hint="more than half an interval late"),
            Column(key="ended", title="Ended because"),
        ),
        rows=tuple(
            (
                visible(cost.host),
                cost.interval_ns,
                cost.num_samples,
                cost.cpu_ratio,
                cost.late_ratio,
                visible(cost.ended) or "killed, or still running",
            )
            for cost in machine.costs
        ),
    )


def _stopped_table(machine: MachineAnalysis) -> Table:
    start, several = origin_ns(machine), len(machine.hosts) > 1
    return Table(
        id="stopped-table",
        title="Counters that ended before the run",
        columns=(
            Column(key="what", title="Reading", primary=True),
            Column(key="host", title="Host"),
            Column(key="at", title="At", unit=Unit.TIME, primary=True, hint="since the run's start"),
            Column(key="reason", title="Why", primary=True),
        ),
        rows=tuple(
            (
                visible(reading.what),
                visible(reading.host) if several else None,
                None if reading.at_ns is None else reading.at_ns - start,
                visible(reading.reason, LONGEST_SENTENCE),
            )
            for reading in machine.stopped
        ),
    )
