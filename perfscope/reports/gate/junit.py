"""JUnit XML: a testsuite for the benchmark, a testcase for each metric.

There is no standard; this satisfies both schemas that readers go by: Apache Ant's, as Windy Road wrote it
down (https://github.com/windyroad/JUnit-Schema), and that of Jenkins' xUnit plugin (junit-10.xsd). Ant's is
the narrower one: a testcase holds one result and no output of its own, so what is stated of metrics that only
warn is in the suite's system-out, with the whole text of the check.

The suite is green exactly when the check's exit code is 0:

- regression: a `failure`, with the explanation, at each metric that makes it one;
- inconclusive, no baseline, failed: an `error` at metrics of severity error that are unknown, or worse all
  the same;
- a metric of severity warn never fails: what is worse is a success, reported in system-out; what is unknown
  is `skipped`;
- an outcome that no metric accounts for has a testcase of its own, `check`.

The testcase of the step time carries the time of the whole measurement, so that the suite's time is the sum
of its cases; the others take none. Properties: outcome, exit_code, fingerprint, commit, base, head.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite
from junitparser.junitparser import SystemErr, SystemOut

from perfscope.gate.metrics import DECIDES
from perfscope.gate.results import CheckResult, MetricVerdict, Outcome
from perfscope.reports.gate import wording
from perfscope.reports.gate.text import render_check

WIDTH = 100
LONGEST_SECONDS = 1e9  # keeps the figure a plain decimal, as the schemas want it
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def render_junit(result: CheckResult) -> str:
    """The document with its XML declaration; the text is ASCII but for what names hold."""
    suite = TestSuite(_token(result.name) or "check")
    for name, value in _properties(result):
        suite.add_property(name, _xml(value))
    cases = [_case(result, verdict) for verdict in wording.judged(result)]
    if not _accounts_for(result, cases):
        cases.append(_own_case(result))
    _explain_first(cases, result)
    suite.add_testcases(cases)
    log = SystemOut(_xml(render_check(result, width=WIDTH, color=False)))
    suite.append(log)  # type: ignore[no-untyped-call]
    suite.append(SystemErr(""))  # type: ignore[no-untyped-call]
    suite.hostname = _host(result)
    suite.timestamp = _started(result)
    element = suite._elem
    element.set("package", "perfscope.check")
    element.set("id", "0")
    root = JUnitXml()
    root.add_testsuite(suite)
    text = root.tostring().decode("utf-8")  # type: ignore[no-untyped-call]
    body = text.partition("?>")[2].lstrip() if text.startswith("<?xml") else text
    # A CI runner would take a command out of a log that this is printed on.
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'.replace("##[", "#&#35;[")


def _properties(result: CheckResult) -> list[tuple[str, str]]:
    return [
        ("outcome", result.outcome.word),
        ("exit_code", str(result.outcome.value)),
        ("fingerprint", wording.key_of(result.fingerprint)),
        ("commit", wording.shown(wording.commit_of(result))),
        ("base", wording.shown(result.base.label)),
        ("head", wording.shown(result.head.label)),
    ]


def _case(result: CheckResult, verdict: MetricVerdict) -> TestCase:
    elapsed = wording.finite(result.elapsed_s) if verdict.metric.id == DECIDES else None
    case = TestCase(_token(verdict.metric.id) or "metric", _class(result))
    case.time = round(min(max(elapsed or 0.0, 0.0), LONGEST_SECONDS), 3)
    kept = _result_of(result, verdict)
    if kept is not None:
        case.result = kept
    return case


def _result_of(result: CheckResult, verdict: MetricVerdict) -> Failure | Error | Skipped | None:
    text = _about(verdict)
    if verdict.metric.severity == "error" and result.outcome is not Outcome.PASS:
        if result.outcome is Outcome.REGRESSION and verdict.fails:
            return Failure(_xml(text), "regression")
        undecided = verdict.state == "unknown" or (
            result.outcome is not Outcome.REGRESSION and verdict.state in ("worse", "unproven")
        )
        return Error(_xml(text), result.outcome.word) if undecided else None
    return Skipped(_xml(text)) if verdict.state == "unknown" else None


def _own_case(result: CheckResult) -> TestCase:
    case = TestCase("check", _class(result))
    case.time = 0.0
    if result.outcome is not Outcome.PASS:
        kind = Failure if result.outcome is Outcome.REGRESSION else Error
        case.result = kind(_xml(wording.verdict_line(result)), result.outcome.word)
    return case


def _accounts_for(result: CheckResult, cases: list[TestCase]) -> bool:
    if result.outcome is Outcome.PASS:
        return bool(cases)
    wanted = Failure if result.outcome is Outcome.REGRESSION else Error
    return any(isinstance(kept, wanted) for case in cases for kept in case.result)


def _explain_first(cases: list[TestCase], result: CheckResult) -> None:
    """Gives the first failed case the verdict and its cause as text, and points the others to it."""
    failed = [case for case in cases if any(isinstance(kept, Failure | Error) for kept in case.result)]
    for case in failed[1:]:
        case.result[0].text = _xml(f"The verdict and its cause are at {failed[0].name}.")
    if not failed:
        return
    lines = [wording.verdict_line(result), *wording.reasons_of(result)]
    explanation = wording.tells(result)
    if explanation is not None:
        lines += [
            wording.sentence(explanation.headline),
            *wording.weighty(result),
            wording.sentence(explanation.action),
        ]
    failed[0].result[0].text = _xml("\n".join(wording.inert(line) for line in lines if line))


def _about(verdict: MetricVerdict) -> str:
    """``Step time, p10: worse, +10.3 % (26.1 ms → 28.8 ms, 95 % interval …)``."""
    title, state = wording.shown(verdict.metric.title), wording.STATE[verdict.state]
    if wording.finite(verdict.worse) is None:
        reason = wording.sentence(verdict.reason)
        return f"{title}: {state}{f': {reason}' if reason else ''}"
    unit = verdict.metric.unit
    sides = f"{wording.figure(unit, verdict.base)} → {wording.figure(unit, verdict.head)}"
    between = f"95 % interval {wording.interval(verdict.low, verdict.high)}"
    return f"{title}: {state}, {wording.share(verdict.worse)} ({sides}, {between})"


def _class(result: CheckResult) -> str:
    # Readers cut packages at dots: a file name must not become two of them.
    return f"perfscope.check.{_token(result.name).replace('.', '_') or 'check'}"


def _host(result: CheckResult) -> str:
    hosts = [host for run in result.head.runs for host in run.surroundings.hosts]
    return (_token(hosts[0]) if hosts else "") or "localhost"


def _started(result: CheckResult) -> str:
    """When the first run began, UTC; now where no run says so. No fraction, no zone: the schema's form."""
    starts = [
        run.surroundings.start_unix_ns
        for side in (result.base, result.head)
        for run in side.runs
        if run.surroundings.start_unix_ns is not None
    ]
    when = datetime.now(timezone.utc)
    if starts:
        try:
            when = _EPOCH + timedelta(microseconds=min(starts) / 1000)
        except OverflowError:  # no year has such a number: a damaged run.json
            when = _EPOCH
    return when.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")


def _token(text: str) -> str:
    """For attributes of type xs:token: no spaces around or doubled."""
    return " ".join(_xml(wording.shown(text)).split())


def _xml(text: str) -> str:
    """`text` without what XML 1.0 has no way to write."""
    return _NOT_XML.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
