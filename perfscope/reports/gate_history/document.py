"""The JSON of a history, in base units. Missing figures are null, never NaN and never 0.

Fields are only ever added within a `schema_version`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from perfscope import __version__
from perfscope.gate.records import RunFigures
from perfscope.gate.trend import LevelChange, Session, Trend, parts_of
from perfscope.reports.document import without_nan
from perfscope.reports.gate_history.wording import headline
from perfscope.reports.study.document import plain

HISTORY_SCHEMA_VERSION = 1

Json = dict[str, object]


def build_history_document(trends: Sequence[Trend], source: str) -> Json:
    """The history as JSON-ready data: str, int, finite float, bool, None, list and dict only."""
    document = {
        "schema_version": HISTORY_SCHEMA_VERSION,
        "kind": "history",
        "perfscope_version": __version__,
        "file": source,
        "series": [_series(trend) for trend in trends],
    }
    finite = without_nan(document)
    assert isinstance(finite, dict)
    return finite


def _series(trend: Trend) -> Json:
    return {
        "name": trend.name,
        "key": trend.fingerprint.key,
        "fingerprint": plain(trend.fingerprint),
        "metric": trend.metric.id,
        "unit": trend.metric.unit,
        "better": trend.metric.better,
        "headline": headline(trend),
        "threshold": trend.metric.threshold,
        "latest_is_worse": trend.latest_is_worse,
        "newest": trend.newest,
        "failing": trend.changes.index(trend.failing) if trend.failing else None,
        "lacking": trend.search.lacking,
        "reason": trend.search.reason,
        "changes": [_change(change) for change in trend.changes],
        "sessions": [
            _session(session, value, dict(parts))
            for session, value, parts in zip(trend.sessions, trend.values, trend.parts, strict=True)
        ],
        "runs": [
            _run(run, trend.metric.id, number)
            for number, session in enumerate(trend.sessions)
            for run in session.runs
        ],
        "left_out": [
            {"name": left_out_run.name, "reason": left_out_run.reason} for left_out_run in trend.left_out
        ],
    }


def _change(change: LevelChange) -> Json:
    worse = change.worse
    return {
        **{field.name: getattr(change.point, field.name) for field in dataclasses.fields(change.point)},
        "commit_before": change.before.surroundings.commit,
        "commit_after": change.after.surroundings.commit,
        "run_before": change.before.name,
        "run_after": change.after.name,
        "start_unix_ns": change.after.surroundings.start_unix_ns,
        "worse": worse if worse is not None and math.isfinite(worse) else None,
        "is_worse": change.is_worse,
        "is_beyond": change.is_beyond,
        "explanation": plain(change.explanation),
    }


def _session(session: Session, value: float, parts: dict[str, float]) -> Json:
    """`first_run` counts the series' runs from 0, as `index`, `first` and `end` of changes count sessions."""
    around = session.runs[0].surroundings
    return {
        "first_run": session.first,
        "num_runs": len(session.runs),
        "num_counted": len(session.counted),
        "disturbed": session.is_disturbed,
        "start_unix_ns": around.start_unix_ns,
        "commit": around.commit,
        "value": value,
        "parts_ns": parts,
    }


def _run(run: RunFigures, metric_id: str, session: int) -> Json:
    around = run.surroundings
    return {
        "name": run.name,
        "session": session,
        "start_unix_ns": around.start_unix_ns,
        "commit": around.commit,
        "dirty": around.dirty,
        "clean": run.clean,
        "clean_reason": run.clean_reason,
        "num_steps": run.num_steps,
        "value": run.metrics.get(metric_id),
        "metrics": dict(run.metrics),
        "parts_ns": dict(parts_of(run)),
    }
