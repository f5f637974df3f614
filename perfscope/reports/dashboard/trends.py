"""Section "Trends" of the dashboard: step time and samples/s of each series, and where they changed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfscope import units
from perfscope.gate.changepoints import FEWEST_POINTS, ChangePoint, Search
from perfscope.gate.run_series import RunSeries, RunSession
from perfscope.messages.lists import counted
from perfscope.reports.display import visible
from perfscope.reports.gate_history.chart import Break, HistoryChart, Level, RunPoint, SingleRun
from perfscope.reports.model import Block, Column, Note, Section, Table, Unit
from perfscope.reports.moments import utc
from perfscope.reports.values import TITLED, format_value

MOST_SESSIONS = 200  # in a chart: the newest


def trends_section(all_series: Sequence[RunSeries], most_charts: int) -> Section | None:
    """The table of all series and charts of the first ones; None without a series."""
    if not all_series:
        return None
    drawn = [series for series in all_series if len(series.sessions) > 1][:most_charts]
    anchors = {id(series): f"trend-{number}" for number, series in enumerate(drawn, 1)}
    blocks: list[Block] = [_table(all_series, anchors)]
    for series in drawn:
        blocks += _charts(series, anchors[id(series)])
    if left := sum(len(series.sessions) > 1 for series in all_series) - len(drawn):
        not_drawn = counted(left, "other series", "other series")
        blocks.append(Note(text=f"Charts of {not_drawn} are not drawn; `--charts` sets how many are."))
    return Section(
        id="trends",
        title="Trends",
        blocks=tuple(blocks),
        lead="Runs of the same command, labels, machine and number of ranks are a series. Those whose step "
        "time changed come first.",
    )


def trend_title(series: RunSeries) -> str:
    """Command, labels, machine and ranks."""
    what, labels, machine, num_hosts, ranks = series.key
    parts = (
        what,
        labels,
        machine,
        f"{num_hosts} hosts" if num_hosts not in ("0", "1") else "",
        counted(int(ranks), "rank") if ranks != "0" else "",
    )
    return ", ".join(part for part in parts if part)


def change_of(point: ChangePoint, series: RunSeries, what: str) -> str:
    """`step +8.2 % from a1b2c3d (2026-05-04) on`."""
    session = series.sessions[point.index]
    return f"{what} {_share(point)} from {_label(session)} on"


def _share(point: ChangePoint) -> str:
    if point.change is None:
        return "from 0"
    return units.format_change(point.change).replace(" ", "\u00a0")


def _label(session: RunSession) -> str:
    run = session.runs[0]
    date = utc(run.started_unix_ns, "%Y-%m-%d") if run.started_unix_ns is not None else ""
    what = run.commit[:7] or run.name
    return visible(f"{what} ({date})" if date else what, 80)


def _table(all_series: Sequence[RunSeries], anchors: dict[int, str]) -> Table:
    rows = []
    for series in all_series:
        changes = series.of_steps.changes
        last = series.sessions[-1]
        rows.append(
            (
                visible(trend_title(series), 160),
                series.num_runs,
                len(series.sessions),
                last.step_ns,
                None if math.isnan(last.samples_per_s) else last.samples_per_s,
                change_of(changes[-1], series, "step") if changes else _unchanged(series.of_steps),
            )
        )
    return Table(
        id="trends-table",
        title="All series",
        columns=(
            Column(key="series", title="Series", primary=True, linked=True),
            Column(key="runs", title="Runs", unit=Unit.COUNT),
            Column(
                key="sessions",
                title="Sessions",
                unit=Unit.COUNT,
                hint="runs of one commit without an hour's pause",
            ),
            Column(key="step", title="Latest step", unit=Unit.TIME, primary=True),
            Column(key="rate", title="Latest samples/s", unit=Unit.SAMPLES),
            Column(key="change", title="Last change", primary=True),
        ),
        rows=tuple(rows),
        links=tuple(f"#{anchors[id(series)]}-step" if id(series) in anchors else "" for series in all_series),
        cards=True,
    )


def _unchanged(search: Search) -> str:
    if search.lacking:
        return f"not searched: {search.num_points} of {FEWEST_POINTS} sessions"
    return "none found"


def _charts(series: RunSeries, anchor: str) -> list[HistoryChart]:
    title = visible(trend_title(series), 120)
    steps = _chart(series, f"{anchor}-step", title, is_step=True)
    if not any(math.isfinite(session.samples_per_s) for session in series.sessions):
        return [steps]
    return [steps, _chart(series, f"{anchor}-rate", f"Samples/s: {title}", is_step=False)]


def _chart(series: RunSeries, identity: str, title: str, *, is_step: bool) -> HistoryChart:
    search = series.of_steps if is_step else series.of_rates
    first = max(len(series.sessions) - MOST_SESSIONS, 0)
    unit = Unit.TIME if is_step else Unit.SAMPLES
    points = tuple(
        _point(session, number + 1, is_step=is_step)
        for number, session in enumerate(series.sessions)
        if number >= first
    )
    return HistoryChart(
        id=identity,
        title=title,
        y_title="median step" if is_step else TITLED[unit],
        unit=unit,
        points=points,
        levels=tuple(_levels(search, first)),
        breaks=tuple(
            Break(
                number=change.index + 1,
                text=_share(change),
                label=visible(series.sessions[change.index].runs[0].commit[:7], 24),
                is_worse=(change.after > change.before) is is_step,
                rises=change.after > change.before,
            )
            for change in search.changes
            if change.index > first
        ),
        caption=_caption(series, search, unit) if is_step else "",
        small=not is_step,
    )


def _caption(series: RunSeries, search: Search, unit: Unit) -> str:
    sentences = ["The axis does not begin at 0."]
    if search.lacking:
        sentences.append(
            f"A change needs {FEWEST_POINTS} sessions to be detected, these are {search.num_points}."
        )
    for change in search.changes:
        old, new = (format_value(unit, value) for value in (change.before, change.after))
        sentences.append(f"From {_label(series.sessions[change.index])} on: {old} became {new}.")
    hidden = len(series.sessions) - MOST_SESSIONS
    if hidden > 0:
        sentences.append(f"Drawn are the newest {MOST_SESSIONS} sessions, {hidden:,} older ones are not.")
    return " ".join(sentences)


def _levels(search: Search, first: int) -> list[Level]:
    if not search.changes:
        return []
    spans = [(change.first, change.index, change.before) for change in search.changes]
    spans.append((search.changes[-1].index, search.changes[-1].end, search.changes[-1].after))
    return [
        Level(first=max(start + 1, first + 1), last=end, value=value)
        for start, end, value in spans
        if end > first
    ]


def _point(session: RunSession, number: int, *, is_step: bool) -> RunPoint:
    run = session.runs[0]
    values = [member.step_ns if is_step else member.samples_per_s for member in session.runs]
    single = [SingleRun(value=value) for value in values if value is not None]
    return RunPoint(
        number=number,
        value=session.step_ns if is_step else session.samples_per_s,
        label=visible(run.commit[:7] or run.name, 24) or units.MISSING,
        date=utc(run.started_unix_ns, "%d %b") if run.started_unix_ns is not None else "",
        runs=tuple(single) if len(single) > 1 else (),
    )
