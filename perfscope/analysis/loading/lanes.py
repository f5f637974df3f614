"""Batches of data loaders as spans over time: when each worker made one, when the training asked and waited.

Times are Unix ns of the rank's host, as in its traces.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from perfscope.analysis.intervals import Int64
from perfscope.rundir.loader_records import LoaderIterator, Loading

_ITERATOR, _BEGIN, _WAITED, _BATCH, _WORKER, _READY = range(6)
Shape = tuple[int, int | None, int | None]  # of a loader: workers, prefetch, batch size
NOT_KNOWN = np.iinfo(np.int64).min


class WorkerBatches(Struct, frozen=True, kw_only=True, eq=False):
    """Batches of one worker, by their start; arrays of shape (batches,).

    Attributes:
        cpu_ns: of `dur_ns`, on a CPU; `queued_ns`: ready to run without a CPU.
        num_summed: more batches, of which only sums were recorded.
    """

    worker: int
    batch: Int64
    start_ns: Int64
    dur_ns: Int64
    cpu_ns: Int64
    queued_ns: Int64
    num_summed: int = 0


class LoaderSpans(Struct, frozen=True, kw_only=True, eq=False):
    """One loader of a rank: its passes follow one another. Arrays of shape (asks,), by time.

    Attributes:
        number: 0 = the loader that gave most batches.
        num_workers, prefetch: of the loader.
        batch, worker: that the training asked for, and who makes it; -1: not known.
        ask_ns, wait_ns: when it asked, and how long it waited.
        ready: finished batches in the queue then; -1: not known.
        made_ns: when the worker had finished the batch; -1: not known.
        workers: by their number.
    """

    number: int
    num_workers: int
    prefetch: int | None
    batch: Int64
    worker: Int64
    ask_ns: Int64
    wait_ns: Int64
    ready: Int64
    made_ns: Int64
    workers: tuple[WorkerBatches, ...]

    @property
    def most_ready(self) -> int:
        """Batches that may be ready at a time."""
        return self.num_workers * (self.prefetch or 2)


class LoaderLane(Struct, frozen=True, kw_only=True, eq=False):
    """What a lane of a loader has besides spans.

    Attributes:
        worker: its number; -1: of no single one.
        is_folded: not drawn at first.
        top: of the curve.
        curve_ns, curve: a step function, in batches ready (queue) or workers that make a batch (fold), by
            ns since the window's start; empty: none.
        cpu_ns, queued_ns: of each span of a worker.
        made_ns: of each wait, how long before the request the batch was finished; negative: after it,
            NOT_KNOWN where that is not known.
    """

    worker: int = -1
    is_folded: bool = False
    top: int = 0
    curve_ns: Int64
    curve: Int64
    cpu_ns: Int64 | None = None
    queued_ns: Int64 | None = None
    made_ns: Int64 | None = None


def loader_spans(loading: Loading | None, anchors: Sequence[tuple[int, int]]) -> tuple[LoaderSpans, ...]:
    """The loaders of a rank, that with most batches first.

    Args:
        anchors: (monotonic ns, Unix ns) of the rank's host; () = no spans can be placed.
    """
    if loading is None or not len(loading.asks) or not anchors:
        return ()
    loaders = [_spans(loading, entries, anchors) for entries in _loaders(loading)]
    loaders.sort(key=lambda loader: -len(loader.ask_ns))
    return tuple(_numbered(loader, number) for number, loader in enumerate(loaders))


def _numbered(loader: LoaderSpans, number: int) -> LoaderSpans:
    return LoaderSpans(
        **{name: getattr(loader, name) for name in loader.__struct_fields__} | {"number": number}
    )


def _loaders(loading: Loading) -> list[list[LoaderIterator]]:
    """Passes of the same shape one after the other are one loader's; those at the same time are two's."""
    loaders: list[tuple[Shape, int, list[LoaderIterator]]] = []
    extents = {entry.number: _extent(loading, entry) for entry in loading.iterators.values()}
    for entry in sorted(loading.iterators.values(), key=lambda each: extents[each.number]):
        begin, end = extents[entry.number]
        if end < 0:
            continue  # it was asked for nothing
        shape = (len(entry.workers), entry.prefetch, entry.batch_size)
        at = next((at for at, (s, last, _) in enumerate(loaders) if s == shape and last <= begin), None)
        if at is None:
            loaders.append((shape, end, [entry]))
        else:
            loaders[at] = (shape, end, [*loaders[at][2], entry])
    return [entries for _, _, entries in loaders]


def _extent(loading: Loading, entry: LoaderIterator) -> tuple[int, int]:
    """First and last instant of anything known about a pass; (-1, -1): nothing is."""
    asks = loading.asks[loading.asks[:, _ITERATOR] == entry.number]
    if not len(asks):
        return -1, -1
    rows = [loading.workers[pid].rows for pid in entry.workers if pid in loading.workers]
    ends = [int((each[:, 1] + each[:, 3])[each[:, 6] == 1].max(initial=0)) for each in rows]
    return int(asks[0, _BEGIN]), max(int((asks[:, _BEGIN] + asks[:, _WAITED]).max()), *ends, 0)


def _spans(
    loading: Loading, entries: Sequence[LoaderIterator], anchors: Sequence[tuple[int, int]]
) -> LoaderSpans:
    asks = loading.asks[np.isin(loading.asks[:, _ITERATOR], [entry.number for entry in entries])]
    asks = asks[np.argsort(asks[:, _BEGIN], kind="stable")]
    first = entries[0]
    workers = [_worker(loading, entries, number, anchors) for number in range(len(first.workers))]
    return LoaderSpans(
        number=0,
        num_workers=len(first.workers),
        prefetch=first.prefetch,
        batch=asks[:, _BATCH],
        worker=asks[:, _WORKER],
        ask_ns=_unix(asks[:, _BEGIN], anchors),
        wait_ns=asks[:, _WAITED],
        ready=asks[:, _READY],
        made_ns=_made(loading, entries, asks, anchors),
        workers=tuple(worker for worker in workers if worker is not None),
    )


def _worker(
    loading: Loading, entries: Sequence[LoaderIterator], number: int, anchors: Sequence[tuple[int, int]]
) -> WorkerBatches | None:
    """All processes that had the number; None: none of them left a record."""
    pids = dict.fromkeys(entry.workers[number] for entry in entries)
    records = [loading.workers[pid].rows for pid in pids if pid in loading.workers]
    if not records:
        return None
    rows = np.concatenate(records)
    single = rows[rows[:, 6] == 1]
    single = single[np.argsort(single[:, 1], kind="stable")]
    return WorkerBatches(
        worker=number,
        batch=single[:, 0],
        start_ns=_unix(single[:, 1], anchors),
        dur_ns=single[:, 3],
        cpu_ns=np.minimum(single[:, 4], single[:, 3]),
        queued_ns=np.minimum(single[:, 5], single[:, 3]),
        num_summed=int(rows[rows[:, 6] > 1, 6].sum()),
    )


def _made(
    loading: Loading, entries: Sequence[LoaderIterator], asks: Int64, anchors: Sequence[tuple[int, int]]
) -> Int64:
    made = np.full(len(asks), -1, dtype=np.int64)
    for entry in entries:
        at = np.flatnonzero(asks[:, _ITERATOR] == entry.number)
        ends = made_ends(loading, entry, asks[at])
        made[at] = np.where(ends < 0, -1, _unix(ends, anchors))
    return made


def made_ends(loading: Loading, entry: LoaderIterator, asks: Int64) -> Int64:
    """When the batch of each ask was finished, ns of the host's monotonic clock; -1: not known.

    A number of a batch comes again in each pass of the same workers: the last one before it was taken counts.
    """
    made = np.full(len(asks), -1, dtype=np.int64)
    taken = asks[:, _BEGIN] + asks[:, _WAITED]
    for number, pid in enumerate(entry.workers):
        if pid not in loading.workers:
            continue
        rows = loading.workers[pid].rows
        single = rows[rows[:, 6] == 1]
        ends_of: dict[int, list[int]] = {}
        for batch, end in zip(single[:, 0].tolist(), (single[:, 1] + single[:, 3]).tolist(), strict=True):
            ends_of.setdefault(batch, []).append(end)
        for at in np.flatnonzero(asks[:, _WORKER] == number).tolist():
            ends = [end for end in ends_of.get(int(asks[at, _BATCH]), ()) if end <= taken[at]]
            made[at] = ends[-1] if ends else -1
    return made


def _unix(times_ns: Int64, anchors: Sequence[tuple[int, int]]) -> Int64:
    """Monotonic times on the wall clock: what it had gained on the nearest readings of both, between them
    evenly. The large numbers stay whole."""
    pairs = np.array(sorted(anchors), dtype=np.int64)
    base = int(pairs[0, 1] - pairs[0, 0])
    gained = (pairs[:, 1] - pairs[:, 0] - base).astype(np.float64)
    at = (times_ns - pairs[0, 0]).astype(np.float64)
    drift = np.interp(at, (pairs[:, 0] - pairs[0, 0]).astype(np.float64), gained)
    moved: Int64 = times_ns + base + np.rint(drift).astype(np.int64)
    return moved
