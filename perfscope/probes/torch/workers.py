"""A data loader's worker process: when it makes each batch, and what it reads and computes meanwhile.

The worker writes hosts/<host>/workers/<pid of the training process>-<own pid>.jsonl itself
(rundir/loader_records.py has the format): the training learns nothing of it, and gets the same batches.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Dict, List, Optional

from ...rundir import layout
from ..files import AppendFile
from ..frames import around
from ..process import current

EVERY_NS = 1_000_000_000  # between two lines: what a SIGKILL may cost
LONG_NS = 1_000_000  # of batches that take so long it is worth asking how long they waited for a CPU
MOST_ROWS = 10_000  # one per batch; of later batches those of EVERY_NS are added up
_clock = time.monotonic_ns


def wrap_worker_loop() -> None:
    """Watch the loop that torch's loader runs in each worker, however the worker is started.

    A forked worker runs the function that is in the module when it is forked. A spawned one finds it by name
    in its own torch, which has been wrapped as well.
    """
    module: Any = sys.modules.get("torch.utils.data._utils.worker")
    original = getattr(module, "_worker_loop", None)
    code = getattr(original, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    if module is None or original is None or not {"index_queue", "data_queue", "worker_id"} <= set(names):
        return

    @around(original)
    def _worker_loop(*args: Any, **kwargs: Any) -> Any:
        watch = _started(dict(zip(names, args), **kwargs))  # noqa: B905 - Python 3.8
        try:
            return original(*args, **kwargs)
        finally:
            if watch is not None:
                watch.end()

    module._worker_loop = _worker_loop


def _started(given: Dict[str, Any]) -> "Optional[WorkerWatch]":
    try:
        return WorkerWatch(given)
    except Exception as error:  # noqa: BLE001 - the boundary: the worker works unseen
        current().guard.fault("loader worker", error)
        return None


class WorkerWatch:
    """Times the batches of this process from when one is assigned to it until it hands each over.

    Args:
        given: the arguments of torch's worker loop by name. Its queues' own `get` and `put` are called.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, given: Dict[str, Any]) -> None:
        parent = _training_pid()
        folder = os.path.join(current().run_dir, layout.HOSTS, layout.host_name(), layout.WORKERS)
        os.makedirs(folder, exist_ok=True)
        self._file: Optional[AppendFile] = AppendFile(
            os.path.join(folder, "%d-%d.jsonl" % (parent, os.getpid()))
        )
        self._rows: List[List[int]] = []
        self._num_rows = 0
        self._asked = self._got = self._cpu = 0
        self._is_long = True  # the batch before
        self._queued: Optional[int] = None
        self._batch: Optional[int] = None
        self._told = _clock()
        self._write(
            {
                "worker": given["worker_id"],
                "num_workers": given.get("num_workers"),
                "pid": os.getpid(),
                "parent": parent,
            }
        )
        self._watch(given["index_queue"], given["data_queue"])

    def _watch(self, index_queue: Any, data_queue: Any) -> None:
        """Replace `get` and `put` of this process's own copies of the queues."""
        get, put = index_queue.get, data_queue.put
        self._asked = _clock()

        @around(get)
        def timed_get(*args: Any, **kwargs: Any) -> Any:
            task = get(*args, **kwargs)
            self._takes(task)
            return task

        @around(put)
        def timed_put(task: Any, *args: Any, **kwargs: Any) -> Any:
            self._gives(task)
            return put(task, *args, **kwargs)

        index_queue.get, data_queue.put = timed_get, timed_put

    def _takes(self, task: Any) -> None:
        """`task`: (number of the batch, what belongs to it), or a word of the loader's."""
        if isinstance(task, tuple) and len(task) == 2 and isinstance(task[0], int):
            self._queued = _runqueue_ns() if self._is_long else None
            self._batch, self._got, self._cpu = task[0], _clock(), time.process_time_ns()

    def _gives(self, task: Any) -> None:
        if self._file is None or self._batch is None or task[0] != self._batch:
            return
        now = _clock()
        row = [self._batch, self._got, self._got - self._asked, now - self._got]
        row.append(time.process_time_ns() - self._cpu)
        after = None if self._queued is None else _runqueue_ns()
        self._is_long = row[3] >= LONG_NS
        self._add([*row, 0 if after is None or self._queued is None else after - self._queued, 1])
        self._batch, self._asked = None, now
        if now - self._told >= EVERY_NS:
            self._flush(now)
            self._asked = _clock()

    def _add(self, row: List[int]) -> None:
        last = self._rows[-1] if self._rows else None
        if self._num_rows < MOST_ROWS or last is None:
            self._num_rows += 1
            self._rows.append(row)
            return
        for column in (2, 3, 4, 5, 6):
            last[column] += row[column]

    def _flush(self, now: int) -> None:
        rows, self._rows, self._told = self._rows, [], now
        self._write({"rows": rows})

    def _write(self, line: Dict[str, Any]) -> None:
        if self._file is None:
            return
        import json

        try:
            line["io"] = _usage()
            self._file.write((json.dumps(line) + "\n").encode("ascii"))
        except Exception as error:  # noqa: BLE001 - the boundary: the worker goes on unseen
            current().guard.fault("loader worker", error)
            self._file = None

    def end(self) -> None:
        """The worker ends: write what is left."""
        self._flush(_clock())
        if self._file is not None:
            self._file.close()


def _training_pid() -> int:
    """Of the process that made the loader; a fork server stands between it and the worker."""
    multiprocessing = sys.modules.get("multiprocessing")
    parent = getattr(multiprocessing, "parent_process", lambda: None)()
    pid = getattr(parent, "pid", None)
    return pid if isinstance(pid, int) else os.getppid()


def _usage() -> List[Optional[int]]:
    """[CLOCK_MONOTONIC, rchar, read_bytes, ns waited for a CPU, major faults, ns waited for block devices].

    None where the kernel does not tell: the last needs delay accounting.
    """
    counts: Dict[str, int] = {}
    for line in _text("/proc/self/io").splitlines():
        name, _, value = line.partition(":")
        counts[name] = int(value)
    fields = _text("/proc/self/stat").rpartition(")")[2].split()
    ticks = int(fields[39]) if len(fields) > 39 else 0
    return [
        _clock(),
        counts.get("rchar"),
        counts.get("read_bytes"),
        _runqueue_ns(),
        int(fields[9]) if len(fields) > 9 else None,
        ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK") if ticks else None,
    ]


def _runqueue_ns() -> Optional[int]:
    """How long the main thread has waited for a CPU so far."""
    scheduled = _text("/proc/self/schedstat").split()
    return int(scheduled[1]) if len(scheduled) > 1 else None


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:  # not Linux, or hidden: its figures are not known
        return ""
