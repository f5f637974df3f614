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
_MOST_WITHOUT_CALL = 8  # of them: layers that no call follows, which the table of layers has as well
_LAYER_UNKNOWN = "not known"


def waits_section(analysis: RunAnalysis) -> Section | None:
    """None where nothing was matched; why stands in the run's missing figures."""
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
    """The mean traced step."""
    breakdowns = [rank.breakdown_ns.step for rank in analysis.ranks if rank.breakdown_ns is not None]
    return sum(breakdowns) / len(breakdowns) if breakdowns else None


def _lead(waits: WaitAnalysis, step_ns: float | None, unit: str) -> str:
    cost = sum(rank.exposed_wait_ns for rank in waits.ranks) / max(len(waits.ranks), 1)
    share = f" ({units.format_ratio(cost / step_ns)} of it)" if step_ns else ""
    text = f"Per traced {unit} the mean rank stands {units.format_ns(cost)}{share} waiting for others"
    worst = max(waits.ranks, key=lambda rank: (rank.held_ns, -rank.rank), default=None)
    total = sum(rank.held_ns for rank in waits.ranks)
    if worst is None or not total:
        return f"{text}; nobody can be said to have been late to a collective."
    decided = sum(rank.num_late for rank in waits.ranks)
    text += (
        f"; rank {worst.rank} came last to {worst.num_late:,} of {decided:,} collectives and accounts for "
        f"{units.format_ratio(worst.held_ns / total, 0)} of the lateness."
    )
    why = _main_reason(waits, worst)
    return f"{text} {why}" if why else text


def _main_reason(waits: WaitAnalysis, late: RankWait) -> str:
    """Of that rank's own lateness."""
    reasons = [why for group in waits.groups for why in group.reasons if why.rank == late.rank]
    if not reasons:
        return ""
    worst = max(reasons, key=lambda why: why.wait_ns)
    text = f"In the call that cost most, {in_sentence(worst.sentence)}"
    if worst.meanwhile:
        text += f" Meanwhile on its host: {worst.meanwhile}."
    return visible(text, _LONGEST)


def _groups_table(waits: WaitAnalysis) -> Table:
    return Table(
        id="waits-table",
        title="Waiting and transfer per step, mean member rank",
        columns=(
            Column(key="collective", title="Collective", unit=Unit.CODE, primary=True),
            Column(key="group", title="Group", primary=True),
            Column(key="size", title="Ranks", unit=Unit.COUNT),
            Column(key="calls", title="Calls", unit=Unit.COUNT),
            Column(key="wait", title="Wait", unit=Unit.TIME, bar="wait", primary=True),
            Column(key="transfer", title="Transfer", unit=Unit.TIME, bar="transfer", primary=True),
            Column(key="longest", title="Longest wait", unit=Unit.TIME),
            Column(key="late", title="Came last most often", primary=True),
            Column(
                key="uncertain", title="Not certain", unit=Unit.COUNT, hint="calls; the clocks leave it open"
            ),
        ),
        rows=tuple(_group_row(group) for group in waits.groups),
        caption="Waiting: from a rank's entry to the last rank's. Calls that overlap count each for itself.",
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
        title="Why the last rank was late",
        columns=(
            Column(key="why", title="Reason", hint="of the call of this kind that cost most", primary=True),
            Column(key="collective", title="Collective", unit=Unit.CODE),
            Column(key="group", title="Group"),
            Column(key="rank", title="Rank", unit=Unit.COUNT, hint="whose doing it is"),
            Column(key="calls", title="Calls", unit=Unit.COUNT),
            Column(key="wait", title="Wait per step", unit=Unit.TIME, bar="wait", primary=True),
            Column(key="share", title="Of the group's", unit=Unit.RATIO),
        ),
        rows=tuple(sorted(rows, key=_by_wait)),
        caption="What the late rank did longer than the others since all last stood at the same place.",
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
    return (
        f"Rank {straggler.rank} held up {straggler.times}, by {units.format_ns(straggler.held_ns)} per step."
    )


def _stragglers_table(waits: WaitAnalysis, names: Mapping[str, str]) -> Table:
    return Table(
        id="stragglers-table",
        title="Who held up which step",
        columns=(
            Column(key="step", title="Step", unit=Unit.COUNT, primary=True),
            Column(key="rank", title="Rank", unit=Unit.COUNT, primary=True),
            Column(key="times", title="Came last", hint="of the step's collectives with a certain last rank"),
            Column(key="held", title="Behind", unit=Unit.TIME, bar="wait", primary=True),
            Column(key="why", title="Why", hint="the call it came latest to", primary=True),
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
        caption="Behind: time in which half of the others had entered a collective and it had not.",
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
            Column(key="held", title="Behind the others", unit=Unit.TIME, bar="wait", primary=True),
            Column(key="wait", title="Waits itself", unit=Unit.TIME, primary=True),
            Column(key="exposed", title="Exposed", unit=Unit.TIME, hint="the part that no work hides"),
        ),
        rows=tuple(
            (rank.rank, rank.num_late, rank.held_ns, rank.wait_ns, rank.exposed_wait_ns) for rank in ordered
        ),
        sorted_by=("held", True),
        print_rows=16,
    )


def _uncertain(waits: WaitAnalysis) -> str:
    return (
        f"In {counted(waits.num_uncertain, 'call')} the ranks of other hosts came closer to "
        "the last one than their clocks can be compared: nobody is called late there."
    )


def _split_table(waits: WaitAnalysis, names: Mapping[str, str]) -> Table:
    silent = [row for row in waits.split if row.group is None][:_MOST_WITHOUT_CALL]
    rows = [*(row for row in waits.split if row.group is not None), *silent][:_MOST_SPLIT_ROWS]
    left_out = len(waits.split) - len(rows)
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
        caption="Mean member rank. A call stands with the layer that its rank computed last before it. A "
        "layer's computation stands in the row of every group with calls behind it, and in one without a "
        f"group where no call follows: it does not add up over groups.{more}",
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
