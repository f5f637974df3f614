"""A rank whose host's clock is wrong: `clock_ranks.py FOLDER WINDOWS CALLS APART_S AHEAD_S PPM`.

All hosts but the first really have a monotonic clock of their own, AHEAD_S ahead, in a time namespace where
the kernel grants one. The rest is added to the readings: the seconds where there is no such namespace, and
PPM of drift, which no namespace has. The wall clock is the same kernel's in all namespaces: the truth.
Each rank writes FOLDER/RANK.json: per window and call [reading at entry, at exit, truth at entry, at exit,
width of the two readings, ns].
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

INSIDE = "PERFSCOPE_TEST_CLOCK"
folder, windows, calls, apart_s = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
ahead_s, ppm = int(sys.argv[5]), float(sys.argv[6])
rank, host = int(os.environ["RANK"]), int(os.environ["GROUP_RANK"])

if host and INSIDE not in os.environ:
    into = [
        "unshare",
        "--map-root-user",
        "--time",
        "--monotonic",
        str(ahead_s),
        "--fork",
        "--kill-child",
        "--",
    ]
    try:
        granted = subprocess.run([*into, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        granted = False
    os.environ[INSIDE] = "namespace" if granted else "arithmetic"
    os.execvp(into[0] if granted else sys.executable, [*(into if granted else []), sys.executable, *sys.argv])

import torch  # noqa: E402 - not before the process is in its namespace
import torch.distributed as dist  # noqa: E402

START = time.monotonic_ns()
LACKS = ahead_s * 1_000_000_000 if os.environ.get(INSIDE) == "arithmetic" else 0


def look() -> tuple[int, int, int]:
    """(this host's clock, the truth, how far apart the two were read).

    A reading that was interrupted is taken again: a loaded machine interrupts most of them.
    """
    for _ in range(10):
        before = time.monotonic_ns()
        truth = time.time_ns()
        after = time.monotonic_ns()
        if after - before <= 2_000:
            break
    now = (before + after) // 2
    return now + (LACKS + round((now - START) * ppm * 1e-6) if host else 0), truth, after - before


def window(dice: random.Random) -> list[list[int]]:
    rows = []
    for number in range(calls):
        tensor = torch.ones((1, 1024, 65536)[number % 3])
        # Now one host is late, now the other: by more than a loaded machine delays a message.
        slow = 0.02 if number % 2 == host else 0.0005
        time.sleep(dice.random() * slow)
        enter = look()
        dist.all_reduce(tensor)
        leave = look()
        rows.append([enter[0], leave[0], enter[1], leave[1], max(enter[2], leave[2])])
    return rows


dist.init_process_group("gloo")
torch.set_num_threads(1)
dice = random.Random(rank)
dist.barrier()
found = [window(dice)]
for _ in range(windows - 1):
    time.sleep(apart_s)
    found.append(window(dice))
dist.barrier()
(folder / f"{rank}.json").write_text(
    json.dumps({"host": host, "clock": os.environ.get(INSIDE, "own"), "windows": found})
)
dist.destroy_process_group()
