"""Predictions from runs that a known cost model made: what it was made with must come out again."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from perfscope.analysis.predict.compute import fit_compute
from perfscope.analysis.predict.costs import LinkCost, collective_time_s
from perfscope.analysis.predict.crossings import sharing
from perfscope.analysis.predict.fitting import expected_maximum
from perfscope.analysis.predict.forecast import Question, predict
from perfscope.analysis.predict.links import fit_link
from perfscope.analysis.predict.networks import parse_network
from perfscope.analysis.predict.records import (
    BETWEEN_HOSTS,
    INSIDE_HOST,
    LayerOperators,
    MeasuredCall,
    MeasuredRun,
    Plan,
    PlannedCall,
    Refusal,
)
from perfscope.errors import UsageError

MS = 1e6
LINK = LinkCost(50e-6, 1 / 100e6)
FIXED_MS, SAMPLE_MS = 4.0, 1.5
SIZES = (4_000, 400_000, 4_000_000)
HIDEABLE = (4_000, 40_000, 400_000)  # fits under the backward pass up to 8 ranks


def calls_of(
    num_ranks: int, sizes: tuple[int, ...] = SIZES, where: str = BETWEEN_HOSTS
) -> tuple[PlannedCall, ...]:
    if num_ranks == 1:
        return ()
    return tuple(
        PlannedCall(collective="all_reduce", num_ranks=num_ranks, bytes=size, count=1, link_class=where)
        for size in sizes
    )


def plan(scheme: str, num_ranks: int, batch: float, sizes: tuple[int, ...] = SIZES) -> Plan:
    calls = calls_of(num_ranks, sizes)
    return Plan(
        scheme=scheme,
        num_ranks=num_ranks,
        mesh=str(num_ranks),
        batch=batch,
        work=batch / num_ranks,
        ranks=(calls,) if calls else (),
    )


def comm_ns(num_ranks: int, sizes: tuple[int, ...] = SIZES) -> float:
    return 1e9 * sum(collective_time_s("all_reduce", num_ranks, size, LINK) for size in sizes)


def true_step(
    num_ranks: int, batch: float, *, hidden: float = 0.0, spread: float = 0.0, sizes: tuple[int, ...] = SIZES
) -> float:
    own = (FIXED_MS + SAMPLE_MS * batch / num_ranks) * MS
    return own * (1 + spread * expected_maximum(num_ranks)) + comm_ns(num_ranks, sizes) * (1 - hidden)


def measured(
    num_ranks: int,
    batch: float,
    rng: np.random.Generator,
    *,
    scheme: str = "dp.ddp",
    hidden: float = 0.0,
    spread: float = 0.0,
    noise: float = 0.02,
    sizes: tuple[int, ...] = SIZES,
) -> MeasuredRun:
    """60 steps and 12 traced ones, every time off by `noise` (normal), one call in twenty 10 x longer."""
    of = plan(scheme, num_ranks, batch, sizes)
    step = true_step(num_ranks, batch, hidden=hidden, spread=spread, sizes=sizes)
    steps = step * (1 + noise * rng.standard_normal(60))
    calls = []
    for call in of.ranks[0] if of.ranks else ():
        time = 1e9 * collective_time_s(call.collective, num_ranks, call.bytes, LINK)
        times = time * (1 + noise * np.abs(rng.standard_normal(12)))
        times[rng.uniform(size=12) < 0.05] *= 10
        calls += [
            MeasuredCall(
                collective=call.collective,
                num_ranks=num_ranks,
                bytes=call.bytes,
                link_class=call.link_class,
                transfer_ns=float(one),
            )
            for one in times
        ]
    own = (FIXED_MS + SAMPLE_MS * of.work) * MS
    return MeasuredRun(
        name=f"{scheme}-{num_ranks}-{batch:g}",
        plan=of,
        model="synthetic",
        ranks_per_host=1,
        cores_per_rank=1.0,
        threads=1,
        step_ns=float(np.median(steps)),
        steps_ns=tuple(steps.tolist()),
        comm_ns=comm_ns(num_ranks, sizes) if num_ranks > 1 else 0.0,
        wait_ns=own * spread * expected_maximum(num_ranks),
        overlap_ratio=hidden if num_ranks > 1 else None,
        backward_share=0.6,
        fixed_share=FIXED_MS * MS / own,
        layers=(
            LayerOperators(layer="a", forward_ns=0.2 * own, backward_ns=0.3 * own),
            LayerOperators(layer="b", forward_ns=0.1 * own, backward_ns=0.1 * own),
        ),
        calls=tuple(calls),
    )


def runs_of(rng: np.random.Generator, **how: float) -> list[MeasuredRun]:
    return [measured(num, batch, rng, **how) for num, batch in ((1, 32), (2, 32), (2, 16))]  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("hidden", "spread"), [(0.0, 0.0), (0.4, 0.0), (0.0, 0.05), (0.3, 0.03)])
def test_held_out_steps_are_within_five_per_cent_of_the_model_that_made_the_runs(
    seed: int, hidden: float, spread: float
) -> None:
    sizes = HIDEABLE if hidden else SIZES
    rng = np.random.default_rng(seed)
    runs = [
        measured(num, batch, rng, hidden=hidden, spread=spread, sizes=sizes)
        for num, batch in ((1, 32), (2, 32), (2, 16))
    ]
    plans = [plan("dp.ddp", num, 32, sizes) for num in (4, 8)]
    for one in predict(runs, Question(plans=plans)).predictions:
        truth = true_step(one.num_ranks, 32, hidden=hidden, spread=spread, sizes=sizes)
        assert one.step_ns == pytest.approx(truth, rel=0.05)
        assert one.step_interval_ns.low <= one.step_ns <= one.step_interval_ns.high
        assert one.compute_ns + one.straggler_ns + one.exposed_comm_ns == one.step_ns


def test_the_interval_holds_the_truth_and_is_not_boundless() -> None:
    held = 0
    for seed in range(5):
        report = predict(runs_of(np.random.default_rng(seed)), Question(plans=[plan("dp.ddp", 4, 32)]))
        span = report.predictions[0].step_interval_ns
        held += span.low <= true_step(4, 32) <= span.high
        assert span.high < 1.5 * span.low
    assert held >= 4


def test_efficiency_is_relative_to_the_smallest_run_at_the_same_batch() -> None:
    runs = runs_of(np.random.default_rng(0), noise=0.0)
    report = predict(runs, Question(plans=[plan("dp.ddp", 4, 32)]))
    (base,) = report.references
    assert (base.scheme, base.num_ranks, base.batch, base.measured) == ("dp.ddp", 1, 32, True)
    truth = true_step(1, 32) / true_step(4, 32) / 4
    assert report.predictions[0].efficiency == pytest.approx(truth, rel=0.05)


def test_weak_scaling_compares_samples_per_rank() -> None:
    runs = [measured(num, 16 * num, np.random.default_rng(0), noise=0.0) for num in (1, 2)]
    report = predict(runs, Question(plans=[plan("dp.ddp", 4, 64)], mode="weak"))
    truth = true_step(1, 16) / true_step(4, 64)
    assert report.predictions[0].efficiency == pytest.approx(truth, rel=0.05)


def test_one_batch_per_rank_warns_that_layers_are_taken_as_proportional() -> None:
    run = measured(2, 32, np.random.default_rng(0), noise=0.0)
    one = predict([run], Question(plans=[plan("dp.ddp", 4, 32)])).predictions[0]
    assert any("only one local batch" in warning for warning in one.warnings)
    assert one.step_ns == pytest.approx(true_step(4, 32), rel=0.05)  # the fixed share was known exactly


def test_a_noisy_constant_does_not_blow_up() -> None:
    """METRICS §4: a constant 1.05 s at p = 4..128 must not become 856 s at p = 4096."""
    rng = np.random.default_rng(5)
    runs = []
    for num in (4, 8, 16, 32, 64, 128):
        step = 1.05e9 * (1 + 0.03 * rng.standard_normal())
        base = measured(num, 8.0 * num, rng, noise=0.0)
        runs.append(
            structs.replace(
                base,
                step_ns=step,
                steps_ns=(step,) * 20,
                comm_ns=1e6,
                calls=tuple(structs.replace(call, transfer_ns=1e6 / 3) for call in base.calls),
                fixed_share=0.1,
            )
        )
    asked = Question(plans=[plan("dp.ddp", 4096, 8.0 * 4096)], mode="weak", extrapolate=True)
    one = predict(runs, asked).predictions[0]
    assert 1.0e9 < one.step_ns < 1.5e9
    assert one.step_interval_ns.high < 3e9


def test_no_more_is_hidden_than_there_is_compute_to_hide_it_under() -> None:
    runs = runs_of(np.random.default_rng(1), hidden=0.4, noise=0.0)
    one = predict(runs, Question(plans=[plan("dp.ddp", 8, 32)])).predictions[0]
    assert one.hidden_comm_ns <= one.compute_ns
    assert one.hidden_comm_ns < 0.2 * comm_ns(8)


def test_the_best_scheme_is_named_and_an_open_order_is_said() -> None:
    rng = np.random.default_rng(1)
    small = (4_000, 4_000, 40_000)
    runs = [
        measured(num, batch, rng, scheme=scheme, sizes=sizes)
        for scheme, sizes in (("dp.ddp", SIZES), ("hy.owt", small))
        for num, batch in ((2, 32), (2, 16))
    ]
    plans = [plan("dp.ddp", 4, 32), plan("hy.owt", 4, 32, small)]
    report = predict(runs, Question(plans=plans))
    assert [one.scheme for one in report.predictions] == ["hy.owt", "dp.ddp"]
    assert report.best[0][0] == 4
    assert "hy.owt is predicted best" in report.best[0][1]
    assert "no interval overlaps" in report.best[0][1]
    twins = [
        *runs,
        *(structs.replace(run, plan=structs.replace(run.plan, scheme="dp.packed")) for run in runs[:2]),
    ]
    again = predict(twins, Question(plans=[plans[0], structs.replace(plans[0], scheme="dp.packed")]))
    assert "not decided" in again.best[0][1]


def test_a_scheme_that_did_not_run_is_predicted_with_warnings_and_a_wider_interval() -> None:
    runs = runs_of(np.random.default_rng(0))
    known, guess = predict(
        runs, Question(plans=[plan("dp.ddp", 4, 32), plan("mp.filter", 4, 32)])
    ).predictions
    known, guess = (known, guess) if known.scheme == "dp.ddp" else (guess, known)
    assert known.measured
    assert not guess.measured
    assert any("did not run" in warning for warning in guess.warnings)

    def width(one: object) -> float:
        span = one.step_interval_ns  # type: ignore[attr-defined]
        return float(span.high - span.low)

    assert width(guess) > width(known)


def test_beyond_four_times_the_largest_run_is_refused_until_asked() -> None:
    runs = runs_of(np.random.default_rng(0))
    far = plan("dp.ddp", 16, 32)
    report = predict(runs, Question(plans=[far, plan("dp.ddp", 8, 32)]))
    assert [one.num_ranks for one in report.predictions] == [8]
    assert "--extrapolate" in report.refusals[0].reason
    asked = predict(runs, Question(plans=[far], extrapolate=True))
    assert asked.predictions[0].num_ranks == 16
    assert any("beyond the 2 measured" in warning for warning in asked.predictions[0].warnings)


def test_a_link_that_was_never_measured_needs_a_network() -> None:
    inside = structs.replace(plan("dp.ddp", 4, 32), ranks=(calls_of(4, where=INSIDE_HOST),))
    runs = runs_of(np.random.default_rng(0))
    report = predict(runs, Question(plans=[inside, plan("dp.ddp", 4, 32)]))
    assert "no run has a traced call inside a host" in report.refusals[0].reason
    alone = [runs[0]]
    refused = predict(alone, Question(plans=[plan("dp.ddp", 4, 32)]))
    assert "--network" in refused.refusals[0].reason
    given = predict(alone, Question(plans=[plan("dp.ddp", 4, 32)], network=parse_network("50us,0.8Gbit")))
    assert given.links[0].given == "50us,0.8Gbit"
    assert given.predictions[0].step_ns == pytest.approx(true_step(4, 32), rel=0.3)
    assert any("no run shows how" in warning for warning in given.predictions[0].warnings)


def test_a_given_network_replaces_the_fitted_one_and_is_said() -> None:
    runs = runs_of(np.random.default_rng(0), noise=0.0)
    fast, slow = (
        predict(runs, Question(plans=[plan("dp.ddp", 4, 32)], network=parse_network(text)))
        for text in ("edr", "1gbit")
    )
    assert fast.predictions[0].exposed_comm_ns < slow.predictions[0].exposed_comm_ns
    assert fast.links[0].given == "edr"
    assert fast.links[0].alpha_s is None


def test_fewer_cores_than_threads_slow_compute_down_and_are_said() -> None:
    runs = runs_of(np.random.default_rng(0), noise=0.0)
    halved = predict(runs, Question(plans=[plan("dp.ddp", 4, 32)], cores_per_rank=0.5))
    usual = predict(runs, Question(plans=[plan("dp.ddp", 4, 32)]))
    ratio = halved.predictions[0].compute_ns / usual.predictions[0].compute_ns
    assert ratio == pytest.approx(2.0, rel=1e-6)
    assert any("2.00 x" in warning for warning in halved.warnings)


def test_other_models_and_no_runs_are_refused() -> None:
    runs = runs_of(np.random.default_rng(0))
    with pytest.raises(UsageError, match="different models"):
        predict([runs[0], structs.replace(runs[1], model="another")], Question(plans=[]))
    with pytest.raises(UsageError, match="no run can serve"):
        predict([], Question(plans=[]))


def test_refusals_of_planning_are_kept() -> None:
    refusal = Refusal(scheme="hy.owt", num_ranks=3, reason="cannot be cut")
    report = predict(
        runs_of(np.random.default_rng(0)), Question(plans=[plan("dp.ddp", 4, 32)], refusals=[refusal])
    )
    assert refusal in report.refusals


def test_layers_add_up_to_the_part_of_compute_that_is_theirs() -> None:
    runs = runs_of(np.random.default_rng(0), noise=0.0)
    one = predict(runs, Question(plans=[plan("dp.ddp", 4, 32)])).predictions[0]
    assert [name for name, _ in one.layers_ns] == ["a", "b"]
    assert sum(value for _, value in one.layers_ns) <= one.compute_ns


def test_the_link_is_recovered_and_outliers_do_not_matter() -> None:
    rng = np.random.default_rng(3)
    run = measured(4, 32, rng, noise=0.01, sizes=(1_000, 10_000, 100_000, 1_000_000))
    used = fit_link(BETWEEN_HOSTS, run.calls, "gloo", rng).used
    assert used.separable
    assert used.cost.alpha_s == pytest.approx(LINK.alpha_s, rel=0.05)
    assert used.cost.beta_s_per_byte == pytest.approx(LINK.beta_s_per_byte, rel=0.05)
    assert used.alpha_s is not None
    assert used.alpha_s.low <= used.cost.alpha_s <= used.alpha_s.high


def test_one_size_tells_a_sum_only_and_the_interval_says_so() -> None:
    rng = np.random.default_rng(3)
    run = measured(2, 32, rng, noise=0.0, sizes=(1_000_000,))
    fitted = fit_link(BETWEEN_HOSTS, run.calls, "gloo", rng)
    assert not fitted.used.separable
    assert fitted.draws[:, 0].max() > 0
    report = predict([run], Question(plans=[plan("dp.ddp", 4, 32, (1_000_000,))]))
    assert any("cannot be separated" in warning for warning in report.warnings)


def test_latency_and_bandwidth_are_never_negative() -> None:
    odd = [
        MeasuredCall(
            collective="all_reduce", num_ranks=2, bytes=size, link_class=BETWEEN_HOSTS, transfer_ns=time
        )
        for size, time in ((1_000, 9e6), (1_000_000, 1e6), (2_000_000, 0.5e6))
    ]
    used = fit_link(BETWEEN_HOSTS, odd, "gloo", np.random.default_rng(0)).used
    assert used.cost.alpha_s >= 0
    assert used.cost.beta_s_per_byte >= 0


def test_compute_is_fixed_plus_per_sample() -> None:
    runs = runs_of(np.random.default_rng(0), noise=0.0)
    curve = fit_compute(runs).curve("dp.ddp")
    assert curve.fixed_ns == pytest.approx(FIXED_MS * MS, rel=0.02)
    assert curve.slope_ns == pytest.approx(SAMPLE_MS * MS, rel=0.02)


@pytest.mark.parametrize(
    ("collective", "groups", "times"),
    [
        ("all_reduce", [[0, 0, 1, 1]], 1.0),  # one ring in rank order leaves each host once
        ("all_reduce", [[0, 1], [0, 1]], 2.0),  # a data group per rank of the host: both over one link
        ("all_gather", [[0, 0], [1, 1]], 1.0),  # groups inside hosts share nothing
        ("all_to_all", [[0, 0, 1, 1]], 4 / 3),  # 2 members send 2/4 of S each, the formula has 3/4 of one
    ],
)
def test_what_goes_through_a_hosts_link(collective: str, groups: list[list[int]], times: float) -> None:
    assert sharing(collective, groups) == pytest.approx(times)


@pytest.mark.parametrize(("num", "expected"), [(1, 0.0), (2, 0.5642), (4, 1.0294), (8, 1.4236)])
def test_the_mean_largest_of_normal_values_is_the_tabulated_one(num: int, expected: float) -> None:
    assert expected_maximum(num) == pytest.approx(expected, abs=1e-4)


def test_a_fit_to_scattered_runs_does_not_lie_too_low() -> None:
    """Twice as long and half as long cancel: residuals relative to the measured step would give 20 % less."""
    rng = np.random.default_rng(0)
    runs = []
    for batch in (16, 32, 64):
        for factor in (0.5, 2.0):
            base = measured(2, batch, rng, noise=0.0)
            runs.append(structs.replace(base, step_ns=factor * (base.step_ns - base.comm_ns) + base.comm_ns))
    curve = fit_compute(runs).curve("dp.ddp")
    assert curve.at(16) == pytest.approx((FIXED_MS + SAMPLE_MS * 16) * MS, rel=0.02)


def test_a_scheme_waits_as_long_as_its_own_runs_did() -> None:
    """Not as the other schemes' runs: one that blocks often waits often."""
    rng = np.random.default_rng(0)
    runs = [
        measured(2, batch, rng, scheme=scheme, spread=spread, noise=0.0)
        for scheme, spread in (("dp.ddp", 0.02), ("mp.filter", 0.4))
        for batch in (16, 32)
    ]
    plans = [plan(scheme, 4, 32) for scheme in ("dp.ddp", "mp.filter")]
    found = {one.scheme: one for one in predict(runs, Question(plans=plans)).predictions}
    for scheme, spread in (("dp.ddp", 0.02), ("mp.filter", 0.4)):
        own = found[scheme].compute_ns
        assert found[scheme].straggler_ns == pytest.approx(own * spread * expected_maximum(4), rel=0.02)


def test_intervals_hold_runs_that_differ_although_none_was_repeated() -> None:
    """Every run's step is off by 15 %: the fit's own residuals tell, and the intervals widen."""
    held = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        runs = []
        for batch in (16, 24, 32, 48, 64):
            base = measured(2, batch, rng, noise=0.01)
            factor = float(np.exp(0.15 * rng.standard_normal()))
            steps = tuple(factor * one for one in base.steps_ns)
            runs.append(structs.replace(base, step_ns=factor * base.step_ns, steps_ns=steps))
        span = predict(runs, Question(plans=[plan("dp.ddp", 4, 64)])).predictions[0].step_interval_ns
        held += span.low <= true_step(4, 64) * np.exp(0.15 * rng.standard_normal()) <= span.high
    assert held >= 10


def divided(run: MeasuredRun, whole_ms: float, batch: float) -> MeasuredRun:
    """The run of a scheme that divides layers: each sample of its group costs every rank `whole_ms` more."""
    more = whole_ms * MS * batch
    return structs.replace(
        run,
        plan=structs.replace(run.plan, scheme="mp.filter", whole=batch),
        step_ns=run.step_ns + more,
        steps_ns=tuple(one + more for one in run.steps_ns),
    )


def test_what_every_rank_does_with_gathered_activations_is_not_divided_by_the_ranks() -> None:
    rng = np.random.default_rng(0)
    plain = [measured(2, batch, rng, noise=0.0) for batch in (32, 64)]
    runs = [*plain, *(divided(run, 0.5, run.plan.batch or 0) for run in plain)]
    asked = structs.replace(plan("mp.filter", 4, 64), whole=64.0)
    one = predict(runs, Question(plans=[asked])).predictions[0]
    assert one.step_ns == pytest.approx(true_step(4, 64) + 0.5 * MS * 64, rel=0.02)
    assert not any("layers are divided" in warning for warning in one.warnings)
    alone = predict(runs[2:], Question(plans=[asked])).predictions[0]  # cannot tell, and says so
    assert alone.step_ns < 0.9 * one.step_ns
    assert any("layers are divided" in warning for warning in alone.warnings)


def test_less_work_that_took_longer_is_said() -> None:
    rng = np.random.default_rng(0)
    runs = [measured(2, batch, rng, noise=0.0) for batch in (16, 32)]
    asked = Question(plans=[plan("dp.ddp", 4, 32)])
    assert not any("took longer" in one for one in predict(runs, asked).predictions[0].warnings)
    slow = structs.replace(runs[0], step_ns=1.5 * runs[1].step_ns)
    assert any(
        "8 samples per rank took longer" in one
        for one in predict([slow, runs[1]], asked).predictions[0].warnings
    )
