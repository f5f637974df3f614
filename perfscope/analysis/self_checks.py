"""Figures of one report that must agree, whatever was recorded. One that does not is a bug in perfscope.

Each check is a generator of pairs over the typed results: what it is of, the figure, what that must equal
(`_equal`) or not exceed (`_within`), and how far they may be apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis.critical.results import shares_by_kind
from perfscope.analysis.packed import read_as
from perfscope.analysis.results import Breakdown, Communication, Finding, RunAnalysis
from perfscope.analysis.self_check_results import Contradiction, SelfCheck
from perfscope.messages.findings.self_checks import ContradictedFigures
from perfscope.messages.findings.step import ThreadBlocked
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.findings import COMMUNICATION, GAPS, FindingKind
from perfscope.vocabulary.self_checks import BESIDE_THE_VERDICT, Check

_RATIO = 0.02  # by which shares from different selections of events may differ
_NO_IDLE = 0.02  # of the step: a device that idles for less is always busy
_CAUSE = 0.15  # of the step, by which a replayed saving may exceed the mean rank's gaps: ranks differ
_HALF = 0.5
_PATH_GAPS = ("host", "launch", "idle", "input")
MOST_FAILURES = 20  # of one check that are listed


class _Pair(NamedTuple):
    of: str
    actual: float
    expected: float
    tolerance: float = 0.0
    exact: bool = True  # False: no more than expected

    @property
    def agrees(self) -> bool:
        excess = self.actual - self.expected
        return abs(excess) <= self.tolerance if self.exact else excess <= self.tolerance


def self_checks(analysis: RunAnalysis) -> tuple[SelfCheck, ...]:
    """All checks for which the report has figures."""
    results = []
    for check, pairs_of in _CHECKS.items():
        pairs = list(pairs_of(analysis))
        failures = [
            Contradiction(of=pair.of, actual=pair.actual, expected=pair.expected)
            for pair in pairs
            if not pair.agrees
        ]
        if pairs:
            results.append(
                SelfCheck(
                    check=check,
                    ok=not failures,
                    num_checked=len(pairs),
                    failures=tuple(failures[:MOST_FAILURES]),
                )
            )
    return tuple(results)


def with_self_checks(analysis: RunAnalysis) -> RunAnalysis:
    """The results with their checks; a failed one is a finding, in place of a verdict that rests on it."""
    checks = self_checks(analysis)
    failed = [check for check in checks if not check.ok]
    if not failed:
        return replace(analysis, self_checks=checks)
    finding = Finding(
        id=FindingKind.SELF_CHECK_FAILED,
        facts=ContradictedFigures(
            checks=tuple(
                (check.check, check.failures[0].of, check.failures[0].actual, check.failures[0].expected)
                for check in failed
            )
        ),
    )
    if all(check.check in BESIDE_THE_VERDICT for check in failed):
        return replace(analysis, self_checks=checks, findings=(*analysis.findings, finding))
    return replace(analysis, self_checks=checks, findings=(finding, *_others(analysis.findings)))


def _others(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Without the verdict; its symptoms stand for themselves."""
    if not findings:
        return ()
    verdict, *remaining = findings
    return tuple(
        replace(finding, symptom_of=None) if finding.symptom_of is verdict.id else finding
        for finding in remaining
    )


# -- sums ------------------------------------------------------------------------------------------------


def _breakdown_sum(analysis: RunAnalysis) -> Iterator[_Pair]:
    for rank in analysis.ranks:
        if rank.breakdown_ns is not None:
            parts = sum(getattr(rank.breakdown_ns, part) for part in Breakdown.PARTS)
            yield _Pair(f"rank {rank.rank}", parts, rank.breakdown_ns.step)


def _device_sum(analysis: RunAnalysis) -> Iterator[_Pair]:
    for rank in analysis.ranks:
        device = rank.device_ns
        if device is not None:
            busy = device.compute + device.exposed_comm + device.copy
            waits = device.idle_host_wait + device.idle_kernel_wait + device.idle_other
            yield _Pair(f"rank {rank.rank}", busy + device.idle, device.span)
            yield _Pair(f"rank {rank.rank}", waits, device.idle)


def _device_idle_sum(analysis: RunAnalysis) -> Iterator[_Pair]:
    for rank in analysis.ranks:
        if rank.device_idle is not None and rank.device_ns is not None:
            yield _Pair(f"rank {rank.rank}", sum(part.ns for part in rank.device_idle), rank.device_ns.idle)


def _device_idle_step(analysis: RunAnalysis) -> Iterator[_Pair]:
    if analysis.breakdown_of != "file":
        return
    for rank in analysis.ranks:
        breakdown, device = rank.breakdown_ns, rank.device_ns
        if breakdown is not None and device is not None and breakdown.step and device.span:
            idle = breakdown.idle / breakdown.step
            yield _Pair(f"rank {rank.rank}", idle, device.idle / device.span, _RATIO, exact=False)


class _Exposed(Struct):
    """What is needed here of CommByLayer."""

    exposed_ns: int


def _comm_by_layer_sum(analysis: RunAnalysis) -> Iterator[_Pair]:
    for of, communication in _communications(analysis):
        layers = sum([entry.exposed_ns for entry in read_as(_Exposed, communication.by_layer)])
        unattributed_ns = sum(entry.exposed_ns for entry in communication.unattributed)
        yield _Pair(of, layers + unattributed_ns, communication.exposed_ns)


def _comm_by_axis_sum(analysis: RunAnalysis) -> Iterator[_Pair]:
    for of, communication in _communications(analysis):
        yield _Pair(of, sum(axis.exposed_ns for axis in communication.by_axis), communication.exposed_ns)


def _communications(analysis: RunAnalysis) -> Iterator[tuple[str, Communication]]:
    if analysis.communication is not None:
        yield "", analysis.communication
    for rank in analysis.ranks:
        if rank.communication is not None:
            yield f"rank {rank.rank}", rank.communication


def _comm_of_step(analysis: RunAnalysis) -> Iterator[_Pair]:
    for rank in analysis.ranks:
        if rank.communication is not None and rank.breakdown_ns is not None:
            yield _Pair(f"rank {rank.rank}", rank.communication.exposed_ns, rank.breakdown_ns.exposed_comm)


def _path_sum(analysis: RunAnalysis) -> Iterator[_Pair]:
    for path in analysis.critical_paths:
        kinds = sum(share.ns for share in shares_by_kind([path]))
        yield _Pair(f"step {path.step}", kinds, path.total_ns)


# -- statements against figures --------------------------------------------------------------------------


def _comm_present(analysis: RunAnalysis) -> Iterator[_Pair]:
    """Nothing communicates where that is stated; something does where a finding is about it."""
    total = sum(rank.comm_ns or 0 for rank in analysis.ranks)
    for gap in analysis.missing:
        if gap.figure is Figure.COLLECTIVES and gap.cause is Cause.NO_COMMUNICATION:
            yield _Pair("", total, 0)
    for finding in analysis.findings:
        if finding.id in COMMUNICATION:
            yield _Pair(finding.id.value, 1, 1 if total or analysis.collectives else 0, exact=False)


def _wait_within_calls(analysis: RunAnalysis) -> Iterator[_Pair]:
    if analysis.waiting_ns is not None and analysis.in_calls_ns is not None:
        yield _Pair("", analysis.waiting_ns, analysis.in_calls_ns, exact=False)


def _idle_ratio(analysis: RunAnalysis) -> float | None:
    """Time of the mean rank's step in which nothing runs."""
    parts = [rank.breakdown_ns for rank in analysis.ranks if rank.breakdown_ns is not None]
    step = sum(part.step for part in parts)
    return sum(part.idle + part.input_wait for part in parts) / step if step else None


def _path_gap_ratio(analysis: RunAnalysis) -> float | None:
    shares = shares_by_kind(analysis.critical_paths)
    if not shares:
        return None
    return sum(share.ratio for share in shares if share.key in _PATH_GAPS)


def _path_idle(analysis: RunAnalysis) -> Iterator[_Pair]:
    """A device that hardly idles is what the path is on: a host that came late would make it idle.

    Of one rank: with several, the path is on whichever is late, and that may be the one that idles.
    """
    idle, gaps = _idle_ratio(analysis), _path_gap_ratio(analysis)
    traced = [rank for rank in analysis.ranks if rank.breakdown_ns is not None]
    if idle is None or gaps is None or len(traced) != 1 or traced[0].unknown:
        return
    if idle <= _NO_IDLE:
        yield _Pair("", gaps, _HALF, exact=False)


def _of_untraced(finding: Finding) -> float | None:
    """Share of the untraced steps that a thread sleeps; it may be more than all that the traced ones idle."""
    return finding.facts.of_untraced_ratio if isinstance(finding.facts, ThreadBlocked) else None


def _path_verdict(analysis: RunAnalysis) -> Iterator[_Pair]:
    gaps, verdict = _path_gap_ratio(analysis), next(iter(analysis.findings), None)
    if verdict is None or gaps is None or verdict.id not in GAPS or verdict.gain_ratio is None:
        return
    if _of_untraced(verdict) is not None:
        return
    yield _Pair(verdict.id.value, _HALF * verdict.gain_ratio, gaps, exact=False)


def _gain_within_step(analysis: RunAnalysis) -> Iterator[_Pair]:
    whole_run, usual = analysis.whole_run, analysis.step_ns
    mean_ns = (
        whole_run.training_ns / whole_run.num_steps if whole_run is not None and whole_run.num_steps else None
    )
    median_ns = usual.median if usual is not None else None
    for finding in analysis.findings:
        if finding.gain_ratio is not None:
            yield _Pair(finding.id.value, finding.gain_ratio, 1.0, 1e-9, exact=False)
        step_ns = mean_ns if finding.of_training or finding.of_mean else median_ns
        if finding.gain_ns is not None and step_ns is not None:
            yield _Pair(finding.id.value, finding.gain_ns, step_ns, 2, exact=False)
    for what_if in analysis.what_ifs:
        yield _Pair(what_if.id, what_if.gain_ratio, 1.0, 1e-9, exact=False)


def _gain_within_cause(analysis: RunAnalysis) -> Iterator[_Pair]:
    """Others wait for the rank that idles most, so that more than the mean of all may be saved."""
    parts = [rank.breakdown_ns for rank in analysis.ranks if rank.breakdown_ns is not None]
    shares = [(part.idle + part.input_wait) / part.step for part in parts if part.step]
    idle = max(shares, default=None)
    for finding in analysis.findings:
        if finding.id in GAPS and finding.gain_ratio is not None and idle is not None:
            most = max(idle, _of_untraced(finding) or 0.0)
            yield _Pair(finding.id.value, finding.gain_ratio, most, _CAUSE, exact=False)


def _what_if_step(analysis: RunAnalysis) -> Iterator[_Pair]:
    usual = analysis.step_ns
    for what_if in analysis.what_ifs:
        if usual is not None and not what_if.of_mean:
            yield _Pair(what_if.id, what_if.step_ns + what_if.gain_ns, usual.median, 2)


_CHECKS: dict[Check, Callable[[RunAnalysis], Iterator[_Pair]]] = {
    Check.BREAKDOWN_SUM: _breakdown_sum,
    Check.DEVICE_SUM: _device_sum,
    Check.DEVICE_IDLE_SUM: _device_idle_sum,
    Check.DEVICE_IDLE_STEP: _device_idle_step,
    Check.COMM_BY_LAYER_SUM: _comm_by_layer_sum,
    Check.COMM_BY_AXIS_SUM: _comm_by_axis_sum,
    Check.COMM_OF_STEP: _comm_of_step,
    Check.COMM_PRESENT: _comm_present,
    Check.WAIT_WITHIN_CALLS: _wait_within_calls,
    Check.PATH_SUM: _path_sum,
    Check.PATH_IDLE: _path_idle,
    Check.PATH_VERDICT: _path_verdict,
    Check.GAIN_WITHIN_STEP: _gain_within_step,
    Check.GAIN_WITHIN_CAUSE: _gain_within_cause,
    Check.WHAT_IF_STEP: _what_if_step,
}
