"""Tokens of experts and what unequal loads cost, in runs whose times are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfscope.analysis.run import analyze_run
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.findings import FindingKind
from tests.support.expert_run import ROW_BYTES, expert_run

UNEVEN = [[[100, 300, 100, 100], [150, 150, 150, 150]]] * 3
EVEN = [[[150] * 4, [150] * 4]] * 3


def test_tokens_imbalance_and_cost_of_each_layer(tmp_path: Path) -> None:
    run, step_ns = expert_run(tmp_path / "uneven", UNEVEN)
    _, even_ns = expert_run(tmp_path / "even", EVEN)
    experts = analyze_run(run.read()).experts
    assert experts is not None and experts.num_steps == 3
    worst, equal = experts.layers
    assert (worst.layer, equal.layer) == ("moe0", "moe1")
    assert worst.imbalance == pytest.approx(2.0)
    assert [(rank.rank, rank.tokens, rank.bytes) for rank in worst.ranks] == [
        (rank, tokens, tokens * ROW_BYTES) for rank, tokens in enumerate(UNEVEN[0][0])
    ]
    assert equal.imbalance == 1.0 and equal.saved_ns == 0 and equal.wait_ns == 0
    # The mean of three ranks that wait for the last one, forward and (twice as long) backward.
    assert worst.wait_ns == pytest.approx(3 * 200 * 10_000 * 3 / 4)
    assert experts.saved_ns == pytest.approx(step_ns - even_ns, rel=0.01)


def test_the_finding_names_the_layer_and_the_rank(tmp_path: Path) -> None:
    run, step_ns = expert_run(tmp_path / "uneven", UNEVEN)
    _, even_ns = expert_run(tmp_path / "even", EVEN)
    finding = analyze_run(run.read()).findings[0]
    assert (finding.id, finding.layer, finding.rank) == (FindingKind.EXPERT_IMBALANCE, "moe0", 1)
    assert finding.gain_ns == pytest.approx(step_ns - even_ns, rel=0.01)
    assert "2.00 times the mean" in finding.text.title


def test_without_marks_the_loads_are_in_bytes(tmp_path: Path) -> None:
    run, _ = expert_run(tmp_path, UNEVEN, has_marks=False)
    experts = analyze_run(run.read()).experts
    assert experts is not None
    assert [rank.tokens for rank in experts.layers[0].ranks] == [None] * 4
    assert [rank.bytes // ROW_BYTES for rank in experts.layers[0].ranks] == UNEVEN[0][0]


def test_a_slow_rank_with_equal_tokens_is_no_imbalance_of_experts(tmp_path: Path) -> None:
    run, _ = expert_run(tmp_path, [[[150, 150, 149, 151]]] * 3, slow={2: 2.0})
    analysis = analyze_run(run.read())
    assert analysis.experts is not None
    assert analysis.experts.layers[0].imbalance < 1.01
    assert not any(finding.id is FindingKind.EXPERT_IMBALANCE for finding in analysis.findings)


def test_a_rank_with_nearly_all_tokens_is_not_slow(tmp_path: Path) -> None:
    """Work that varies makes equal experts save less than a rank as fast as the others would seem to."""
    rng = np.random.default_rng(3)
    run, _ = expert_run(tmp_path, [[[26, 486], [26, 486]]] * 4, noise=lambda: float(rng.exponential(1.0)))
    findings = analyze_run(run.read()).findings
    assert (findings[0].id, findings[0].rank) == (FindingKind.EXPERT_IMBALANCE, 1)
    assert not any(finding.id is FindingKind.STRAGGLER for finding in findings)


def test_a_slow_rank_with_somewhat_more_tokens_is_slow(tmp_path: Path) -> None:
    run, _ = expert_run(tmp_path, [[[150, 150, 130, 170]]] * 3, slow={3: 3.0})
    assert any(
        finding.id is FindingKind.STRAGGLER and finding.rank == 3
        for finding in analyze_run(run.read()).findings
    )


def test_equal_all_to_alls_are_taken_for_experts_only_where_the_axis_is_named(tmp_path: Path) -> None:
    plain, _ = expert_run(tmp_path / "plain", EVEN)
    named, _ = expert_run(tmp_path / "named", EVEN, description="mesh_ep")
    assert analyze_run(plain.read()).experts is None
    experts = analyze_run(named.read()).experts
    assert experts is not None and experts.layers[0].imbalance == 1.0


def test_calls_that_are_no_pairs_have_a_reason(tmp_path: Path) -> None:
    run, _ = expert_run(tmp_path, UNEVEN, description="mesh_ep")
    other, _ = expert_run(tmp_path / "other", [[[101, 300, 100, 100]]] * 3, description="mesh_ep")
    for window in (tmp_path / "derived").glob("*/rank-00003*"):
        window.unlink()
    analysis = analyze_run(run.read())
    assert analysis.experts is None
    assert [entry.cause for entry in analysis.missing if entry.figure is Figure.EXPERTS] == [
        Cause.NO_EXPERT_SPLITS
    ]
    assert analyze_run(other.read()).experts is not None
