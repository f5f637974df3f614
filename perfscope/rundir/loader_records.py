"""What data loaders with workers leave: batches as workers make them, and as the training asks for them.

hosts/<host>/workers/<pid of the training process>-<pid of the worker>.jsonl, written by the worker:

    {"worker": 1, "num_workers": 2, "pid": .., "parent": .., "io": IO}
    {"rows": [[batch, begin_ns, waited_ns, ns, cpu_ns, queued_ns, count], ..], "io": IO}

A row is a batch from when it was assigned to the worker (`begin_ns`, after `waited_ns` of waiting for that)
until it handed it over, with the CPU time of the process and its wait for a CPU meanwhile (0 of batches of
less than about 1 ms). Where `count` > 1 it is the sum of so many
batches, the first of which is `batch`. IO, read when the line is written: [CLOCK_MONOTONIC, rchar,
read_bytes, ns waited for a CPU, major faults, ns waited for block devices], null where the kernel does not
tell.

ranks/<rank>/loading.jsonl, written by the training process:

    {"iterator": 0, "parent": .., "workers": [pid, ..], "prefetch": 2, "batch_size": 8, "batches": 125,
     "is_pinned": false}
    {"asks": [[iterator, begin_ns, waited_ns, batch, worker, ready], ..]}

`ready`: batches that were handed over and not yet taken when the training asked, null if not known.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.rundir.rows import decode_lines
from perfscope.rundir.typed import Count, Nanoseconds

Int64 = NDArray[np.int64]
IO = ("t_ns", "rchar", "read_bytes", "runqueue_ns", "major_faults", "block_ns")


class LoaderIterator(Struct, frozen=True, kw_only=True):
    """One pass over a loader, or several with persistent workers.

    Attributes:
        workers: pids, by the loader's numbers.
        prefetch: batches that are assigned to each worker ahead.
        num_batches: of a whole pass; None: the loader does not say.
    """

    number: int
    workers: tuple[int, ...]
    prefetch: int | None = None
    batch_size: int | None = None
    num_batches: int | None = None
    is_pinned: bool = False


class WorkerRows(Struct, frozen=True, kw_only=True, eq=False):
    """One worker process.

    Attributes:
        worker: its number in the loader.
        rows: shape (rows, 7): batch, begin_ns, waited_ns, ns, cpu_ns, queued_ns, count.
        used: name of IO without t_ns -> how much it grew over the worker's life; None: not known.
    """

    worker: int
    pid: int
    rows: Int64
    used: Mapping[str, int | None]


class Loading(Struct, frozen=True, kw_only=True, eq=False):
    """The loaders of one rank.

    Attributes:
        iterators: by number.
        asks: shape (asks, 6): iterator, begin_ns, waited_ns, batch, worker (-1: not known), ready (-1: not
            known).
        workers: by pid; of some iterators there may be none.
        num_bad: lines that could not be used.
    """

    iterators: Mapping[int, LoaderIterator]
    asks: Int64
    workers: Mapping[int, WorkerRows]
    num_bad: int = 0


class _WorkerLine(Struct):
    io: list[Count | None] = []
    worker: Count | None = None
    pid: Count = 0
    rows: list[tuple[Count, Nanoseconds, Nanoseconds, Nanoseconds, Nanoseconds, Nanoseconds, Count]] = []


class _AskLine(Struct):
    iterator: Count | None = None
    workers: list[Count] = []
    prefetch: Count | None = None
    batch_size: Count | None = None
    batches: Count | None = None
    is_pinned: bool = False
    asks: list[tuple[Count, Nanoseconds, Nanoseconds, Count, int, int | None]] = []


def read_worker(data: bytes) -> tuple[WorkerRows | None, int]:
    """One worker's file, and lines that could not be used; None: it does not say which worker it is."""
    lines, num_bad = decode_lines(data.splitlines(), msgspec.json.Decoder(_WorkerLine))
    first = next((line for line in lines if line.worker is not None), None)
    if first is None or first.worker is None:
        return None, num_bad
    rows = [row for line in lines for row in line.rows if row[6] > 0]
    readings = [line.io for line in lines if len(line.io) == len(IO)]
    used: dict[str, int | None] = {}
    for at, name in enumerate(IO[1:], start=1):
        usable = [value for reading in readings if (value := reading[at]) is not None]
        used[name] = None if len(usable) < 2 else max(0, usable[-1] - usable[0])
    table = np.array(rows, dtype=np.int64).reshape(-1, 7)
    return WorkerRows(worker=first.worker, pid=first.pid, rows=table, used=used), num_bad


def read_loading(data: bytes, workers: Mapping[int, WorkerRows]) -> Loading:
    """A whole loading.jsonl, with the workers that were found."""
    lines, num_bad = decode_lines(data.splitlines(), msgspec.json.Decoder(_AskLine))
    iterators: dict[int, LoaderIterator] = {}
    asks: list[tuple[int, ...]] = []
    for line in lines:
        if line.iterator is not None:
            iterators[line.iterator] = LoaderIterator(
                number=line.iterator,
                workers=tuple(line.workers),
                prefetch=line.prefetch,
                batch_size=line.batch_size,
                num_batches=line.batches,
                is_pinned=line.is_pinned,
            )
        usable = [row for row in line.asks if row[0] in iterators and -1 <= row[4] < 1 << 31]
        num_bad += len(usable) < len(line.asks)
        asks += [(*row[:5], -1 if row[5] is None else row[5]) for row in usable]
    table = np.array(asks, dtype=np.int64).reshape(-1, 6)
    return Loading(iterators=iterators, asks=table, workers=workers, num_bad=num_bad)
