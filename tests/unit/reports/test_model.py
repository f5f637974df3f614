"""The Report model: what it says in each situation, and that figures are never invented."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from perfscope.analysis.results import RunAnalysis
from perfscope.reports import geometry
from perfscope.reports.build import build_report
from perfscope.reports.display import visible
from perfscope.reports.model import Bar, ChartPart, Column, LineChart, StackedBars, Table, Unit, format_value
from tests.support.records import run_record
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline

ORDER = [
    "findings",
    "breakdown",
    "timeline",
    "layers",
    "collectives",
    "steps",
    "missing",
    "provenance",
    "run",
]  # device time only where there is a device


def empty_analysis() -> RunAnalysis:
    """A program that never trained."""
    return RunAnalysis(
        run=run_record({"name": "hello", "command": ["python", "hello.py"], "attached_ranks": 0}),
        ranks=(),
        layers=(),
        collectives=(),
        calls=(),
        step_ns=None,
        throughput_samples_per_s=None,
        samples_source=None,
        overhead_ratio=None,
        findings=(),
        missing=(),
        provenance=(),
    )


def test_sections_come_in_one_order() -> None:
    report = build_report(synthetic_analysis(), synthetic_timeline())
    assert [section.id for section in report.sections] == ORDER


def test_every_section_has_content_even_when_nothing_was_recorded() -> None:
    report = build_report(empty_analysis(), None)
    assert [section.id for section in report.sections] == ORDER
    assert all(section.blocks for section in report.sections)
    assert report.verdict.headline == "No step was recorded."
    assert report.overview is None


def test_verdict_is_the_first_finding() -> None:
    analysis = synthetic_analysis()
    report = build_report(analysis, None)
    assert report.verdict.headline == analysis.findings[0].text.title
    assert report.verdict.tone == "caution"
    assert "compute" in report.verdict.parts


def test_verdict_without_findings_names_the_largest_part() -> None:
    report = build_report(structs.replace(synthetic_analysis(), findings=()), None)
    assert report.verdict.headline == "No single cause dominates: 83 % of the step is compute."
    assert report.verdict.tone == "good"


def test_verdict_without_windows_still_gives_the_step_time() -> None:
    analysis = synthetic_analysis()
    ranks = tuple(structs.replace(rank, breakdown_ns=None) for rank in analysis.ranks)
    report = build_report(structs.replace(analysis, findings=(), ranks=ranks), None)
    assert report.verdict.headline.startswith("A step takes 27.5 ms")
    assert "--no-trace" in report.verdict.action


def test_overview_parts_add_up_to_the_mean_step() -> None:
    analysis = synthetic_analysis()
    report = build_report(analysis, None)
    steps = [rank.breakdown_ns.step for rank in analysis.ranks if rank.breakdown_ns]
    assert report.overview is not None
    assert sum(report.overview.bars[0].values) == sum(steps) // len(steps)


def test_breakdown_bars_add_up_to_each_ranks_step() -> None:
    analysis = synthetic_analysis()
    chart = build_report(analysis, None).section("breakdown").blocks[0]
    assert isinstance(chart, StackedBars)
    for rank, bar in zip(analysis.ranks, chart.bars, strict=True):
        assert rank.breakdown_ns is not None
        assert bar.total == rank.breakdown_ns.step


def test_a_thousand_ranks_are_drawn_as_the_slowest_and_listed_in_full() -> None:
    section = build_report(synthetic_analysis(num_ranks=1024), None).section("breakdown")
    charts = [block for block in section.blocks if isinstance(block, StackedBars)]
    tables = [block for block in section.blocks if isinstance(block, Table)]
    assert len(charts[0].bars) == 64
    assert len(tables[0].rows) == 1024
    slowest = max(bar.total for bar in charts[0].bars)
    assert charts[0].bars[0].total == slowest


def test_many_ranks_share_three_step_lines() -> None:
    section = build_report(synthetic_analysis(num_ranks=12), None).section("steps")
    series = section.blocks[0]
    assert isinstance(series, LineChart)
    assert [line.label for line in series.lines] == ["slowest rank", "median rank", "fastest rank"]
    for slow, middle, fast in zip(*(line.y for line in series.lines), strict=True):
        assert fast <= middle <= slow


def test_long_series_are_thinned_without_losing_extremes() -> None:
    analysis = synthetic_analysis(num_ranks=1)
    values = tuple(30_000_000 + (i * 7919) % 1000 for i in range(5000))
    values = (*values[:2500], 99_000_000, *values[2500:])
    series = build_report(structs.replace(analysis, step_series={0: values}), None).section("steps")
    line = series.blocks[0].lines[0]  # type: ignore[union-attr]
    assert len(line.x) <= 400
    assert max(line.high) == 99_000_000
    assert min(line.low) == min(values)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("unit", list(Unit))
def test_what_is_not_a_figure_is_shown_as_missing(unit: Unit, value: float | None) -> None:
    assert format_value(unit, value) == "–"


def test_negative_cells_have_a_minus_sign() -> None:
    assert Column(key="a", title="A", unit=Unit.RATIO).text(-0.146) == "−14.6 %"
    assert Column(key="a", title="A", unit=Unit.RATIO, signed=True).text(0.146) == "+14.6 %"
    assert Column(key="a", title="A", unit=Unit.CODE).text("-x") == "-x"


def test_plain_numbers_keep_only_useful_decimals() -> None:
    assert format_value(Unit.NUMBER, 2.0) == "2"
    assert format_value(Unit.NUMBER, 1.5) == "1.5"
    assert format_value(Unit.NUMBER, 1234.567) == "1,234.57"


@given(st.text())
def test_visible_text_has_nothing_hidden_and_one_line(text: str) -> None:
    shown = visible(text)
    assert "\n" not in shown
    assert "\x1b" not in shown
    assert not any(0xD800 <= ord(c) <= 0xDFFF or 0x202A <= ord(c) <= 0x202E for c in shown)
    shown.encode()


def test_visible_text_says_how_long_a_cut_name_was() -> None:
    shown = visible("a" * 100_000)
    assert len(shown) < 260
    assert "(100,000 characters)" in shown


@given(st.lists(st.integers(0, 10**12), min_size=3, max_size=3))
def test_segments_cover_a_bar_without_gap_or_overlap(values: list[int]) -> None:
    parts = tuple(ChartPart(key=str(i), title=str(i)) for i in range(3))
    chart = StackedBars(id="x", title="x", parts=parts, bars=(Bar(label="x", values=tuple(values)),))
    segments = geometry.bar_segments(chart, chart.bars[0])
    assert sum(segment.value for segment in segments) == sum(values)
    for before, after in itertools.pairwise(segments):
        assert before.start + before.width == pytest.approx(after.start)
    if segments:
        assert segments[-1].start + segments[-1].width == pytest.approx(100)


@given(st.floats(0, 1e12), st.floats(1, 1e12), st.integers(2, 10))
def test_ticks_lie_on_the_axis_and_differ(low: float, span: float, count: int) -> None:
    ticks = geometry.time_ticks(low, low + span, count)
    assert all(-1e-6 <= tick.position <= 100 + 1e-6 for tick in ticks)
    assert len({tick.text for tick in ticks}) == len(ticks)
    assert len(ticks) <= 2 * count + 2


def test_a_failed_command_is_said_before_any_figure() -> None:
    analysis = synthetic_analysis()
    failed = structs.replace(
        analysis, run=run_record({**analysis.run.document, "exit": {"code": 137, "signal": 9}})
    )
    first = build_report(failed, synthetic_timeline()).figures[0]
    assert (first.id, first.value, first.note) == ("state", "exit code 137", "ended by signal 9")


def test_of_many_trace_files_damaged_ones_and_the_first_are_listed() -> None:
    analysis = synthetic_analysis()
    file = structs.replace(analysis.provenance[0], salvaged=False, events_dropped=0)
    files = [structs.replace(file, path=f"{number}.json") for number in range(300)]
    files[250] = structs.replace(files[250], salvaged=True)
    section = build_report(structs.replace(analysis, provenance=tuple(files)), None).section("provenance")
    (table,) = [
        block for block in section.blocks if isinstance(block, Table) and block.id == "provenance-table"
    ]
    assert [row[0] for row in table.rows[:3]] == ["250.json", "0.json", "1.json"]
    assert len(table.rows) == 200 and table.caption == "100 more files are in the JSON report."
