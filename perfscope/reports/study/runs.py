"""Sections on the comparison itself: what may not be compared, what is missing, and which runs these are."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Mapping

from perfscope.analysis.study.results import REFUSE, StudyAnalysis, StudyRun
from perfscope.messages.missing import cause_text, figure_text
from perfscope.reports.display import beginning, visible
from perfscope.reports.model import Block, Column, FactList, Note, Section, Table, Unit
from perfscope.reports.study.formatting import LONGEST, listed
from perfscope.vocabulary.efficiency import PopFactor
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.missing import Missing

MOST_WARNINGS = 3  # above the figures; all of them are in their section
LONGEST_COMMAND = 200  # the full command is in the JSON


def problems_section(study: StudyAnalysis) -> Section | None:
    """None where everything may be compared."""
    if not study.problems:
        return None
    table = Table(
        id="study-problems-table",
        terminal_form="reasons",
        title="Read this first",
        columns=(
            Column(key="what", title="What it means", primary=True),
            Column(key="text", title="Why", primary=True),
            Column(key="affects", title="Affects"),
            Column(key="runs", title="Runs", unit=Unit.CODE),
        ),
        rows=tuple(
            (
                "not compared" if problem.severity == REFUSE else "with care",
                visible(problem.text, LONGEST),
                ", ".join(part.value for part in problem.affects),
                visible(", ".join(problem.runs), LONGEST),
            )
            for problem in study.problems
        ),
        cards=True,
    )
    warnings = sum(problem.severity != REFUSE for problem in study.problems)
    title = "What may not be compared" if warnings < len(study.problems) else "Caveats"
    in_notices = warnings <= MOST_WARNINGS
    return Section(id="study-problems", title=title, blocks=(table,), in_notices=in_notices, tables="every")


def _texts(gap: Missing) -> tuple[str, str]:
    return figure_text(gap), cause_text(gap)


def missing_section(study: StudyAnalysis) -> Section:
    """Of the study first, then of its runs; the same gap of several runs is listed once."""
    title = "Not determined"
    gaps: dict[tuple[str, str], list[str]] = {_texts(gap): [] for gap in study.missing}
    single = _single_ranks(study)
    for run in study.runs:
        for gap in run.missing:
            if run.label in single and gap.figure is Figure.PARALLEL_EFFICIENCY:
                continue
            labels = gaps.setdefault(_texts(gap), [])
            labels.append(run.label)
    if not gaps:
        note = Note(text="All metrics of this report were collected.")
        return Section(id="study-missing", title=title, blocks=(note,), tables="every")
    everywhere = len(study.runs)
    table = Table(
        id="missing-table",
        terminal_form="reasons",
        title="Missing metrics and their reasons",
        columns=(
            Column(key="what", title="What", primary=True),
            Column(key="reason", title="Why", primary=True),
        ),
        rows=tuple(
            (
                visible(what, LONGEST),
                visible(reason, LONGEST) + _of_runs(labels, everywhere),
            )
            for (what, reason), labels in gaps.items()
        ),
    )
    return Section(id="study-missing", title=title, blocks=(table,), tables="every")


def _single_ranks(study: StudyAnalysis) -> set[str]:
    """Runs on one rank whose factors the scaling shows: alone they have none, beside others they do."""
    labels: set[str] = set()
    for series in study.scaling.series if study.scaling else ():
        rows = {row.factor: row.values for row in series.pop.rows} if series.pop else {}
        first = series.points[0] if series.points else None
        if first and first.world_size == 1 and rows.get(PopFactor.PARALLEL, (None,))[0] is not None:
            labels |= set(first.runs)
    return labels


def _of_runs(labels: list[str], everywhere: int) -> str:
    if not labels:
        return ""
    return " (all runs)" if len(labels) == everywhere else f" ({listed(labels, 3)})"


def runs_section(study: StudyAnalysis, started: Mapping[str, int]) -> Section:
    blocks: list[Block] = [_compared(study, started), _locations(study)]
    commands = tuple(
        (visible(run.label, 80), visible(beginning(shlex.join(run.command), LONGEST_COMMAND), LONGEST))
        for run in study.runs
        if run.command
    )
    if commands:
        blocks.append(FactList(id="runs-commands", title="Their commands", pairs=commands))
    grouping = visible(study.by_reason, LONGEST)
    return Section(
        id="study-runs",
        tables="every",
        title="The runs",
        lead=f"Grouped by {_by(study.by)}: {grouping}." if study.by and grouping else "",
        blocks=tuple(blocks),
    )


def _compared(study: StudyAnalysis, started: Mapping[str, int]) -> Table:
    return Table(
        id="study-runs-table",
        title="What was compared",
        columns=(
            Column(key="label", title="Run", primary=True),
            Column(key="group", title="Group"),
            Column(key="ranks", title="Ranks", unit=Unit.COUNT, primary=True),
            Column(key="hosts", title="Hosts", unit=Unit.COUNT),
            Column(key="model", title="Model", primary=True),
            Column(key="batch", title="Batch", unit=Unit.COUNT, primary=True),
            Column(key="rate", title="Samples/s", unit=Unit.SAMPLES, primary=True),
            Column(key="step", title="Typical step", unit=Unit.TIME, primary=True),
            Column(key="steps", title="Steps", unit=Unit.COUNT),
            Column(key="state", title="State", primary=True),
            Column(key="when", title="Started"),
        ),
        rows=tuple(
            (
                visible(run.label, 80),
                visible(run.group, 60) or None,
                run.world_size,
                run.num_hosts,
                visible(run.model, 80) or None,
                run.batch,
                run.samples_per_s,
                run.typical_step_ns,
                run.num_steps,
                _state(run),
                when(started.get(run.name)),
            )
            for run in study.runs
        ),
    ).trimmed()


def _locations(study: StudyAnalysis) -> Table:
    return Table(
        id="runs-places",
        terminal_form="none",
        title="Where they ran, and how",
        columns=(
            Column(key="label", title="Run", primary=True),
            Column(key="path", title="Directory", unit=Unit.CODE, primary=True),
            Column(key="hosts", title="Hosts", primary=True),
            Column(key="machine", title="Machine"),
            Column(key="versions", title="Versions"),
        ),
        rows=tuple(
            (
                visible(run.label, 80),
                visible(run.name, LONGEST),
                visible(listed(run.machine.hosts, 4), LONGEST) or None,
                visible(run.machine.text, LONGEST) or None,
                visible(_versions(run), LONGEST) or None,
            )
            for run in study.runs
        ),
        cards=True,
    ).trimmed()


def _by(by: str) -> str:
    return visible({"world_size": "number of ranks", "scheme": "scheme"}.get(by, by), 80)


def _versions(run: StudyRun) -> str:
    packages = [f"{name} {version}" for name, version in sorted(run.packages.items())]
    versions = [f"perfscope {run.perfscope_version}"] if run.perfscope_version else []
    return ", ".join([*versions, *packages])


def _state(run: StudyRun) -> str:
    parts = ["still running"] if run.running else []
    parts += list(run.incomplete) if not run.running else []
    parts += ["diverged"] if run.diverged else []
    parts += ["disturbed"] if run.disturbed else []
    return visible("; ".join(parts), 200) or "complete"


def when(started_ns: int | None) -> str | None:
    """``2026-11-21 18:10 UTC``."""
    if started_ns is None:
        return None
    try:
        moment = datetime.datetime.fromtimestamp(started_ns // 1_000_000_000, datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):  # an edited record: no date is better than no report
        return None
    return moment.strftime("%Y-%m-%d %H:%M UTC")
