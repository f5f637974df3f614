"""When the training asks a loader with workers for a batch, how many were ready then, and how long it waited.

Kept in the rank's loading.jsonl (rundir/loader_records.py). A loader without workers makes its batches in the
training's own process, where the wait for a batch is the work on it.
"""

from __future__ import annotations

import os
import time
import weakref
from typing import Any, Dict, List, Optional, Tuple

from ...rundir import layout

EVERY_NS = 1_000_000_000  # between two writes: what a SIGKILL may cost
MOST_ROWS = 200_000  # asks that are recorded: 10 MB
MOST_EARLY = 2_000  # before the process proves to train
_clock = time.monotonic_ns

Ask = Tuple[int, int, Optional[int]]  # number of the batch, of the worker that makes it, batches ready


class Asks:
    """Those of one process's training thread."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """In a forked child: nothing was asked."""
        self._numbers: Any = weakref.WeakKeyDictionary()  # iterator -> its number
        self._lines: List[Dict[str, Any]] = []  # of loaders, not yet written
        self._rows: List[List[Any]] = []
        self._num_rows = self._num_iterators = self._told = 0

    def asks(self, iterator: Any) -> Optional[Ask]:
        """The training is about to ask; None for a loader without workers."""
        information = getattr(iterator, "_task_info", None)
        if information is None:
            return None
        number = iterator._rcvd_idx
        task = information.get(number)
        return number, task[0] if task else -1, _ready(iterator, information)

    def given(self, iterator: Any, ask: Ask, began: int, waited: int, recorder: Any) -> None:
        """It was given a batch after `waited` ns; written with `recorder` (None: not yet)."""
        if self._num_rows >= MOST_ROWS:
            return
        self._num_rows += 1
        numbered = self._numbers.get(iterator)
        workers = [worker.pid for worker in iterator._workers]
        if numbered is None or numbered[1] != workers:
            numbered = self._numbers[iterator] = (self._num_iterators, workers)
            self._num_iterators += 1
            self._lines.append(_description(iterator, numbered[0], workers))
        self._rows.append([numbered[0], began, waited, *ask])
        if recorder is None:
            del self._rows[:-MOST_EARLY]
        elif began + waited - self._told >= EVERY_NS:
            self.flush(recorder)

    def flush(self, recorder: Any) -> None:
        """Write what there is."""
        self._told = _clock()
        lines: List[Dict[str, Any]] = self._lines
        if self._rows:
            lines = [*lines, {"asks": self._rows}]
        self._lines, self._rows = [], []
        if lines:
            recorder.extend(layout.LOADING_JSONL, lines)


def _ready(iterator: Any, information: Dict[int, Any]) -> Optional[int]:
    """Batches that workers have handed over and the training has not taken; None: not known."""
    kept = sum(1 for task in information.values() if len(task) > 1)
    queues = {id(queue): queue for queue in (iterator._worker_result_queue, iterator._data_queue)}
    try:
        return kept + sum(int(queue.qsize()) for queue in queues.values())
    except NotImplementedError:  # macOS has no counting semaphores
        return None


def _num_batches(sampler: Any) -> Optional[int]:
    """Of a pass. None: an endless one, or a sampler of the program's own, whose `__len__` is not called.

    Some of torch's samplers ask the dataset for its length, as the data loader itself does.
    """
    samplers = (sampler, getattr(sampler, "sampler", sampler))
    if not all(type(each).__module__.startswith("torch.") for each in samplers):
        return None
    try:
        return len(sampler)
    except Exception:  # noqa: BLE001 the dataset's own: the training meets it, too, where it asks
        return None


def _description(iterator: Any, number: int, workers: List[int]) -> Dict[str, Any]:
    sampler = getattr(iterator, "_index_sampler", None)
    size = getattr(sampler, "batch_size", None)
    return {
        "iterator": number,
        "parent": os.getpid(),
        "workers": workers,
        "prefetch": getattr(iterator, "_prefetch_factor", None),
        "batch_size": size if isinstance(size, int) else None,
        "batches": _num_batches(sampler),
        "is_pinned": bool(getattr(iterator, "_pin_memory", False)),
    }
