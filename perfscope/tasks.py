"""Independent pieces of work that an Executor does; a piece whose worker fails is tried again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from perfscope.errors import PerfscopeError

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

ATTEMPTS = 3

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class ExecutorClosed(Exception):
    """The Executor takes no more work."""


class Failure(NamedTuple):
    """What the last of `ATTEMPTS` attempts at a piece ended with."""

    reason: str


_UNDONE = Failure("not begun")


def completed(
    executor: Executor, function: Callable[[_In], _Out], pieces: Sequence[_In]
) -> Iterator[tuple[int, _Out | Failure]]:
    """Calls `function` with every piece.

    Args:
        executor: any; function, pieces and results must be picklable where it has other processes.
        function: of one piece.
        pieces: what to call it with.

    Yields:
        (index of the piece, its result, or why there is none), in order of completion.

    Raises:
        PerfscopeError: `function` raised it: something is wrong with the run, for every attempt alike.
        ExecutorClosed: it takes no more work.
    """
    from concurrent.futures import FIRST_COMPLETED, wait  # few reports need it

    waiting: dict[Future[_Out], tuple[int, int]] = {}
    try:
        for index, piece in enumerate(pieces):
            waiting[_submitted(executor, function, piece)] = (index, 1)
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                index, attempt = waiting.pop(future)
                error = future.exception()
                if error is None:
                    yield index, future.result()
                elif isinstance(error, PerfscopeError) or not isinstance(error, Exception):
                    raise error
                elif attempt < ATTEMPTS:
                    waiting[_submitted(executor, function, pieces[index])] = (index, attempt + 1)
                else:
                    yield index, Failure(f"{type(error).__name__}: {error}")
    finally:
        for future in waiting:
            future.cancel()


def mapped(executor: Executor | None, function: Callable[[_In], _Out], pieces: Sequence[_In]) -> list[_Out]:
    """What `function` gives for every piece, in order; a piece that no worker can do is done here.

    Args:
        executor: as of `completed`; None, or one that is closed: this process.
        function: of one piece.
        pieces: what to call it with.
    """
    done: dict[int, _Out | Failure] = {}
    if executor is not None:
        with suppress(ExecutorClosed):
            done.update(completed(executor, function, pieces))
    results = (done.get(number, _UNDONE) for number in range(len(pieces)))
    return [
        function(piece) if isinstance(result, Failure) else result
        for piece, result in zip(pieces, results, strict=True)
    ]


def _submitted(executor: Executor, function: Callable[[_In], _Out], piece: _In) -> Future[_Out]:
    try:
        return executor.submit(function, piece)
    except RuntimeError as error:
        raise ExecutorClosed(str(error)) from error


def chunks(items: Sequence[_In], most: int) -> list[Sequence[_In]]:
    """Consecutive parts of `items` of nearly equal length, at most `most` each."""
    num = -(-len(items) // most)
    cuts = [len(items) * number // max(num, 1) for number in range(num + 1)]
    return [items[begin:end] for begin, end in pairwise(cuts)]
