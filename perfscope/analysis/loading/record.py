"""Reads what a rank's loaders left: its main loader's figures, its cause, and predictions of its replay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from perfscope.analysis.intervals import Int64
from perfscope.analysis.loading.lanes import made_ends
from perfscope.analysis.loading.predictions import predicted
from perfscope.analysis.loading.replay import Stretch
from perfscope.analysis.loading.results import LoadedBatch, LoaderWorker, RankLoading
from perfscope.rundir.loader_records import LoaderIterator, Loading, WorkerRows

LATE_NS = 500_000  # waited for a batch that was not ready; shorter is the cost of taking one
MOST_BATCHES = 5_000  # that are replayed
FEWEST_BATCHES = 12  # of a stretch that is worth replaying
_FEW_SAMPLES = 400  # points of the curve of ready batches
_DRAWN_ROUNDS = 6  # batches of each worker in the drawing
_ITERATOR, _BEGIN, _WAITED, _BATCH, _WORKER, _READY = range(6)


def rank_loading(
    rank: int, loading: Loading | None, num_steps: int, num_cpus: int | None
) -> RankLoading | None:
    """The loader that the rank took most batches from; None where it has none with workers.

    Args:
        num_steps: training steps of the rank.
        num_cpus: that the rank and its workers may use together; None: not known.
    """
    if loading is None or not len(loading.asks):
        return None
    iterators = _main_loader(loading)
    asks = loading.asks[np.isin(loading.asks[:, _ITERATOR], [entry.number for entry in iterators])]
    first = iterators[0]
    opens = np.diff(asks[:, _ITERATOR], prepend=-1) != 0  # the first ask of a pass: workers start
    taken = asks[:, _BEGIN] + asks[:, _WAITED]
    periods, waits = np.diff(taken, prepend=taken[:1])[~opens], asks[~opens, _WAITED]
    if not len(waits):
        return None
    late = _late_ns(loading, iterators, asks)
    at = np.unique(np.linspace(0, len(asks) - 1, min(len(asks), _FEW_SAMPLES)).astype(int))
    sampled = asks[at][asks[at, _READY] >= 0]
    ready = asks[asks[:, _READY] >= 0, _READY]
    result = RankLoading(
        rank=rank,
        num_workers=len(first.workers),
        prefetch=first.prefetch,
        num_asks=len(asks),
        num_steps=num_steps,
        period_ns=round(float(periods.mean())),
        wait_ns=round(float(waits.mean())),
        num_passes=int(opens.sum()),
        start_ns=int(asks[opens, _WAITED].sum()),
        late_ratio=float((late[~opens] >= LATE_NS).mean()),
        late_wait_ns=round(float(late[~opens].mean())),
        mean_ready=float(ready.mean()) if len(ready) else None,
        ready_times_ns=tuple((sampled[:, _BEGIN] - asks[0, _BEGIN]).tolist()),
        ready=tuple(sampled[:, _READY].tolist()),
        samples=first.batch_size * len(asks) if first.batch_size else None,
        pass_samples=_pass_samples(iterators, asks),
        workers=_workers(loading, iterators, asks, late),
        drawn=_drawn(loading, iterators, asks),
    )
    return predicted(result, _stretches(loading, iterators, asks), num_cpus)


def _main_loader(loading: Loading) -> list[LoaderIterator]:
    """Iterators of the loader with most asks: as many workers and as large batches are one loader's."""
    groups: dict[tuple[object, ...], list[LoaderIterator]] = defaultdict(list)
    for entry in loading.iterators.values():
        groups[len(entry.workers), entry.prefetch, entry.batch_size].append(entry)

    def num_asks(entries: list[LoaderIterator]) -> int:
        return int(np.isin(loading.asks[:, _ITERATOR], [entry.number for entry in entries]).sum())

    return max(groups.values(), key=num_asks)


def _pass_samples(iterators: Sequence[LoaderIterator], asks: Int64) -> int | None:
    """As the loader says, else of the longest pass that another followed."""
    first = iterators[0]
    if not first.batch_size:
        return None
    if first.num_batches is not None:
        return first.num_batches * first.batch_size
    last = asks[:-1][np.diff(asks[:, _BATCH]) < 0, _BATCH]
    return (int(last.max()) + 1) * first.batch_size if len(last) else None


def _late_ns(loading: Loading, iterators: Sequence[LoaderIterator], asks: Int64) -> Int64:
    """Of each wait, until the worker had finished the batch; all of it where that is not known. The rest is
    receiving it: the queue, pinning, and waiting for a CPU."""
    finished = np.full(len(asks), -1, dtype=np.int64)
    for entry in iterators:
        at = np.flatnonzero(asks[:, _ITERATOR] == entry.number)
        finished[at] = made_ends(loading, entry, asks[at])
    late = np.clip(finished - asks[:, _BEGIN], 0, asks[:, _WAITED])
    return np.where(finished < 0, asks[:, _WAITED], late)


def _workers(
    loading: Loading, iterators: Sequence[LoaderIterator], asks: Int64, late: Int64
) -> tuple[LoaderWorker, ...]:
    records: dict[int, list[WorkerRows]] = defaultdict(list)
    for entry in iterators:
        for pid in entry.workers:
            if pid in loading.workers and len(loading.workers[pid].rows):
                records[loading.workers[pid].worker].append(loading.workers[pid])
    return tuple(
        _worker(number, records[number], asks[asks[:, _WORKER] == number], late[asks[:, _WORKER] == number])
        for number in sorted(records)
    )


def _worker(number: int, records: Sequence[WorkerRows], asks: Int64, late: Int64) -> LoaderWorker:
    rows = np.concatenate([record.rows for record in records])
    waited, lengths, cpu, queued_ns, count = (int(value) for value in rows[:, 2:].sum(axis=0))
    on_cpu = min(1.0, cpu / max(1, lengths))
    queued = min(1 - on_cpu, queued_ns / max(1, lengths))
    ready = asks[asks[:, _READY] >= 0, _READY]
    return LoaderWorker(
        worker=number,
        num_batches=count,
        mean_ns=round(lengths / count),
        median_ns=round(float(np.median(rows[:, 3] / rows[:, 6]))),
        cpu_ratio=on_cpu,
        runqueue_ratio=queued,
        asleep_ratio=max(0.0, 1 - on_cpu - queued),
        idle_ratio=waited / max(1, waited + lengths),
        read_chars=_used(records, "rchar"),
        read_bytes=_used(records, "read_bytes"),
        major_faults=_used(records, "major_faults"),
        num_asked=len(asks),
        wait_ns=int(asks[:, _WAITED].sum()),
        late_wait_ns=int(late.sum()),
        mean_ready=float(ready.mean()) if len(ready) else None,
    )


def _used(records: Sequence[WorkerRows], name: str) -> int | None:
    values = [value for record in records if (value := record.used.get(name)) is not None]
    return sum(values) if len(values) == len(records) else None


def _stretches(loading: Loading, iterators: Sequence[LoaderIterator], asks: Int64) -> list[Stretch]:
    """Consecutive asks of which the making of the batch is known."""
    stretches: list[Stretch] = []
    left = MOST_BATCHES
    for entry in iterators:
        of_entry = asks[asks[:, _ITERATOR] == entry.number]
        made = _making(loading, entry, of_entry)
        begins = np.flatnonzero(np.diff(of_entry[:, _BATCH], prepend=-2) != 1)
        for part in np.split(np.arange(len(of_entry)), begins[1:]):
            numbers = part[made[part, 1] >= 0][:left]
            if len(numbers) >= FEWEST_BATCHES and numbers[-1] - numbers[0] == len(numbers) - 1:
                stretches.append(_stretch(entry, of_entry[numbers], made[numbers]))
                left -= len(numbers)
    return stretches


def _making(loading: Loading, entry: LoaderIterator, asks: Int64) -> Int64:
    """When the batch of each ask was begun, how long it took, and the time on a CPU or ready for
    one; -1: not known."""
    rows_of: dict[tuple[int, int], list[Int64]] = defaultdict(list)
    for number, pid in enumerate(entry.workers):
        worker = loading.workers.get(pid)
        for row in worker.rows if worker is not None else ():
            if row[6] == 1:
                rows_of[number, int(row[0])].append(row)
    made = np.full((len(asks), 3), -1, dtype=np.int64)
    for at, ask in enumerate(asks):
        end = ask[_BEGIN] + ask[_WAITED]
        rows = [row for row in rows_of.get((int(ask[_WORKER]), int(ask[_BATCH])), ()) if row[1] <= end]
        if rows:
            begin, length, cpu, queued = rows[-1][[1, 3, 4, 5]]
            made[at] = (begin, length, cpu + queued)
    return made


def _stretch(entry: LoaderIterator, asks: Int64, made: Int64) -> Stretch:
    return Stretch(
        asked=asks[:, _BEGIN],
        taken=asks[:, _BEGIN] + asks[:, _WAITED],
        worker=asks[:, _WORKER],
        begun=made[:, 0],
        length=made[:, 1],
        cpu=np.minimum(made[:, 1], made[:, 2]),
        num_workers=len(entry.workers),
        prefetch=entry.prefetch or 2,
    )


def _drawn(loading: Loading, iterators: Sequence[LoaderIterator], asks: Int64) -> tuple[LoadedBatch, ...]:
    """The middle of the longest pass: what workers made and when the training waited."""
    entry = max(iterators, key=lambda each: int((asks[:, _ITERATOR] == each.number).sum()))
    of_entry = asks[asks[:, _ITERATOR] == entry.number]
    num = max(8, _DRAWN_ROUNDS * len(entry.workers))
    low = max(0, (len(of_entry) - num) // 2)
    chosen = of_entry[low : low + num]
    begin, end = int(chosen[0, _BEGIN]), int(chosen[-1, _BEGIN] + chosen[-1, _WAITED])
    spans = [
        LoadedBatch(
            worker=-1,
            batch=int(ask[_BATCH]),
            start_ns=int(ask[_BEGIN]) - begin,
            end_ns=int(ask[_BEGIN] + ask[_WAITED]) - begin,
        )
        for ask in chosen
    ]
    for number, pid in enumerate(entry.workers):
        worker = loading.workers.get(pid)
        for row in worker.rows if worker is not None else ():
            if row[6] == 1 and row[1] < end and row[1] + row[3] > begin:
                start = max(0, int(row[1]) - begin)
                stop = min(end, int(row[1] + row[3])) - begin
                spans.append(LoadedBatch(worker=number, batch=int(row[0]), start_ns=start, end_ns=stop))
    return tuple(spans)


def drawn_once(loading: Sequence[RankLoading]) -> tuple[RankLoading, ...]:
    """Of one run: what is drawn is kept of the rank that waits longest alone."""
    worst = max(loading, key=lambda entry: entry.wait_ns, default=None)
    return tuple(
        entry if entry is worst else replace(entry, drawn=(), ready=(), ready_times_ns=())
        for entry in loading
    )
