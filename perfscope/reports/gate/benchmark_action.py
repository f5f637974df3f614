"""The array that github-action-benchmark reads as `tool: customSmallerIsBetter`.

Format: https://github.com/benchmark-action/github-action-benchmark#readme, "Custom benchmarks": an array of
{"name", "unit", "value", "range", "extra"}, the last two optional. `range` must be a plain number after "±
".

The action calls a value worse by the ratio of the new one to the old one, and all values of one array must
be better when smaller. Hence:

- throughput is given as the time per sample, its inverse: the same information, smaller is better, and the
  ratio that the action computes is the one perfscope computes for rates.
- metrics whose threshold is a share of the step (input wait, exposed communication, stalls) are left out as
  entries: the ratio of two small waits alarms where nothing is lost. They are named in `extra` of the step
  time.

Units stay the same from run to run, as the action's charts need: ms for times, µs per sample, MiB, joules.
`range` is half of the 95 % interval of the head's center.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.gate.metrics import DECIDES
from perfscope.gate.results import CheckResult
from perfscope.reports.gate import wording
from perfscope.reports.gate.document import Json, json_text
from perfscope.reports.gate.side_figures import HeadFigure, head_figures
from perfscope.reports.gate.units import FORMS

_PER_SAMPLE = (1e6, "µs")  # microseconds in a second


def render_benchmark_action(result: CheckResult) -> str:
    """The head's figures as a JSON array with a newline at the end; `[]` where nothing was measured."""
    return json_text(list(_entries(result)))


def _entries(result: CheckResult) -> Iterator[Json]:
    name = wording.shown(result.name).strip() or "check"
    beside = [figure for figure in head_figures(result) if figure.metric.scale == "step"]
    for figure in head_figures(result):
        if figure.metric.scale == "step":
            continue
        entry = _inverse(name, figure) if figure.metric.better == "higher" else _as_it_is(name, figure)
        if entry is not None:
            yield {**entry, "extra": _extra(result, figure, beside)}


def _as_it_is(name: str, figure: HeadFigure) -> Json:
    size, unit = FORMS[figure.metric.unit].chart
    return {
        "name": f"{name}: {wording.shown(figure.metric.title)}",
        "unit": unit,
        "value": figure.value / size,
        **_range(figure.low, figure.high, 1 / size),
    }


def _inverse(name: str, figure: HeadFigure) -> Json | None:
    """The time that one sample takes; None of a rate of zero."""
    if figure.value <= 0:
        return None
    per, unit = _PER_SAMPLE
    value = wording.finite(per / figure.value)
    if value is None:
        return None
    has_interval = figure.low is not None and figure.high is not None and figure.low > 0
    low, high = (
        (per / figure.high, per / figure.low) if has_interval and figure.low and figure.high else (None, None)
    )
    return {
        "name": f"{name}: Time per sample (inverse of {wording.shown(figure.metric.title).lower()})",
        "unit": unit,
        "value": value,
        **_range(low, high, 1.0),
    }


def _range(low: float | None, high: float | None, factor: float) -> Json:
    if low is None or high is None or wording.finite(high - low) is None:
        return {}
    return {"range": f"± {(high - low) * factor / 2:.6f}"}


def _extra(result: CheckResult, figure: HeadFigure, beside: list[HeadFigure]) -> str:
    verdict = figure.verdict
    lines = [wording.verdict_line(result)] if figure.metric.id == DECIDES else []
    lines.append(
        f"against {wording.shown(result.base.label)}: worse by {wording.share(verdict.worse)}, 95 % interval "
        f"{wording.interval(verdict.low, verdict.high)}, {wording.state_words(verdict)}"
    )
    if figure.metric.id == DECIDES:
        lines += [
            f"{wording.shown(other.metric.title)}: {wording.figure(other.metric.unit, other.value)}"
            for other in beside
        ]
    commit = wording.commit_of(result)
    return "\n".join([*lines, f"commit {wording.shown(commit)}"] if commit else lines)
