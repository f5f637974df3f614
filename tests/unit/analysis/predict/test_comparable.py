"""What predictions may be made from, and what they are compared with: links, cores, batches, references."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from perfscope.analysis.predict.compute import fit_compute
from perfscope.analysis.predict.costs import LinkCost, collective_time_s
from perfscope.analysis.predict.crossings import uses_inside
from perfscope.analysis.predict.forecast import Question, predict
from perfscope.analysis.predict.networks import parse_network
from perfscope.analysis.predict.records import (
    INSIDE_HOST,
    MeasuredCall,
    MeasuredRun,
    Plan,
    Refusal,
)
from perfscope.analysis.predict.results import Prediction
from perfscope.analysis.predict.warnings import best_sentences
from tests.unit.analysis.predict.test_truth import FIXED_MS, MS, SAMPLE_MS, calls_of, measured, plan

INSIDE = LinkCost(1e-3, 1 / 100e6)
SIZES = (400_000, 4_000_000)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def inside_run(num_ranks: int, batch: float) -> MeasuredRun:
    """All ranks on one host, whose links are slow."""
    base = measured(num_ranks, batch, rng(), noise=0.0, sizes=SIZES)
    times = {size: 1e9 * collective_time_s("all_reduce", num_ranks, size, INSIDE) for size in SIZES}
    calls = tuple(
        MeasuredCall(
            collective="all_reduce",
            num_ranks=num_ranks,
            bytes=size,
            link_class=INSIDE_HOST,
            transfer_ns=time,
        )
        for size, time in times.items()
        for _ in range(4)
    )
    return structs.replace(
        base,
        plan=structs.replace(base.plan, ranks=(calls_of(num_ranks, SIZES, INSIDE_HOST),)),
        calls=calls,
        comm_ns=sum(times.values()),
        step_ns=base.step_ns - base.comm_ns + sum(times.values()),
    )


def ring(num_ranks: int, batch: float, *, inside_too: bool) -> Plan:
    calls = tuple(structs.replace(call, inside_too=inside_too) for call in calls_of(num_ranks, SIZES))
    return structs.replace(plan("dp.ddp", num_ranks, batch, SIZES), ranks=(calls,))


def the_one(runs: list[MeasuredRun], asked: Plan, **how: object) -> Prediction:
    (found,) = predict(runs, Question(plans=[asked], **how)).predictions  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(("network", "slower"), [("1us,400Gbit", INSIDE), ("10ms,1Mbit", None)])
def test_a_ring_over_hosts_is_as_slow_as_the_slower_of_its_links(
    network: str, slower: LinkCost | None
) -> None:
    runs, given = [inside_run(4, 32), inside_run(4, 64)], parse_network(network)
    one = the_one(runs, ring(8, 64, inside_too=True), network=given)
    link = slower or given.link
    truth = 1e9 * sum(collective_time_s("all_reduce", 8, size, link) for size in SIZES)
    assert one.exposed_comm_ns + one.hidden_comm_ns == pytest.approx(truth, rel=0.02)
    alone = the_one(runs, ring(8, 64, inside_too=False), network=given)
    if slower is not None:  # one rank per host: the network alone
        assert alone.exposed_comm_ns < 0.05 * one.exposed_comm_ns


def test_links_inside_hosts_that_no_run_tells_of_are_said() -> None:
    runs = [measured(2, batch, rng(), noise=0.0, sizes=SIZES) for batch in (16, 32)]
    one = the_one(runs, ring(4, 32, inside_too=True))
    assert any("use links inside hosts, too" in warning for warning in one.warnings)
    assert one.step_ns == the_one(runs, ring(4, 32, inside_too=False)).step_ns


@pytest.mark.parametrize(
    ("collective", "hosts", "expected"),
    [
        ("all_reduce", [0, 0, 1, 1], True),
        ("all_reduce", [0, 1, 2, 3], False),
        ("all_reduce", [0, 1, 0, 1], False),  # no neighbors of the ring share a host
        ("all_to_all", [0, 1, 0, 1], True),
        ("all_reduce", [0, 0], False),  # inside one host only: not both
    ],
)
def test_which_calls_use_both_classes_of_links(collective: str, hosts: list[int], expected: bool) -> None:
    assert uses_inside(collective, hosts) is expected


def test_work_far_from_what_was_measured_is_refused_until_asked() -> None:
    runs = [measured(2, batch, rng()) for batch in (16, 32)]
    for batch in (1_000_000, 132, 3):
        report = predict(runs, Question(plans=[plan("dp.ddp", 2, batch)]))
        assert not report.predictions
        assert "more than 4 x off the 8 to 16 measured" in report.refusals[0].reason
        assert "--extrapolate" in report.refusals[0].reason
    assert the_one(runs, plan("dp.ddp", 2, 128)).batch == 128
    assert the_one(runs, plan("dp.ddp", 2, 1_000_000), extrapolate=True).samples_per_s is not None


def test_more_samples_never_take_no_time_and_the_interval_says_how_little_is_known() -> None:
    """A disturbed run with half the samples took as long: a slope of 0 would make any batch free."""
    full = measured(2, 32, rng(), noise=0.0)
    runs = [
        structs.replace(measured(2, 16, rng(), noise=0.0), step_ns=full.step_ns, steps_ns=full.steps_ns),
        full,
    ]
    curve = fit_compute(runs).curve("dp.ddp")
    assert curve.assumed
    assert curve.slope_ns > 0
    near, far = (the_one(runs, plan("dp.ddp", 2, batch)) for batch in (24, 128))
    assert far.compute_ns > 1.5 * near.compute_ns
    widths = [one.step_interval_ns.high / one.step_interval_ns.low for one in (near, far)]
    assert widths[1] > 1.5 * widths[0]
    assert any("more samples took no longer" in warning for warning in far.warnings)


def test_schemes_with_one_batch_each_tell_no_curve_together() -> None:
    """One scheme is slow, and has a little more work: that is no slope, and the other keeps its own level."""
    slow, fast = measured(2, 32, rng(), scheme="easgd.x", noise=0.0), measured(2, 30, rng(), noise=0.0)
    slow = structs.replace(slow, step_ns=10 * slow.step_ns)
    owt = structs.replace(fast.plan, scheme="hy.owt", whole=30.0)
    one = the_one([slow, fast, structs.replace(fast, plan=owt)], owt)
    assert one.step_ns == pytest.approx(fast.step_ns, rel=0.02)


def test_runs_with_other_cores_per_rank_give_no_compute_and_no_efficiency() -> None:
    """One machine of 2 cores: each run's ranks have half the cores and take as long for half the samples."""
    runs = []
    for num, cores, factor in ((1, 2.0, 1.0), (2, 1.0, 2.0), (4, 0.5, 5.0)):
        base = measured(num, 64, rng(), noise=0.0)
        own = base.step_ns - base.comm_ns
        runs.append(
            structs.replace(base, step_ns=factor * own + base.comm_ns, cores_per_rank=cores, steps_ns=())
        )
    report = predict(runs, Question(plans=[plan("dp.ddp", num, 64) for num in (4, 8)]))
    assert report.not_comparable is not None
    assert "0.5, 1 and 2 cores" in report.not_comparable
    assert report.cores_per_rank == 0.5
    assert [one.num_ranks for one in report.references] == [4]
    four, eight = report.predictions
    assert four.compute_ns == pytest.approx(5 * (FIXED_MS + SAMPLE_MS * 16) * MS, rel=0.02)
    assert eight.compute_ns < 0.7 * four.compute_ns
    other = predict(runs, Question(plans=[plan("dp.ddp", 2, 64)], cores_per_rank=1.0))
    assert [one.num_ranks for one in other.references] == [2]
    assert other.predictions[0].measured_step_ns == round(runs[1].step_ns)


def test_more_cores_than_threads_can_use_do_not_tell_runs_apart() -> None:
    runs = [structs.replace(measured(num, 32, rng()), cores_per_rank=64 / num) for num in (1, 2)]
    assert predict(runs, Question(plans=[plan("dp.ddp", 4, 32)])).not_comparable is None


def test_what_was_measured_stands_beside_what_is_predicted() -> None:
    runs = [measured(num, batch, rng(), noise=0.0) for num, batch in ((1, 32), (2, 32), (2, 16))]
    asked = Question(plans=[plan("dp.ddp", num, 32) for num in (2, 4)])
    two, four = predict(runs, asked).predictions
    assert two.measured_step_ns == round(runs[1].step_ns)
    assert two.misfit == pytest.approx(two.step_ns / runs[1].step_ns - 1)
    assert four.measured_step_ns is None
    assert four.misfit is None
    elsewhere = the_one(runs, plan("dp.ddp", 2, 32), network=parse_network("edr"))
    assert elsewhere.measured_step_ns is None  # it ran, but not on that network
    fitted = predict(runs, asked).fitted
    assert [one.name for one in fitted] == [run.name for run in runs]
    assert all(abs(one.misfit) < 0.05 for one in fitted)


def test_exchanges_begun_before_the_window_are_not_carried_to_another_network() -> None:
    early = [
        structs.replace(measured(2, batch, rng(), scheme="dp.fwd_overlap"), begun_before=True)
        for batch in (16, 32)
    ]
    usual = [measured(2, batch, rng()) for batch in (16, 32)]
    plans = [plan(scheme, 4, 32) for scheme in ("dp.fwd_overlap", "dp.ddp")]
    report = predict([*early, *usual], Question(plans=plans, network=parse_network("edr")))
    assert [one.scheme for one in report.predictions] == ["dp.ddp"]
    assert "exchanges begun before" in report.refusals[0].reason
    here = {one.scheme: one for one in predict([*early, *usual], Question(plans=plans)).predictions}
    assert any("part of its compute is communication" in one for one in here["dp.fwd_overlap"].warnings)


def test_efficiency_is_relative_to_the_scheme_itself_and_the_best_run_has_a_ratio_of_its_own() -> None:
    runs = [measured(2, batch, rng(), noise=0.0) for batch in (16, 32)]
    fast = [
        structs.replace(
            run, plan=structs.replace(run.plan, scheme="hy.owt"), step_ns=run.step_ns / 3, comm_ns=0.0
        )
        for run in runs
    ]
    plans = [
        plan("dp.ddp", 4, 32),
        structs.replace(plan("hy.owt", 4, 32), ranks=()),
        plan("mp.filter", 4, 32),
    ]
    report = predict([*runs, *fast], Question(plans=plans))
    found = {one.scheme: one for one in report.predictions}
    for scheme in ("dp.ddp", "hy.owt"):
        efficiency = found[scheme].efficiency
        assert efficiency is not None
        assert 0 < efficiency < 1.05
    assert found["mp.filter"].efficiency is None  # it did not run: nothing of its own to compare with
    alone = measured(1, 32, rng(), scheme="serial", noise=0.0)
    again = predict([*runs, alone], Question(plans=plans))
    bases = {one.scheme: one.num_ranks for one in again.references}
    assert bases == {"dp.ddp": 2, "serial": 1}  # what did not run is compared with one rank
    assert report.best_run is not None
    assert report.best_run.scheme == "hy.owt"
    speed = found["dp.ddp"].samples_per_s
    assert speed is not None
    assert found["dp.ddp"].times_best == pytest.approx(speed / report.best_run.samples_per_s)


def test_one_scheme_asked_for_is_not_said_to_be_all_that_could_be_predicted() -> None:
    (one,) = predict([measured(2, 32, rng())], Question(plans=[plan("dp.ddp", 4, 32)])).predictions
    assert best_sentences([one], []) == ()
    refused = Refusal(scheme="hy.owt", num_ranks=4, reason="no")
    assert "only dp.ddp of the schemes asked for" in best_sentences([one], [refused])[0][1]


def test_a_problem_of_all_runs_is_one_line() -> None:
    runs = [structs.replace(measured(2, batch, rng()), problems=("disturbed (x)",)) for batch in (16, 24, 32)]
    runs[0] = structs.replace(runs[0], problems=("disturbed (x)", "only 2 traced steps"))
    warnings = predict(runs, Question(plans=[plan("dp.ddp", 4, 32)])).warnings
    assert "all 3 runs: disturbed (x)" in warnings
    assert f"{runs[0].name}: only 2 traced steps" in warnings
