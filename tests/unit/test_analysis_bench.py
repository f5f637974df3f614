"""A bench run's figures from records whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.bench import BenchResult, bench_result
from perfscope.analysis.run import analyse_run
from tests.unit.synthetic_run import SyntheticRun

MS = 1_000_000


def scheme(**changes: Any) -> dict[str, Any]:
    """Two ranks on two hosts: one all_reduce of 1,000 bytes a step over the wire between them."""
    row = {
        "collective": "all_reduce",
        "axis": "data",
        "num_ranks": 2,
        "bytes": 1000,
        "every": 1,
        "what": "gradients",
        "by_library": False,
        "count": 1,
        "links": {"ethernet": 1000.0},
    }
    return {
        "full_name": "dp.packed",
        "model": "mlp",
        "mesh": {"data": 2, "model": 1, "stage": 1},
        "num_ranks": 2,
        "batch": 10,
        "effective_batch": 10,
        "places": [{"rank": 0, "host": "a"}, {"rank": 1, "host": "b"}],
        "predicted": {
            "bytes_algorithmic_per_step": {"ethernet": 2000.0},
            "bytes_wire_per_step": {"ethernet": 2000.0},
            "calls_of_rank": {"0": [row], "1": [row]},
        },
        **changes,
    }


def record(step_ms: int = 10, steps: int = 4, **changes: Any) -> dict[str, Any]:
    call = {"collective": "all_reduce", "axis": "data", "num_ranks": 2, "bytes": 1000, "count": steps}
    return {
        "losses": [3.0 - number for number in range(steps)],
        "step_ends_ns": [0, *((number + 1) * step_ms * MS for number in range(steps))],
        "calls": [call],
        "interfaces": {"eth0": {"tx_bytes": 1066 * steps}, "lo": {"tx_bytes": 0}},
        "held_out_loss": None,
        "peak_rss_bytes": 7,
        "details": {},
        **changes,
    }


def figures(scheme_: dict[str, Any], *records: dict[str, Any]) -> BenchResult:
    found, _ = bench_result(scheme_, dict(enumerate(records)))
    assert found is not None
    return found


def test_speed_is_that_of_the_slowest_rank_after_the_warm_up() -> None:
    result = figures(scheme(), record(step_ms=10), record(step_ms=20))
    assert result.samples_per_s == pytest.approx(10 / 0.020)
    assert result.step_median_ns == result.step_p10_ns == 20 * MS


def test_predicted_recorded_and_wire_stand_side_by_side() -> None:
    result = figures(scheme(), record(), record())
    (link,) = result.links
    assert (link.link_class, link.predicted, link.recorded) == ("ethernet", 2000, 2000)
    assert link.wire == 2 * 1066
    (call,) = result.calls
    assert (call.predicted, call.recorded) == (8, 8)


def test_a_call_that_no_formula_foresaw_is_told() -> None:
    extra = {"collective": "broadcast", "axis": "world", "num_ranks": 2, "bytes": 5, "count": 3}
    one = record()
    result = figures(scheme(), {**one, "calls": [*one["calls"], extra]}, record())
    assert "3 calls" in result.links[0].reason
    assert [call.what for call in result.calls] == ["gradients", "not predicted"]


def test_periodic_calls_are_counted_by_their_period() -> None:
    row = {**scheme()["predicted"]["calls_of_rank"]["0"][0], "every": 2}
    predicted = {**scheme()["predicted"], "calls_of_rank": {"0": [row], "1": [row]}}
    result = figures(scheme(predicted=predicted), record(steps=5), record(steps=5))
    assert result.calls[0].predicted == 2 * 2


def test_calls_of_a_library_are_not_called_recorded() -> None:
    row = {**scheme()["predicted"]["calls_of_rank"]["0"][0], "by_library": True}
    predicted = {**scheme()["predicted"], "calls_of_rank": {"0": [row], "1": [row]}}
    silent = record(calls=[])
    result = figures(scheme(predicted=predicted), silent, silent)
    assert result.links[0].recorded is None
    assert "library" in result.links[0].reason
    assert result.calls[0].recorded is None


def test_a_rank_that_only_serves_has_no_part_in_speed_and_loss() -> None:
    server = record(losses=[], step_ends_ns=[0])
    result = figures(scheme(), server, record(step_ms=20))
    assert result.samples_per_s == pytest.approx(500)
    assert result.first_loss == 3.0


def test_a_rank_that_died_is_missing_and_said_so() -> None:
    _, missing = bench_result(scheme(), {0: record()})
    assert ["1 of 2 ranks" in gap.reason for gap in missing] == [True]


def test_nobody_left_a_record() -> None:
    result, missing = bench_result(scheme(), {})
    assert result is not None
    assert (result.samples_per_s, result.last_loss, result.num_steps) == (None, None, 0)
    assert len(missing) == 1


@pytest.mark.parametrize(
    "broken", [{}, {"predicted": 3}, {"full_name": "x", "predicted": {}}, scheme(mesh=None)]
)
def test_a_record_that_makes_no_sense_is_one_missing_figure(broken: dict[str, Any]) -> None:
    found, missing = bench_result(broken, {0: record()})
    assert found is None
    assert [gap.what for gap in missing] == ["the scheme's figures"]


def test_other_runs_have_none(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, scheme=None)
    run.rank(0)
    assert analyse_run(run.read()).bench is None


def test_a_run_directory_gives_its_bench_records(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, scheme=scheme())
    for rank in (0, 1):
        run.rank(rank)
        run.write(f"ranks/{rank}/bench.json", record())
    result = analyse_run(run.read()).bench
    assert result is not None
    assert result.num_ranks_recorded == 2
