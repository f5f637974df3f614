"""Steps that take ever longer are named with what of them grows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from perfscope.analysis.intervals import block_medians, is_steady
from perfscope.analysis.results import Finding
from perfscope.analysis.run import analyze_run
from perfscope.vocabulary.confidence import ConfidenceLevel
from perfscope.vocabulary.findings import FindingKind
from tests.support.synthetic_run import SyntheticRun

MS = 1_000_000
NUM = 400
GROWING = [20 * MS + 25_000 * step for step in range(NUM)]  # 20 to 30 ms


def growth(
    path: Path,
    durations: Sequence[int],
    passes: Sequence[Sequence[int]],
    *,
    gc_ns: Sequence[int] | None = None,
    samples: Sequence[int] | None = None,
    busy_ns: Sequence[Sequence[int]] | None = None,
    evaluation_ns: Sequence[int] | None = None,
) -> Finding | None:
    """What is said of steps that grow; `passes`: of each rank, forward and backward together, ns.

    Args:
        path: of the run.
        durations: of all ranks' steps, ns.
        passes: as above.
        gc_ns: that all ranks collect garbage in a step.
        samples: of all ranks' steps.
        busy_ns: of each rank's training thread; None: not recorded.
        evaluation_ns: of all ranks' steps.
    """
    run = SyntheticRun(path, world_size=len(passes))
    for rank, of_rank in enumerate(passes):
        run.rank(rank)
        run.steps(
            rank,
            durations,
            forward_ns=[value // 3 for value in of_rank],
            backward_ns=[value - value // 3 for value in of_rank],
            gc_ns=gc_ns or [0] * len(durations),
            samples=samples or [8] * len(durations),
            evaluation_ns=evaluation_ns or [0] * len(durations),
            **({} if busy_ns is None else _states(busy_ns[rank])),
        )
    findings = analyze_run(run.read()).findings
    return next((finding for finding in findings if finding.id is FindingKind.STEPS_GROW), None)


def _states(busy_ns: Sequence[int]) -> dict[str, list[int]]:
    zeros = [0] * len(busy_ns)
    return {"thread_user_ns": list(busy_ns), "thread_system_ns": zeros, "runqueue_ns": zeros}


def test_what_one_rank_accumulates_outside_its_passes_is_named_with_the_rank(tmp_path: Path) -> None:
    # Rank 0 waits in its backward pass for rank 1, whose loop takes longer each time.
    waits = [duration - 4 * MS for duration in GROWING]
    busy = [[16 * MS] * NUM, [duration - MS for duration in GROWING]]
    finding = growth(tmp_path, GROWING, [waits, [16 * MS] * NUM], busy_ns=busy)
    assert finding is not None and finding.rank == 1
    assert "from 20.7 ms in the first eighth of" in finding.text.title and "to 29.4 ms" in finding.text.title
    assert "Rank 1 spends 8.69 ms more of a step outside the forward" in finding.text.detail
    assert "accumulates" in finding.text.action
    assert finding.gain_ratio == pytest.approx(1 - 20.7 / 25, abs=0.01)
    assert finding.gain_ns == pytest.approx(4.3 * MS, rel=0.03)
    assert finding.confidence is not None and finding.confidence.level is ConfidenceLevel.HIGH


def test_passes_of_one_rank_that_another_waits_for_outside_of_its_own_are_not_laid_at_that_one(
    tmp_path: Path,
) -> None:
    # Gradients are averaged after the backward pass: rank 1 waits there for rank 0's passes.
    grow = [duration - 4 * MS for duration in GROWING]
    busy = [[duration - MS for duration in GROWING], [16 * MS] * NUM]
    finding = growth(tmp_path / "busy", GROWING, [grow, [16 * MS] * NUM], busy_ns=busy)
    assert finding is not None and finding.rank == 0
    assert "Rank 0 spends 8.69 ms more of a step in the forward and backward passes" in finding.text.detail
    unknown = growth(tmp_path / "unknown", GROWING, [grow, [16 * MS] * NUM])
    assert unknown is not None and unknown.rank is None and "more of a step" not in unknown.text.detail


def test_evaluations_between_steps_cost_no_growth(tmp_path: Path) -> None:
    evaluations = [10_000 * MS if step % 10 == 9 else 0 for step in range(NUM)]
    durations = [step + evaluation for step, evaluation in zip(GROWING, evaluations, strict=True)]
    finding = growth(tmp_path, durations, [[15 * MS] * NUM], evaluation_ns=evaluations)
    assert finding is not None and (finding.gain_ratio or 1) < 0.01
    assert "from 20.7 ms" in finding.text.title


def test_passes_that_grow_on_all_ranks_are_named_without_a_rank(tmp_path: Path) -> None:
    waits = [duration - 4 * MS for duration in GROWING]
    finding = growth(tmp_path, GROWING, [waits, waits])
    assert finding is not None and finding.rank is None
    assert "in the forward and backward passes" in finding.text.detail
    assert "state that the model keeps" in finding.text.action


def test_a_collector_that_visits_ever_more_objects_is_named(tmp_path: Path) -> None:
    finding = growth(tmp_path, GROWING, [[15 * MS] * NUM], gc_ns=[d - 18 * MS for d in GROWING])
    assert finding is not None and "gc.freeze" in finding.text.action


def test_larger_batches_are_no_growth(tmp_path: Path) -> None:
    waits = [duration - 4 * MS for duration in GROWING]
    assert growth(tmp_path, GROWING, [waits], samples=[8 + step // 50 for step in range(NUM)]) is None


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_steps_that_are_slower_from_one_point_on_do_not_grow(tmp_path: Path, share: float) -> None:
    generator = np.random.default_rng(7)
    level = np.where(np.arange(NUM) < share * NUM, 20 * MS, 30 * MS)
    durations = (level * generator.normal(1, 0.03, NUM)).astype(int).tolist()
    assert growth(tmp_path, durations, [[15 * MS] * NUM]) is None


def test_a_part_that_grows_is_named_though_passes_vary_more(tmp_path: Path) -> None:
    """As a machine with a varying load has it: blocks of whole steps do not rise one after the other."""
    passes = np.repeat([14, 15, 15, 19, 17, 14, 15, 15], NUM // 8) * MS
    outside = np.linspace(1 * MS, 7 * MS, NUM).astype(int)
    durations = (passes + outside).tolist()
    assert not is_steady(block_medians(np.array(durations)))
    finding = growth(tmp_path, durations, [passes.tolist()] * 2)
    assert finding is not None and finding.rank is None
    assert "outside" in finding.text.detail + finding.text.title


def test_chance_alone_is_seldom_steady() -> None:
    generator = np.random.default_rng(11)
    draws = [is_steady(block_medians(generator.integers(0, 10**6, 80))) for _ in range(2_000)]
    assert sum(draws) <= 0.01 * len(draws)


def test_medians_of_blocks_of_several_ranks_are_those_of_each() -> None:
    ranks = np.random.default_rng(3).integers(0, 10**10, (5, 83))
    assert (block_medians(ranks) == [block_medians(of_rank) for of_rank in ranks]).all()
