"""Batches made ahead of the training by threads, in the order of the steps."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import torch
from torch.utils.data import DataLoader, Dataset

from perfscope.runners.schemes.base import Batch, Feed

# Batches that each thread may be ahead of the training. More would only even out batches that differ in cost,
# and hide the wait in the few steps that are traced: a buffer fills up while a window is being opened.
AHEAD = 1


class LoadedFeed(Feed):
    """A feed behind torch's DataLoader, so that waiting for a batch is recorded as in any other training.

    Threads make the batches of the steps to come, because decoders release the interpreter's lock and threads
    leave no process behind. Whatever their number, the same batches come in the same order. Asking for
    another step than the next one is allowed and starts anew there. Use it in a `with` statement.
    """

    def __init__(self, feed: Feed, steps: int, workers: int, device: torch.device) -> None:
        """
        Args:
            feed: makes the batches; with workers, from several threads at once.
            steps: of the run; nothing is made beyond.
            workers: threads; 0 = the training's own thread makes each batch when it is due.
            device: where batches go. They are moved by the training's thread.
        """
        self._feed = feed
        self._steps = steps
        self._workers = workers
        self._device = device
        self._next: tuple[int, int, int] | None = None
        self._ahead: _Ahead | None = None
        self._batches: Iterator[Batch] = iter(())

    def batch(self, step: int, part: int, num_parts: int) -> Batch:
        """See Feed."""
        if self._next != (step, part, num_parts):
            self._begin(step, part, num_parts)
        self._next = (step + 1, part, num_parts)
        batch = next(self._batches)
        return Batch(batch.inputs.to(self._device), batch.targets.to(self._device))

    def __enter__(self) -> LoadedFeed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _begin(self, step: int, part: int, num_parts: int) -> None:
        self._end()
        last = max(self._steps, step + 1)
        self._ahead = _Ahead(self._feed, (part, num_parts), range(step, last), self._workers)
        loader: DataLoader[Batch] = DataLoader(
            self._ahead,
            batch_size=None,
            sampler=range(step, last),
            collate_fn=_as_it_is,
            generator=torch.Generator(),  # else the loader takes a number from the training's own
        )
        self._batches = iter(loader)

    def _end(self) -> None:
        if self._ahead is not None:
            self._ahead.close()


class _Ahead(Dataset[Batch]):
    """The batch of each step; those of the next steps are being made."""

    def __init__(self, feed: Feed, part: tuple[int, int], steps: range, workers: int) -> None:
        self._feed = feed
        self._part = part
        self._to_come = iter(steps)
        self._pool = ThreadPoolExecutor(workers, "perfscope-input") if workers else None
        self._made: dict[int, Future[Batch]] = {}
        for _ in range(AHEAD * workers):
            self._order()

    def __getitem__(self, step: int) -> Batch:
        if self._pool is None:
            return self._make(step)
        made = self._made.pop(step)
        self._order()
        return made.result()

    def close(self) -> None:
        """Ends the threads; batches under way are waited for, those that have not begun are not made."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _order(self) -> None:
        step = next(self._to_come, None)
        if step is not None and self._pool is not None:
            self._made[step] = self._pool.submit(self._make, step)

    def _make(self, step: int) -> Batch:
        return self._feed.batch(step, *self._part)


def _as_it_is(batch: Batch) -> Batch:
    return batch
