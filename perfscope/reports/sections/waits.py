"""Section "Waiting": who came late, why, and what the others' waiting cost (METRICS §2)."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope import units
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.waits.results import GroupWait, PersistentStraggler, RankWait, SplitRow, WaitAnalysis
from perfscope.messages.lists import counted
from perfscope.messages.sentences import in_sentence
from perfscope.reports.display import visible
from perfscope.reports.model import Block, Column, Note, Section, Table, Unit, Value
from perfscope.reports.sections.layer_names import layer_names, with_types

_LONGEST = 400  # characters of a sentence with layers' names in it
_MOST_SPLIT_ROWS = 200
_LAYER_UNKNOWN = "not known"


def waits_section(analysis: RunAnalysis) -> Section | None:
    """None where nothing was matched; the reason is in the run's missing figures."""
    waits = analysis.waits
    if waits is None or not waits.groups:
        return None
    names = layer_names(analysis.layers)
    blocks: list[Block] = [_groups_table(waits)]
    why = _reasons_table(waits, names)
    if why.rows:
        blocks.append(why)
    if waits.stragglers:
        blocks += [_pattern(waits, names), _stragglers_table(waits, names)]
    blocks.append(_ranks_table(waits))
    if waits.num_uncertain:
        blocks.append(Note(text=_uncertain(waits), tone="caution"))
    if waits.split:
        blocks.append(_split_table(waits, names))
    return Section(
        id="waits",
        title="Waiting",
        lead=with_types(_lead(waits, _step_ns(analysis), analysis.breakdown_of), names),
        blocks=tuple(blocks),
    )


def _step_ns(analysis: RunAnalysis) -> float | None:
    """The mean step over ranks."""
    breakdowns = [rank.breakdown_ns.step for rank in analysis.ranks if rank.breakdown_ns is not None]
    return sum(breakdowns) / len(breakdowns) if breakdowns else None


def _lead(waits: WaitAnalysis, step_ns: float | None, unit: str) -> str:
    cost = sum(rank.exposed_wait_ns for rank in waits.ranks) / max(len(waits.ranks), 1)
    share = f" ({units.format_ratio(cost / step_ns)} of it)" if step_ns else ""
    text = f"Per {unit} ranks wait {units.format_ns(cost)}{share} for other ranks on average"
    worst = max(waits.ranks, key=lambda rank: (rank.held_ns, -rank.rank), default=None)
    total = sum(rank.held_ns for rank in waits.ranks)
    if worst is None or not total:
        return f"{text}; no rank can be shown to have been late to a collective."
    decided = sum(rank.num_late for rank in waits.ranks)
    text += (
        f"; rank {worst.rank} was last in {worst.num_late:,} of {decided:,} collectives and causes "
        f"{units.format_ratio(worst.held_ns / total, 0)} of the wait."
    )
    why = _main_reason(waits, worst)
    return f"{text} {why}" if why else text


def _main_reason(waits: WaitAnalysis, late: RankWait) -> str:
    """Of that rank's own lateness."""
    reasons = [why for group in waits.groups for why in group.reasons if why.rank == late.rank]
    if not reasons:
        return ""
    worst = max(reasons, key=lambda why: why.wait_ns)
    text = f"In the most expensive call, {in_sentence(worst.sentence)}"
    if worst.meanwhile:
        text += f" Meanwhile on its host: {in_sentence(worst.meanwhile)}."
    return visible(text, _LONGEST)


def _groups_table(waits: WaitAnalysis) -> Table:
    return Table(
        id="waits-table",
        title="Waiting and transfer per step, average over member ranks",
        columns=(
            Column(key="collective", title="Collective", unit=Unit.CODE, primary=True),
            Column(key="group", title="Group", primary=True),
            Column(key="size", title="Ranks", unit=Unit.COUNT),
            Column(key="calls", title="Calls", unit=Unit.COUNT),
            Column(key="wait", title="Wait", unit=Unit.TIME, bar="wait", primary=True),
            Column(key="transfer", title="Transfer", unit=Unit.TIME, bar="transfer", primary=True),
            Column(key="longest", title="Longest wait", unit=Unit.TIME),
            Column(key="late", title="Most often last", primary=True),
            Column(
                key="uncertain",
                title="Not certain",
                unit=Unit.COUNT,
                hint="calls whose last rank the clocks cannot determine",
            ),
        ),
        rows=tuple(_group_row(group) for group in waits.groups),
        caption="Waiting: from a rank's entry to the last rank's. Overlapping calls are counted separately.",
        sorted_by=("wait", True),
        print_rows=24,
    )


def _group_row(group: GroupWait) -> tuple[Value, ...]:
    late = None
    if group.late_counts:
        rank, times = group.late_counts[0]
        late = f"rank {rank} ({times:,} of {group.num_calls:,})"
    return (
        visible(group.collective),
        visible(group.group),
        group.num_ranks,
        group.num_calls,
        group.wait_ns,
        group.transfer_ns,
        group.max_wait_ns,
        late,
        group.num_uncertain or None,
    )


def _reasons_table(waits: WaitAnalysis, names: Mapping[str, str]) -> Table:
    rows: list[tuple[Value, ...]] = [
        (
            visible(with_types(why.sentence, names), _LONGEST),
            visible(group.collective),
            visible(group.group),
            why.rank,
            why.num_calls,
            round(why.wait_ns / max(waits.num_steps, 1)),
            why.share,
        )
        for group in waits.groups
        for why in group.reasons
    ]
    return Table(
        id="wait-reasons-table",
        terminal_rows=4,
        title="Why the last rank was late",
        columns=(
            Column(key="why", title="Reason", hint="of the most expensive call of this kind", primary=True),
            Column(key="collective", title="Collective", unit=Unit.CODE),
            Column(key="group", title="Group"),
            Column(key="rank", title="Rank", unit=Unit.COUNT, hint="rank that caused the wait"),
            Column(key="calls", title="Calls", unit=Unit.COUNT),
            Column(key="wait", title="Wait per step", unit=Unit.TIME, bar="wait", primary=True),
            Column(key="share", title="% of group wait", unit=Unit.RATIO),
        ),
        rows=tuple(sorted(rows, key=_by_wait)),
        caption="Extra work of the late rank since the last synchronization.",
        sorted_by=("wait", True),
        print_rows=12,
        cards=True,
    )


def _by_wait(row: tuple[Value, ...]) -> float:
    wait = row[5]
    return -float(wait) if isinstance(wait, (int, float)) else 0.0


def _pattern(waits: WaitAnalysis, names: Mapping[str, str]) -> Note:
    tone = "caution" if waits.pattern == "persistent" else "plain"
    more_stragglers = [_also(straggler) for straggler in waits.persistent[1:3]]
    text = with_types(" ".join([waits.pattern_reason, *more_stragglers]), names)
    return Note(text=visible(text, _LONGEST), tone=tone)


def _also(straggler: PersistentStraggler) -> str:
    late = units.format_ns(straggler.held_ns)
    return f"Rank {straggler.rank} is the straggler in {straggler.times}, {late} late per step."


def _stragglers_table(waits: WaitAnalysis, names: Mapping[str, str]) -> Table:
    return Table(
        id="stragglers-table",
        title="Straggler of each step",
        columns=(
            Column(key="step", title="Step", unit=Unit.COUNT, primary=True),
            Column(key="rank", title="Rank", unit=Unit.COUNT, primary=True),
            Column(
                key="times", title="Last in", hint="of the collectives of the step whose last rank is certain"
            ),
            Column(key="held", title="Lag", unit=Unit.TIME, bar="wait", primary=True),
            Column(key="why", title="Why", hint="the call with the largest lag", primary=True),
        ),
        rows=tuple(
            (
                straggler.step if straggler.step >= 0 else None,
                straggler.rank,
                f"{straggler.times:,} of {straggler.num_calls:,}",
                straggler.held_ns,
                visible(with_types(straggler.sentence, names), _LONGEST) if straggler.sentence else None,
            )
            for straggler in waits.stragglers
        ),
        caption="Lag: behind the median rank at entry.",
        print_rows=12,
    )


def _ranks_table(waits: WaitAnalysis) -> Table:
    ordered = sorted(waits.ranks, key=lambda rank: (-rank.held_ns, rank.rank))
    return Table(
        id="wait-ranks-table",
        title="Waiting and lateness per rank and step",
        columns=(
            Column(key="rank", title="Rank", unit=Unit.COUNT, primary=True),
            Column(
                key="late", title="Times last", unit=Unit.COUNT, hint="over all traced steps", primary=True
            ),
            Column(key="held", title="Lag", unit=Unit.TIME, bar="wait", primary=True),
            Column(key="wait", title="Own wait", unit=Unit.TIME, primary=True),
            Column(
                key="exposed", title="Exposed", unit=Unit.TIME, hint="the part not overlapped with compute"
            ),
        ),
        rows=tuple(
            (rank.rank, rank.num_late, rank.held_ns, rank.wait_ns, rank.exposed_wait_ns) for rank in ordered
        ),
        sorted_by=("held", True),
        print_rows=16,
    )


def _uncertain(waits: WaitAnalysis) -> str:
    return (
        f"In {counted(waits.num_uncertain, 'call')} ranks of other hosts entered closer to "
        "the last one than the clock-synchronization uncertainty: no rank is reported late there."
    )


def _split_table(waits: WaitAnalysis, names: Mapping[str, str]) -> Table:
    of_calls = [row for row in waits.split if row.group is not None]  # layers without calls wait for nothing
    rows = of_calls[:_MOST_SPLIT_ROWS]
    left_out = len(of_calls) - len(rows)
    more = f" {left_out:,} rows are left out here; the JSON report has them." if left_out else ""
    return Table(
        id="wait-split-table",
        title="By process group, layer and phase, per step",
        columns=(
            Column(key="group", title="Group", primary=True),
            Column(key="layer", title="Layer", unit=Unit.CODE, primary=True),
            Column(key="phase", title="Phase"),
            Column(key="compute", title="Compute", unit=Unit.TIME, bar="compute", primary=True),
            Column(key="exposed", title="Exposed comm.", unit=Unit.TIME, bar="exposed_comm", primary=True),
            Column(key="wait", title="Wait", unit=Unit.TIME, bar="wait", primary=True),
            Column(key="transfer", title="Transfer", unit=Unit.TIME, bar="transfer"),
        ),
        rows=tuple(_split_row(row, names) for row in rows),
        caption="Average over member ranks. A call is in the row of the last layer computed before it, "
        "whatever it carries: “Communication by axis” divides calls among the layers that they carry. "
        f"Compute does not add up over groups.{more}",
        print_rows=24,
    )


def _split_row(row: SplitRow, names: Mapping[str, str]) -> tuple[Value, ...]:
    return (
        visible(row.group) if row.group is not None else "no call",
        visible(names.get(row.layer, row.layer)) if row.layer is not None else _LAYER_UNKNOWN,
        row.phase,
        row.compute_ns,
        row.exposed_comm_ns,
        row.wait_ns,
        row.transfer_ns,
    )
