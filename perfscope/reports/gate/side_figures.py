"""The head's figures of a check, for services that keep a series of values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfscope.gate.metrics import GateMetric
from perfscope.gate.results import CheckResult, MetricVerdict
from perfscope.gate.statistics import walsh_interval
from perfscope.reports.gate.wording import finite

FEWEST = 5  # runs below which no interval deserves the name


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFigure:
    """One metric of the head.

    Attributes:
        value: median over the head's runs, in the metric's unit.
        low, high: 95 % interval of the center of the runs (Walsh averages; 93.75 % of five runs); None of
            fewer.
    """

    metric: GateMetric
    verdict: MetricVerdict
    value: float
    low: float | None = None
    high: float | None = None


def head_figures(result: CheckResult) -> Iterator[HeadFigure]:
    """Each metric that is known of the head and not switched off, once."""
    seen = set()
    for verdict in result.metrics:
        metric, value = verdict.metric, finite(verdict.head)
        if value is None or metric.severity == "off" or metric.id in seen:
            continue
        seen.add(metric.id)
        recorded = [run.metrics[metric.id] for run in result.head.runs if metric.id in run.metrics]
        values = [number for number in recorded if finite(number) is not None]
        bounds = walsh_interval(values) if len(values) >= FEWEST else None
        low, high = bounds if bounds is not None else (None, None)
        if finite(low) is None or finite(high) is None:
            low = high = None
        yield HeadFigure(
            metric=metric,
            verdict=verdict,
            value=value,
            low=None if low is None else min(low, value),
            high=None if high is None else max(high, value),
        )
