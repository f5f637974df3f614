"""Published claims about schemes, as ratios of step times in an emulated cluster.

    python benchmarks/claims.py                        # all claims, some minutes on two cores
    python benchmarks/claims.py --claim owt --blocks 3 --json

Each claim is two schemes on one model and one cluster (root or user namespaces, see docs/bench.md). Ranks are
Each claim is two schemes on one model and one cluster (root or user namespaces, docs/bench.md). Ranks are
both. A figure is the median over blocks of (time of A's steps) / (time of B's), both means of the two runs of
the block; the noise beside it is the same ratio of B against itself. `by bytes` is the ratio of the
bytes that the busiest host sends (predicted, with gloo's factors): what the step times would do if only the
links between hosts counted.

Limits: all ranks share this machine's CPUs, links have a rate but no added latency, and computation is far
slower against the network than on the papers' machines. A ratio here says which way and about how much.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfscope.runners.cluster.spec import parse_cluster
from perfscope.runners.config import BenchConfig, parse_scheme

TIMEOUT_S = 900.0
STEPS = 4  # the first of them is not counted


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A against B: how many times longer A's step takes.

    Attributes:
        slower, faster: schemes, A and B.
        cluster: spec of the emulated cluster.
        settings: of both runs.
        paper: what was published, and where.
    """

    slower: str
    faster: str
    cluster: str
    settings: dict[str, Any]
    paper: str


CLAIMS = {
    "packed": Claim(
        slower="dp.perlayer",
        faster="dp.packed",
        cluster="4x1@1gbit",
        settings={"model": "resnet50", "input_shape": (3, 32, 32), "batch": 16},
        paper="packing all layers into one message saves L-1 latencies (You, Buluc, Demmel, SC'17)",
    ),
    "packed-small": Claim(
        slower="dp.perlayer",
        faster="dp.packed",
        cluster="4x1@1gbit",
        settings={"model": "googlenet", "input_shape": (3, 32, 32), "batch": 16},
        paper="the same on many small layers",
    ),
    "sync-easgd": Claim(
        slower="easgd.original",
        faster="easgd.sync1",
        cluster="4x1@1gbit",
        settings={"model": "googlenet", "input_shape": (3, 32, 32), "batch": 12},
        paper="Sync EASGD1 is 3.7x faster than round-robin EASGD on 4 GPUs (You, Buluc, Demmel, SC'17)",
    ),
    "sync-easgd-ar": Claim(
        slower="easgd.original",
        faster="easgd.sync_ar",
        cluster="4x1@1gbit",
        settings={"model": "googlenet", "input_shape": (3, 32, 32), "batch": 12},
        paper="Sync EASGD3 is 5.3x faster than round-robin EASGD (same paper); here in its masterless form",
    ),
    "owt": Claim(
        slower="dp.packed",
        faster="hy.owt",
        cluster="2x2@1gbit",
        settings={"model": "alexnet", "input_shape": (3, 64, 64), "batch": 16},
        paper="model parallel fully connected layers, data parallel convolutions (Krizhevsky 2014)",
    ),
}


def config_of(scheme: str, claim: Claim) -> BenchConfig:
    spec = parse_cluster(claim.cluster)
    name, modifiers = parse_scheme(scheme)
    shape = BenchConfig(scheme=name, modifiers=modifiers, num_ranks=spec.num_ranks, num_hosts=spec.num_hosts)
    return replace(shape, steps=STEPS, threads=1, device="cpu", learning_rate=1e-4, **claim.settings)


def rank_main(out: Path, orders: list[BenchConfig]) -> None:
    """One rank: trains every entry, and writes the mean time of its counted steps."""
    from perfscope.runners.planning import plan
    from perfscope.runners.train import train
    from perfscope.runners.world import open_world

    world = open_world(orders[0])
    times = []
    for config in orders:
        world.peers.barrier()
        ends = train(plan(config), world).step_ends_ns
        times.append((ends[-1] - ends[1]) / (len(ends) - 2) if len(ends) > 2 else None)
    (out / f"{world.rank}.json").write_text(json.dumps(times))
    world.peers.barrier()
    world.peers.close()


def measure(claim: Claim, blocks: int) -> dict[str, Any]:
    slower, faster = (config_of(scheme, claim) for scheme in (claim.slower, claim.faster))
    orders = [slower, faster, faster, slower] * blocks
    command = [
        sys.executable,
        "-m",
        "perfscope.runners.cluster",
        claim.cluster,
        "--",
        sys.executable,
        __file__,
    ]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        texts = [config.to_json() for config in orders]
        done = subprocess.run(
            [*command, "--rank", folder, *texts], env=os.environ, timeout=TIMEOUT_S, check=False
        )
        if done.returncode:
            raise SystemExit(done.returncode)
        ranks = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    slowest = [max(filter(None, of_run)) for of_run in zip(*ranks, strict=True)]  # a server has no steps
    ratios, noise = [], []
    seconds: dict[str, list[float]] = defaultdict(list)
    for first in range(0, len(slowest), 4):
        a1, b1, b2, a2 = slowest[first : first + 4]
        ratios.append((a1 + a2) / (b1 + b2))
        noise.append(max(b1, b2) / min(b1, b2))
        seconds[claim.slower] += [a1 / 1e9, a2 / 1e9]
        seconds[claim.faster] += [b1 / 1e9, b2 / 1e9]
    return {
        "slower": claim.slower,
        "faster": claim.faster,
        "model": claim.settings["model"],
        "cluster": claim.cluster,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "noise": statistics.median(noise),
        "by_bytes": busiest_bytes(slower) / busiest_bytes(faster),
        "step_s": {name: statistics.median(values) for name, values in seconds.items()},
        "paper": claim.paper,
        "took_s": time.monotonic() - began,
    }


def busiest_bytes(config: BenchConfig) -> float:
    """Bytes per step that the busiest host sends to others, with what gloo adds."""
    from perfscope.runners.identity import all_traffic
    from perfscope.runners.planning import plan
    from perfscope.volumes import backend_factor, edges

    job = plan(config)
    sent: dict[int, float] = defaultdict(float)
    for rank, calls in all_traffic(job).items():
        for call in calls:
            factor = backend_factor("gloo", call.collective, len(call.members), call.bytes)
            for sender, receiver, share in edges(call.collective, call.members):
                if sender == rank and job.host_of(sender) != job.host_of(receiver):
                    sent[job.host_of(rank)] += call.bytes * call.count * share * factor / call.every
    return max(sent.values())


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        rank_main(Path(sys.argv[2]), [BenchConfig.from_json(text) for text in sys.argv[3:]])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--claim", action="append", choices=CLAIMS, help="only this one; repeatable")
    parser.add_argument("--blocks", type=int, default=3, help="ABBA blocks (default 3)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = {name: measure(CLAIMS[name], arguments.blocks) for name in arguments.claim or CLAIMS}
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    for name, row in rows.items():
        low, high = min(row["ratios"]), max(row["ratios"])
        times = ", ".join(f"{scheme} {seconds:.3g} s" for scheme, seconds in row["step_s"].items())
        print(f"{name}: {row['slower']} / {row['faster']} on {row['model']}, {row['cluster']}")
        print(
            f"  step time {row['ratio']:.2f}x ({low:.2f} to {high:.2f}); {row['faster']} against itself "
            f"{row['noise']:.2f}x; by bytes {row['by_bytes']:.2f}x; {times}"
        )
        print(f"  published: {row['paper']}")


if __name__ == "__main__":
    main()
