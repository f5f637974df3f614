"""Settings that no other one beats in time, memory and bytes."""

from __future__ import annotations

import msgspec
import pytest

from perfscope.analysis.bench_bytes import LinkBytes
from perfscope.analysis.missing import missing_figure
from perfscope.analysis.study.analyze import analyze_study
from perfscope.analysis.study.pareto import pareto_points
from perfscope.analysis.study.results import LearningRanking, LearningRow, Pair, RunEntry, SchemeRow
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.comparison import RankBasis
from perfscope.vocabulary.figures import Figure
from tests.support.study_entries import entry

ROW = analyze_study([entry("a", scheme="dp.ddp"), entry("b", scheme="dp.packed")]).schemes[0].rows[0]

ASYNCHRONOUS = "synchrony asynchronous"


def row(title: str, speed: float, memory: float | None, sent: float | None) -> SchemeRow:
    link = LinkBytes(link_class="ethernet", predicted=1.0, recorded=sent, predicted_wire=1.0, wire=None)
    return msgspec.structs.replace(
        ROW, title=title, samples_per_s=speed, peak_memory_bytes=memory, links=(link,)
    )


def test_a_setting_that_another_beats_in_all_three_is_not_optimal() -> None:
    rows = [row("fast", 100.0, 9.0, 9.0), row("small", 50.0, 3.0, 9.0), row("worst", 40.0, 9.0, 10.0)]
    assert [point.is_best for point in pareto_points(rows, None)] == [True, True, False]


def test_equal_settings_do_not_beat_each_other() -> None:
    rows = [row("one", 50.0, 3.0, 9.0), row("other", 50.0, 3.0, 9.0)]
    assert [point.is_best for point in pareto_points(rows, None)] == [True, True]


def test_a_missing_figure_is_neither_judged_nor_judges() -> None:
    rows = [row("unknown", 100.0, None, 1.0), row("library", 90.0, 1.0, None), row("known", 10.0, 9.0, 9.0)]
    points = pareto_points(rows, None)
    assert [point.is_best for point in points] == [None, None, True]
    assert points[1].sent_bytes is None


def test_time_is_that_to_the_target_and_missing_where_a_run_missed_it() -> None:
    found = [
        LearningRow(title="slow", value=5.0, values=(5.0,), interval=None, num_runs=1, num_reached=1),
        LearningRow(title="fast", value=4.0, values=(4.0,), interval=None, num_runs=2, num_reached=1),
    ]
    ranking = LearningRanking(
        basis=RankBasis.TIME,
        target="accuracy=0.9",
        rows=tuple(found),
        ratio=None,
        interval=None,
        level=None,
        note="",
        headline="",
        action="",
    )
    points = pareto_points([row("fast", 100.0, 1.0, 1.0), row("slow", 10.0, 9.0, 9.0)], ranking)
    assert [(point.time_ns, point.is_best) for point in points] == [(None, None), (5.0, True)]


def level_pair(level: bool) -> Pair:
    return Pair(a="fast", b="slow", ratio=1.02, interval=None, p_value=None, level=level, reason="")


def test_level_times_leave_open_which_setting_is_optimal() -> None:
    rows = [row("fast", 102.0, 3.0, 9.0), row("slow", 100.0, 3.0, 9.0)]
    told = [(point.is_best, point.undecided) for point in pareto_points(rows, None, [level_pair(True)])]
    assert told == [(None, True), (None, True)]
    assert [point.is_best for point in pareto_points(rows, None, [level_pair(False)])] == [True, False]


def test_less_memory_is_optimal_however_close_the_times_are() -> None:
    rows = [row("fast", 102.0, 3.0, 9.0), row("slow", 100.0, 4.0, 9.0)]
    points = pareto_points(rows, None, [level_pair(True)])
    assert [(point.is_best, point.undecided) for point in points] == [(True, False), (None, True)]


def test_a_missing_figure_takes_the_runs_own_reason() -> None:
    why = missing_figure(Figure.MEMORY_AND_LINKS, Cause.NOT_A_BENCH_RUN)
    lacking = msgspec.structs.replace(row("script", 9.0, None, None), missing=(why,))
    assert [point.missing for point in pareto_points([lacking, row("a", 1.0, 1.0, 1.0)], None)] == [
        (why,),
        (),
    ]


def of_kind(name: str, scheme: str, synchrony: str, topology: str) -> RunEntry:
    columns = {"parallelism": "data", "synchrony": synchrony, "topology": topology}
    record = {"full_name": scheme, "input_shape": [3, 16, 16], "dtype": "float32", "axes": columns}
    return entry(name, scheme=scheme, run={"scheme": record})


@pytest.mark.parametrize(
    ("by", "titles"),
    [
        ("synchrony", {"synchrony synchronous (dp.packed)", "synchrony synchronous (ps.sync)", ASYNCHRONOUS}),
        ("topology", {"topology all-reduce", "topology server (ps.sync)", "topology server (easgd.async)"}),
        (
            "synchrony,topology",
            {
                "synchrony synchronous, topology all-reduce",
                "synchrony synchronous, topology server",
                "synchrony asynchronous, topology server",
            },
        ),
    ],
)
def test_runs_are_compared_by_columns_of_the_taxonomy(by: str, titles: set[str]) -> None:
    """Schemes of one value stay apart, and are named."""
    entries = [
        of_kind("a", "dp.packed", "synchronous", "all-reduce"),
        of_kind("b", "ps.sync", "synchronous", "server"),
        of_kind("c", "easgd.async", "asynchronous", "server"),
    ]
    (study,) = analyze_study(entries, by=by).schemes
    assert {row.title for row in study.rows} == titles == {point.title for point in study.pareto}
