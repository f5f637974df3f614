"""Section "Collectives": how much was moved, how fast, and how much was waiting for the last rank."""

from __future__ import annotations

from collections import Counter

from perfscope import units
from perfscope.analysis.results import CollectiveCall, CollectiveResult, RunAnalysis
from perfscope.messages.lists import counted
from perfscope.reports.display import visible
from perfscope.reports.model import (
    Bar,
    Block,
    ChartPart,
    Column,
    Note,
    Section,
    StackedBars,
    Table,
    Unit,
    Value,
)

WORST_CALLS = 10
PARTS = (
    ChartPart(key="transfer", title="Transfer", hint="from the last rank's entry on"),
    ChartPart(key="wait", title="Waiting for the last rank", hint="mean over ranks"),
)


def collectives_section(analysis: RunAnalysis) -> Section:
    results = sorted(analysis.collectives, key=lambda c: (-c.duration_ns, c.collective, c.group))
    if not results:
        traced = bool(analysis.provenance) or any(rank.num_traced_steps for rank in analysis.ranks)
        note = Note(
            text="No collective was recorded in the traced windows." if traced else "No window was traced."
        )
        return Section(id="collectives", title="Collectives", blocks=(note,))
    blocks: list[Block] = []
    bars = tuple(_bar(c) for c in results if c.transfer_ns is not None and c.wait_ns is not None)
    if bars:
        blocks.append(
            StackedBars(
                id="collectives-chart",
                title=f"Waiting and transfer, sums over {_span_words(analysis)} per rank",
                parts=PARTS,
                bars=bars[:MOST_BARS],
                caption="Waiting: from a rank's entry to the last rank's entry; mean over member ranks.",
            )
        )
    blocks.append(_table(results, _span_words(analysis)))
    late = _late_table(results)
    if late is not None:
        blocks.append(late)
    if analysis.calls:
        blocks.append(_worst_calls(analysis.calls))
    uncertain = sum(c.num_waits_uncertain or 0 for c in results)
    if uncertain and analysis.clock_residual_ns is not None:
        blocks.append(
            Note(
                text=f"{uncertain:,} waits are shorter than {units.format_ns(analysis.clock_residual_ns)}, "
                "the clock-synchronization uncertainty between hosts; the last rank is uncertain there.",
                tone="caution",
            )
        )
    return Section(id="collectives", title="Collectives", lead=_lead(analysis), blocks=tuple(blocks))


MOST_BARS = 16


def _lead(analysis: RunAnalysis) -> str:
    """Shares of the time in calls as unions, so that calls under way at once count once."""
    in_calls, waiting = analysis.in_calls_ns, analysis.waiting_ns
    if not in_calls or waiting is None:
        return "Ranks could not be matched, so waiting and transfer cannot be distinguished."
    return (
        f"{units.format_ratio(waiting / in_calls, 0)} of the time in matched collectives is waiting for the "
        f"last rank ({units.format_ns(waiting)} of {units.format_ns(in_calls)} on average over ranks, over "
        f"{_span_words(analysis)}; overlapping calls count once)."
    )


def _span_words(analysis: RunAnalysis) -> str:
    """Which time the sums of this section go over."""
    steps = max((rank.num_traced_steps for rank in analysis.ranks), default=0)
    if analysis.breakdown_of != "step" or not steps:
        return "the whole traces"
    return counted(steps, "traced step")


def _bar(result: CollectiveResult) -> Bar:
    return Bar(
        label=_name(result),
        values=(result.transfer_ns or 0, result.wait_ns or 0),
        note=f"{units.format_count(result.num_matched)} matched calls",
    )


def _name(result: CollectiveResult) -> str:
    dtype = f" {visible(result.dtype)}" if result.dtype else ""
    size = f", {counted(result.group_size, 'rank')}" if result.group_size is not None else ""
    return f"{visible(result.collective)}{dtype}{size}"


def _table(results: list[CollectiveResult], span: str) -> Table:
    columns = (
        Column(key="collective", title="Collective", unit=Unit.CODE, primary=True),
        Column(key="group", title="Group", primary=len(results) > len({r.collective for r in results})),
        Column(key="size", title="Ranks", unit=Unit.COUNT),
        Column(key="dtype", title="Type"),
        Column(key="count", title="Calls", unit=Unit.COUNT, primary=True),
        Column(key="bytes", title="Bytes", unit=Unit.BYTES, primary=True),
        Column(key="duration", title="In call", unit=Unit.TIME, hint="mean over ranks, waiting included"),
        Column(key="transfer", title="Transfer", unit=Unit.TIME, bar="transfer", primary=True),
        Column(key="wait", title="Wait", unit=Unit.TIME, bar="wait", primary=True, hint="mean over ranks"),
        Column(key="max_wait", title="Longest wait", unit=Unit.TIME),
        Column(key="algbw", title="algbw", unit=Unit.RATE, hint="bytes / transfer time"),
        Column(key="busbw", title="busbw", unit=Unit.RATE, hint="algbw × the operation's bus factor"),
        Column(
            key="busbw_wait", title="busbw with wait", unit=Unit.RATE, hint="the same over transfer + waiting"
        ),
        Column(key="last", title="Most often last"),
    )
    return Table(
        id="collectives-table",
        terminal_rows=6,
        terminal_title=True,
        title=f"Collectives, sums over {span} per rank",
        columns=columns,
        rows=tuple(_row(result) for result in results),
        caption="Overlapping calls are counted once in the sentence above, separately "
        "in the table. Bandwidths use transfer time only: a late rank does not lower them.",
    )


def _row(result: CollectiveResult) -> tuple[Value, ...]:
    return (
        visible(result.collective),
        visible(result.group),
        result.group_size,
        visible(result.dtype) if result.dtype else None,
        result.count,
        result.bytes,
        result.duration_ns,
        result.transfer_ns,
        result.wait_ns,
        result.max_wait_ns,
        result.algbw_bytes_per_s,
        result.busbw_bytes_per_s,
        result.busbw_with_wait_bytes_per_s,
        _latest(result),
    )


def _latest(result: CollectiveResult) -> str | None:
    if not result.late_counts:
        return None
    rank, count = result.late_counts[0]
    return f"rank {rank} ({count:,} of {result.num_matched:,})"


def _late_table(results: list[CollectiveResult]) -> Table | None:
    late: Counter[int] = Counter()
    for result in results:
        for rank, count in result.late_counts:
            late[rank] += count
    total = sum(late.values())
    if not total:
        return None
    rows = tuple((rank, count, count / total) for rank, count in sorted(late.items(), key=_most_often_first))
    return Table(
        id="late-table",
        title="Last ranks",
        columns=(
            Column(key="rank", title="Rank", unit=Unit.COUNT, primary=True),
            Column(key="times", title="Times last", unit=Unit.COUNT, bar="wait", primary=True),
            Column(key="share", title="Of all matched calls", unit=Unit.RATIO, primary=True),
        ),
        rows=rows,
        sorted_by=("times", True),
        print_rows=16,
    )


def _most_often_first(item: tuple[int, int]) -> tuple[int, int]:
    return (-item[1], item[0])


def _worst_calls(calls: tuple[CollectiveCall, ...]) -> Table:
    worst = sorted(calls, key=lambda c: (-c.start_skew_ns, c.window, c.start_ns))[:WORST_CALLS]
    return Table(
        id="worst-calls-table",
        title="Calls with the longest wait for the last rank",
        columns=(
            Column(key="collective", title="Collective", unit=Unit.CODE, primary=True),
            Column(key="group", title="Group"),
            Column(key="window", title="Window", unit=Unit.COUNT),
            Column(key="seq", title="Call", unit=Unit.COUNT, hint="k-th of its group and kind in the window"),
            Column(key="late", title="Last rank", unit=Unit.COUNT, primary=True),
            Column(key="skew", title="First to last entry", unit=Unit.TIME, bar="wait", primary=True),
            Column(key="transfer", title="Transfer", unit=Unit.TIME, primary=True),
            Column(key="bytes", title="Bytes", unit=Unit.BYTES),
        ),
        rows=tuple(
            (
                visible(call.collective),
                visible(call.group),
                call.window,
                call.seq,
                call.late_rank,
                call.start_skew_ns,
                call.transfer_ns,
                call.bytes,
            )
            for call in worst
        ),
        sorted_by=("skew", True),
    )
