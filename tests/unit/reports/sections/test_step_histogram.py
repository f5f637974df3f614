"""The histogram of step times: which steps it counts, its bins, and what it draws."""

from __future__ import annotations

import re

import numpy as np
import pytest
from msgspec import structs

from perfscope.analysis.results import RunAnalysis, StepMarks
from perfscope.reports.build import build_report
from perfscope.reports.distributions import Histogram
from perfscope.reports.drawing import lay_out
from perfscope.reports.drawing.page import figure_html
from perfscope.reports.drawing.print_picture import paper_svg
from perfscope.reports.sections.step_histogram import step_histogram
from tests.unit.reports.test_synthetic import synthetic_analysis

MS = 1_000_000


def with_steps(ranks: dict[int, tuple[list[int], list[int], list[int]]]) -> RunAnalysis:
    """An analysis of ranks with (warm-up, traced, other steps), ms, in this order."""
    series, marks = {}, {}
    for rank, (warm, traced, others) in ranks.items():
        series[rank] = tuple(ms * MS for ms in (*warm, *traced, *others))
        counted = [False] * (len(warm) + len(traced)) + [True] * len(others)
        is_traced = [False] * len(warm) + [True] * len(traced) + [False] * len(others)
        marks[rank] = StepMarks(counted=bytes(counted), traced=bytes(is_traced))
    return structs.replace(synthetic_analysis(num_ranks=1), step_series=series, step_marks=marks)


def test_steps_of_all_ranks_are_counted_once_and_traced_ones_apart() -> None:
    others = {0: [30, 31, 32, 33, 34, 35], 1: [40, 41, 42, 43, 44, 45]}
    analysis = with_steps({rank: ([900], [60, 61], times) for rank, times in others.items()})
    [chart] = step_histogram(analysis)
    untraced, traced = chart.parts
    assert (untraced.label, sum(untraced.counts)) == ("Untraced steps", 12)
    assert (traced.label, sum(traced.counts), traced.median) == ("Traced steps", 4, 60.5 * MS)
    every = np.array([*others[0], *others[1]]) * MS
    assert untraced.median == np.median(every)
    assert untraced.p95 == round(np.percentile(every, 95))
    assert (chart.edges[0], chart.edges[-1]) == (30 * MS, 61 * MS)
    assert "Without 2 warm-up steps" in chart.caption
    [shown] = [
        block
        for block in build_report(analysis, None).section("steps").blocks
        if isinstance(block, Histogram)
    ]
    assert shown == chart


def test_a_bin_holds_the_steps_between_its_edges() -> None:
    times = np.random.default_rng(7).integers(20, 60, 400)
    [chart] = step_histogram(with_steps({0: ([], [], times.tolist())}))
    [part] = chart.parts
    edges = np.array(chart.edges)
    for index, count in enumerate(part.counts):
        inside = (times * MS >= edges[index]) & (times * MS < edges[index + 1])
        inside |= (index == len(part.counts) - 1) & (times * MS == edges[-1])
        assert count == inside.sum()


@pytest.mark.parametrize(("slowest", "log"), [(299, False), (4000, True)])
def test_the_axis_is_logarithmic_where_times_differ_much(slowest: int, log: bool) -> None:
    [chart] = step_histogram(with_steps({0: ([], [], [*range(30, 80), slowest])}))
    assert chart.log is log
    assert sum(chart.parts[0].counts) == 51
    ratios = np.diff(np.log(chart.edges) if log else np.array(chart.edges))
    assert ratios == pytest.approx(np.full(len(ratios), ratios[0]), rel=1e-6)
    assert ("logarithmic" in paper_svg(lay_out(chart))) is log
    assert chart.x(chart.edges[0]) == 0 and chart.x(chart.edges[-1]) == 100


def test_few_steps_or_equal_ones_have_no_histogram() -> None:
    assert step_histogram(with_steps({0: ([], [], [30, 31, 32])})) == ()
    assert step_histogram(with_steps({0: ([], [], [30] * 50)})) == ()
    assert step_histogram(structs.replace(synthetic_analysis(num_ranks=1), step_marks={})) == ()


def test_page_and_paper_show_the_marks_and_stay_small() -> None:
    times = np.random.default_rng(3).normal(100, 5, 20_000).astype(int)
    [chart] = step_histogram(with_steps({0: ([], [130, 140], times.tolist())}))
    page, paper = figure_html(lay_out(chart)), paper_svg(lay_out(chart))
    assert len(page) < 30_000
    for text in ("median 100 ms", "p95 108 ms", "Untraced steps", "Traced steps", "2 steps"):
        assert text in page
        assert text in paper
    grounds = [float(y) for y in re.findall(r'<rect[^>]*y="([\d.]+)" width="[\d.]+" height="84"', paper)]
    titles = [float(y) for y in re.findall(r'y="([\d.]+)">(?:Untraced|Traced) steps', paper)]
    assert len(grounds) == len(titles) == 2
    assert titles[0] < grounds[0] and grounds[0] + 84 < titles[1] < grounds[1]
