"""Step time, throughput, waiting for input and overhead, without any trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analysis.run import analyze_run
from perfscope.analysis.steps import counted_steps, quantiles, rank_steps
from perfscope.messages.missing import cause_text, figure_text
from tests.support.synthetic_run import SyntheticRun, span

DP = {"name": "Net", "data_parallel": True, "dp_size": 2}


def untraced(path: Path, **manifest: Any) -> SyntheticRun:
    return SyntheticRun(path, options={"trace": False, "overhead": 0.01}, **manifest)


def test_quantiles_interpolate_linearly() -> None:
    result = quantiles(np.arange(0, 101, 10))
    assert result is not None
    assert (result.p10, result.median, result.p90, result.count) == (10, 50, 90, 11)
    assert quantiles(np.array([], dtype=np.int64)) is None


@pytest.mark.parametrize(
    ("window", "counted"),
    [
        ([-1], [0]),
        ([-1, -1], [1]),
        ([-1] * 8, [2, 3, 4, 5, 6, 7]),
        ([-1] * 20, list(range(3, 20))),
        ([-1, -1, -1, 0, 0, 0, -1, -1, -1, -1, -1, -1], [6, 7, 8, 9, 10, 11]),  # traced steps are slowed
        ([-1, -1, 0, 0, 0, -1], [1, 2, 3, 4, 5]),  # too few others: keep them
        ([0, 0, 0], [0, 1, 2]),  # an imported trace
    ],
)
def test_warm_up_and_traced_steps_are_left_out_by_the_rule(window: list[int], counted: list[int]) -> None:
    assert np.flatnonzero(counted_steps(np.array(window))).tolist() == counted


def test_a_run_without_windows_has_its_always_on_figures(tmp_path: Path) -> None:
    run = untraced(tmp_path, world_size=2)
    for rank in (0, 1):
        run.rank(rank, world_size=2, root=DP, overhead={"windows_ns": 0, "windows": 0, "always_on_ns": 500})
        run.steps(rank, [900, *[100] * 9], samples=[32] * 10, input_ns=[0, *[10] * 9])
    analysis = analyze_run(run.read())
    assert analysis.step_ns is not None and analysis.step_ns.median == 100
    assert analysis.throughput_samples_per_s == pytest.approx(64 / 100e-9)
    assert analysis.samples_source == "derived"
    assert analysis.overhead_ratio == pytest.approx(500 / 1800)
    [rank0, _] = analysis.ranks
    assert (rank0.input_wait_ns, rank0.elapsed_ns, rank0.num_steps) == (10, 1800, 10)
    assert rank0.breakdown_ns is None and analysis.layers == () and analysis.collectives == ()
    assert any("`--no-trace`" in cause_text(missing) for missing in analysis.missing)
    assert analysis.findings[0].id == "not_traced"
    assert tuple(analysis.step_series[1]) == (900, *[100] * 9)


def throughput_of(
    path: Path, metas: list[dict[str, Any]], **manifest: Any
) -> tuple[float | None, str | None]:
    run = SyntheticRun(path, **manifest)
    for rank, meta in enumerate(metas):
        run.rank(rank, **meta)
        run.steps(rank, [100] * 4, samples=[16] * 4)
    analysis = analyze_run(run.read())
    value = analysis.throughput_samples_per_s
    return (None if value is None else round(value * 100e-9, 6)), analysis.samples_source


def test_the_option_overrides_what_was_derived(tmp_path: Path) -> None:
    metas = [{"world_size": 1}]
    assert throughput_of(tmp_path, metas, options={"samples_per_step": 5}) == (5, "option")


@pytest.mark.parametrize(
    ("meta", "samples"),
    [
        ({"world_size": 2, "root": DP}, 32),
        ({"world_size": 2, "root": {"data_parallel": False}}, None),  # stages of a pipeline share the batch
        ({"world_size": 2}, None),
        ({"world_size": 4, "root": {**DP, "dp_size": 4}}, 64),  # two ranks were not attached: same batch each
        (
            {"world_size": 4, "root": {**DP, "dp_size": 4}, "mesh": {"axes": ["dp", "tp"], "shape": [2, 2]}},
            32,
        ),
    ],
)
def test_samples_are_summed_over_data_parallel_ranks_only(
    tmp_path: Path, meta: dict[str, Any], samples: int | None
) -> None:
    value, source = throughput_of(tmp_path, [meta, meta])
    assert value == samples
    assert source == (None if samples is None else "derived")


def varied(path: Path, **columns: list[int]) -> Any:
    """Two data-parallel ranks: every fourth step has 4096 samples in 1.4 ms, the others 8 in 0.14 ms."""
    run = untraced(path, world_size=2)
    durations = [1_400_000 if step % 4 == 3 else 140_000 for step in range(35)]
    sizes = [4096 if step % 4 == 3 else 8 for step in range(35)]
    for rank in (0, 1):
        run.rank(rank, world_size=2, root=DP)
        run.steps(rank, durations, **{name: given or sizes for name, given in columns.items()})
    return analyze_run(run.read())


def test_throughput_is_samples_over_their_own_time_where_batch_sizes_vary(tmp_path: Path) -> None:
    analysis = varied(tmp_path, samples=[])
    num, time_s = 2 * (8 * 4096 + 24 * 8), (8 * 1_400_000 + 24 * 140_000) * 1e-9
    assert analysis.throughput_samples_per_s == pytest.approx(num / time_s)
    assert analysis.samples_per_step == pytest.approx(num / 32)
    assert analysis.batch_range == (8, 4096)


def test_tokens_that_vary_put_both_throughputs_on_the_same_steps(tmp_path: Path) -> None:
    analysis = varied(tmp_path, samples=[16] * 35, tokens=[])
    time_s = (8 * 1_400_000 + 24 * 140_000) * 1e-9
    assert analysis.throughput_samples_per_s == pytest.approx(2 * 32 * 16 / time_s)
    assert analysis.tokens_per_s == pytest.approx(2 * (8 * 4096 + 24 * 8) / time_s)
    assert analysis.batch_range is None


def test_a_smaller_last_batch_and_a_stall_leave_the_median_step(tmp_path: Path) -> None:
    run = untraced(tmp_path, world_size=1)
    run.rank(0, world_size=1)
    run.steps(0, [*[100] * 20, 5000, 60], samples=[*[32] * 21, 4])
    analysis = analyze_run(run.read())
    mean = (18 * 32 + 4) / 19
    assert analysis.throughput_samples_per_s == pytest.approx(mean / 100e-9)
    assert (analysis.samples_per_step, analysis.batch_range) == (32, None)


def test_throughput_follows_the_mean_where_the_median_does_not_stand_for_the_steps(tmp_path: Path) -> None:
    """Two loader workers: every second batch is ready at once, the others come late."""
    run = untraced(tmp_path, world_size=1)
    run.rank(0, world_size=1)
    run.steps(0, [100, 900] * 20, samples=[32] * 40)
    analysis = analyze_run(run.read())
    assert analysis.uneven_mean_ns is not None
    counted = analysis.step_ns.count if analysis.step_ns else 0
    mean = (
        900 * ((counted + 1) // 2) + 100 * (counted // 2)
    ) / counted  # the first counted step is a late one
    assert analysis.uneven_mean_ns == pytest.approx(mean)
    assert analysis.throughput_samples_per_s == pytest.approx(32 / (mean * 1e-9))


def test_evaluations_inside_steps_do_not_make_them_uneven(tmp_path: Path) -> None:
    run = untraced(tmp_path, world_size=1)
    run.rank(0, world_size=1)
    beside = [900 if step % 5 == 4 else 0 for step in range(40)]
    run.steps(0, [100 + more for more in beside], samples=[32] * 40, evaluation_ns=beside)
    analysis = analyze_run(run.read())
    assert analysis.uneven_mean_ns is None
    assert analysis.throughput_samples_per_s == pytest.approx(32 / 100e-9)


def test_a_single_process_needs_no_data_parallel_root(tmp_path: Path) -> None:
    assert throughput_of(tmp_path, [{"world_size": 1}]) == (16, "derived")


def test_a_rank_that_was_killed_keeps_its_steps(tmp_path: Path) -> None:
    run = untraced(tmp_path, world_size=2)
    run.rank(0, world_size=2)
    run.rank(1, world_size=2, finished=False)
    run.steps(0, [100] * 10)
    run.steps(1, [100] * 6)
    analysis = analyze_run(run.read())
    assert [rank.num_steps for rank in analysis.ranks] == [10, 6]
    assert [rank.finished for rank in analysis.ranks] == [True, False]
    [killed] = [finding for finding in analysis.findings if finding.id == "ranks_killed"]
    assert killed.rank == 1
    assert "Rank 1 did not close its files" in killed.text.title


def test_a_rank_without_steps_or_windows_is_missing_not_zero(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, world_size=2)
    run.rank(0)
    run.rank(1)
    run.steps(0, [100, 100])
    run.window(0, [span(0, 50, "compute")], [(1, 0, 100)])
    analysis = analyze_run(run.read())
    assert analysis.ranks[1].step_ns is None and analysis.ranks[1].breakdown_ns is None
    assert {figure_text(missing) for missing in analysis.missing} >= {
        "step breakdown of rank 1",
        "step time of rank 1",
    }


def test_a_run_to_which_nothing_attached_says_why(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, expected_ranks=4, attach_notes=["python -I ignores PYTHONPATH."])
    analysis = analyze_run(run.read())
    assert analysis.ranks == () and analysis.step_ns is None and analysis.overhead_ratio is None
    assert [finding.id for finding in analysis.findings] == ["no_steps", "ranks_missing"]
    assert any("PYTHONPATH" in cause_text(missing) for missing in analysis.missing)


def queue(num: int, host: int, device: int, sync_every: int, stalls: dict[int, int]) -> list[int]:
    """The host's steps over a device that takes `device` for each; the host waits every `sync_every`."""
    now = free = 0
    lengths = []
    for step in range(num):
        began = now
        now += host + stalls.get(step, 0)
        free = max(free, now) + device if not step else max(free + device, now)
        if step % sync_every == sync_every - 1:
            now = max(now, free)
        lengths.append(now - began)
    return lengths


@pytest.mark.parametrize("sync_every", [1, 10, 40])
def test_steps_of_a_host_that_runs_ahead_last_as_long_as_the_device_takes(
    sync_every: int, tmp_path: Path
) -> None:
    host = queue(200, 1200, 2500, sync_every, {150: 40_000})
    run = untraced(tmp_path)
    run.rank(0)
    lengths = [*host[:100], 1300, 1250, *host[100:]]
    run.steps(0, lengths, window=[0 if step in (100, 101) else -1 for step in range(202)])
    steps = rank_steps(run.read().steps(0), on_device={100: 2500, 101: 2510})
    assert steps.are_on_device
    assert np.median(steps.counted) == pytest.approx(2500, rel=0.01)
    assert steps.counted.max() > 10 * 2500  # a stall of the host's stays one, less what was queued
    assert steps.durations[~steps.is_traced].sum() == sum(host)  # nothing is added and nothing lost
    assert steps.durations[steps.is_traced].tolist() == [2500, 2510]
