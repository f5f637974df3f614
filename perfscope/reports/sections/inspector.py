"""Section "Communicators": every collective of the run, from records of NCCL Inspector."""

from __future__ import annotations

from perfscope.analysis.results import RunAnalysis
from perfscope.messages.inspector import bandwidth_sentence, communicators_headline, no_match_sentence
from perfscope.reports.display import visible
from perfscope.reports.model import Block, Column, Note, Section, Table, Unit, Value, Verdict
from perfscope.rundir.inspector_records import CommunicatorCalls

_MOST_ROWS = 200  # drawn; all are in the JSON report
_MOST_LINES = 8


def inspector_verdict(calls: tuple[CommunicatorCalls, ...]) -> Verdict:
    """Which communicator takes the most time."""
    first = calls[0]
    headline = communicators_headline(
        len({row.group for row in calls}),
        first.collective,
        visible(first.title or first.group),
    )
    return Verdict(headline=headline, detail=no_match_sentence(), action="", tone="plain")


def inspector_section(analysis: RunAnalysis) -> Section | None:
    """None without such records."""
    if not analysis.communicators:
        return None
    notes = [
        Note(text=visible(text), tone="caution")
        for row in analysis.communicators[:_MOST_ROWS]
        if (
            text := bandwidth_sentence(
                row.title or row.group,
                row.collective,
                row.num_ranks,
                _stated(row),
            )
        )
    ][:_MOST_LINES]
    blocks: tuple[Block, ...] = (*notes, _table(analysis.communicators))
    return Section(id="communicators", title="Communicators", blocks=blocks)


def _stated(row: CommunicatorCalls) -> tuple[int, int, float]:
    return row.num_compared, row.num_deviating, row.worst_ratio


def _table(calls: tuple[CommunicatorCalls, ...]) -> Table:
    return Table(
        id="communicators",
        title="Calls of all steps",
        columns=(
            Column(key="group", title="Communicator", unit=Unit.CODE, primary=True),
            Column(key="collective", title="Collective", unit=Unit.CODE, primary=True),
            Column(key="ranks", title="Ranks", unit=Unit.COUNT),
            Column(key="calls", title="Calls", unit=Unit.COUNT, primary=True),
            Column(key="matched", title="Matched", unit=Unit.COUNT, hint="a record of every rank"),
            Column(key="bytes", title="Bytes", unit=Unit.BYTES),
            Column(key="median", title="Median", unit=Unit.TIME, primary=True, hint="of a call on a rank"),
            Column(key="p95", title="p95", unit=Unit.TIME),
            Column(key="algbw", title="algbw", unit=Unit.RATE),
            Column(key="busbw", title="busbw", unit=Unit.RATE, primary=True, hint="waits included"),
            Column(key="transfer", title="busbw of transfers", unit=Unit.RATE, hint="shortest rank"),
            Column(key="wait", title="Wait", unit=Unit.TIME, hint="per rank, all calls"),
            Column(key="last", title="Last rank", unit=Unit.CODE, hint="calls in which it came last"),
        ),
        rows=tuple(_row(row) for row in calls[:_MOST_ROWS]),
    )


def _row(row: CommunicatorCalls) -> tuple[Value, ...]:
    last = ", ".join(f"{rank} ({count:,})" for rank, count in row.last_counts[:3])
    return (
        *(
            visible(row.title or row.group),
            visible(row.collective),
            row.num_ranks,
            row.num_calls,
        ),
        *(
            row.num_matched,
            row.bytes,
            row.median_ns,
            row.p95_ns,
            row.algbw_bytes_per_s,
        ),
        *(
            row.busbw_bytes_per_s,
            row.transfer_busbw_bytes_per_s,
            row.wait_ns,
            last,
        ),
    )
