"""Turns the trends of a history into the one Report that every renderer draws: the verdict first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from perfscope import __version__, units
from perfscope.gate.statistics import robust_spread
from perfscope.gate.trend import Trend
from perfscope.messages.lists import counted
from perfscope.reports.display import visible
from perfscope.reports.gate_history.document import build_history_document
from perfscope.reports.gate_history.sections import history_section, titles
from perfscope.reports.gate_history.wording import (
    LONGEST,
    action,
    change_text,
    commit_of,
    day,
    detail,
    headline,
    value_text,
)
from perfscope.reports.model import KeyFigure, Note, Report, Verdict


def build_history_report(trends: Sequence[Trend], source: str) -> Report:
    """The report of a history.

    Args:
        trends: its series, the one with the newest run first (gate.trend.trends).
        source: the file, as the user named it.
    """
    leading = _leading(trends)
    named = titles(trends)
    return Report(
        title=f"History of {visible(leading.name, 80)}" if leading else "History",
        subtitle=visible(source, LONGEST),
        verdict=_verdict(leading),
        overview=None,
        figures=tuple(_figures(leading)) if leading else (),
        sections=tuple(
            history_section(trend, number, title)
            for number, (trend, title) in enumerate(zip(trends, named, strict=True), 1)
        ),
        document=build_history_document(trends, source),
        version=__version__,
        notices=tuple(_notices(trends, named, leading)),
    )


def _leading(trends: Sequence[Trend]) -> Trend | None:
    """The series that the verdict is about: one that became worse, else one with changes, else the newest."""
    return min(
        trends,
        key=lambda trend: (
            trend.failing is None,
            not trend.latest_is_regression,
            not trend.changes,
            bool(trend.search.lacking),
        ),
        default=None,
    )


def _verdict(trend: Trend | None) -> Verdict:
    if trend is None:
        return Verdict(
            headline="There are no runs in this history.",
            detail="",
            action="Add runs with `perfscope history add FILE RUN...`.",
            tone="plain",
        )
    tone = "plain"
    if trend.reported is not None:
        if trend.reported.is_beyond:
            tone = "caution" if trend.reported.is_worse else "good"
    elif not trend.search.lacking:
        tone = "good"
    return Verdict(
        headline=f"{visible(headline(trend), LONGEST)}.",
        detail=visible(detail(trend), LONGEST),
        action=visible(action(trend), LONGEST),
        tone=tone,
    )


def _notices(trends: Sequence[Trend], named: Sequence[str], leading: Trend | None) -> Iterator[Note]:
    """Other series that became worse."""
    for trend, title in zip(trends, named, strict=True):
        if trend is not leading and (trend.failing or trend.latest_is_regression):
            yield Note(text=f"{title}: {visible(headline(trend), LONGEST)}.", tone="caution")


def _figures(trend: Trend) -> Iterator[KeyFigure]:
    current = trend.current
    if current:
        level = float(np.median(current))
        yield KeyFigure(
            id="level",
            title=f"{trend.metric.title} now",
            value=value_text(trend.metric, level),
            note=f"median of {counted(len(current), 'session')}",
        )
    if trend.latest is not None:
        yield KeyFigure(
            id="change",
            title="Last change",
            value=change_text(trend.latest),
            note=", ".join(filter(None, (commit_of(trend.latest.after), day(trend.latest.after)))),
        )
    lacking = trend.search.lacking
    yield KeyFigure(
        id="changes",
        title="Changes of level",
        value=units.MISSING if lacking else f"{len(trend.changes):,} found",
        note=f"searched from {counted(lacking, 'more session')} on" if lacking else trend.search.reason,
    )
    if len(current) >= 5 and min(current) > 0:
        spread = robust_spread(np.log(current))
        yield KeyFigure(
            id="noise",
            title="Sessions differ by",
            value=units.format_ratio(math.expm1(spread)),
            note="standard deviation within the newest level",
        )
    days = [text for text in (day(run) for run in (trend.runs[:1] + trend.runs[-1:])) if text]
    num_runs = [f"{len(trend.runs):,} runs"] if len(trend.runs) > len(trend.sessions) else []
    yield KeyFigure(
        id="runs",
        title="Sessions",
        value=f"{len(trend.sessions):,}",
        note=", ".join([*num_runs, *filter(None, [" to ".join(dict.fromkeys(days))])]),
    )
