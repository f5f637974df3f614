"""One section of a history: a benchmark on one kind of machine."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from msgspec import structs

from perfscope.gate.metrics import DECIDES, METRICS
from perfscope.gate.records import PARTS
from perfscope.gate.trend import Session, Trend
from perfscope.messages.gate.explanation import PARTS as TITLES
from perfscope.messages.gate.verdict import fingerprint_words
from perfscope.messages.lists import counted
from perfscope.messages.sentences import capital
from perfscope.reports.display import visible
from perfscope.reports.gate_history.chart import (
    Break,
    ColumnPart,
    HistoryChart,
    Level,
    RunPoint,
    SingleRun,
)
from perfscope.reports.gate_history.wording import (
    LONGEST,
    around,
    change_text,
    commit_of,
    day,
    direction_text,
    interval_text,
    metric_name,
    part_text,
    threshold_text,
    unit_of,
)
from perfscope.reports.model import Block, Column, Note, Section, Table, Unit, Value
from perfscope.reports.values import with_unit

MOST_SHOWN = 300  # sessions in charts: the newest
MOST_PARTS_TOLD = 3
FEWEST_FOR_CHART = 2
# Parts of a column, bottom up; the last two are all that is known without a trace.
_COLUMN_PARTS = (*PARTS, "backward", "rest")
_COLORS = {"rest": "host"}


def history_section(trend: Trend, number: int, title: str) -> Section:
    """All about one series; `number` makes its ids unique."""
    prefix = f"history-{number}"
    blocks: list[Block] = [main_chart(trend, prefix)]
    if trend.search.reason:
        reason = f"{capital(trend.search.reason)}."
        blocks.append(Note(text=reason, tone="caution" if trend.search.lacking else "plain"))
    blocks += [
        *([changes_table(trend, prefix)] if not trend.search.lacking else []),
        *([causes_table(trend, prefix)] if trend.changes else []),
        *_other_charts(trend, prefix),
        runs_table(trend, prefix),
    ]
    if trend.left_out:
        blocks.append(_left_out(trend, prefix))
    return Section(
        id=prefix,
        tables="every",
        title=title,
        blocks=tuple(blocks),
        lead=visible(fingerprint_words(trend.fingerprint), LONGEST),
    )


def main_chart(trend: Trend, prefix: str) -> HistoryChart:
    """The deciding figure with its levels, above where the step went."""
    keys = [key for key in _COLUMN_PARTS if any(parts.get(key, 0.0) > 0 for parts in trend.parts)]
    chart = _chart(trend, trend.metric.id, f"{prefix}-series", keys)
    return structs.replace(
        chart,
        points=tuple(
            structs.replace(point, runs=_single_runs(session, trend.metric.id))
            for point, session in zip(chart.points, trend.sessions[-MOST_SHOWN:], strict=True)
        ),
        levels=_levels(trend, chart.points[0].number if chart.points else 1),
        parts=tuple(ColumnPart(key=_COLORS.get(key, key), title=TITLES.get(key, key)) for key in keys),
        parts_title="where the step went",
        caption=_caption(trend, bool(keys)),
    )


def _single_runs(session: Session, metric_id: str) -> tuple[SingleRun, ...]:
    """() of a session of one run: that is its point."""
    if len(session.runs) == 1:
        return ()
    return tuple(
        SingleRun(value=run.metrics.get(metric_id, math.nan), doubtful=run.clean is False)
        for run in session.runs
    )


def _caption(trend: Trend, has_parts: bool) -> str:
    sentences = ["The axis of the points does not begin at 0."]
    if len(trend.runs) > len(trend.sessions):
        sentences.append(
            "A session is what was run of one commit without an hour's pause; its mark is the median of its "
            "undisturbed runs, which are the faint ones around it."
        )
    hidden = len(trend.sessions) - MOST_SHOWN
    if hidden > 0:
        sentences.append(
            f"Drawn are the newest {MOST_SHOWN:,} sessions; {hidden:,} older ones are in the table."
        )
    if has_parts:
        sentences.append(
            "Columns: the p10 step; the always-on probe timed input wait and optimizer, the others are in "
            "the proportions of the traced steps."
        )
    if any(run.clean is False for run in trend.runs):
        sentences.append("A disturbed run shared the machine with something else: it is shown, not judged.")
    return " ".join(sentences)


def _chart(trend: Trend, metric_id: str, identity: str, keys: Sequence[str] = ()) -> HistoryChart:
    metric = trend.metric if metric_id == trend.metric.id else METRICS[metric_id]
    first = max(len(trend.sessions) - MOST_SHOWN, 0)
    values = trend.series(metric_id)
    points = tuple(
        RunPoint(
            number=index + 1,
            value=values[index],
            label=commit_of(session.runs[0]) or visible(session.runs[0].name, 24),
            date=day(session.runs[0], year=False),
            doubtful=session.is_disturbed,
            parts=tuple(trend.parts[index].get(key, 0.0) for key in keys) if trend.parts[index] else (),
        )
        for index, session in enumerate(trend.sessions)
        if index >= first
    )
    return HistoryChart(
        id=identity,
        title=f"{metric.title} over {counted(len(points), 'session')}",
        y_title=with_unit(metric.title, unit_of(metric)),
        unit=unit_of(metric),
        points=points,
        breaks=tuple(
            Break(
                number=change.point.index + 1,
                text=change_text(change),
                label=commit_of(change.after) or visible(change.after.name, 24),
                is_worse=change.is_worse,
                rises=change.point.after > change.point.before,
            )
            for change in trend.changes
            if change.point.index > first
        ),
    )


def _levels(trend: Trend, first: int) -> tuple[Level, ...]:
    """`first`: the first session that is drawn."""
    spans = [(change.point.first, change.point.index, change.point.before) for change in trend.changes]
    if trend.latest is not None:
        spans.append((trend.latest.point.index, len(trend.sessions), trend.latest.point.after))
    elif not trend.search.lacking:
        session_numbers = sorted(trend.current)
        spans = [(0, len(trend.sessions), session_numbers[len(session_numbers) // 2])]
    return tuple(
        Level(first=max(start + 1, first), last=end, value=value)
        for start, end, value in spans
        if end >= first
    )


def changes_table(trend: Trend, prefix: str) -> Table:
    """Newest first."""
    unit = unit_of(trend.metric)
    columns = (
        Column(
            key="run", title="From session", unit=Unit.COUNT, primary=True, hint="the first of the new level"
        ),
        Column(key="date", title="Date", primary=True),
        Column(
            key="between", title="Between", unit=Unit.CODE, primary=True, hint="last old, first new commit"
        ),
        Column(key="before", title="Before", unit=unit, primary=True, hint="median of the level"),
        Column(key="after", title="After", unit=unit, primary=True, hint="median of the level"),
        Column(key="change", title="Change", primary=True),
        Column(
            key="interval", title="95 % interval", hint="Hodges-Lehmann, over the sessions of both levels"
        ),
    )
    rows = tuple(
        (
            change.point.index + 1,
            day(change.after),
            " → ".join(commit_of(run) or visible(run.name, 40) for run in (change.before, change.after)),
            change.point.before,
            change.point.after,
            f"{change_text(change)}, {direction_text(change)}",
            interval_text(change),
        )
        for change in reversed(trend.changes)
    )
    caption = (
        "Found by E-divisive on the logarithms of the sessions' values; newest first. Where a change is "
        "not much larger than the noise, it may be off by one or two sessions. A machine with drifting speed "
        f"shows changes too. The threshold is {threshold_text(trend.metric)}."
    )
    return Table(
        id=f"{prefix}-changes",
        title="Changes",
        columns=columns,
        rows=rows,
        caption=caption if rows else "",
        empty="None: no change of level exceeds the noise.",
        cards=True,
    )


def causes_table(trend: Trend, prefix: str) -> Table:
    """What moved at each change, newest first."""
    columns = (
        Column(key="run", title="From session", unit=Unit.COUNT, primary=True),
        Column(key="moved", title="What moved", primary=True),
        Column(key="parts", title="Parts of the step", hint="those whose change is certain, 95 % interval"),
        Column(key="around", title="What else changed", primary=True),
    )
    rows = []
    for change in reversed(trend.changes):
        moved = [part for part in change.explanation.parts if part.is_certain][:MOST_PARTS_TOLD]
        rows.append(
            (
                change.point.index + 1,
                visible(change.explanation.headline, LONGEST),
                "; ".join(part_text(part) for part in moved) or "none for certain",
                " ".join(visible(difference.text, 200) for difference in around(change))
                or "nothing that was recorded",
            )
        )
    return Table(
        id=f"{prefix}-causes", title="What moved there", columns=columns, rows=tuple(rows), cards=True
    )


def runs_table(trend: Trend, prefix: str) -> Table:
    """Newest first."""
    first_of_level = {trend.sessions[change.point.index].first: change for change in trend.changes}
    numbers = [number for number, session in enumerate(trend.sessions, 1) for _ in session.runs]
    grouped = len(trend.runs) > len(trend.sessions)
    deciding = METRICS[DECIDES]
    own_metric = trend.metric
    extra = () if own_metric.id in (DECIDES, "step_mean", "throughput") else (own_metric,)
    columns = (
        Column(key="run", title="Run", unit=Unit.COUNT, primary=True),
        *([Column(key="session", title="Session", unit=Unit.COUNT, primary=True)] if grouped else []),
        Column(key="date", title="Date", primary=True),
        Column(
            key="commit", title="Commit", unit=Unit.CODE, primary=True, hint="+ where files differed from it"
        ),
        *(Column(key=metric.id, title=metric.title, unit=unit_of(metric), primary=True) for metric in extra),
        Column(
            key=DECIDES, title="Step p10", unit=Unit.TIME, primary=True, bar="compute", hint=deciding.hint
        ),
        Column(key="step_mean", title="Step mean", unit=Unit.TIME, hint=METRICS["step_mean"].hint),
        Column(
            key="throughput",
            title="Samples/s",
            unit=Unit.SAMPLES,
            primary=True,
            hint=METRICS["throughput"].hint,
        ),
        Column(key="clean", title="Clean", primary=True, hint="nothing from outside disturbed its steps"),
        Column(key="change", title="Change", hint="of the level, from this run on"),
        Column(key="name", title="Name", unit=Unit.CODE),
    )
    rows: list[tuple[Value, ...]] = []
    for index in range(len(trend.runs) - 1, -1, -1):
        run = trend.runs[index]
        change = first_of_level.get(index)
        rows.append(
            (
                index + 1,
                *([numbers[index]] if grouped else []),
                day(run),
                commit_of(run),
                *(run.metrics.get(metric.id) for metric in extra),
                run.metrics.get(DECIDES),
                run.metrics.get("step_mean"),
                run.metrics.get("throughput"),
                {True: "yes", False: "disturbed", None: "not known"}[run.clean],
                change_text(change) if change else None,
                visible(run.name, 80),
            )
        )
    return Table(
        id=f"{prefix}-runs",
        title="Runs",
        columns=columns,
        rows=tuple(rows),
        sorted_by=("run", True),
        empty="No run of it can be judged.",
    ).trimmed()


def _other_charts(trend: Trend, prefix: str) -> list[Block]:
    """The other metrics of the same sessions, small: they were not searched for changes."""
    caption = (
        "This and the following figures were not searched for changes: the lines mark those of "
        f"{metric_name(trend.metric)}."
    )
    blocks: list[Block] = []
    for metric in METRICS.values():
        values = [value for value in trend.series(metric.id) if math.isfinite(value)]
        if metric.id == trend.metric.id or len(values) < FEWEST_FOR_CHART or not any(values):
            continue
        chart = _chart(trend, metric.id, f"{prefix}-{metric.id}")
        blocks.append(structs.replace(chart, small=True, caption="" if blocks else caption))
    return blocks


def _left_out(trend: Trend, prefix: str) -> Table:
    return Table(
        id=f"{prefix}-left-out",
        title="Runs that cannot be judged",
        columns=(
            Column(key="name", title="Run", unit=Unit.CODE, primary=True),
            Column(key="reason", title="Why", primary=True),
        ),
        rows=tuple(
            (visible(left_out_run.name, 120), visible(left_out_run.reason, LONGEST))
            for left_out_run in trend.left_out
        ),
    )


def titles(trends: Sequence[Trend]) -> list[str]:
    """A short title each: the name, and what tells its kind of machine from others of that name."""
    titles_found = []
    for trend in trends:
        same = [other.fingerprint for other in trends if other.name == trend.name]
        differing = {
            field.name: getattr(trend.fingerprint, field.name)
            for field in dataclasses.fields(trend.fingerprint)
            if len({repr(getattr(fingerprint, field.name)) for fingerprint in same}) > 1
        }
        name = visible(trend.name, 60)
        if len(same) > 1:
            kind = fingerprint_words(type(trend.fingerprint)(**differing))
            name = f"{name}, {visible(kind, 80)}"
        titles_found.append(name)
    return titles_found
