"""Lemmas and published figures."""

from __future__ import annotations

from math import inf

import pytest
from first_principles import (
    efficiency_with_overhead,
    largest_overhead_ratio,
    microbatches_for,
    most_workers,
    parameter_servers_needed,
    pipeline_bubble,
)
from published import DEPENDS, HIT, MISS, checks, table, waiting_for_slowest


def test_four_workers_at_80_percent_bear_an_overhead_of_9_percent() -> None:
    assert largest_overhead_ratio(4, 0.8) == pytest.approx(0.0909, abs=1e-4)  # Zou et al.'s own example
    assert efficiency_with_overhead(4, largest_overhead_ratio(4, 0.8)) == pytest.approx(0.8)
    assert most_workers(largest_overhead_ratio(4, 0.8), 0.8) == 4


def test_the_limits_of_the_lemma() -> None:
    assert efficiency_with_overhead(1, 5) == 1
    assert efficiency_with_overhead(8, 0) == 1
    assert largest_overhead_ratio(4, 0.25) == inf
    assert largest_overhead_ratio(4, 1) == 0
    assert most_workers(0, 0.9) == inf
    assert most_workers(0.5, 1) == 1


def test_parameter_servers_hide_their_traffic_behind_a_round() -> None:
    assert (
        parameter_servers_needed(244e6, 16, 1.25e9, 1.0) == 7
    )  # 2 x 244 MB x 16 over 10 Gbit/s: 6.2 s of work
    assert parameter_servers_needed(1.0, 1, 1e12, 10.0) == 1
    assert parameter_servers_needed(1.1, 3, 2.2, 1.0) == 3  # 3.0000000000000004 is three


def test_a_pipeline_has_its_bubble() -> None:
    assert pipeline_bubble(4, 4) == pytest.approx(3 / 7)
    assert pipeline_bubble(1, 8) == 0
    assert microbatches_for(4, 3 / 7) == 4
    assert microbatches_for(4, 0.1) == 27 and pipeline_bubble(4, 27) <= 0.1
    assert microbatches_for(1, 0.1) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: efficiency_with_overhead(0, 0.1),
        lambda: efficiency_with_overhead(4, -0.1),
        lambda: efficiency_with_overhead(4, float("nan")),
        lambda: largest_overhead_ratio(4, 1.2),
        lambda: most_workers(0.1, 0),
        lambda: parameter_servers_needed(1, 1, 0, 1),
        lambda: pipeline_bubble(0, 1),
        lambda: pipeline_bubble(2, 0),
        lambda: microbatches_for(2, 1),
    ],
)
def test_what_cannot_be_is_refused(call: object) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=r"must be|lies above"):
        call()


def test_published_figures_are_recomputed_with_their_misses() -> None:
    results = checks()
    assert {check.verdict for check in results} <= {HIT, DEPENDS, MISS}
    for check in results:
        assert check.low <= check.middle <= check.high
        assert all(
            each.low <= each.middle <= each.high or each.low >= each.middle for each in check.assumptions
        )
        assert all(
            each.source and each.tag in {"measured", "published", "assumed"} for each in check.assumptions
        )
    knl = results[0]
    assert knl.at_least and knl.low < 90 < knl.middle and knl.verdict == DEPENDS
    assert any(check.verdict == MISS for check in results)


def test_the_table_says_every_assumption_with_its_tag() -> None:
    rows = table()
    assert len(rows) == len(checks())
    for row in rows:
        assert "assumed:" in row.assumptions and row.source and row.comment
        assert " to " in row.result
    assert rows[0].published == "> 90.0 %" and rows[3].published == "3.50x"


def test_the_slowest_of_many_is_later_than_of_few() -> None:
    assert waiting_for_slowest(1, 0.1) == 0 and waiting_for_slowest(100, 0) == 0
    # expected maxima of 10, 100 and 1000 standard normal values
    for num, expected in ((10, 1.5388), (100, 2.5076), (1000, 3.2414)):
        assert waiting_for_slowest(num, 0.01) == pytest.approx(0.01 * expected, rel=0.02)
