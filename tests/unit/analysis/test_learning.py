"""What a bench run learned, from records whose truth is known."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from perfscope.analysis.bench import BenchResult
from perfscope.analysis.learning import LearningResult, efficiency_of, noise_scale, with_energy
from perfscope.analysis.machine.results import Energy
from perfscope.cli.bench.text import learning_lines
from perfscope.reports.model import CurveChart
from perfscope.reports.sections.learning import learning_section
from perfscope.rundir.scheme_records import BenchRecord, NoiseNorms
from perfscope.rundir.typed import read_as
from tests.support.study_entries import entry, machine
from tests.unit.analysis.test_bench import MS, record, result_of, scheme

SIGNAL, TRACE = 2.0, 60.0  # |G|^2 and tr(S): a noise scale of 30 samples


def norms(step: int = 2, signal: float = SIGNAL, trace: float = TRACE) -> dict[str, Any]:
    """As batches of 2 and 10 samples have them on average."""
    sizes = {"small_batch": 2, "big_batch": 10}
    squares = {"small_sq": signal + trace / 2, "big_sq": signal + trace / 10}
    return {"step": step, **sizes, **squares}


def evaluation(step: int, top1: float, loss: float = 1.0) -> dict[str, Any]:
    return {"step": step, "num_samples": 500, "loss": loss, "top1": top1, "top5": 1.0}


def learning(**changes: Any) -> LearningResult:
    """Four steps of 10 ms, 1 s of evaluation behind each second one, the target reached behind the fourth."""
    first: dict[str, Any] = {
        "step_ends_ns": [0, 10 * MS, 20 * MS, 1030 * MS, 1040 * MS],
        "pauses": [{"step": 2, "ns": 1000 * MS}, {"step": 4, "ns": 1000 * MS}],
        "evaluations": [evaluation(2, 0.4), evaluation(4, 0.8)],
        "noise": [norms()],
        "target_step": 4,
        "best": {"accuracy": 0.9, "loss": 0.3},
        **changes,
    }
    settings = {"target": "accuracy=0.8", "price_per_hour": 36.0, "steps": 8}
    other = {name: first[name] for name in ("step_ends_ns", "pauses")}
    result, _ = result_of(scheme(**settings), {0: record(**first), 1: record(**other)})
    assert isinstance(result, BenchResult) and result.learning is not None
    assert result.samples_per_s == pytest.approx(1000)  # 10 samples in 10 ms: pauses are no part of it
    return result.learning


def test_time_to_the_target_leaves_pauses_out() -> None:
    found = learning()
    assert [point.train_ns for point in found.points] == [20 * MS, 40 * MS]
    assert [point.bytes for point in found.points] == [4000, 8000]
    reached = found.to_target
    assert reached is not None and (reached.step, reached.samples, reached.bytes) == (4, 40, 8000)
    assert reached.train_ns == 40 * MS and reached.cost == pytest.approx(0.0004)
    assert found.best_accuracy == 0.9 and found.num_held_out == 500


def test_the_record_of_a_run_that_its_target_ended_predicts_the_calls_of_its_steps() -> None:
    result, _ = result_of(scheme(steps=8), {0: record(), 1: record()})
    assert result is not None
    (call,) = result.calls
    assert call.predicted == call.recorded == 8  # four steps of two ranks, not eight


def test_the_auc_of_two_classes_is_kept_with_the_best_and_drawn() -> None:
    rows = [{**evaluation(step, 0.6), "auc": auc} for step, auc in ((2, 0.55), (4, 0.7))]
    found = learning(evaluations=rows, best={"accuracy": 0.9, "loss": 0.3, "auc": 0.95})
    assert [point.auc for point in found.points] == [0.55, 0.7] and found.best_auc == 0.95
    assert learning().points[0].auc is None and learning().best_auc is None
    assert "AUC 0.700 (the data allows 0.950)" in learning_lines(to_builtins(found))[0]


def test_a_target_that_is_not_reached_is_missing_with_the_reason() -> None:
    found = learning(target_step=None)
    assert found.to_target is None and found.missing["to_target"] == "accuracy=0.8 was not reached in 4 steps"


def test_energy_is_that_of_all_hosts_or_missing() -> None:
    found = learning()
    without = with_energy(found, machine(("a",)))
    assert without is not None and without.to_target is not None
    assert without.to_target.joules is None and "energy" in without.missing["joules"]
    domain = Energy(host="a", domain="CPU package 0", joules=5.0, mean_watts=10.0, source="RAPL")
    read = with_energy(found, replace(machine(("a",)), energy=(domain, domain), joules_per_sample=0.25))
    assert read is not None and read.to_target is not None and read.to_target.joules == 10.0


def test_the_noise_scale_follows_from_two_norms_without_bias() -> None:
    found = learning().noise
    assert found is not None and found.samples == pytest.approx(TRACE / SIGNAL)
    assert found.efficiency == pytest.approx(30 / 40) and found.goodput == pytest.approx(750)
    assert dict(found.by_batch)[10] == found.efficiency and len(found.by_batch) > 5
    shares = [share for _, share in found.by_batch]
    assert shares == sorted(shares, reverse=True)


def test_signal_and_noise_are_averaged_before_they_are_divided() -> None:
    rows = [read_as(NoiseNorms, norms(signal=signal)) for signal in (1.0, 3.0)]
    assert noise_scale(rows) == pytest.approx(TRACE / 2)
    assert noise_scale([read_as(NoiseNorms, norms(signal=-0.3, trace=4.0))]) is None
    found = learning(noise=[norms(signal=-0.3, trace=4.0)])
    assert found.noise is None and "--noise-every" in found.missing["noise"]


def test_efficiency_is_one_half_at_the_noise_scale() -> None:
    assert efficiency_of(100, 100) == 0.5
    assert math.isclose(efficiency_of(1e-9, 100), 1)


def test_pauses_belong_to_the_step_that_follows() -> None:
    pauses = [{"step": 1, "ns": 5}, {"step": 3, "ns": 7}]
    read = read_as(BenchRecord, {"step_ends_ns": [100, 110, 125, 135], "pauses": pauses})
    assert read.trained_ns == (0, 10, 20, 30)


def test_the_report_draws_accuracy_and_loss_over_steps_time_and_bytes() -> None:
    found = learning()
    run = entry("a", scheme="dp.packed", bench={"learning": found})
    section = learning_section(run.analysis)
    assert section is not None and "the data allows 90.0%" in section.lead
    charts = [block for block in section.blocks if isinstance(block, CurveChart)]
    assert {chart.id for chart in charts} == {
        f"learning-{figure}-{axis}" for figure in ("accuracy", "loss") for axis in ("steps", "time", "bytes")
    }
    assert all([curve.kind for curve in chart.curves] == ["data", "level"] for chart in charts)
    assert learning_section(entry("b", scheme="serial").analysis) is None
