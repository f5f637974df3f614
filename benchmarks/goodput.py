"""Does the gradient noise scale predict time to a target over batch sizes? `python benchmarks/goodput.py`

Pilot runs measure the noise scale B_noise. Then five batch sizes train to the same held-out loss, each at the
learning rate that the noise scale gives for it, eta_max / (1 + B_noise / B) (McCandlish et al. 2018, arXiv
1812.06162), over several seeds. Predicted: samples to the target in proportion to 1 + B / B_noise, and the
order of times by goodput. Measured: median samples to the target, and the time that they take at the median
step (other load on the machine slows single steps). The last line has Kendall's tau of the order by predicted
goodput and the order by measured time. Two minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import torch

from perfscope.analysis.learning import efficiency_of, noise_scale
from perfscope.rundir.scheme_records import BenchRecord, NoiseNorms
from perfscope.rundir.typed import read_as
from perfscope.runners.config import BenchConfig
from perfscope.runners.planning import plan
from perfscope.runners.train import train
from perfscope.runners.world import Alone, World

BATCHES = (8, 32, 128, 512, 2048)
PILOT = 64
BASE = BenchConfig(
    scheme="serial",
    model="table_mlp",
    input_shape=(64,),
    num_classes=16,
    label_noise=0.3,
    steps=20_000,
    learning_rate=0.2,
    target="loss=1.45",
    held_out=4096,
    device="cpu",
)
_EVALUATIONS = 40  # until the target is expected


class Trained(NamedTuple):
    """One run to the target; None: it was not reached."""

    samples: int | None
    samples_per_s: float


def run(config: BenchConfig) -> BenchRecord:
    """Trains in this process."""
    return read_as(BenchRecord, train(plan(config), World(Alone(), 0, torch.device("cpu"))).as_json())


def trained(config: BenchConfig) -> Trained:
    """What it took to the target."""
    record = run(config)
    times = record.trained_ns
    steps = len(times) - 1
    speed = config.batch / statistics.median(b - a for a, b in pairwise(times)) * 1e9
    if record.target_step is None:
        return Trained(None, speed)
    return Trained(steps * config.batch, speed)


def measured_noise(seeds: int) -> float:
    """B_noise over pilot runs to the target, in samples."""
    rows: list[NoiseNorms] = []
    for seed in range(seeds):
        rows += run(replace(BASE, batch=PILOT, seed=seed, noise_every=5, evaluate_every=5)).noise
    scale = noise_scale(rows)
    if scale is None:
        raise SystemExit("the pilot runs measured no noise scale")
    return scale


def kendall_tau(first: list[float], second: list[float]) -> float:
    """Of two lists without ties: 1 = the same order."""
    signs = [
        (first[i] - first[j]) * (second[i] - second[j]) > 0 for i, j in combinations(range(len(first)), 2)
    ]
    return (2 * sum(signs) - len(signs)) / len(signs)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    scale = measured_noise(options.seeds)
    rows: list[dict[str, Any]] = []
    for batch in BATCHES:
        rate = BASE.learning_rate / (1 + scale / batch)
        expected = max(_EVALUATIONS, round(8000 / batch * (1 + batch / scale)))
        every = max(1, expected // _EVALUATIONS)
        config = replace(BASE, batch=batch, learning_rate=rate, evaluate_every=every)
        results = [trained(replace(config, seed=100 + seed)) for seed in range(options.seeds)]
        speed = statistics.median(result.samples_per_s for result in results)
        samples = [result.samples for result in results if result.samples is not None]
        taken = statistics.median(samples) if len(samples) == len(results) else None
        rows.append(
            {
                "batch": batch,
                "efficiency": efficiency_of(batch, scale),
                "samples": taken,
                "samples_per_s": speed,
                "goodput": speed * efficiency_of(batch, scale),
                "seconds": None if taken is None else taken / speed,
            }
        )
    known = [row for row in rows if row["seconds"] is not None]
    tau = kendall_tau([row["goodput"] for row in known], [-row["seconds"] for row in known])
    if options.json:
        print(json.dumps({"noise_scale": scale, "rows": rows, "kendall_tau": tau}, indent=1))
        return
    print(f"noise scale {scale:.0f} samples")
    print("batch | efficiency predicted | measured | samples/s | goodput | samples to target | seconds")
    least = rows[0]["samples"]
    for row in rows:
        measured = least / row["samples"] if least and row["samples"] else float("nan")
        print(
            f"{row['batch']:5} | {row['efficiency'] / rows[0]['efficiency']:.2f} | {measured:.2f} "
            f"| {row['samples_per_s']:,.0f} | {row['goodput']:,.0f} | {row['samples'] or float('nan'):,.0f} "
            f"| {row['seconds'] or float('nan'):.2f}"
        )
    print(f"Kendall's tau of goodput and time to target: {tau:.2f}")


if __name__ == "__main__":
    main()
