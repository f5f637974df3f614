"""The map of step times by rank: what each cell is, and its size."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from perfscope.analysis.missing import missing_figure
from perfscope.analysis.results import RunAnalysis, StepMarks
from perfscope.analysis.waits.results import StepWaits
from perfscope.reports.distributions import HeatMap
from perfscope.reports.drawing import lay_out
from perfscope.reports.drawing.page import figure_html
from perfscope.reports.drawing.print_picture import paper_svg
from perfscope.reports.model import LineChart, Note
from perfscope.reports.sections.step_map import step_map, wait_map
from perfscope.reports.sections.steps import step_numbers
from perfscope.reports.sections.trend import trend_charts
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from tests.unit.reports.test_synthetic import synthetic_analysis

MS = 1_000_000


def of(table: np.ndarray) -> RunAnalysis:
    """An analysis of ranks (rows) with these step times, ms."""
    series = {rank: tuple(int(ms * MS) for ms in row) for rank, row in enumerate(table)}
    return structs.replace(synthetic_analysis(num_ranks=1), step_series=series)


def test_a_slow_rank_and_a_slow_stretch_have_the_darkest_cells() -> None:
    table = np.full((4, 50), 100)
    table[2], table[:, 20:25] = 150, 180
    [chart] = step_map(of(table))
    cells = np.array(chart.cells)
    assert cells.shape == (4, 50)
    assert set(cells[:, 20:25].flat) == {len(chart.levels) - 1}
    others = np.delete(np.delete(cells, slice(20, 25), axis=1), 2, axis=0)
    assert set(others.flat) == {0}
    assert set(np.delete(cells[2], slice(20, 25))) == {3}  # 100 to 180 ms in six levels: 140 to 153 ms
    assert [level.title for level in chart.levels][:2] == ["below 113 ms", "from 113 ms"]
    assert chart.y_labels == ("0", "1", "2", "3")


def test_many_ranks_and_steps_are_means_of_blocks() -> None:
    table = np.add.outer(np.arange(130) * 10, np.arange(1000)) + 100
    [chart] = step_map(of(table))
    assert (len(chart.cells), len(chart.cells[0])) == (44, 44)  # blocks of 3 ranks and 23 steps
    assert chart.caption == "Each cell is the mean of up to 23 steps of 3 ranks."
    assert (chart.x_names[1], chart.y_names[-1]) == ("23-45", "129")
    assert (chart.y_labels[1], chart.x_labels[1]) == ("3", "23")
    blocks = [[table[3 * r : 3 * r + 3, 23 * c : 23 * c + 23].mean() for c in range(44)] for r in range(44)]
    low, high = np.percentile(blocks, (2, 98))
    expected = np.digitize(blocks, np.linspace(low, high, len(chart.levels) + 1)[1:-1])
    assert (np.array(chart.cells) == expected).all()


def test_steps_that_a_rank_lacks_have_no_color() -> None:
    analysis = of(np.arange(100, 140).reshape(2, 20))
    series = {0: analysis.step_series[0], 1: analysis.step_series[1][:5]}
    [chart] = step_map(structs.replace(analysis, step_series=series))
    assert chart.cells[1][5:] == (None,) * 15
    assert None not in chart.cells[0]


@pytest.mark.parametrize("table", [np.arange(50).reshape(1, 50) + 1, np.full((4, 50), 7), np.ones((4, 1))])
def test_one_rank_or_equal_times_have_no_map(table: np.ndarray) -> None:
    assert step_map(of(table)) == ()


@pytest.mark.parametrize("num_ranks", [2, 16, 64, 500])
def test_page_stays_small_when_no_neighbors_are_alike(num_ranks: int) -> None:
    [chart] = step_map(of(np.random.default_rng(5).integers(50, 150, (num_ranks, 3000))))
    assert isinstance(chart, HeatMap)
    page = figure_html(lay_out(chart))
    assert len(page) < 30_000
    assert page.count("<path") == len(chart.levels)
    low, high = chart.levels[0].title.removeprefix("below "), chart.levels[-1].title.removeprefix("from ")
    assert f"&lt; {low} … ≥ {high}" in paper_svg(lay_out(chart))


def test_the_first_screen_has_step_times_in_order_and_shades_traced_steps() -> None:
    analysis = of(np.array([[100, 110, 300, 120], [200, 130, 500, 120]]))
    marks = StepMarks(counted=bytes((1, 1, 1, 1)), traced=bytes((0, 1, 1, 0)))
    times, ranks, waits = trend_charts(structs.replace(analysis, step_marks={0: marks, 1: marks}))
    assert isinstance(times, LineChart)
    assert isinstance(ranks, HeatMap)
    assert waits == Note(text="No map of waiting by rank and step: no call was matched across ranks.")
    assert times.slowest == (1, 1, 1, 0)
    assert times.steps == (0, 1, 2, 3, 4)
    [line] = times.lines
    assert line.y == (150 * MS, 120 * MS, 400 * MS, 120 * MS)  # the median rank
    assert (line.low[2], line.high[2]) == (300 * MS, 500 * MS)
    assert times.shaded == ((1, 2),)
    picture = figure_html(lay_out(times))
    assert 'class="ct-window" x="16.667%"' in picture  # from half a step before step 1
    assert "<span>traced</span>" in picture


def test_the_first_screen_charts_stay_small_over_many_steps() -> None:
    analysis = of(np.random.default_rng(5).integers(50, 150, (500, 20_000)))
    charts = [chart for chart in trend_charts(analysis) if not isinstance(chart, Note)]
    assert len("".join(figure_html(lay_out(chart)) for chart in charts)) < 45_000


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (np.full((2, 0), 1), "no step was recorded"),
        (np.full((2, 1), 1), "one step was recorded"),
        (np.full((2, 5), 7), "step times hardly differ"),
    ],
)
def test_charts_of_the_first_screen_that_have_no_data_say_why(table: np.ndarray, reason: str) -> None:
    notes = [chart.text for chart in trend_charts(of(table)) if isinstance(chart, Note)]
    assert reason in notes[0]


def waiting(table: list[list[int]], steps: list[int]) -> RunAnalysis:
    """An analysis of ranks (rows) that wait so long in these traced steps, ms."""
    ms = np.array(table)
    wait_ns = np.where(ms < 0, -1, ms * MS)
    waits = StepWaits(ranks=tuple(range(len(ms))), windows=[0] * len(steps), steps=steps, wait_ns=wait_ns)
    return structs.replace(of(np.full((len(ms), 40), 7)), step_waits=waits)


def test_the_late_rank_is_the_light_row_of_the_map_of_waiting() -> None:
    [chart] = wait_map(waiting([[9, 10, 11], [0, 0, 0], [10, -1, 9]], [12, 13, 30]))
    assert chart.x_names == ("12", "13", "30")
    assert chart.cells[1] == (0, 0, 0)
    assert chart.cells[2][1] is None
    assert {*chart.cells[0], chart.cells[2][0]} <= {4, 5}
    assert chart.leads_to == "step"


def test_no_map_of_waiting_says_why() -> None:
    alike = trend_charts(waiting([[0, 0], [0, 0]], [3, 4]))[-1]
    assert alike == Note(text="No map of waiting by rank and step: all ranks wait alike.")
    gap = missing_figure(Figure.WAITS, Cause.NO_STEP_TRACED)
    untraced = trend_charts(structs.replace(of(np.full((2, 9), 7)), missing=(gap,)))[-1]
    assert untraced == Note(text="No map of waiting by rank and step: no step was traced.")


def test_cells_and_points_lead_to_steps_by_the_numbers_of_their_windows() -> None:
    analysis = of(np.arange(100, 112).reshape(2, 6))
    marks = StepMarks(counted=bytes(6), traced=bytes((0, 1, 1, 0, 1, 0)), numbers=(551, 552, 700))
    analysis = structs.replace(analysis, step_marks={0: marks})
    assert step_numbers(analysis).tolist() == [550, 551, 552, 553, 700, 701]
    [chart] = step_map(analysis)
    assert chart.x_names == ("550", "551", "552", "553", "700", "701")
    times = trend_charts(analysis)[0]
    assert isinstance(times, LineChart)
    assert times.steps == (550, 551, 552, 553, 700, 701, 702)
