"""What watching a data loader costs per batch, in the worker and in the training process.

    python benchmarks/loader_cost.py              # CPU time per batch, least of five repeats

The hooks are called as torch's loader would, without a loader: what remains is theirs. For batches of 1 ms or
more the worker also reads how long it waited for a CPU, which costs most.
"""

from __future__ import annotations

import json
import os
import queue
import tempfile
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

BATCHES = 5_000
REPEATS = 5


def main() -> None:
    """Prints microseconds per batch."""
    with tempfile.TemporaryDirectory() as run_dir:
        os.environ["PERFSCOPE_RUN_DIR"] = run_dir
        costs = {
            "worker, batches of less than 1 ms": least(lambda: worker(is_long=False)),
            "worker, longer batches": least(lambda: worker(is_long=True)),
            "training process": least(training),
        }
    for name, cost_us in costs.items():
        print(f"{name:<36}{cost_us:6.1f} us per batch")


def least(measure: Callable[[], int]) -> float:
    """The least of some repeats, in microseconds per batch."""
    return min(measure() for _ in range(REPEATS)) / BATCHES / 1e3


def worker(*, is_long: bool) -> int:
    """CPU time of the queues' hooks for all batches, ns, without that of the queues."""
    from perfscope.probes.torch import workers

    workers.LONG_NS = 0 if is_long else 1 << 62
    tasks, batches = Tasks(), queue.SimpleQueue[Any]()
    bare = timed(tasks.get, batches.put)
    watch = workers.WorkerWatch({"index_queue": tasks, "data_queue": Batches(), "worker_id": 0})
    hooked_batches = Batches()
    watch._watch(tasks, hooked_batches)
    watch._is_long = is_long
    spent = timed(tasks.get, hooked_batches.put)
    watch.end()
    return max(0, spent - bare)


class Tasks:
    """Gives the next number at once."""

    def __init__(self) -> None:
        self.number = 0

    def get(self) -> tuple[int, None]:
        """(batch, nothing)."""
        self.number += 1
        return self.number, None


class Batches:
    """Takes all."""

    def put(self, task: object) -> None:
        """Nothing is kept."""


def timed(get: Any, put: Any) -> int:
    """CPU time of BATCHES rounds, ns."""
    began = time.process_time_ns()
    for _ in range(BATCHES):
        put(get())
    return time.process_time_ns() - began


def training() -> int:
    """CPU time of what the training process does for all batches, ns."""
    from perfscope.probes.torch.asks import Asks

    recorder = SimpleNamespace(extend=lambda name, lines: json.dumps(lines))
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    processes = [SimpleNamespace(pid=number) for number in range(8)]
    iterator = Iterator(results, processes)
    asks = Asks()
    began = time.process_time_ns()
    for number in range(BATCHES):
        iterator._rcvd_idx = number
        ask = asks.asks(iterator)
        assert ask is not None
        asks.given(iterator, ask, time.monotonic_ns(), 5, recorder)
    return time.process_time_ns() - began


class Iterator:
    """What of a loader's iterator is looked at."""

    def __init__(self, results: Any, processes: list[Any]) -> None:
        self._rcvd_idx = 0
        self._task_info = {number: (number % 8,) for number in range(16)}
        self._worker_result_queue = self._data_queue = results
        self._workers = processes
        self._prefetch_factor = 2


if __name__ == "__main__":
    main()
