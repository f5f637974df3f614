"""Where a step went: timelines small enough to add up by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis import breakdown as bd
from perfscope.analysis.results import Breakdown, RankResult
from perfscope.analysis.run import analyze_run
from perfscope.messages.missing import figure_text
from tests.support.synthetic_run import AUTOGRAD, BACKEND, EPOCH, MAIN, SyntheticRun, comm, span


def rank_of(path: Path, spans: list[dict[str, Any]], steps: list[tuple[int, int, int]]) -> RankResult:
    run = SyntheticRun(path)
    run.rank(0)
    run.window(0, spans, steps)
    [result] = analyze_run(run.read()).ranks
    return result


def parts(result: RankResult) -> dict[str, int]:
    breakdown = result.breakdown_ns
    assert breakdown is not None
    values = {part: getattr(breakdown, part) for part in Breakdown.PARTS}
    assert sum(values.values()) == breakdown.step
    return values


def test_a_cpu_step_is_split_into_its_parts(tmp_path: Path) -> None:
    result = rank_of(
        tmp_path,
        [
            span(0, 400, "compute", phase="forward"),
            span(50, 100, "compute", phase="forward", depth=1),  # nested: counted once
            span(400, 200, "compute", phase="backward", lane=AUTOGRAD),
            comm(500, 300, 0),  # 100 under backward, 200 exposed
            span(800, 100, "optimizer", phase="optimizer"),
            span(820, 30, "compute", phase="optimizer"),
            span(900, 60, "input"),
            span(910, 20, "compute"),  # the loader collates a batch: input, not compute
        ],
        [(5, 0, 1000)],
    )
    assert parts(result) == {
        "compute": 600, "exposed_comm": 200, "copy": 0, "input_wait": 60, "optimizer": 100, "idle": 40,
    }  # fmt: skip
    assert result.comm_ns == 300
    assert result.overlap_ratio == pytest.approx(1 / 3)
    assert result.device_ns is None and result.idle_host_wait_ns is None


def test_a_message_costs_the_time_in_which_the_thread_waits_for_it(tmp_path: Path) -> None:
    message = comm(100, 700, 0, lane=MAIN, collective="send", peer=1)  # sent at 100, waited for from 750 on
    computing, loading = span(200, 100, "compute"), span(400, 200, "input")
    result = rank_of(tmp_path, [message, computing, loading, span(750, 60, "wait")], [(0, 0, 1000)])
    assert parts(result) == {
        "compute": 100, "exposed_comm": 50, "copy": 0, "input_wait": 200, "optimizer": 0, "idle": 650,
    }  # fmt: skip
    assert result.comm_ns == 150 and result.communication is not None
    assert (result.communication.exposed_ns, result.communication.by_axis[0].hidden_ns) == (50, 100)


def test_a_message_of_a_thread_that_shows_no_wait_is_waited_for_all_the_time(tmp_path: Path) -> None:
    message = comm(100, 700, 0, lane=MAIN, collective="send", peer=1)
    elsewhere = span(750, 60, "wait", lane=AUTOGRAD)
    result = rank_of(tmp_path, [message, elsewhere], [(0, 0, 1000)])
    assert parts(result)["exposed_comm"] == 700


def test_optimizer_operators_hide_communication_like_any_other_work(tmp_path: Path) -> None:
    spans = [comm(0, 100, 0), span(40, 60, "optimizer"), span(50, 40, "compute", phase="optimizer")]
    result = rank_of(tmp_path, spans, [(0, 0, 100)])
    assert parts(result)["exposed_comm"] == 60
    assert parts(result)["optimizer"] == 40


def test_gaps_in_what_an_optimizer_calls_of_the_model_are_idle_not_optimizer(tmp_path: Path) -> None:
    """`Optimizer.step(closure)`: the step's own mark is around both, and counts for nothing."""
    spans = [
        span(0, 100, "annotation", phase="forward"),
        span(10, 80, "optimizer", phase="optimizer"),
        span(20, 50, "annotation", phase="forward"),
        span(30, 10, "compute", phase="forward"),
    ]
    result = rank_of(tmp_path, spans, [(0, 0, 100)])
    assert parts(result)["compute"] == 10
    assert parts(result)["optimizer"] == 30
    assert parts(result)["idle"] == 60


def test_operators_of_other_threads_are_not_the_training(tmp_path: Path) -> None:
    result = rank_of(tmp_path, [span(0, 50, "compute", lane=999), span(0, 10, "compute")], [(0, 0, 100)])
    assert parts(result)["compute"] == 10


def test_what_lies_outside_the_steps_does_not_count(tmp_path: Path) -> None:
    result = rank_of(tmp_path, [span(0, 1000, "compute"), comm(180, 100, 0)], [(0, 100, 200), (1, 250, 300)])
    assert result.breakdown_ns is not None
    assert result.breakdown_ns.step == 75
    assert parts(result)["compute"] == 75
    assert result.comm_ns == 25  # (20 + 30) / 2 steps


def test_the_mean_of_uneven_steps_adds_up_exactly(tmp_path: Path) -> None:
    spans = [span(0, 11, "compute"), comm(11, 11, 0), span(22, 11, "input")]
    result = rank_of(tmp_path, spans, [(0, 0, 33), (1, 33, 66), (2, 66, 100)])
    assert result.breakdown_ns is not None
    assert result.breakdown_ns.step == 33  # 100 / 3
    assert sum(parts(result).values()) == 33


def test_windows_of_one_rank_are_averaged_over_their_steps(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.rank(0)
    run.window(0, [span(0, 60, "compute")], [(3, 0, 100)])
    run.window(0, [span(0, 30, "compute")], [(9, 0, 100), (10, 100, 200)], window=1)
    [result] = analyze_run(run.read()).ranks
    assert result.num_traced_steps == 3
    assert parts(result)["compute"] == 30


def kernel(
    start: int, dur: int, kind: str = "compute", launch: int | None = 0, **columns: Any
) -> dict[str, Any]:
    launched = None if launch is None else EPOCH + launch
    values = {"device": 0, "lane": 7, "launch_ns": launched, "launch_step": 0, **columns}
    return span(start, dur, kind, **values)


def test_on_a_gpu_the_device_decides_and_the_host_fills_in(tmp_path: Path) -> None:
    result = rank_of(
        tmp_path,
        [
            span(0, 900, "compute"),  # host operators: not what the step is spent on
            kernel(0, 300),
            kernel(200, 300, "comm", lane=20, collective="all_reduce", group="0", seq=0),
            kernel(450, 100, "copy"),
            span(600, 150, "optimizer", phase="optimizer"),
            kernel(700, 100, phase="optimizer"),  # an optimizer's kernel is device compute
            span(850, 100, "input"),
            kernel(950, 50, launch=940),
        ],
        [(0, 0, 1000)],
    )
    assert parts(result) == {
        "compute": 450, "exposed_comm": 200, "copy": 50, "input_wait": 100, "optimizer": 100, "idle": 100,
    }  # fmt: skip
    device = result.device_ns
    assert device is not None
    assert (device.num_events, device.span, device.compute, device.comm) == (5, 1000, 450, 300)
    assert (device.exposed_comm, device.copy, device.idle) == (200, 50, 300)
    assert device.overlap_ratio == pytest.approx(1 / 3)


def test_device_gaps_are_told_apart_and_add_up(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.rank(0)
    late, short, long, tie = 200_000, 230_000, 330_000, 430_000
    spans = [
        kernel(0, 100_000),
        kernel(late, 10_000, launch=150_000),  # launched after the previous one ended
        kernel(short, 10_000, launch=50_000),  # launched long before, gap of 20 us
        kernel(long, 10_000, launch=50_000),  # launched long before, gap of 90 us
        kernel(tie, 10_000, launch=420_000),  # two begin at once, one of them launched in time
        kernel(tie, 10_000, launch=100, lane=8),
        kernel(540_000, 10_000, launch=None),  # who launched it is not in the file
    ]
    run.window(0, spans, [(0, 0, 600_000)])
    table = run.read().timeline(0, 0)
    device = bd.device_breakdown(table, bd.every_gpu_event(table))
    assert device is not None
    assert device.idle_host_wait == 100_000
    assert device.idle_kernel_wait == 20_000
    assert device.idle_other == 90_000 + 90_000 + 100_000
    assert device.idle == device.idle_host_wait + device.idle_kernel_wait + device.idle_other
    [rank] = analyze_run(run.read()).ranks
    assert rank.idle_host_wait_ns == 100_000


def test_a_trace_without_step_marks_is_taken_whole_and_says_so(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, origin="import")
    run.rank(0)
    run.window(0, [span(0, 40, "compute"), comm(60, 40, 0)], [])
    analysis = analyze_run(run.read())
    assert parts(analysis.ranks[0]) == {
        "compute": 40, "exposed_comm": 40, "copy": 0, "input_wait": 0, "optimizer": 0, "idle": 20,
    }  # fmt: skip
    assert analysis.breakdown_of == "file"
    assert analysis.ranks[0].num_steps == 0 and analysis.ranks[0].step_ns is None
    assert any(figure_text(missing) == "step boundaries" for missing in analysis.missing)


def test_without_thread_roles_every_host_thread_counts(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.rank(0)
    spans = [span(0, 30, "compute", lane=MAIN), span(50, 30, "compute", lane=BACKEND)]
    run.window(0, spans, [(0, 0, 100)], lanes=[])
    assert parts(analyze_run(run.read()).ranks[0])["compute"] == 60
