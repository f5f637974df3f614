"""The JSON of a history, in base units. Missing figures are null, never NaN and never 0.

Fields are only ever added within a `schema_version`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from perfscope import __version__
from perfscope.gate.records import RunFigures
from perfscope.gate.trend import Change, Trend
from perfscope.reports.document import without_nan
from perfscope.reports.gate_history.words import headline
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
        "latest_is_worse": trend.latest_is_worse,
        "lacking": trend.search.lacking,
        "reason": trend.search.reason,
        "changes": [_change(change) for change in trend.changes],
        "runs": [
            _run(run, value, dict(parts))
            for run, value, parts in zip(trend.runs, trend.values, trend.parts, strict=True)
        ],
        "left_out": [{"name": one.name, "reason": one.reason} for one in trend.left_out],
    }


def _change(change: Change) -> Json:
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
        "explanation": plain(change.explanation),
    }


def _run(run: RunFigures, value: float, parts: dict[str, float]) -> Json:
    around = run.surroundings
    return {
        "name": run.name,
        "start_unix_ns": around.start_unix_ns,
        "commit": around.commit,
        "dirty": around.dirty,
        "clean": run.clean,
        "clean_reason": run.clean_reason,
        "num_steps": run.num_steps,
        "value": value,
        "metrics": dict(run.metrics),
        "parts_ns": parts,
    }
