"""OpenMetrics text, version 1.0: for a metrics store, GitLab's `artifacts:reports:metrics`, a push gateway.

Format: https://prometheus.io/docs/specs/om/open_metrics_spec/: each family has TYPE, UNIT (with which its
name ends) and HELP, its samples follow without another family's between them, and `# EOF` ends the text. In
label values and help backslash, `"` and newline are escaped. Base units: seconds, bytes, ratios, joules. What
is not known has no sample.

    perfscope_check_run_info{benchmark,version,fingerprint,commit,base,head}           info
    perfscope_check_outcome{benchmark,perfscope_check_outcome}                         stateset
    perfscope_check_exit_code{benchmark}                                               gauge
    perfscope_check_runs{benchmark,side}                                               gauge: judged runs
    perfscope_check_<metric>_<unit>{benchmark,side}                                    gauge: median over runs
    perfscope_check_state{benchmark,metric,perfscope_check_state}                      stateset
    perfscope_check_worse_ratio, _worse_low_ratio, _worse_high_ratio, _threshold_ratio {benchmark,metric}
    perfscope_check_p_value{benchmark,metric}
    perfscope_check_noise_ratio, perfscope_check_visible_ratio, perfscope_check_elapsed_seconds {benchmark}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import get_args

from perfscope import __version__
from perfscope.gate.metrics import GateMetric
from perfscope.gate.records import BASE, HEAD
from perfscope.gate.results import CheckResult, MetricVerdict, Outcome, State
from perfscope.reports.exposition import Sample, family
from perfscope.reports.gate import wording
from perfscope.reports.gate.units import FORMS

PREFIX = "perfscope_check"
_NOT_A_NAME = re.compile("[^a-zA-Z0-9_]")


def render_openmetrics(result: CheckResult) -> str:
    """The whole exposition, `# EOF` and a newline at the end."""
    return "".join(f"{line}\n" for line in (*_lines(result), "# EOF"))


def _lines(result: CheckResult) -> Iterator[str]:
    labels = {"benchmark": wording.shown(result.name)}
    wanted = [verdict for verdict in result.metrics if verdict.metric.severity != "off"]
    verdicts = tuple({verdict.metric.id: verdict for verdict in reversed(wanted)}.values())[::-1]
    run_labels = {
        "version": __version__,
        "fingerprint": wording.key_of(result.fingerprint),
        "commit": wording.shown(wording.commit_of(result)),
        "base": wording.shown(result.base.label),
        "head": wording.shown(result.head.label),
    }
    yield from _family(
        "run", "info", "", "What was checked.", [({**labels, **run_labels}, 1.0)], suffix="_info"
    )
    outcomes = [
        ({**labels, f"{PREFIX}_outcome": outcome.word}, float(outcome is result.outcome))
        for outcome in sorted(Outcome, key=_code)
    ]
    yield from _family("outcome", "stateset", "", "The verdict.", outcomes)
    yield from _gauge(
        "exit_code", "", "What perfscope check exits with.", [(labels, float(result.outcome.value))]
    )
    sides = [
        ({**labels, "side": BASE}, float(len(result.base.runs))),
        ({**labels, "side": HEAD}, float(len(result.head.runs))),
    ]
    yield from _gauge("runs", "", "Runs that were judged.", sides)
    for verdict in verdicts:
        yield from _figures(verdict, labels)
    yield from _judgements(verdicts, labels)
    noise = result.noise
    for name, unit, help_, value in (
        (
            "noise_ratio",
            "ratio",
            "Spread of the step time over runs of one side.",
            noise.spread if noise else None,
        ),
        (
            "visible_ratio",
            "ratio",
            "Smallest slow-down seen in four of five checks.",
            noise.visible if noise else None,
        ),
        ("elapsed_seconds", "seconds", "How long the measurement took.", result.elapsed_s),
    ):
        finite = wording.finite(value)
        yield from _gauge(name, unit, help_, [(labels, finite)] if finite is not None else [])


def _figures(verdict: MetricVerdict, labels: dict[str, str]) -> Iterator[str]:
    unit, factor = FORMS[verdict.metric.unit].exposition
    samples = [
        ({**labels, "side": side}, finite * factor)
        for side, value in ((BASE, verdict.base), (HEAD, verdict.head))
        if (finite := wording.finite(value)) is not None
    ]
    hint = f": {verdict.metric.hint}" if verdict.metric.hint else ""
    help_ = f"{verdict.metric.title}, median over runs{hint}."
    yield from _gauge(f"{_name(verdict.metric)}_{unit}", unit, help_, samples)


def _judgements(verdicts: Sequence[MetricVerdict], labels: dict[str, str]) -> Iterator[str]:
    states = [
        ({**labels, "metric": _name(verdict.metric), f"{PREFIX}_state": state}, float(state == verdict.state))
        for verdict in verdicts
        for state in get_args(State)
    ]
    yield from _family("state", "stateset", "", "The verdict on each metric.", states)
    wanted: tuple[tuple[str, str, str, Callable[[MetricVerdict], float | None]], ...] = (
        ("worse_ratio", "ratio", "Share by which head is worse than base.", lambda verdict: verdict.worse),
        ("worse_low_ratio", "ratio", "Lower end of its 95 % interval.", lambda verdict: verdict.low),
        ("worse_high_ratio", "ratio", "Upper end of its 95 % interval.", lambda verdict: verdict.high),
        ("threshold_ratio", "ratio", "From when on it counts.", lambda verdict: verdict.metric.threshold),
        ("p_value", "", "One-sided p value that head is worse.", lambda verdict: verdict.p),
    )
    for name, unit, help_, of in wanted:
        finite = [(verdict, wording.finite(of(verdict))) for verdict in verdicts]
        samples = [
            ({**labels, "metric": _name(verdict.metric)}, value)
            for verdict, value in finite
            if value is not None
        ]
        yield from _gauge(name, unit, help_, samples)


def _gauge(name: str, unit: str, help_: str, samples: Sequence[Sample]) -> Iterator[str]:
    yield from _family(name, "gauge", unit, help_, samples)


def _family(
    name: str, type_: str, unit: str, help_: str, samples: Sequence[Sample], suffix: str = ""
) -> Iterator[str]:
    help_text = wording.shown(help_, wording.SENTENCE)
    yield from family(f"{PREFIX}_{name}", type_, unit, help_text, samples, suffix)


def _name(metric: GateMetric) -> str:
    return _NOT_A_NAME.sub("_", metric.id)


def _code(outcome: Outcome) -> int:
    return outcome.value
