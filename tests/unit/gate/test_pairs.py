"""The loop of pairs: order, repeats, and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from perfscope.gate.decide import judge
from perfscope.gate.pairs import conduct
from perfscope.gate.records import RunFigures
from perfscope.gate.results import Outcome, Side
from perfscope.gate.settings import Settings
from tests.support.gate_runs import run

Speed = Callable[[str, int, int], float]


@dataclass
class Watched:
    """What a watcher was told, and the runs that were made."""

    calls: list[tuple[str, int, int]] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    def starts(self, side: str, pair: int, attempt: int) -> None:
        self.calls.append((side, pair, attempt))

    def ended(self, run: RunFigures, outcome: str) -> None:
        self.outcomes.append(outcome)

    def paired(self, pair: int, ratio: float) -> None:
        self.ratios.append(ratio)


def steady(head: float, seed: int = 0) -> Callable[[str, int, int], RunFigures]:
    """Runs of 26 ms with 1 % noise; the head's `head` times as long."""
    draw = np.random.default_rng(seed)

    def train(side: str, pair: int, attempt: int) -> RunFigures:
        p10 = 26.0 * float(np.exp(draw.normal(0, 0.01))) * (head if side == "head" else 1.0)
        return run(f"{pair:02d}-{side}", p10)

    return train


def test_both_sides_of_a_pair_run_one_after_the_other_in_random_order() -> None:
    watched = Watched()
    conduct(steady(1.0), replace(Settings(), early_stop=False), watched, seed=1)
    assert len(watched.calls) == 16
    pairs = [watched.calls[at : at + 2] for at in range(0, 16, 2)]
    assert all({side for side, _, _ in pair} == {"base", "head"} for pair in pairs)
    assert all(pair[0][1] == pair[1][1] for pair in pairs)
    assert len({pair[0][0] for pair in pairs}) == 2, "the head must not always come second"
    again = Watched()
    conduct(steady(1.0), replace(Settings(), early_stop=False), again, seed=1)
    assert again.calls == watched.calls


@pytest.mark.parametrize(("head", "most"), [(1.0, 7), (1.25, 7)])
def test_a_settled_check_ends_early(head: float, most: int) -> None:
    watched = Watched()
    done = conduct(steady(head), Settings(), watched, seed=3)
    assert 5 <= len(watched.ratios) <= most
    assert done.stopped
    result = judge(
        Side(label="base", runs=tuple(done.base)),
        Side(label="head", runs=tuple(done.head)),
        Settings(),
        name="t",
        stopped=done.stopped,
    )
    assert result.outcome is (Outcome.PASS if head == 1.0 else Outcome.REGRESSION)


def test_a_disturbed_run_is_repeated_at_once_and_not_judged() -> None:
    train = steady(1.0)

    def once_disturbed(side: str, pair: int, attempt: int) -> RunFigures:
        made = train(side, pair, attempt)
        return replace(made, clean=False) if (side, pair, attempt) == ("head", 2, 0) else made

    watched = Watched()
    done = conduct(once_disturbed, Settings(), watched, seed=0)
    at = watched.calls.index(("head", 2, 0))
    assert watched.calls[at + 1] == ("head", 2, 1)
    assert len(done.left_out) == 1 and "repeated" in done.left_out[0].reason
    assert [one.pair for one in done.head][:3] == [1, 2, 3]


def test_a_machine_that_is_always_disturbed_is_given_up_once_five_pairs_cannot_be_reached() -> None:
    train = steady(1.0)
    watched = Watched()
    done = conduct(
        lambda side, pair, attempt: replace(train(side, pair, attempt), clean=False),
        Settings(),
        watched,
        seed=0,
    )
    assert [call[:2] for call in watched.calls].count(watched.calls[0][:2]) == 3, "twice repeated, no more"
    assert len(watched.calls) == 8
    assert done.stopped == "4 of 4 pairs were disturbed: the machine is too busy to go on"
    result = judge(
        Side(label="base", runs=tuple(done.base)),
        Side(label="head", runs=tuple(done.head)),
        Settings(),
        name="t",
        left_out=done.left_out,
    )
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "8 disturbed runs left out" in result.headline


def test_a_check_in_doubt_goes_on_until_it_is_sure() -> None:
    heads = [1.10, 0.93, 1.12, 0.94, 1.09, 1.11, 0.92, 1.10, *[1.12] * 8]

    def train(side: str, pair: int, attempt: int) -> RunFigures:
        return run(f"{pair:02d}-{side}", 26.0 * (heads[pair - 1] if side == "head" else 1.0))

    watched = Watched()
    done = conduct(train, Settings(), watched, seed=0)
    assert len(watched.ratios) == 12
    assert done.stopped == "", "it ended as planned, at a look"
    base, head = Side(label="base", runs=tuple(done.base)), Side(label="head", runs=tuple(done.head))
    result = judge(base, head, Settings(), name="t")
    assert result.outcome is Outcome.REGRESSION
    assert "8 pairs were inconclusive, so 12 were run." in result.reasons


def test_a_pair_that_was_lost_is_made_up_for() -> None:
    train = steady(1.07)
    watched = Watched()
    settings = replace(Settings(), repeats=0)
    done = conduct(
        lambda side, pair, attempt: replace(train(side, pair, attempt), clean=pair != 2),
        settings,
        watched,
        seed=0,
    )
    assert len(watched.ratios) == 8
    assert max(one.pair or 0 for one in done.head) == 9


def test_a_failing_command_ends_the_measurement_at_once() -> None:
    train = steady(1.0)

    def failing(side: str, pair: int, attempt: int) -> RunFigures:
        made = train(side, pair, attempt)
        return replace(made, problem="ended with exit code 3: no such file") if side == "head" else made

    watched = Watched()
    done = conduct(failing, Settings(), watched, seed=0)
    assert len(watched.calls) <= 2
    assert done.failed == "Measurement failed: 01-head (head, pair 1): ended with exit code 3: no such file."


def test_a_run_of_which_the_machine_says_nothing_is_judged() -> None:
    train = steady(1.0)
    done = conduct(
        lambda side, pair, attempt: replace(train(side, pair, attempt), clean=None),
        Settings(),
        Watched(),
        seed=0,
    )
    assert len(done.base) >= 5 and not done.left_out
