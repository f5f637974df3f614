"""What `perfscope baseline` prints: text for reading, JSON for programs."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec

from perfscope.gate.metrics import METRICS, GateMetric
from perfscope.gate.records import RunFigures
from perfscope.gate.store import BaselineEntry
from perfscope.gate.store.entries import identity
from perfscope.messages.gate.verdict import fingerprint_words
from perfscope.messages.lists import counted
from perfscope.reports.display import visible
from perfscope.reports.gate.units import FORMS
from perfscope.units import MISSING, format_ns, format_ratio

SCHEMA_VERSION = 1
MAD_TO_DEVIATION = 1.4826  # median absolute deviation of a normal distribution to its standard deviation
_SHORT_COMMIT, _MOST_COMMITS, _LONGEST_NAME = 10, 6, 60
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricHistory:
    """One metric over the runs of an entry. `spread`: robust standard deviation as a share of the median."""

    metric: GateMetric
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float | None:
        middle = self.median
        if len(self.values) < 2 or not middle:
            return None
        away = statistics.median(abs(value - middle) for value in self.values)
        return MAD_TO_DEVIATION * away / abs(middle)


def update_lines(
    path: Path, entry: BaselineEntry, before: Sequence[RunFigures], after: Sequence[RunFigures]
) -> str:
    """What `update` says of one entry."""
    known_before = {identity(run) for run in before}
    now = {identity(run) for run in after}
    facts = [_runs(entry.num_runs), f"{len(now - known_before)} new"]
    if known_before - now:
        facts.append(f"{len(known_before - now)} dropped")
    facts.append(f"step p10 {_middle(_series(after))}")
    return (
        f"{visible(path)}: {visible(entry.name, _LONGEST_NAME)}: {', '.join(facts)}\n"
        f"  {visible(fingerprint_words(entry.fingerprint))} ({entry.key})"
    )


def list_text(path: Path, entries: Sequence[BaselineEntry]) -> str:
    """A line for each entry."""
    if not entries:
        return f"{visible(path)} keeps no runs\n"
    rows = [
        (
            visible(entry.name, _LONGEST_NAME),
            entry.key,
            _runs(entry.num_runs),
            format_ns(entry.median_step_p10),
            _date(entry.last_start_unix_ns)[:10],
            visible(fingerprint_words(entry.fingerprint)),
        )
        for entry in entries
    ]
    head = ("benchmark", "key", "runs", "step p10", "newest", "fingerprint")
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head) - 1)]
    lines = (
        "  ".join([*(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in (head, *rows)
    )
    return "\n".join(lines) + "\n"


def show_text(path: Path, entries: Sequence[tuple[BaselineEntry, Sequence[RunFigures]]]) -> str:
    """Everything about each entry."""
    if not entries:
        return f"{visible(path)} keeps no runs\n"
    return "\n".join(_entry_text(entry, runs) for entry, runs in entries)


def _entry_text(entry: BaselineEntry, runs: Sequence[RunFigures]) -> str:
    disturbed = sum(run.clean is False for run in runs)
    facts = [
        ("fingerprint", f"{visible(fingerprint_words(entry.fingerprint))} ({entry.key})"),
        ("runs", _runs(entry.num_runs) + (f", {disturbed} of them disturbed" if disturbed else "")),
        ("made", _span(entry)),
        ("hosts", ", ".join(dict.fromkeys(visible(host) for run in runs for host in run.surroundings.hosts))),
        ("commits", _commits(entry)),
    ]
    lines = [visible(entry.name), *(f"  {title:11}  {text or MISSING}" for title, text in facts), ""]
    series_list = _series(runs)
    width = max((len(series.metric.title) for series in series_list), default=0)
    for series in series_list:
        line = f"  {series.metric.title:{width}}  {_shown(series.metric, series.median):>12}"
        if len(series.values) > 1:
            low, high = (_shown(series.metric, value) for value in (min(series.values), max(series.values)))
            spread = f"±{format_ratio(series.spread)}" if series.spread is not None else ""
            line += f"  {spread:>8}  {low} to {high}"
        if len(series.values) < len(runs):
            line += f"  (of {_runs(len(series.values))})"
        lines.append(line)
    absent = [
        METRICS[id_].title for id_ in METRICS if id_ not in {series.metric.id for series in series_list}
    ]
    if absent:
        lines.append(f"  not measured: {', '.join(absent)}")
    return "\n".join(lines) + "\n"


def list_document(path: Path, entries: Sequence[BaselineEntry]) -> str:
    """The list as JSON."""
    return _json({"file": str(path), "entries": [_entry_document(entry) for entry in entries]})


def show_document(path: Path, entries: Sequence[tuple[BaselineEntry, Sequence[RunFigures]]]) -> str:
    """Everything about each entry as JSON; the runs themselves are in the file."""
    entries_shown = [
        {
            **_entry_document(entry),
            "num_disturbed": sum(run.clean is False for run in runs),
            "hosts": list(dict.fromkeys(host for run in runs for host in run.surroundings.hosts)),
            "metrics": {series.metric.id: _series_document(series) for series in _series(runs)},
            "absent": {key: text for run in runs for key, text in run.absent.items()},
            "runs": [{"name": run.name, "start_unix_ns": run.surroundings.start_unix_ns} for run in runs],
        }
        for entry, runs in entries
    ]
    return _json({"file": str(path), "entries": entries_shown})


def _entry_document(entry: BaselineEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "key": entry.key,
        "fingerprint": msgspec.to_builtins(entry.fingerprint),
        "num_runs": entry.num_runs,
        "first_start_unix_ns": entry.first_start_unix_ns,
        "last_start_unix_ns": entry.last_start_unix_ns,
        "commits": list(entry.commits),
        "median_step_p10_ns": entry.median_step_p10,
    }


def _series_document(series: MetricHistory) -> dict[str, Any]:
    return {
        "title": series.metric.title,
        "unit": series.metric.unit,
        "median": series.median,
        "spread_ratio": series.spread,
        "low": min(series.values),
        "high": max(series.values),
        "num_runs": len(series.values),
    }


def _json(document: dict[str, Any]) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **document}, indent=1, allow_nan=False) + "\n"


def _series(runs: Sequence[RunFigures]) -> list[MetricHistory]:
    """The metrics that any run has, in their order."""
    values = {id_: tuple(run.metrics[id_] for run in runs if id_ in run.metrics) for id_ in METRICS}
    return [
        MetricHistory(metric=METRICS[id_], values=values_of_metric)
        for id_, values_of_metric in values.items()
        if values_of_metric
    ]


def _middle(series_list: Sequence[MetricHistory]) -> str:
    deciding = next((series for series in series_list if series.metric.id == "step_p10"), None)
    if deciding is None:
        return MISSING
    text = format_ns(deciding.median)
    return text if deciding.spread is None else f"{text} ± {format_ratio(deciding.spread)}"


def _shown(metric: GateMetric, value: float) -> str:
    return FORMS[metric.unit].text(value) if math.isfinite(value) else MISSING


def _runs(count: int) -> str:
    return counted(count, "run")


def _span(entry: BaselineEntry) -> str:
    first, last = _date(entry.first_start_unix_ns), _date(entry.last_start_unix_ns)
    return first if first == last else f"{first} to {last}"


def _date(unix_ns: int | None) -> str:
    if unix_ns is None:
        return MISSING
    try:
        return f"{_EPOCH + timedelta(microseconds=unix_ns // 1000):%Y-%m-%d %H:%M} UTC"
    except OverflowError:  # a clock far beyond our calendar
        return MISSING


def _commits(entry: BaselineEntry) -> str:
    short = [visible(commit[:_SHORT_COMMIT]) for commit in entry.commits]
    if len(short) <= _MOST_COMMITS:
        return ", ".join(short)
    return f"{short[0]} … {', '.join(short[-_MOST_COMMITS + 2 :])} ({len(short)} in all)"
