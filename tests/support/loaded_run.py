"""A run directory of ranks with data loaders, in the format that their processes write."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.synthetic_run import EPOCH, SyntheticRun, span

MS = 1_000_000
BOOT = 5_000 * MS  # of the monotonic clock at EPOCH
WINDOW = 100 * MS


def loaded_run(
    path: Path, num_workers: int = 3, slow: int = -1, ranks: tuple[int, ...] = (0, 1)
) -> SyntheticRun:
    """Workers make a batch in 20 ms, the slow one in 60, one after the other; the training takes one every
    10 ms from EPOCH on, and a window of 100 ms begins there. Each worker reads 1 MiB, half of it from
    storage."""
    run = SyntheticRun(path)
    for rank in ranks:
        run.rank(rank, pid=50 + rank, anchors=[[BOOT, EPOCH], [BOOT + 1_000 * MS, EPOCH + 1_000 * MS]])
        run.steps(rank, [10 * MS] * 10)
        run.window(rank, [span(0, WINDOW, "compute")], [(0, 0, WINDOW)])
        pids = [100 * (rank + 1) + number for number in range(num_workers)]
        for number, pid in enumerate(pids):
            _worker(run, 50 + rank, number, pid, 60 if number == slow else 20, num_workers)
        first = {"iterator": 0, "parent": 50 + rank, "workers": pids, "prefetch": 2, "batch_size": 8}
        asks = [
            [0, BOOT + 10 * MS * batch, 2 * MS, batch, batch % num_workers, batch % 3] for batch in range(10)
        ]
        text = json.dumps(first) + "\n" + json.dumps({"asks": asks}) + "\n"
        run.write(f"ranks/{rank}/loading.jsonl", text)
    return run


def _worker(run: SyntheticRun, parent: int, number: int, pid: int, length: int, num_workers: int) -> None:
    rows = [
        [number + num_workers * at, BOOT + (at * length - 5) * MS, 0, length * MS, 15 * MS, MS, 1]
        for at in range(5)
    ]
    lines = [
        {
            "worker": number,
            "num_workers": num_workers,
            "pid": pid,
            "parent": parent,
            "io": [1, 0, 0, 0, 0, None],
        },
        {"rows": rows, "io": [2, 1 << 20, 1 << 19, 0, 3, None]},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    run.write(f"hosts/node0/workers/{parent}-{pid}.jsonl", text)
