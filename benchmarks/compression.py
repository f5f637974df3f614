"""What gradient codecs cost: time per MB against the dense all_reduce, and against torch's own hooks.

    python benchmarks/compression.py                     # 2 ranks on loopback, 4 MB and 64 kB
    python benchmarks/compression.py --ranks 4 --json

Every round exchanges the same buffer once with each, in random order; a figure is the median over rounds of
the ratio within the round. On loopback bytes are nearly free: there the ratio against dense is what a codec
costs in computing; `bytes` is what it saves on a network. Peers: torch's fp16_compress_hook and powerSGD_hook
(rank 2, one square matrix), called on the same buffer without DDP around them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from perfscope.runners.comm import Group, Ledger
from perfscope.runners.compression.registry import make_exchange
from perfscope.runners.config import BenchConfig, parse_scheme
from perfscope.runners.exchange import Exchange
from perfscope.volumes import bus_factor

CODECS = ("", "fp16", "bf16", "int8", "topk(0.01)", "mstopk(0.01)", "powersgd(2)")
PEERS = {"fp16": "torch fp16_compress_hook", "powersgd(2)": "torch powerSGD_hook"}
DENSE = "dense"
Row = dict[str, float | str]


class OneBucket:
    """What a hook asks of DDP's bucket: one buffer that holds one square matrix."""

    def __init__(self, flat: torch.Tensor) -> None:
        side = round(flat.numel() ** 0.5)
        self._flat, self._matrix = flat, flat.view(side, side)

    def buffer(self) -> torch.Tensor:
        return self._flat

    def set_buffer(self, flat: torch.Tensor) -> None:
        self._flat = flat

    def gradients(self) -> list[torch.Tensor]:
        return [self._matrix]

    def parameters(self) -> list[torch.Tensor]:
        return [self._matrix]

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def contestants(group: Group) -> dict[str, Callable[[torch.Tensor], Any]]:
    """Name -> averages a flat buffer over the group."""
    found: dict[str, Callable[[torch.Tensor], Any]] = {}
    for codec in CODECS:
        config = BenchConfig(
            scheme="dp.packed",
            modifiers=parse_scheme(f"x+{codec}" if codec else "x")[1],
            num_ranks=group.size,
        )
        found[codec or DENSE] = partial(_through, make_exchange(config), group)
    state = powerSGD_hook.PowerSGDState(dist.group.WORLD, matrix_approximation_rank=2, start_powerSGD_iter=2)
    found[PEERS["fp16"]] = lambda flat: default_hooks.fp16_compress_hook(None, OneBucket(flat)).wait()
    found[PEERS["powersgd(2)"]] = lambda flat: powerSGD_hook.powerSGD_hook(state, OneBucket(flat)).wait()
    return found


def _through(exchange: Exchange, group: Group, flat: torch.Tensor) -> torch.Tensor:
    return exchange.start("all", flat, group).wait()


def measure(side: int, rounds: int, group: Group) -> dict[str, list[float]]:
    """Name -> seconds by round, on this rank; every rank draws the same order."""
    order = random.Random(side)
    source = torch.randn(side * side, generator=torch.Generator().manual_seed(dist.get_rank()))
    todo = contestants(group)
    seconds: dict[str, list[float]] = {name: [] for name in todo}
    for number in range(rounds + 3):  # the first warm up; powerSGD_hook starts with two dense steps
        names = list(todo)
        order.shuffle(names)
        for name in names:
            flat = source.clone()
            dist.barrier()
            began = time.perf_counter()
            todo[name](flat)
            if number >= 3:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def table(side: int, seconds: dict[str, list[float]], num_ranks: int) -> list[Row]:
    """One row per codec and peer."""
    num_bytes = side * side * 4
    rows: list[Row] = []
    for name, times in seconds.items():
        row: Row = {
            "size_bytes": num_bytes,
            "codec": name,
            "ms_per_mb": 1e3 * statistics.median(times) / (num_bytes / 1e6),
            "time_ratio_dense": _ratio(times, seconds[DENSE]),
        }
        if name in PEERS:
            row["time_ratio_torch"] = _ratio(times, seconds[PEERS[name]])
        if name not in PEERS.values():
            codec = "" if name == DENSE else f"+{name}"
            exchange = make_exchange(BenchConfig(scheme="x", modifiers=parse_scheme(f"x{codec}")[1]))
            sent = sum(
                one.bytes * (bus_factor(one.collective, num_ranks) or 0)
                for one in exchange.sends(side * side, 4, num_ranks)
            )
            row["bytes_ratio_dense"] = sent / (num_bytes * (bus_factor("all_reduce", num_ranks) or 1))
        rows.append(row)
    return rows


def _ratio(times: list[float], base: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(times, base, strict=True))


def run_rank(options: argparse.Namespace) -> None:
    """One rank: measures; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    group = Group("data", tuple(range(size)), dist.get_rank(), dist.group.WORLD, Ledger())
    rows = []
    for side in options.sides:
        rows += table(side, measure(side, options.rounds, group), size)
    if dist.get_rank() == 0:
        print(json.dumps(rows, indent=1) if options.json else _text(rows, size))
    dist.destroy_process_group()


def _text(rows: list[Row], num_ranks: int) -> str:
    lines = [f"{num_ranks} ranks on loopback, float32; time and bytes against the dense all_reduce"]
    lines.append(f"{'size':>9}  {'exchange':26} {'ms/MB':>8} {'time x':>7} {'bytes x':>8} {'x torch':>8}")
    for row in rows:
        share = f"{row['bytes_ratio_dense']:8.4f}" if "bytes_ratio_dense" in row else " " * 8
        peer = f"{row['time_ratio_torch']:8.2f}" if "time_ratio_torch" in row else ""
        lines.append(
            f"{row['size_bytes']:>9}  {row['codec']:26} {row['ms_per_mb']:8.2f} "
            f"{row['time_ratio_dense']:7.2f} {share} {peer}".rstrip()
        )
    return "\n".join(lines)


def main() -> int:
    """Starts the ranks, of which rank 0 prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--sides", type=int, nargs="+", default=[1000, 128], help="buffers of side x side floats"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(options)
        return 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(options.ranks)}
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={**os.environ, **meeting, "OMP_NUM_THREADS": "1", "RANK": str(rank)},
        )
        for rank in range(options.ranks)
    ]
    return max(one.wait() for one in ranks)


if __name__ == "__main__":
    sys.exit(main())
