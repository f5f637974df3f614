"""Sections about the run itself: “Not collected”, where figures come from, and what ran where."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from perfscope import __version__, units
from perfscope.analysis.missing_reasons import why_cut_short
from perfscope.analysis.results import FileProvenance, RunAnalysis
from perfscope.messages.files import traces_end_early
from perfscope.messages.lists import plural
from perfscope.messages.missing import cause_text, figure_text
from perfscope.reports.display import visible
from perfscope.reports.model import Block, Column, FactList, Note, Section, Table, Unit, Value
from perfscope.reports.moments import utc
from perfscope.reports.sections.slurm_job import job_facts, neighbour_note
from perfscope.rundir.records import Exit, RunRecord

LONGEST_COMMAND = 2000
LONGEST_NOTE = 600
MOST_KERNELS = 40
MOST_FILES = 200  # listed


def missing_section(analysis: RunAnalysis) -> Section:
    of_machine = analysis.machine.missing if analysis.machine else ()
    gaps = tuple(dict.fromkeys((*analysis.missing, *of_machine)))
    if not gaps:
        note = Note(text="All metrics of this report were collected.")
        return Section(id="missing", title="Not collected", blocks=(note,))
    table = Table(
        id="missing-table",
        terminal_form="reasons",
        title="Missing metrics and their reasons",
        columns=(
            Column(key="what", title="What", primary=True),
            Column(key="reason", title="Why", primary=True),
        ),
        rows=tuple(
            (visible(figure_text(gap), LONGEST_NOTE), visible(cause_text(gap), LONGEST_NOTE)) for gap in gaps
        ),
    )
    return Section(id="missing", title="Not collected", blocks=(table,))


def provenance_section(analysis: RunAnalysis) -> Section:
    if not analysis.provenance:
        note = Note(text="No trace file was read.", tone="caution")
        return Section(id="provenance", title="Data sources", blocks=(note,), in_terminal="lead")
    listed = _listed(analysis.provenance)
    left_out = len(analysis.provenance) - len(listed)
    table = Table(
        id="provenance-table",
        title="Trace files and their events",
        columns=(
            Column(key="path", title="File", unit=Unit.CODE, primary=True),
            Column(key="rank", title="Rank", unit=Unit.COUNT),
            Column(key="window", title="Window", unit=Unit.COUNT),
            Column(key="read", title="Read", unit=Unit.COUNT, primary=True),
            Column(key="kept", title="Kept", unit=Unit.COUNT, primary=True),
            Column(key="cut", title="Cut", unit=Unit.COUNT, hint="launched before the window"),
            Column(key="dropped", title="Dropped", unit=Unit.COUNT, hint="unreadable", primary=True),
            Column(
                key="skipped",
                title="Skipped",
                unit=Unit.COUNT,
                hint="of no use to the timeline: Python frames, flow arrows, metadata",
            ),
            Column(
                key="unclassified",
                title="Unclassified",
                unit=Unit.COUNT,
                hint="kernels that no rule classifies",
            ),
            Column(key="state", title="State"),
            Column(key="notes", title="Notes"),
        ),
        rows=tuple(_provenance_row(source) for source in listed),
        caption=f"{left_out:,} more {plural('file is', left_out, 'files are')} in the JSON report."
        if left_out
        else "",
    )
    blocks: list[Block] = [table]
    kernels = _unclassified(analysis.provenance)
    if kernels is not None:
        blocks.append(kernels)
    return Section(
        id="provenance",
        in_terminal="lead",
        title="Data sources",
        lead=_provenance_lead(analysis.provenance),
        blocks=tuple(blocks),
    )


def _listed(sources: Sequence[FileProvenance]) -> Sequence[FileProvenance]:
    """All files; of many those of which most was lost, then the first ones."""
    if len(sources) <= MOST_FILES:
        return sources
    return sorted(sources, key=lambda source: (not source.salvaged, -source.events_dropped))[:MOST_FILES]


def trace_notices(analysis: RunAnalysis) -> tuple[Note, ...]:
    """What must be said before the figures: that traces are cut off."""
    ending = [source for source in analysis.provenance if source.ends_early]
    if not ending:
        return ()
    ranks = sorted({source.rank for source in ending})
    text = traces_end_early(ranks, sum(source.steps_cut for source in ending))
    return (Note(text=text, tone="caution"),)


def _provenance_row(source: FileProvenance) -> tuple[Value, ...]:
    return (
        visible(source.path),
        source.rank,
        source.window,
        source.events_read,
        source.events_kept,
        source.events_cut,
        source.events_dropped,
        source.events_skipped,
        sum(count for _, count in source.unclassified),
        "damaged, salvaged" if source.salvaged else "whole",
        visible("; ".join(source.notes), LONGEST_NOTE),
    )


def _provenance_lead(sources: tuple[FileProvenance, ...]) -> str:
    read = sum(source.events_read for source in sources)
    kept = sum(source.events_kept for source in sources)
    dropped = sum(source.events_dropped for source in sources)
    damaged = sum(source.salvaged for source in sources)
    text = (
        f"{units.format_count(read)} events read from {units.format_count(len(sources))} "
        f"{plural('file', len(sources))}, {units.format_count(kept)} kept, "
        f"{units.format_count(dropped)} unreadable."
    )
    return text if not damaged else f"{text} {damaged} damaged, salvaged as far as readable."


def _unclassified(sources: tuple[FileProvenance, ...]) -> Table | None:
    totals: dict[str, int] = {}
    for source in sources:
        for name, count in source.unclassified:
            totals[name] = totals.get(name, 0) + count
    if not totals:
        return None
    ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:MOST_KERNELS]
    return Table(
        id="unclassified-table",
        title="Unclassified device kernels",
        columns=(
            Column(key="kernel", title="Kernel", unit=Unit.CODE, primary=True),
            Column(key="count", title="Events", unit=Unit.COUNT, primary=True),
        ),
        rows=tuple((visible(name), count) for name, count in ranked),
        caption=f"The {MOST_KERNELS} most frequent of {len(totals):,}." if len(totals) > MOST_KERNELS else "",
        sorted_by=("count", True),
    )


def run_section(analysis: RunAnalysis) -> Section:
    facts = FactList(id="run-facts", title="What ran", pairs=tuple(_run_facts(analysis)))
    blocks: list[Block] = [facts]
    packages = analysis.run.packages
    if packages:
        pairs = tuple((visible(name), visible(version)) for name, version in sorted(packages.items()))
        blocks.append(FactList(id="run-packages", title="Packages in the training process", pairs=pairs))
    environment = analysis.run.environment
    if environment:
        pairs = tuple((visible(name), visible(value)) for name, value in sorted(environment.items()))
        blocks.append(
            FactList(id="run-environment", title="Environment (allow-listed names only)", pairs=pairs)
        )
    blocks.extend(
        Note(text=visible(note, LONGEST_NOTE), tone="caution") for note in analysis.run.attach_notes
    )
    if used_by_others := neighbour_note(analysis.run):
        blocks.append(used_by_others)
    return Section(id="run", title="The run", blocks=tuple(blocks), in_terminal="nothing")


def command_text(run: RunRecord) -> str:
    """The command as it could be typed again, or '' where none was recorded (imported traces)."""
    return visible(shlex.join(run.command), LONGEST_COMMAND)


def _run_facts(analysis: RunAnalysis) -> Iterator[tuple[str, str]]:
    run = analysis.run
    yield "Name", visible(run.name or "–")
    if command := command_text(run):
        yield "Command", command
    for value, title in ((run.cwd, "Directory"), (run.launcher, "Launcher")):
        if value:
            yield title, visible(value, LONGEST_NOTE)
    yield "Origin", "imported traces" if run.is_imported else "perfscope run"
    hosts = sorted({rank.host for rank in analysis.ranks if rank.host})
    hosts = hosts or list(filter(None, [run.host]))
    if hosts:
        yield "Hosts" if len(hosts) > 1 else "Host", visible(", ".join(hosts), LONGEST_NOTE)
    yield from _times(run)
    yield from _exit(run)
    yield from job_facts(run)
    if run.git is not None:
        dirty = " (with uncommitted changes)" if run.git.dirty else ""
        yield "Git commit", f"{visible(run.git.commit or '–')}{dirty}"
    if run.labels:
        yield "Labels", visible(", ".join(f"{k}={v}" for k, v in sorted(run.labels.items())), LONGEST_NOTE)
    recorded = run.perfscope_version
    yield "perfscope", f"report by {__version__}" + (f", recorded by {visible(recorded)}" if recorded else "")


def _times(run: RunRecord) -> Iterator[tuple[str, str]]:
    start, end = run.start_unix_ns, run.end_unix_ns
    if start is not None:
        yield "Started", utc(start)
        if end is not None and end >= start:
            yield "Took", units.format_ns(end - start)


def _exit(run: RunRecord) -> Iterator[tuple[str, str]]:
    outcome = run.exit or Exit()
    cut_short = why_cut_short(run)
    if cut_short:
        yield "State", f"incomplete: {visible(cut_short, LONGEST_NOTE)}"
    elif run.is_open:
        yield "Exit", "not recorded: still running, or perfscope was killed"
    if outcome.signal is not None:
        yield "Exit", f"killed by signal {visible(outcome.signal)}"
    elif outcome.code is not None:
        yield "Exit", f"code {outcome.code}"
