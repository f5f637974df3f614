"""The page of all runs below a folder, as a Report that the HTML renderer draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfscope import __version__, units
from perfscope.gate.run_series import RunSeries, SeriesRun, series_of
from perfscope.messages.lists import counted
from perfscope.reports.dashboard.records import SiteIndex, SiteRun
from perfscope.reports.dashboard.trends import change_of, trend_title, trends_section
from perfscope.reports.display import visible
from perfscope.reports.model import Column, Facet, KeyFigure, Note, Report, Section, Table, Unit, Verdict
from perfscope.reports.moments import utc

BROKEN = ("failed", "incomplete", "unreadable")
_TEXT = 600


def build_dashboard(index: SiteIndex, title: str, most_charts: int) -> Report:
    """The page.

    Args:
        title: of the page.
        most_charts: series whose charts are drawn; the others are in the table of series.
    """
    all_series = series_of(
        SeriesRun(
            key=run.series_key,
            name=run.name,
            started_unix_ns=run.started_unix_ns,
            commit=run.commit,
            step_ns=run.step_ns,
            samples_per_s=run.samples_per_s,
        )
        for run in index.runs
        if run.state != "running"
    )
    sections = (
        _runs_section(index.runs),
        trends_section(all_series, most_charts),
        _studies_section(index),
    )
    return Report(
        title=visible(title, 120),
        subtitle="",
        verdict=_verdict(index, all_series),
        overview=None,
        figures=tuple(_figures(index, all_series)),
        sections=tuple(section for section in sections if section is not None),
        document={},
        version=__version__,
    )


def _verdict(index: SiteIndex, all_series: Sequence[RunSeries]) -> Verdict:
    if not index.runs:
        return Verdict(
            headline="There are no runs here.",
            detail="",
            action="Record one with `perfscope run -- COMMAND`, then run `perfscope dashboard` again.",
            tone="plain",
        )
    slower = [series for series in all_series if series.is_slower]
    if slower:
        first = slower[0]
        step = change_of(first.largest_rise or first.of_steps.changes[-1], first, "step")
        return Verdict(
            headline=f"Steps became longer in {len(slower):,} of {len(all_series):,} series.",
            detail=f"The first of them: {visible(trend_title(first), _TEXT)}, {step}.",
            action="Look at its chart under Trends, then compare a run before the change with one after it "
            "(`perfscope compare`).",
            tone="caution",
        )
    judged = sum(not series.of_steps.lacking for series in all_series)
    headline = (
        f"No series became slower; {counted(judged, 'series', 'series')} had enough sessions to tell."
        if judged
        else f"{counted(len(index.runs), 'run')}; no series has enough sessions yet to detect a change."
    )
    return Verdict(headline=headline, detail="", action="", tone="good" if judged else "plain")


def _figures(index: SiteIndex, all_series: Sequence[RunSeries]) -> Iterator[KeyFigure]:
    started = [run.started_unix_ns for run in index.runs if run.started_unix_ns is not None]
    yield KeyFigure(id="runs", title="Runs", value=f"{len(index.runs):,}", note=_range(started))
    broken = sum(run.state in BROKEN for run in index.runs)
    yield KeyFigure(id="broken", title="Failed, incomplete or unreadable", value=f"{broken:,}")
    yield KeyFigure(
        id="series", title="Series", value=f"{len(all_series):,}", note="same command, labels and machine"
    )
    changed = sum(bool(series.of_steps.changes) for series in all_series)
    yield KeyFigure(id="changed", title="Series whose step time changed", value=f"{changed:,}")
    yield KeyFigure(id="studies", title="Studies", value=f"{len(index.studies):,}")


def _range(started: Sequence[int]) -> str:
    days = [utc(at, "%Y-%m-%d") for at in ((min(started), max(started)) if started else ())]
    return " to ".join(dict.fromkeys(days))


def _runs_section(runs: Sequence[SiteRun]) -> Section | None:
    if not runs:
        return None
    columns = (
        Column(key="run", title="Run", unit=Unit.CODE, primary=True, linked=True),
        Column(key="started", title="Start (UTC)", primary=True),
        Column(key="state", title="State", hint="empty: finished"),
        Column(key="ranks", title="Ranks", unit=Unit.COUNT),
        Column(
            key="step", title="Step", unit=Unit.TIME, primary=True, hint="median of the first rank's steps"
        ),
        Column(key="rate", title="Samples/s", unit=Unit.SAMPLES, hint="of all ranks, by its last report"),
        Column(key="verdict", title="Verdict", primary=True, hint="of its last report"),
        Column(key="labels", title="Labels"),
        Column(key="commit", title="Commit", unit=Unit.CODE),
        Column(key="machine", title="Machine"),
        Column(key="hosts", title="Hosts"),
    )
    table = Table(
        id="runs-table",
        title="All runs",
        columns=columns,
        rows=tuple(_row(run) for run in runs),
        links=tuple(run.report for run in runs),
        facets=_facets(runs),
        sorted_by=("started", True),
        cards=True,
        caption="A run's name leads to its report where there is one. The step is the median of the first "
        "rank, the report's of all ranks. The verdict and samples/s are those of a run's last report.",
    )
    return Section(id="runs", title="Runs", blocks=(table.trimmed(),))


def _row(run: SiteRun) -> tuple[str | int | float | None, ...]:
    return (
        visible(run.path or run.name, 120),
        utc(run.started_unix_ns, "%Y-%m-%d %H:%M") if run.started_unix_ns is not None else None,
        run.state if run.state != "finished" else None,
        run.ranks or None,
        run.step_ns,
        run.samples_per_s,
        visible(run.verdict, 200) or None,
        visible(", ".join(run.labels), 120) or None,
        visible(run.commit[:7], 24) or None,
        visible(run.machine, 80) or None,
        visible(_hosts(run.hosts), 80) or None,
    )


def _hosts(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) if len(hosts) < 4 else f"{hosts[0]} to {hosts[-1]} ({len(hosts):,} hosts)"


def _facets(runs: Sequence[SiteRun]) -> tuple[Facet, ...]:
    """What the page's lists of choices go by."""
    facets = (
        Facet(title="Name", values=tuple((visible(run.name, 80),) for run in runs)),
        Facet(title="Label", values=tuple(tuple(visible(label, 80) for label in run.labels) for run in runs)),
        Facet(title="Commit", values=tuple((visible(run.commit[:7], 24),) for run in runs)),
        Facet(title="Machine", values=tuple((visible(run.machine, 80),) for run in runs)),
        Facet(title="Host", values=tuple(tuple(visible(host, 80) for host in run.hosts) for run in runs)),
        Facet(title="State", values=tuple((run.state,) for run in runs)),
    )
    return tuple(facet for facet in facets if any(any(values) for values in facet.values))


def _studies_section(index: SiteIndex) -> Section | None:
    if not index.studies:
        return None
    unread = any(not study.total for study in index.studies)
    table = Table(
        id="studies-table",
        title="All studies",
        columns=(
            Column(key="study", title="Study", unit=Unit.CODE, primary=True, linked=True),
            Column(key="title", title="Title", primary=True),
            Column(key="done", title="Runs done", unit=Unit.COUNT, primary=True),
            Column(key="total", title="Runs", unit=Unit.COUNT),
        ),
        rows=tuple(
            (
                visible(study.path, 120),
                visible(study.title, 160),
                study.done if study.total else None,
                study.total or None,
            )
            for study in index.studies
        ),
        links=tuple(study.report for study in index.studies),
        cards=True,
    )
    note = Note(text=f"A study without figures ({units.MISSING}) has no readable `study.json`.")
    return Section(id="studies", title="Studies", blocks=(table, *([note] if unread else [])))
