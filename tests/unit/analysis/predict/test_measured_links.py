"""Predictions over links that only `perfscope doctor --links` measured."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from perfscope.analysis.predict.costs import LinkCost, collective_time_s
from perfscope.analysis.predict.forecast import Question, predict
from perfscope.analysis.predict.records import BETWEEN_HOSTS, MeasuredRun
from perfscope.cli.predict.text import prediction_text
from perfscope.rundir.host_records import LinkCall, LinksRecord
from tests.unit.analysis.predict.test_truth import LINK, measured, plan, true_step

OTHER = LinkCost(LINK.alpha_s * 3, LINK.beta_s_per_byte * 3)


def links(cost: LinkCost) -> LinksRecord:
    """All-reduces of many sizes on two hosts, as gloo on these links would take."""
    rows = tuple(
        LinkCall(
            transport="gloo",
            collective="all_reduce",
            num_ranks=2,
            hosts=("a", "b"),
            link_class=BETWEEN_HOSTS,
            bytes=size,
            seconds=tuple(
                collective_time_s("all_reduce", 2, size, cost, backend="gloo") * noise
                for noise in (1.0, 1.01, 1.5)
            ),
        )
        for size in (256, 4096, 65_536, 1 << 20, 8 << 20)
    )
    return LinksRecord(hosts=("a", "b"), calls=rows)


def one_rank() -> list[MeasuredRun]:
    rng = np.random.default_rng(1)
    return [measured(1, batch, rng) for batch in (16, 32, 64)]


def test_links_that_no_run_used_are_those_that_the_doctor_measured() -> None:
    asked = [plan("dp.ddp", 2, 32)]
    (refused,) = predict(one_rank(), Question(plans=asked)).refusals
    assert "doctor --links" in refused.reason
    report = predict(one_rank(), Question(plans=asked, links=[links(LINK)]))
    (prediction,) = report.predictions
    assert prediction.step_ns == pytest.approx(true_step(2, 32), rel=0.1)
    (used,) = report.links
    assert used.is_from_doctor
    assert used.cost.bandwidth_bytes_per_s == pytest.approx(1 / LINK.beta_s_per_byte, rel=0.05)
    assert "of perfscope doctor --links" in prediction_text(report, 1, [])


def test_calls_of_the_runs_themselves_go_before_what_the_doctor_measured() -> None:
    rng = np.random.default_rng(1)
    runs = [*one_rank(), measured(2, 32, rng)]
    report = predict(runs, Question(plans=[plan("dp.ddp", 4, 32)], links=[links(OTHER)]))
    (used,) = report.links
    assert not used.is_from_doctor
    assert used.cost.bandwidth_bytes_per_s == pytest.approx(1 / LINK.beta_s_per_byte, rel=0.1)


def test_a_measurement_of_another_class_of_links_does_not_stand_in() -> None:
    inside = links(LINK)
    rows = tuple(structs.replace(row, link_class="loopback", hosts=("a", "a")) for row in inside.calls)
    question = Question(plans=[plan("dp.ddp", 2, 32)], links=[structs.replace(inside, calls=rows)])
    assert predict(one_rank(), question).predictions == ()
