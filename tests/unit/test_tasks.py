"""Pieces of work are tried again, and a piece that keeps failing does not stop the others."""

from __future__ import annotations

import operator
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from perfscope.errors import RunDirectoryError
from perfscope.tasks import ATTEMPTS, Failure, chunks, completed, mapped


class Flaky:
    """Fails as often as it is told for a piece, then gives its square."""

    def __init__(self, failures: dict[int, int], error: type[Exception] = MemoryError) -> None:
        self.failures, self.error, self.calls = failures, error, Counter[int]()

    def __call__(self, piece: int) -> int:
        self.calls[piece] += 1
        if self.calls[piece] <= self.failures.get(piece, 0):
            raise self.error(f"piece {piece}")
        return piece * piece


def results(function: Flaky, pieces: list[int]) -> dict[int, int | Failure]:
    with ThreadPoolExecutor(2) as executor:
        return dict(completed(executor, function, pieces))


def test_every_piece_has_its_result_by_its_index() -> None:
    assert results(Flaky({}), [7, 5, 3]) == {0: 49, 1: 25, 2: 9}


def test_a_piece_that_fails_twice_is_done_by_the_third_attempt() -> None:
    function = Flaky({5: ATTEMPTS - 1})
    assert results(function, [7, 5]) == {0: 49, 1: 25}
    assert function.calls == {7: 1, 5: ATTEMPTS}


def test_a_piece_that_keeps_failing_leaves_the_others_alone() -> None:
    assert results(Flaky({5: 99}), [7, 5]) == {0: 49, 1: Failure("MemoryError: piece 5")}


def test_what_is_wrong_with_the_run_is_raised_at_once() -> None:
    function = Flaky({5: 99}, RunDirectoryError)
    with pytest.raises(RunDirectoryError, match="piece 5"):
        results(function, [5])
    assert function.calls == {5: 1}


def test_results_are_in_order_and_a_piece_that_keeps_failing_is_done_here() -> None:
    function = Flaky({5: ATTEMPTS})
    with ThreadPoolExecutor(2) as executor:
        assert mapped(executor, function, [7, 5, 3]) == [49, 25, 9]
    assert function.calls == {7: 1, 5: ATTEMPTS + 1, 3: 1}
    assert mapped(executor, Flaky({}), [7, 5]) == mapped(None, Flaky({}), [7, 5]) == [49, 25]  # closed, none


@pytest.mark.parametrize("most", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("length", [0, 1, 2, 10])
def test_chunks_are_consecutive_and_nearly_equal(length: int, most: int) -> None:
    parts = chunks(range(length), most)
    assert [item for part in parts for item in part] == list(range(length))
    sizes = [len(part) for part in parts]
    assert all(0 < size <= most for size in sizes)
    assert not sizes or operator.sub(max(sizes), min(sizes)) <= 1
