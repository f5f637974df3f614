"""Reading works of stages from a window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfscope.analysis import breakdown as bd
from perfscope.analysis.pipeline.record import PipelineRecord, RankPipeline
from perfscope.analysis.rank_part import _COLUMNS
from perfscope.analysis.spans import spans_of, window_facts
from perfscope.vocabulary.pipelines import StageWork
from tests.support.synthetic_run import BACKEND, EPOCH, SyntheticRun, span

F, B = StageWork.FORWARD, StageWork.BACKWARD


def mark(start: int, dur: int, name: str) -> dict[str, Any]:
    return span(start, dur, "annotation", name=name)


def compute(start: int, dur: int, **columns: Any) -> dict[str, Any]:
    return span(start, dur, "compute", **{"phase": "forward", "layer": "conv", **columns})


def recorded(
    path: Path, rows: list[dict[str, Any]], steps: list[tuple[int, int, int]]
) -> RankPipeline | None:
    run = SyntheticRun(path)
    run.rank(0)
    run.window(0, rows, steps)
    source = run.read()
    table, record = source.timeline(0, 0, _COLUMNS), PipelineRecord()
    assert table is not None
    [facts] = [window_facts(summary) for summary in source.summaries()]
    spans = spans_of(table)
    record.add(table, spans, bd.activity(spans, facts), facts.steps, 0, 0)
    return record.windows.get(0, {}).get(0)


def works(found: RankPipeline | None) -> list[tuple[Any, ...]]:
    assert found is not None
    return [
        (s.step, s.stage, s.microbatch, s.work, s.start_ns - EPOCH, s.end_ns - EPOCH) for s in found.spans
    ]


def test_the_probes_marks_are_the_work_and_a_step_begins_inside_the_first(tmp_path: Path) -> None:
    rows = [
        mark(90, 50, "perfscope.stage:1F0"),
        compute(105, 20),
        mark(150, 40, "perfscope.stage:1B0"),
        mark(295, 20, "perfscope.stage:1F0"),
    ]
    assert works(recorded(tmp_path, rows, [(4, 100, 300)])) == [
        (4, 1, 0, F, 90, 140),
        (4, 1, 0, B, 150, 190),
    ]


def test_a_forward_pass_is_of_the_step_that_begins_in_it_even_in_its_last_moment(tmp_path: Path) -> None:
    rows = [
        mark(110, 20, "perfscope.stage:0F0"),
        mark(150, 60, "perfscope.stage:0F0"),  # the thread had no CPU before the module was called
        compute(202, 5),
        mark(250, 60, "perfscope.stage:0F0"),  # of the step after the window
    ]
    assert works(recorded(tmp_path, rows, [(4, 100, 200), (5, 200, 300)])) == [
        (4, 0, 0, F, 110, 130),
        (5, 0, 0, F, 150, 210),
    ]


def test_the_forward_pass_that_opened_the_window_ends_before_the_rank_communicates(tmp_path: Path) -> None:
    rows = [
        compute(102, 20),
        compute(125, 15),
        span(145, 30, "comm", lane=BACKEND, collective="send", name="gloo:send"),
        compute(150, 10, layer=None),
        mark(180, 40, "perfscope.stage:0F1"),
        mark(230, 40, "perfscope.stage:0B0"),
    ]
    assert works(recorded(tmp_path, rows, [(4, 100, 300)])) == [
        (4, 0, 0, F, 100, 140),
        (4, 0, 1, F, 180, 220),
        (4, 0, 0, B, 230, 270),
    ]


def test_ranges_of_torch_count_from_the_first_to_the_last_computation(tmp_path: Path) -> None:
    rows = [
        mark(100, 100, "PP:1F0"),
        span(102, 40, "comm", lane=BACKEND, collective="recv", name="gloo:recv"),
        compute(150, 20),
        compute(175, 10),
        mark(200, 5, "PP:1SEND_F0"),
        mark(210, 50, "PP:1B0"),
        compute(220, 30, phase="backward"),
    ]
    assert works(recorded(tmp_path, rows, [(4, 100, 300)])) == [
        (4, 1, 0, F, 150, 185),
        (4, 1, 0, B, 220, 250),
    ]


def test_on_a_device_the_work_is_what_was_launched_in_the_mark(tmp_path: Path) -> None:
    def kernel(start: int, dur: int, launch: int) -> dict[str, Any]:
        return compute(start, dur, device=0, lane=7, launch_ns=EPOCH + launch, launch_step=4, name="gemm")

    rows = [
        mark(95, 20, "perfscope.stage:0F0"),
        mark(120, 20, "perfscope.stage:0B0"),
        kernel(130, 40, 100),
        kernel(170, 10, 114),
        kernel(180, 60, 125),
    ]
    assert works(recorded(tmp_path, rows, [(4, 100, 300)])) == [
        (4, 0, 0, F, 130, 180),
        (4, 0, 0, B, 180, 240),
    ]


def test_a_window_without_marks_leaves_nothing(tmp_path: Path) -> None:
    assert recorded(tmp_path, [compute(110, 20), mark(120, 5, "Forward")], [(4, 100, 300)]) is None
