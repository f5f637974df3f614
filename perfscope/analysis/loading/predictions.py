"""Why the batches of a loader come late, and the time between batches with that changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from perfscope.analysis.loading.replay import (
    Changed,
    Stretch,
    handing_over_ns,
    measured_ns,
    period_ns,
    unchanged,
)
from perfscope.analysis.loading.results import STORE_RATIOS, LoaderPrediction, LoaderWorker, RankLoading
from perfscope.vocabulary.loading import InputCause, LoaderChange

NOTABLE = 0.05  # of the time between batches that waiting must be for a cause to be sought
SLOWER = 2.0  # times the median of the other workers: one is slow
EXPLAINS = 0.5  # of the waiting that the slow worker must account for
RECEIVED = 0.6  # of the waiting for batches that were finished before: the workers are not the cause
MOSTLY = 0.6  # of the time on batches: on a CPU, or waiting for one
ASLEEP = 0.4
FEWEST = 4  # batches of a worker that is compared
STORED_PER_BATCH = 4096  # bytes from storage: fewer are no reading of samples
WORTH = 0.2  # share of the time on batches that a change of it is asked of
STORES = (  # and how many times as fast
    (LoaderChange.DOUBLE_STORE, 2.0),
    (LoaderChange.FASTER_STORE, 4.0),
    (LoaderChange.FASTER_STORE, 8.0),
)


def predicted(loading: RankLoading, stretches: Sequence[Stretch], num_cpus: int | None) -> RankLoading:
    """With the cause, and predictions where it could be replayed."""
    if not stretches:
        return _with_cause(loading)
    handing_over = handing_over_ns(stretches)
    base = period_ns(stretches, unchanged, handing_over)
    if not base > 0:
        return _with_cause(loading)
    # Of the run's mean, what the replayed stretches save: these may be a part of it.
    scale = loading.period_ns / measured_ns(stretches)

    def changed_ns(make: Callable[[Stretch], Changed]) -> int:
        saved = max(0.0, base - period_ns(stretches, make, handing_over)) * min(scale, 1.0)
        # A finished batch may wait for the worker's thread that sends it, while the worker decodes the next.
        if not loading.sets_pace:
            saved = min(saved, float(loading.late_wait_ns))  # no worker shortens the receiving of a batch
        return round(loading.period_ns - saved)

    loading = replace(loading, replayed_ns=round(base * scale))
    if loading.asleep_ratio >= WORTH:
        stores = [partial(_faster, asleep=ratio, on_cpu=1.0) for ratio in STORE_RATIOS[:-1]]
        as_it_is = loading.period_ns  # the last ratio: nothing changes
        loading = replace(loading, store_ns=(*map(changed_ns, stores), as_it_is))
    changes = [
        prediction_of(loading, change, factor, changed_ns(make))
        for change, (factor, make) in _changes(loading, num_cpus).items()
    ]
    return _with_cause(with_predictions(loading, [*changes, *_of_store(loading)]))


def prediction_of(
    loading: RankLoading, change: LoaderChange, factor: float, predicted_ns: float
) -> LoaderPrediction:
    """`predicted_ns`: from one batch to the next."""
    predicted_ns = min(round(predicted_ns), loading.period_ns)
    return LoaderPrediction(
        change=change, period_ns=predicted_ns, saved_ns=loading.period_ns - predicted_ns, factor=factor
    )


def with_predictions(loading: RankLoading, more: Sequence[LoaderPrediction]) -> RankLoading:
    """With these, too."""
    every = sorted((*loading.predictions, *more), key=lambda entry: -entry.saved_ns)
    return replace(loading, predictions=tuple(every))


def _of_store(loading: RankLoading) -> list[LoaderPrediction]:
    """Stores that are some times as fast; where bytes come from storage, all of them from the page cache."""
    changes = [(change, factor, loading.period_with(1 / factor)) for change, factor in STORES]
    if is_stored(loading):
        changes.append((LoaderChange.CACHED, 1.0, loading.period_with(0.0)))
    return [prediction_of(loading, change, factor, ns) for change, factor, ns in changes if ns is not None]


def is_stored(loading: RankLoading) -> bool:
    """Whether workers read samples from storage."""
    return (loading.read_bytes or 0) >= STORED_PER_BATCH * loading.num_made


def _with_cause(loading: RankLoading) -> RankLoading:
    if not loading.workers or loading.wait_ns < NOTABLE * loading.period_ns:
        return loading
    is_received = loading.late_wait_ns < (1 - RECEIVED) * loading.wait_ns
    if is_received and not loading.sets_pace:
        return replace(loading, cause=InputCause.RECEIVING)
    slow = slow_worker(loading.workers)
    alone = loading.prediction(LoaderChange.EQUAL_WORKERS)
    if slow is not None and (alone is None or alone.saved_ns >= EXPLAINS * loading.wait_ns):
        return replace(loading, cause=InputCause.SLOW_WORKER, slow_worker=slow.worker)
    if 1 - loading.asleep_ratio >= MOSTLY:
        return replace(loading, cause=InputCause.DECODE)
    if loading.asleep_ratio < ASLEEP:
        return loading
    return replace(loading, cause=InputCause.STORE if is_stored(loading) else InputCause.WAIT)


def slow_worker(workers: Sequence[LoaderWorker]) -> LoaderWorker | None:
    """The one worker whose batches take SLOWER times as long as those of the others; None: none does."""
    compared = [worker for worker in workers if worker.num_batches >= FEWEST]
    if len(compared) < 2:
        return None
    slowest = max(compared, key=lambda worker: worker.mean_ns)
    mean_of_others = [worker.mean_ns for worker in compared if worker is not slowest]
    return slowest if slowest.mean_ns >= SLOWER * max(float(np.median(mean_of_others)), 1.0) else None


def _changes(
    loading: RankLoading, num_cpus: int | None
) -> dict[LoaderChange, tuple[float, Callable[[Stretch], Changed]]]:
    """What is worth asking of this loader's workers: factor, and the change."""
    changes: dict[LoaderChange, tuple[float, Callable[[Stretch], Changed]]] = {}
    slow = slow_worker(loading.workers)
    if slow is not None:
        changes[LoaderChange.EQUAL_WORKERS] = (1.0, partial(_equal, slow=slow.worker))
    if 1 - loading.asleep_ratio >= WORTH:
        changes[LoaderChange.DOUBLE_DECODE] = (2.0, partial(_faster, asleep=1.0, on_cpu=0.5))
    more = 2 * loading.num_workers
    crowded = _crowding(loading, more, num_cpus) / _crowding(loading, loading.num_workers, num_cpus)
    changes[LoaderChange.MORE_WORKERS] = (more, partial(_more, num=more, crowded=crowded))
    return changes


def _crowding(loading: RankLoading, num_workers: int, num_cpus: int | None) -> float:
    """Threads that want a CPU per CPU with so many workers and the training's own thread; 1 at least."""
    if not num_cpus:
        return 1.0
    wanted = 1 + num_workers * (1 - loading.asleep_ratio)
    return max(1.0, wanted / num_cpus)


def _faster(stretch: Stretch, asleep: float, on_cpu: float) -> Changed:
    """Parts of the time on batches multiplied."""
    base, cpu = unchanged(stretch), stretch.cpu.astype(float)
    return replace(base, length=(base.length - cpu) * asleep + cpu * on_cpu)


def _equal(stretch: Stretch, slow: int) -> Changed:
    """The slow worker's batches take as long as the others' on average."""
    base, is_other = unchanged(stretch), stretch.worker != slow
    if is_other.all() or not is_other.any():
        return base
    return replace(base, length=np.where(is_other, base.length, base.length[is_other].mean()))


def _more(stretch: Stretch, num: int, crowded: float) -> Changed:
    """So many workers in turn, whose computing takes `crowded` times as long."""
    base, cpu = unchanged(stretch), stretch.cpu.astype(float)
    length = base.length + cpu * (crowded - 1)
    return Changed(length=length, worker=np.arange(len(length)) % num, num_workers=num)
