"""A loader replayed: when batches would have come with one thing changed.

The loader assigns `prefetch` batches to each worker ahead and, in turn, another when the training takes one.
A worker makes one batch after the other. The training takes batches in their order:

    begin[i] = max(taken[i - workers * prefetch], end of the worker's batch before)
    taken[i] = max(asked[i], begin[i] + length[i] + handing over)
    asked[i + 1] = taken[i] + what the training does in between

With nothing changed this must give the measured time between batches; a report says by how much it differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64

Float64 = NDArray[np.float64]


class Stretch(Struct, frozen=True, kw_only=True, eq=False):
    """Consecutive batches of one pass over a loader. Times in ns.

    Attributes:
        asked: shape (batches,), when the training asked.
        taken: shape (batches,), when it was given the batch.
        worker: shape (batches,), which made it.
        begun: shape (batches,), when that began.
        length: shape (batches,), how long it took.
        cpu: shape (batches,), of that on a CPU or ready for one.
        num_workers, prefetch: of the loader.
    """

    asked: Int64
    taken: Int64
    worker: Int64
    begun: Int64
    length: Int64
    cpu: Int64
    num_workers: int
    prefetch: int

    @property
    def first(self) -> int:
        """The first batch that is counted: those before were made ahead while the training began."""
        return min(self.num_workers * self.prefetch + 1, len(self.asked) // 4)


class Changed(Struct, frozen=True, kw_only=True, eq=False):
    """A stretch with something changed.

    Attributes:
        length: shape (batches,), ns.
        worker: shape (batches,).
        num_workers: their number.
    """

    length: Float64
    worker: Int64
    num_workers: int


def handing_over_ns(stretches: Sequence[Stretch]) -> float:
    """From the end of a batch's making until a training that waits for it has it: median."""
    late = [
        (stretch.taken - stretch.begun - stretch.length)[stretch.begun + stretch.length > stretch.asked]
        for stretch in stretches
    ]
    values = np.concatenate(late) if late else np.empty(0)
    return float(np.median(values).clip(0)) if len(values) else 0.0


def unchanged(stretch: Stretch) -> Changed:
    """The stretch as it was."""
    return Changed(
        length=stretch.length.astype(float), worker=stretch.worker, num_workers=stretch.num_workers
    )


def period_ns(
    stretches: Sequence[Stretch], change: Callable[[Stretch], Changed], handing_over: float
) -> float:
    """Mean time from one batch to the next, with each stretch changed; nan of no batches."""
    total = count = 0.0
    for stretch in stretches:
        taken = replay(stretch, change(stretch), handing_over)
        total += taken[-1] - taken[stretch.first]
        count += len(taken) - 1 - stretch.first
    return total / count if count else float("nan")


def measured_ns(stretches: Sequence[Stretch]) -> float:
    """The same as it was."""
    total = sum(float(stretch.taken[-1] - stretch.taken[stretch.first]) for stretch in stretches)
    count = sum(len(stretch.taken) - 1 - stretch.first for stretch in stretches)
    return total / count if count else float("nan")


def replay(stretch: Stretch, changed: Changed, handing_over: float) -> Float64:
    """When the training takes each batch, ns since it asked for the first."""
    origin = int(stretch.asked[0])
    between = np.append(stretch.asked[1:] - stretch.taken[:-1], 0).clip(0).tolist()
    lengths, workers = changed.length.tolist(), changed.worker.tolist()
    ahead = changed.num_workers * stretch.prefetch
    begins = {int(stretch.worker[at]): float(stretch.begun[at] - origin) for at in _firsts(stretch.worker)}
    earliest = min(begins.values())
    free = [begins.get(worker, earliest) for worker in range(max(changed.num_workers, max(workers) + 1))]
    taken: list[float] = []
    asked = 0.0
    for at, length in enumerate(lengths):
        assigned = taken[at - ahead] if at >= ahead else free[workers[at]]
        end = max(assigned, free[workers[at]]) + length
        free[workers[at]] = end
        taken.append(max(asked, end + handing_over))
        asked = taken[-1] + between[at]
    return np.array(taken)


def _firsts(worker: Int64) -> list[int]:
    """Where each worker is named first, in reverse."""
    seen: dict[int, int] = {}
    for at, number in enumerate(worker.tolist()):
        seen.setdefault(number, at)
    return list(seen.values())
