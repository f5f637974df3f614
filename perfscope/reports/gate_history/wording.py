"""Sentences of a history, and how its figures look."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence

from perfscope import units
from perfscope.gate.changepoints import FEWEST_POINTS
from perfscope.gate.metrics import GateMetric
from perfscope.gate.records import RunFigures
from perfscope.gate.results import Difference, Moved
from perfscope.gate.trend import LevelChange, Trend, short_commit
from perfscope.messages.gate.explanation import PARTS
from perfscope.messages.lists import counted, first_of
from perfscope.messages.sentences import capital, clause, in_sentence
from perfscope.reports.display import visible
from perfscope.reports.gate.units import FORMS
from perfscope.reports.values import Unit, format_alone

LONGEST = 600
NO_BREAK = "\u00a0"
_NAMES = {"step_p10": "step time", "step_mean": "mean step time"}  # in a sentence; others: their titles


def unit_of(metric: GateMetric) -> Unit:
    return FORMS[metric.unit].column


def metric_name(metric: GateMetric) -> str:
    """ "step time", as in a sentence."""
    return _NAMES.get(metric.id, in_sentence(metric.title))


def value_text(metric: GateMetric, value: float | None) -> str:
    return format_alone(unit_of(metric), value)


def change_text(change: LevelChange) -> str:
    """ "+8.2 %", of the metric itself; "from 0" where there is nothing to divide by."""
    share = change.point.change
    return "from 0" if share is None else units.format_change(share).replace(" ", NO_BREAK)


def threshold_text(metric: GateMetric) -> str:
    """ "5 %", of which where it is not the figure itself."""
    return f"{100 * metric.threshold:g}{NO_BREAK}%" + (" of the step" if metric.scale == "step" else "")


def direction_text(change: LevelChange) -> str:
    """ "worse", and whether that is little."""
    direction = "worse" if change.is_worse else "better"
    return direction if change.is_beyond else f"{direction}, below the threshold"


def interval_text(change: LevelChange) -> str:
    low, high = change.point.low, change.point.high
    if low is None or high is None:
        return ""
    first = units.format_change(low).removesuffix(" %")
    return f"{first} to {units.format_change(high)}".replace(" %", f"{NO_BREAK}%")


def moment(start_unix_ns: int | None) -> datetime.datetime | None:
    """UTC; None where it is not known, or no calendar has it."""
    if start_unix_ns is None:
        return None
    try:
        return datetime.datetime.fromtimestamp(start_unix_ns // 10**9, tz=datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None


def day(run: RunFigures, *, year: bool = True) -> str:
    """ "3 Nov 2026", or ""."""
    at = moment(run.surroundings.start_unix_ns)
    if at is None:
        return ""
    return f"{at.day} {at:%b}{f' {at.year}' if year else ''}"


def commit_of(run: RunFigures) -> str:
    """The run's commit as people write it, "+" where files differed from it; "" without one."""
    around = run.surroundings
    commit = visible(short_commit(around.commit), 24)
    return f"{commit}+" if commit and around.dirty else commit


def between(change: LevelChange) -> str:
    """ "between a1b2c3d and e4f5a6b (3 Nov 2026)"."""
    date = day(change.after)
    return visible(change.between, 120) + (f" ({date})" if date else "")


def headline(trend: Trend) -> str:
    """What a reader must know of this series, in one sentence."""
    name = metric_name(trend.metric)
    if trend.search.lacking:
        num_points = trend.search.num_points
        return (
            f"Too few sessions to detect a change of {name} from noise: {FEWEST_POINTS} sessions are needed, "
            f"there {'is' if num_points == 1 else 'are'} {num_points}{_disturbed(trend)}"
        )
    change = trend.reported
    if change is None:
        typical = value_text(trend.metric, _median(trend.current))
        return f"No change of {name} in {trend.search.num_points:,} sessions: it stays around {typical}"
    verb = "rose" if change.point.after > change.point.before else "fell"
    by = change_text(change).lstrip("+−") if change.point.change is not None else ""
    by = by and f" by {by}"
    sentence = f"{capital(name)} {verb}{by} {between(change)}"
    if not change.is_beyond:
        sentence += f", below the threshold of {threshold_text(trend.metric)}"
    moved = _moved_words(change)
    return f"{sentence}; {moved}" if moved else sentence


def _disturbed(trend: Trend) -> str:
    count = trend.num_disturbed
    return f" ({count:,} disturbed one{'s do' if count != 1 else ' does'} not count)" if count else ""


def _moved_words(change: LevelChange) -> str:
    part = change.moved
    return f"{PARTS[part.what].lower()} of the step moved" if part is not None and part.what in PARTS else ""


def detail(trend: Trend) -> str:
    """From what to what, over how many sessions, and how sure."""
    change = trend.reported
    if trend.search.lacking:
        return ""
    if change is None:
        return f"{capital(trend.search.reason)}." if trend.search.reason else ""
    point = change.point
    old, new = (value_text(trend.metric, value) for value in (point.before, point.after))
    num_old, num_new = point.index - point.first, point.end - point.index
    sentences = [f"From {old} ({num_old:,} sessions) to {new} ({num_new:,} sessions)"]
    interval = interval_text(change)
    sentences[0] += f", 95{NO_BREAK}% interval {interval}." if interval else "."
    if change.moved is not None:
        sentences.append(f"{part_text(change.moved)}.")
    num_more = len(trend.changes) - 1
    if num_more:
        sentences.append(f"{counted(num_more, 'other change')}: see the table.")
    return " ".join(sentences)


def part_text(part: Moved) -> str:
    """ "Computation +2.25 ms (1.07 to 3.41 ms)"."""
    return f"{part.title} {signed_ns(part.change_ns)} ({signed_ns(part.low_ns)} to {signed_ns(part.high_ns)})"


def signed_ns(value: float) -> str:
    text = units.format_ns(value).replace("-", "−")
    return f"+{text}" if value > 0 else text


def action(trend: Trend) -> str:
    """What to do next; "" where nothing is to be done."""
    if trend.search.lacking:
        return "Add runs with `perfscope history add FILE RUN...`, one for each commit or night."
    change = trend.reported
    if change is None or not (change.is_worse and change.is_beyond):
        return ""
    weighty = [difference for difference in around(change) if difference.weighty]
    if weighty:
        changed = first_of((clause(visible(difference.text, 160)) for difference in weighty), 1)
        return f"First look at what else changed there: {changed}."
    if change.same_commit:
        return "Both levels are of one commit: look for the cause around the code, not in it."
    old, new = (short_commit(run.surroundings.commit) for run in (change.before, change.after))
    if old and new and old != new and set(old + new) <= set("0123456789abcdef"):
        return f"Look at what was committed there: `git log --oneline {old}..{new}`."
    return "Look at what was changed between these two sessions."


def around(change: LevelChange) -> Sequence[Difference]:
    """What differed there, but for the commit: that one is expected to."""
    return [difference for difference in change.explanation.surroundings if difference.what != "commit"]


def _median(values: Sequence[float]) -> float | None:
    finite = sorted(value for value in values if math.isfinite(value))
    if not finite:
        return None
    middle = len(finite) // 2
    return finite[middle] if len(finite) % 2 else (finite[middle - 1] + finite[middle]) / 2
