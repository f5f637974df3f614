"""The loop of a program's collectives, found from the order of its calls alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest

from perfscope.probes.mpi import loop as mpi_loop
from perfscope.probes.mpi.groups import Communicator, ranks_text
from perfscope.probes.mpi.loop import BARE_REPEATS, PATIENCE, REPEATS, Loop, LoopFinder, choose_mark


def found(text: str, *, others: bool = True, finder: LoopFinder | None = None) -> tuple[int, Loop] | None:
    """(calls seen, loop) when one is found; letters are calls, with a call of another kind before each."""
    finder = finder or LoopFinder()
    for index, letter in enumerate(text):
        loop = finder.add(ord(letter), index, index if others else 0)
        if loop is not None:
            return index + 1, loop
    return None


@pytest.mark.parametrize("block", ["a", "ab", "aab", "aabb", "abac", "abcdefgh", "aaaab"])
@pytest.mark.parametrize("before", ["", "x", "xyz", "xx"])
def test_a_loop_is_found_when_its_period_has_repeated(block: str, before: str) -> None:
    result = found(before + block * 40)
    assert result is not None
    seen, loop = result
    assert loop == Loop(len(before), len(block))
    assert seen == len(before) + REPEATS * len(block)


def test_one_call_alone_in_its_loop_is_waited_for() -> None:
    # Gradients reduced one by one, all of one size, look like a loop until the loss is reduced, too.
    assert found("a" * (BARE_REPEATS - 1), others=False) is None
    assert found("a" * BARE_REPEATS, others=False) == (BARE_REPEATS, Loop(0, 1))
    result = found(("a" * 20 + "b") * 20, others=False)
    assert result is not None and result[1].period == 21


def test_calls_in_no_order_are_no_loop() -> None:
    generator = random.Random(7)
    calls = "".join(generator.choice("abcdef") for _ in range(3000))
    assert found(calls) is None


def test_a_loop_of_growing_length_is_none() -> None:
    calls = "".join("a" * (index % 7 + 1) + "b" for index in range(200))
    result = found(calls, others=False)
    assert result is None or result[1].period == len("".join("a" * (k + 1) + "b" for k in range(7)))


def test_the_search_ends() -> None:
    finder = LoopFinder()
    for symbol in range(PATIENCE):
        assert not finder.exhausted
        finder.add(symbol, symbol, symbol)
    assert finder.exhausted


def test_another_loop_must_have_repeated_more_often_than_all_steps_so_far() -> None:
    assert found("ab" * 40, finder=LoopFinder(least=30)) == (60, Loop(0, 2))


def test_more_turns_can_be_asked_for_while_it_looks() -> None:
    finder = LoopFinder()
    assert found("ab" * 5, finder=finder) is None
    finder.require(30)
    assert found("ab" * 40, finder=finder) == (2 * 30 - 10, Loop(0, 2))


def test_a_call_costs_a_handful_of_looks() -> None:
    finder = LoopFinder(least=10**6)
    for index, symbol in enumerate(itertools.islice(itertools.cycle(range(5)), 2000)):
        finder.add(symbol, index, 0)
    assert len(finder._runs) <= 2 * mpi_loop._LOOK_BACK


@pytest.mark.parametrize(
    ("block", "wide", "expected"),
    [
        ([0], [True], (0, 1)),
        ([0, 1], [True, True], (1, 1)),
        ([0, 1, 1, 1], [True] * 4, (0, 1)),  # once a turn
        ([0, 1], [True, False], (0, 1)),  # all ranks make it
        ([0, 1, 0, 1], [True] * 4, (3, 2)),  # same places, other sizes
    ],
)
def test_steps_are_cut_behind_the_last_of_the_rarest_calls(
    block: list[int], wide: Iterable[bool], expected: tuple[int, int]
) -> None:
    assert choose_mark(block, list(wide)) == expected


def test_peers_are_global_ranks() -> None:
    place = Communicator("world.split1", "world.split", [4, 6, 9], 3)
    assert [place.global_rank(rank) for rank in (0, 2, 3, -1, None)] == [4, 9, None, None, None]
    between = Communicator("inter", "inter", [0, 1], 4)
    between.remote = [2, 3]
    assert between.global_rank(1) == 3
    other = Communicator("inter", "inter", [2, 3], 4)
    other.remote = [0, 1]
    assert between.everybody == other.everybody == [0, 1, 2, 3]


def test_ranks_are_told_shortly() -> None:
    assert ranks_text([0, 1, 2, 5]) == "0-2,5"
    assert ranks_text([3]) == "3"
    assert ranks_text(range(0, 40, 4)) == "0..36 of 10"
