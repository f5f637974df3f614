"""Bencher Metric Format: `bencher run --adapter json --file FILE`.

Format: https://bencher.dev/docs/reference/bencher-metric-format, its schema https://bencher.dev/bmf.json:
{benchmark: {measure: {"value": number, "lower_value": number, "upper_value": number}}}; the bounds are
optional. Names of benchmarks have at most 1,024 characters, of measures 64; neither may be empty.

Given are the head's medians, bounded by the 95 % interval of the center of its runs (left out of fewer than
five runs). BMF has no units, so they are fixed here. `latency` (ns) and `throughput` (operations/s) are
Bencher's own measures; the others come into being when first sent:

    latency                step_p10: tenth percentile of the step times, ns
    throughput             samples/s
    step-mean, input-wait, exposed-communication      ns per step
    stalls                 ratio
    peak-memory, peak-device-memory                   bytes
    energy                 joules per step

A check without figures is `{}`.
"""

from __future__ import annotations

from perfscope.gate.results import CheckResult
from perfscope.reports.gate.document import json_text
from perfscope.reports.gate.side_figures import head_figures
from perfscope.reports.gate.wording import shown

MEASURES = {"step_p10": "latency", "exposed_comm": "exposed-communication"}
LONGEST_BENCHMARK, LONGEST_MEASURE = 1024, 64


def render_bmf(result: CheckResult) -> str:
    """The head's figures as BMF JSON with a newline at the end."""
    measures: dict[str, dict[str, float]] = {}
    for figure in head_figures(result):
        metric = {"value": figure.value}
        if figure.low is not None and figure.high is not None:
            metric |= {"lower_value": figure.low, "upper_value": figure.high}
        measures[measure(figure.metric.id)] = metric
    name = shown(result.name).strip()[:LONGEST_BENCHMARK] or "check"
    return json_text({name: measures} if measures else {})


def measure(metric: str) -> str:
    """Bencher's name of a metric."""
    return MEASURES.get(metric, shown(metric).replace("_", "-"))[:LONGEST_MEASURE]
