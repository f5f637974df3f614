"""A window whose steps are unlike those of the others stands for no usual step, and the report says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.reports.sections.steps import breakdown_section
from tests.support.synthetic_run import SyntheticRun, span

MS = 1_000_000
STEP = 20 * MS
FIRST = (4, 50, 90)  # steps of the windows, each of two


def analyzed(
    path: Path,
    factors: Sequence[float],
    usual: Sequence[float] | None = None,
    *,
    compute: Mapping[int, float] = {},
) -> RunAnalysis:
    """Of a run of 120 steps.

    Args:
        factors: of each window, how many times the usual step its steps take.
        usual: by step, times STEP; None: one and the same.
        compute: window -> the share of its steps that is computation; half where it does not say.
    """
    run = SyntheticRun(path)
    run.rank(0, device="cpu")
    durations, traced = [round(STEP * value) for value in usual or [1.0] * 120], [-1] * 120
    for window, (first, factor) in enumerate(zip(FIRST, factors, strict=False)):
        for step in (first, first + 1):
            durations[step], traced[step] = round(durations[step] * factor), window
        marks, spans, start = [], [], 1_000 * MS * window
        for step in (first, first + 1):
            marks.append((step, start, start + durations[step]))
            busy = round(compute.get(window, 0.5) * durations[step])
            spans.append(span(start, busy, "compute", name="aten::mm", layer="fc", phase="forward"))
            start += durations[step]
        run.window(0, spans, marks, window=window)
    run.steps(0, durations, window=traced)
    return analyze_run(run.read())


def compute_ratio(analysis: RunAnalysis) -> float:
    breakdown = analysis.ranks[0].breakdown_ns
    assert breakdown is not None
    return breakdown.compute / breakdown.step


def test_windows_that_are_alike_all_count(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, (1.25, 1.2, 1.18), compute={0: 0.9})
    assert analysis.unlike_windows == ()
    assert compute_ratio(analysis) > 0.6
    assert analysis.traced_ratio == pytest.approx(1.21, abs=0.01)


def test_a_window_unlike_the_others_is_left_out_and_the_report_says_so(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, (1.8, 1.1, 1.12), compute={0: 0.9})
    (left_out,) = analysis.unlike_windows
    assert (left_out.window, left_out.first_step, left_out.last_step) == (0, 4, 5)
    assert left_out.ratio == pytest.approx(1.8) and left_out.others_ratio == pytest.approx(1.11)
    assert compute_ratio(analysis) == pytest.approx(0.5, abs=0.01)
    assert analysis.traced_ratio == pytest.approx(1.11, abs=0.001)
    text = breakdown_section(analysis).lead
    assert "Window 0 (steps 4 to 5) is left out" in text
    assert "1.80 times" in text and "1.11 times" in text


def test_of_two_windows_the_one_less_like_the_untraced_steps_is_left_out(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, (1.05, 1.6))
    assert [left_out.window for left_out in analysis.unlike_windows] == [1]


def test_a_single_window_is_kept_and_its_findings_are_less_sure(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, (1.8,))
    assert analysis.unlike_windows == () and analysis.traced_ratio == pytest.approx(1.8)
    first = analysis.findings[0].confidence
    assert first is not None and first.level.value in ("low", "none")


def test_a_training_that_becomes_slower_leaves_no_window_out(tmp_path: Path) -> None:
    usual = [1.0] * 70 + [2.0] * 50
    analysis = analyzed(tmp_path, (1.1, 1.1, 1.1), usual)
    assert analysis.unlike_windows == ()


def test_where_untraced_steps_differ_as_much_nothing_is_unlike(tmp_path: Path) -> None:
    usual = np.random.default_rng(0).choice([0.7, 1.0, 1.9], 120).tolist()
    usual = [
        1.0 if step in {first + k for first in FIRST for k in (0, 1)} else value
        for step, value in enumerate(usual)
    ]
    assert analyzed(tmp_path, (1.5, 1.1, 1.12), usual).unlike_windows == ()


def test_too_few_untraced_steps_tell_nothing(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.rank(0, device="cpu")
    window = [-1, -1, -1, -1, 0, 0, -1, -1, -1, -1, 1, 1, -1, -1]
    run.steps(0, [STEP * (3 if value == 0 else 1) for value in window], window=window)
    for number, first in ((0, 4), (1, 10)):
        marks = [(first, 0, STEP), (first + 1, STEP, 2 * STEP)]
        run.window(0, [span(0, STEP, "compute", name="aten::mm")], marks, window=number)
    assert analyze_run(run.read()).unlike_windows == ()
