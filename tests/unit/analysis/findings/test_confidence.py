"""How far findings are trusted: by how many traced steps there are, and how alike the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.results import Finding
from perfscope.analysis.run import analyze_run
from perfscope.reports.build import build_report
from perfscope.reports.text import render_text
from perfscope.vocabulary.confidence import ConfidenceLevel as Level
from perfscope.vocabulary.confidence import Doubt
from tests.support.synthetic_run import SyntheticRun, span

MS = 1_000_000
OWN = (("compute", 0.6), ("input", 0.3))  # parts of a step
UNTRACED = (100 * MS,) * 40


def run_of(
    path: Path,
    untraced: Sequence[int] = UNTRACED,
    traced: Sequence[int] = (100 * MS,) * 6,
    input_ratio: float | None = None,
    **manifest: Any,
) -> SyntheticRun:
    """One rank; its steps last so long, ns. `input_ratio`: of each step, by always-on timing."""
    run = SyntheticRun(path, **manifest)
    run.rank(0)
    every = [*untraced[:5], *traced, *untraced[5:]]
    first = min(5, len(untraced))
    window = [0 if first <= k < first + len(traced) else -1 for k in range(len(every))]
    waits = [round(input_ratio * one) if input_ratio is not None else None for one in every]
    run.steps(0, every, window=window, input_ns=waits)
    spans, marks, at = [], [], 0
    for number, length in enumerate(traced, first):
        begin = at
        for kind, part in OWN:
            spans.append(span(begin, round(part * length), kind))
            begin += round(part * length)
        marks.append((number, at, at + length))
        at += length
    run.window(0, spans, marks)
    return run


def verdict(run: SyntheticRun) -> Finding:
    return analyze_run(run.read()).findings[0]


def doubts(finding: Finding) -> dict[Doubt, Level]:
    assert finding.confidence is not None
    return {reason.doubt: reason.level for reason in finding.confidence.reasons}


def test_many_traced_steps_that_are_like_the_others_give_high_confidence(tmp_path: Path) -> None:
    found = verdict(run_of(tmp_path)).confidence
    assert found is not None and (found.level, found.reasons) == (Level.HIGH, ())
    assert (found.num_steps, found.traced_ratio, found.spread_ratio) == (6, 1.0, 0.0)
    assert found.sentence == "Confidence high: 6 traced steps, 1 times as long as others."


@pytest.mark.parametrize(("num", "level"), [(2, Level.LOW), (5, Level.MEDIUM), (6, Level.HIGH)])
def test_few_traced_steps_lower_it(tmp_path: Path, num: int, level: Level) -> None:
    found = verdict(run_of(tmp_path, traced=(100 * MS,) * num))
    assert found.confidence is not None and found.confidence.level is level
    assert doubts(found) == ({} if level is Level.HIGH else {Doubt.FEW_STEPS: level})


@pytest.mark.parametrize(
    ("times", "level"),
    [(0.09, None), (0.5, Level.LOW), (1.1, Level.HIGH), (1.3, Level.MEDIUM), (2.0, Level.LOW), (90, None)],
)
def test_traced_steps_unlike_the_others_lower_it_until_there_is_no_verdict(
    tmp_path: Path, times: float, level: Level | None
) -> None:
    found = verdict(run_of(tmp_path, traced=(round(100 * times) * MS,) * 6))
    assert found.confidence is not None
    if level is None:
        assert found.id == "not_enough_evidence" and found.confidence.level is Level.NONE
        assert "--windows" in found.text.action
        assert found.gain_ns is None
    else:
        assert found.id == "input_bound" and found.confidence.level is level
        assert level is Level.HIGH or doubts(found) == {Doubt.UNLIKE_UNTRACED: level}


def test_steps_as_long_as_the_longer_of_the_others_are_like_them(tmp_path: Path) -> None:
    """A quarter of the steps takes three times as long, and so do the traced ones."""
    lengths = [300 * MS if k % 4 == 0 else 100 * MS for k in range(40)]
    assert doubts(verdict(run_of(tmp_path, lengths, traced=(300 * MS,) * 6))) == {}


def test_a_withheld_verdict_takes_its_findings_along_and_the_report_says_why(tmp_path: Path) -> None:
    analysis = analyze_run(run_of(tmp_path, traced=(9000 * MS,) * 6).read())
    assert [finding.id for finding in analysis.findings] == ["not_enough_evidence"]
    text = render_text(build_report(analysis, None))
    assert "Not enough evidence for a verdict: traced steps took 90 times as long as the median step." in text
    assert "Input-bound" not in text


def test_always_on_timing_confirms_waiting_for_input_whatever_the_traced_steps_were(tmp_path: Path) -> None:
    run = run_of(tmp_path / "same", traced=(9000 * MS,) * 6, input_ratio=0.3)
    found = verdict(run)
    assert found.id == "input_bound" and found.confidence is not None
    assert found.confidence.level is Level.HIGH and found.confidence.num_steps == 37
    other = verdict(run_of(tmp_path / "other", input_ratio=0.05))
    assert doubts(other) == {Doubt.ALWAYS_ON_DIFFERS: Level.LOW}


def test_halves_of_the_run_that_differ_lower_it(tmp_path: Path) -> None:
    drifting = [100 * MS] * 20 + [160 * MS] * 20
    found = verdict(run_of(tmp_path, drifting, traced=(130 * MS,) * 6))
    assert doubts(found)[Doubt.SPREAD] is Level.LOW
    assert found.confidence is not None and found.confidence.spread_ratio == pytest.approx(0.6 / 1.6, rel=0.4)


def test_imported_traces_have_no_untraced_steps_and_are_not_doubted_for_it(tmp_path: Path) -> None:
    assert doubts(verdict(run_of(tmp_path / "run", ()))) == {Doubt.NO_UNTRACED_STEP: Level.MEDIUM}
    assert doubts(verdict(run_of(tmp_path / "import", (), origin="import"))) == {}


def test_the_report_shows_it_with_the_verdict_and_every_finding(tmp_path: Path) -> None:
    analysis = analyze_run(run_of(tmp_path, traced=(100 * MS,) * 2, expected_ranks=3).read())
    report = build_report(analysis, None)
    assert report.verdict.confidence == "Confidence low: only 2 steps."
    assert "Confidence low: only 2 steps." in render_text(report)
    assert all(finding.confidence is not None for finding in analysis.findings)
