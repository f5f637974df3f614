"""A bench run's figures from records whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.bench import BenchResult, Traced, bench_result
from perfscope.analysis.missing import Missing
from perfscope.analysis.run import analyze_run
from perfscope.messages.missing import cause_text, figure_text
from perfscope.rundir.scheme_records import BenchRecord, SchemeRecord
from perfscope.rundir.typed import read_as
from tests.support.synthetic_run import SyntheticRun

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


def result_of(
    scheme_: dict[str, Any], records: dict[int, dict[str, Any]], traced: Traced | None = None
) -> tuple[BenchResult | None, tuple[Missing, ...]]:
    typed = {rank: read_as(BenchRecord, one) for rank, one in records.items()}
    return bench_result(read_as(SchemeRecord, scheme_), typed, traced)


def figures(scheme_: dict[str, Any], *records: dict[str, Any], traced: Traced | None = None) -> BenchResult:
    found, _ = result_of(scheme_, dict(enumerate(records)), traced)
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


def test_calls_of_the_run_are_taken_where_run_json_tells_them() -> None:
    """A cut period has a call more than whole periods have."""
    row = {**scheme()["predicted"]["calls_of_rank"]["0"][0], "every": 4, "calls": 2}
    predicted = {**scheme()["predicted"], "calls_of_rank": {"0": [row], "1": [row]}}
    made = record(steps=6)
    made["calls"] = [{**made["calls"][0], "count": 2}]
    result = figures(scheme(predicted=predicted), made, made)
    assert (result.calls[0].predicted, result.calls[0].recorded) == (4, 4)
    assert result.links[0].recorded == pytest.approx(2 * 1000 * 2 / 6)


def test_a_rank_whose_calls_are_not_listed_leaves_the_recorded_bytes_unknown() -> None:
    row = scheme()["predicted"]["calls_of_rank"]["0"]
    predicted = {**scheme()["predicted"], "calls_of_rank": {"0": row}}
    result = figures(scheme(predicted=predicted), record(), record())
    assert result.links[0].recorded is None
    assert "does not list the calls of 1 of 2 ranks" in result.missing["recorded"]


def predicting(*, links: str = "ethernet", rows: int = 1, **changes: Any) -> dict[str, Any]:
    """The scheme above with its one call changed."""
    row = {**scheme()["predicted"]["calls_of_rank"]["0"][0], "links": {links: 1000.0}, **changes}
    calls = {"0": [row] * rows, "1": [row] * rows}
    return scheme(predicted={**scheme()["predicted"], "calls_of_rank": calls})


def test_recorded_bytes_follow_the_ledger_not_the_prediction() -> None:
    half = record()
    half["calls"] = [{**half["calls"][0], "count": 2}]  # in 4 steps
    result = figures(predicting(), half, half)
    assert result.links[0].recorded == 1000
    never = figures(predicting(), record(calls=[]), record(calls=[]))
    assert never.links[0].recorded == 0


def test_calls_that_nobody_predicted_are_on_no_link() -> None:
    extra = {"collective": "send", "axis": "world", "num_ranks": 2, "bytes": 8, "count": 4}
    one = record()
    result = figures(predicting(), {**one, "calls": [*one["calls"], extra]}, record())
    assert (result.links[0].recorded, result.unexpected_bytes) == (2000, 8)


def test_a_period_counts_what_was_really_sent_in_steps_that_do_not_divide() -> None:
    one = record(steps=10)
    one["calls"] = [{**one["calls"][0], "count": 2}]  # steps 4 and 8 of 10
    result = figures(predicting(every=4), one, one)
    assert result.links[0].recorded == 2 * 2 * 1000 / 10


def test_calls_of_a_library_are_known_from_traces_alone() -> None:
    silent = record(calls=[])
    blind = figures(predicting(by_library=True), silent, silent)
    assert blind.links[0].recorded is None
    assert "no window was traced" in blind.links[0].reason
    assert "recorded" in blind.missing
    assert blind.calls[0].recorded is None
    seen = figures(predicting(by_library=True), silent, silent, traced=Traced(bytes={"all_reduce": 3000.0}))
    assert seen.links[0].recorded == 3000  # a half more than predicted
    other = figures(predicting(by_library=True), silent, silent, traced=Traced(bytes={"broadcast": 1.0}))
    assert other.links[0].recorded is None and "all_reduce" in other.missing["recorded"]


def test_a_librarys_bytes_are_what_the_ledger_does_not_explain() -> None:
    both = predicting(by_library=True)
    own = {
        **both["predicted"]["calls_of_rank"]["0"][0],
        "by_library": False,
        "bytes": 10,
        "links": {"lo": 10.0},
    }
    for rows in both["predicted"]["calls_of_rank"].values():
        rows.append(own)
    one = record(calls=[{**own, "count": 4}])
    result = figures(both, one, one, traced=Traced(bytes={"all_reduce": 2020.0}))
    assert {link.link_class: link.recorded for link in result.links} == {"ethernet": 2000, "lo": 20}


def test_gloo_shows_a_reduce_scatter_as_the_all_reduce_it_makes_of_it() -> None:
    silent = record(calls=[])
    traced = Traced(bytes={"all_reduce": 2000.0})
    of_gloo = {**predicting(by_library=True, collective="reduce_scatter"), "backend": "gloo"}
    assert figures(of_gloo, silent, silent, traced=traced).links[0].recorded == 2000
    assert figures({**of_gloo, "backend": "nccl"}, silent, silent, traced=traced).links[0].recorded is None


ASYNCHRONOUS = {"synchrony": "asynchronous"}


def test_asynchronous_workers_are_added_up_and_their_server_is_none() -> None:
    server = record(step_ms=1, losses=[None] * 4)
    one, other = record(step_ms=10), record(step_ms=20)
    result = figures(scheme(axes=ASYNCHRONOUS, group_batch=5), server, one, other)
    assert result.samples_per_s == pytest.approx(5 / 0.010 + 5 / 0.020)
    assert result.step_median_ns == 20 * MS


def ends(*durations_ms: int) -> list[int]:
    found = [0]
    for duration in durations_ms:
        found.append(found[-1] + duration * MS)
    return found


def test_traced_steps_are_left_out_while_three_others_remain() -> None:
    # the fourth step was traced; the profiler wrote its trace in the fifth, after the mark of the fourth
    slow = record(steps=8, step_ends_ns=ends(50, 50, 10, 40, 90, 10, 10, 10))
    traced = Traced(spans_ns={0: [(111 * MS, 151 * MS)]})
    result = figures(scheme(), slow, traced=traced)
    assert (result.traced_steps, result.num_counted_steps) == ("left out", 4)
    assert result.samples_per_s == pytest.approx(10 / 0.010)
    few = record(steps=6, step_ends_ns=ends(50, 50, 10, 40, 90, 10))
    result = figures(scheme(), few, traced=traced)
    assert (result.traced_steps, result.num_counted_steps) == ("counted", 4)
    assert result.samples_per_s == pytest.approx(10 / 0.025)
    assert figures(scheme(), few).traced_steps == "none"


def test_one_odd_step_does_not_move_the_speed() -> None:
    odd = record(steps=7, step_ends_ns=ends(50, 50, 10, 10, 500, 10, 10))
    assert figures(scheme(), odd).samples_per_s == pytest.approx(10 / 0.010)


def test_uneven_steps_have_the_speed_of_their_mean() -> None:
    # the loader delivers in bursts: two steps of 10 ms, then one of 40
    slow = record(steps=26, step_ends_ns=ends(50, 50, *([10, 10, 40] * 8)))
    assert figures(scheme(), slow).samples_per_s == pytest.approx(10 / 0.020)


def test_a_scheme_with_a_period_is_not_judged_by_the_steps_without_exchange() -> None:
    # every third step exchanges: 10, 10, 40
    slow = record(steps=9, step_ends_ns=ends(10, 10, 40, 10, 10, 40, 10, 10, 40))
    result = figures(predicting(every=3), slow)
    assert result.samples_per_s == pytest.approx(10 / 0.020)
    assert result.step_median_ns == 10 * MS
    short = record(steps=4, step_ends_ns=ends(10, 10, 40, 10))  # no second step of the period is counted
    assert figures(predicting(every=3), short).samples_per_s == pytest.approx(10 / 0.025)


def test_first_and_last_loss_are_means_over_three_steps_of_either_half() -> None:
    one = record(steps=10, losses=[float(10 - number) for number in range(10)])
    result = figures(scheme(), one)
    assert (result.first_loss, result.last_loss) == (9.0, 2.0)
    short = figures(scheme(), record(steps=3, losses=[3.0, 2.0, 1.0]))
    assert (short.first_loss, short.last_loss) == (3.0, 1.0)
    unknown = figures(scheme(), record(losses=[None] * 4))
    assert unknown.last_loss is None and "loss" in unknown.missing["last_loss"]


def test_held_out_loss_is_that_of_rank_0() -> None:
    assert figures(scheme(), record(held_out_loss=0.5), record(held_out_loss=0.7)).held_out_loss == 0.5
    assert figures(scheme(), record(), record(held_out_loss=0.7)).held_out_loss is None


def test_communication_over_mpi_is_missing_never_none_of_it() -> None:
    traced = Traced(bytes={}, exposed_comm_ns=0.0, exposed_comm_ratio=0.0, reason="")
    over_mpi = scheme(backend="mpi")
    found, missing = result_of(over_mpi, {0: record(), 1: record()}, traced)
    assert found is not None
    assert (found.exposed_comm_ns, found.exposed_comm_ratio) == (None, None)
    assert "MPI" in found.missing["exposed_comm_ns"]
    assert [figure_text(gap) for gap in missing] == ["exposed communication"]
    assert figures(scheme(backend="gloo"), record(), record(), traced=traced).exposed_comm_ns == 0


def test_a_rank_that_only_serves_has_no_part_in_speed_and_loss() -> None:
    server = record(losses=[], step_ends_ns=[0])
    result = figures(scheme(), server, record(step_ms=20))
    assert result.samples_per_s == pytest.approx(500)
    assert result.first_loss == 2.5  # of 3, 2, 1, 0: the server's part in the mean is none


def test_a_rank_that_died_is_missing_and_said_so() -> None:
    _, missing = result_of(scheme(), {0: record()})
    assert ["1 of 2 ranks" in cause_text(gap) for gap in missing] == [True]


def test_nobody_left_a_record() -> None:
    result, missing = result_of(scheme(), {})
    assert result is not None
    assert (result.samples_per_s, result.last_loss, result.num_steps) == (None, None, 0)
    assert len(missing) == 1


@pytest.mark.parametrize(
    "broken", [{}, {"predicted": 3}, {"full_name": "x", "predicted": {}}, scheme(mesh=None)]
)
def test_a_record_that_makes_no_sense_is_one_missing_figure(broken: dict[str, Any]) -> None:
    found, missing = result_of(broken, {0: record()})
    assert found is None
    assert [figure_text(gap) for gap in missing] == ["the scheme's figures"]


@pytest.mark.parametrize(
    ("name", "old", "new", "text"),
    [
        ("hy.filter_dp", (2, 3, 1), {"dp": 2, "tp": 3}, "2 dp × 3 tp"),
        ("hy.pp_dp", (2, 1, 2), {"dp": 2, "pp": 2}, "2 dp × 2 pp"),
        ("dp.hsdp", (2, 2, 1), {"dp": 2, "fsdp": 2}, "2 dp × 2 fsdp"),
        ("serial", (1, 1, 1), {}, ""),
    ],
)
def test_a_mesh_without_named_axes_reads_as_one_with_them(
    name: str, old: tuple[int, int, int], new: dict[str, int], text: str
) -> None:
    unnamed = dict(zip(("data", "model", "stage"), old, strict=True))
    for mesh in (unnamed, new):
        found, _ = result_of(scheme(name=name, mesh=mesh), {0: record()})
        assert found is not None and found.mesh == text


def test_other_runs_have_none(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, scheme=None)
    run.rank(0)
    assert analyze_run(run.read()).bench is None


def test_a_run_directory_gives_its_bench_records(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, scheme=scheme())
    for rank in (0, 1):
        run.rank(rank)
        run.write(f"ranks/{rank}/bench.json", record())
    result = analyze_run(run.read()).bench
    assert result is not None
    assert result.num_ranks_recorded == 2
