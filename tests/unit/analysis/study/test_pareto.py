"""Settings that no other one beats in time, memory and bytes."""

from __future__ import annotations

import msgspec

from perfscope.analysis.bench_bytes import LinkBytes
from perfscope.analysis.study.analyze import analyze_study
from perfscope.analysis.study.pareto import pareto_points
from perfscope.analysis.study.results import LearningRanking, LearningRow, SchemeRow
from perfscope.vocabulary.comparison import RankBasis
from tests.support.study_entries import entry

ROW = analyze_study([entry("a", scheme="dp.ddp"), entry("b", scheme="dp.packed")]).schemes[0].rows[0]


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
