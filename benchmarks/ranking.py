"""Is a ranking of schemes by time to a target the same when measured again? `python benchmarks/ranking.py`

Two series of six schemes with five seeds each (other seeds in each series) train to the same held-out
accuracy on two emulated hosts. All runs are made by one pair of processes, in turns, so that other load on
the machine is the same for all of them. What was decided before the series were measured:

- The schemes differ in what a rank sends in a step, by at least half from one to the next, in bytes of the
  weights |W|: powersgd 0.004, topk 0.1, local SGD 0.25, fp16 0.5, packed 1, fsdp 1.5. Schemes that make the
  same updates with the same bytes (dp.ddp, dp.perlayer, dp.packed) are left out: no number of seeds
  separates them.
- The link is slow enough that most of a step of dp.packed is communication.
- Time to the target is the number of steps until then at the median of a period of four steps, in which local
  SGD exchanges once: other load slows single steps.
- A scheme's interval holds 95 % of the medians over its seeds drawn again; schemes whose intervals overlap
  are tied, and count as ties in Kendall's tau-b.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from perfscope.rundir.scheme_records import BenchRecord
from perfscope.rundir.typed import read_as
from perfscope.runners.config import BenchConfig, parse_scheme

SCHEMES = (
    "dp.packed+powersgd",
    "dp.packed+topk(0.05)",
    "dp.local_sgd",
    "dp.packed+fp16",
    "dp.packed",
    "dp.fsdp",
)
CLUSTER = "2x1@400mbit"
SERIES = 2
PERIOD = 4  # steps, of dp.local_sgd and from one evaluation to the next
_DRAWS, _LEVEL = 2000, 0.95


class Median(NamedTuple):
    """Of a scheme's times to the target, in seconds."""

    value: float
    low: float
    high: float


def configs(seeds: int) -> Iterator[tuple[int, BenchConfig]]:
    """(series, run), in the order of the runs: all schemes of one seed, then the other series."""
    for number in range(seeds):
        for series in range(SERIES):
            for scheme in SCHEMES:
                name, modifiers = parse_scheme(scheme)
                yield (
                    series,
                    BenchConfig(
                        scheme=name,
                        modifiers=modifiers,
                        model="mlp",
                        num_ranks=2,
                        num_hosts=2,
                        batch=64,
                        steps=240,
                        learning_rate=0.006,
                        label_noise=0.1,
                        target="accuracy=0.85",
                        evaluate_every=PERIOD,
                        held_out=1024,
                        seed=series * seeds + number,
                        device="cpu",
                        threads=1,
                    ),
                )


def measure(seeds: int, target: Path) -> None:
    """One of the two ranks: trains every run, and writes rank 0's results as they come."""
    import torch

    from perfscope.runners.planning import plan
    from perfscope.runners.train import train
    from perfscope.runners.world import open_world

    torch.set_num_threads(1)
    runs = list(configs(seeds))
    world = open_world(runs[0][1])
    with (target if world.rank == 0 else Path(os.devnull)).open("a") as stream:
        for series, config in runs:
            record = read_as(BenchRecord, train(plan(config), world).as_json())
            row = {"series": series, "scheme": config.full_name, "seed": config.seed, **times(record)}
            stream.write(json.dumps(row) + "\n")
            stream.flush()
    world.peers.barrier()
    world.peers.close()


def times(record: BenchRecord) -> dict[str, Any]:
    """Steps to the target (None: not reached), a step of the median period and the time passed, in s."""
    passed = record.trained_ns
    periods = [after - before for before, after in pairwise(passed[::PERIOD])]
    return {
        "steps": record.target_step,
        "step_s": statistics.median(periods) / PERIOD / 1e9,
        "passed_s": passed[-1] / 1e9,
    }


def median_of(values: Sequence[float], draws: random.Random) -> Median:
    """The median and its bootstrap interval."""
    found = sorted(statistics.median(draws.choices(values, k=len(values))) for _ in range(_DRAWS))
    edge = round((1 - _LEVEL) / 2 * _DRAWS)
    return Median(statistics.median(values), found[edge], found[-1 - edge])


def order(first: Median, second: Median) -> int:
    """-1: the first is faster, 1: the second; 0: their intervals overlap."""
    return -1 if first.high < second.low else int(second.high < first.low)


def tau_b(first: Sequence[int], second: Sequence[int]) -> float | None:
    """Kendall's tau-b of two orders of the same pairs; None: one of them orders no pair."""
    ordered = sqrt(sum(map(abs, first)) * sum(map(abs, second)))
    return sum(a * b for a, b in zip(first, second, strict=True)) / ordered if ordered else None


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians by series and scheme by both times, and tau-b of the two series for each."""
    result: dict[str, Any] = {}
    for kind in ("median period", "passed"):
        draws = random.Random(0)
        values: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
        for row in rows:
            value = row["steps"] * row["step_s"] if kind == "median period" else row["passed_s"]
            values[row["series"], row["scheme"]].append(value)
        medians = [
            {name: median_of(values[series, name], draws) for name in SCHEMES} for series in range(SERIES)
        ]
        orders = [[order(of[a], of[b]) for a, b in combinations(SCHEMES, 2)] for of in medians]
        result[kind] = {"medians": medians, "orders": orders, "tau_b": tau_b(*orders)}
    return result


def main() -> None:
    """Prints the table, or the rows and the table as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=Path, help="keep the runs' figures here; a file that is there is read")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        measure(options.seeds, options.rank)
        return
    with TemporaryDirectory() as folder:
        rows_file = options.rows or Path(folder) / "rows.jsonl"
        if not rows_file.exists():
            rank = [
                sys.executable,
                __file__,
                "--seeds",
                str(options.seeds),
                "--rank",
                str(rows_file.absolute()),
            ]
            subprocess.run(
                [sys.executable, "-m", "perfscope.runners.cluster", "--quiet", CLUSTER, "--", *rank],
                check=True,
            )
        rows = [json.loads(line) for line in rows_file.read_text().splitlines()]
    missed = sorted({row["scheme"] for row in rows if row["steps"] is None})
    if missed:
        raise SystemExit(f"not all runs reached the target: {', '.join(missed)}")
    found = summary(rows)
    if options.json:
        print(json.dumps({"rows": rows, **found}, indent=1))
        return
    for kind, result in found.items():
        print(f"time to the target, {kind}: median of {options.seeds} seeds and its interval, s")
        for name in SCHEMES:
            cells = [
                f"{of[name].value:7.2f} ({of[name].low:.2f} to {of[name].high:.2f})"
                for of in result["medians"]
            ]
            print(f"  {name:22} {'   '.join(cells)}")
        ties = [sum(not one for one in of) for of in result["orders"]]
        tau = "missing: nothing is ordered" if result["tau_b"] is None else f"{result['tau_b']:.2f}"
        print(f"  pairs tied: {ties[0]} and {ties[1]} of {len(result['orders'][0])}; Kendall's tau-b {tau}")


if __name__ == "__main__":
    main()
