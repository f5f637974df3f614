"""Many small run directories in series, for the page of all runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.support.synthetic_run import SyntheticRun

DAY_NS = 86_400 * 10**9
FIRST_NS = 1_780_000_000 * 10**9
MACHINES = (("Xeon 8480+", 112, 0), ("EPYC 9654", 192, 8))


def write_run(
    folder: Path, name: str, *, day: int, step_ns: float = 4e7, series: int = 0, steps: int = 20
) -> SyntheticRun:
    """A run of two ranks; `series` chooses its command, label and machine."""
    cpu, num_cpus, num_gpus = MACHINES[series % len(MACHINES)]
    run = SyntheticRun(
        folder / name,
        name=f"nightly-{series}",
        start_unix_ns=FIRST_NS + day * DAY_NS,
        end_unix_ns=FIRST_NS + day * DAY_NS + 10**10,
        exit={"code": 0, "signal": None},
        command=["python", "/home/ann/code/train.py", f"--model=m{series}"],
        cwd="/home/ann/code",
        labels={"model": f"m{series}"},
        git={"commit": f"{day:07x}" + "a" * 33, "dirty": False},
        environment={"OMP_NUM_THREADS": "3141"},
        world_size=2,
    )
    rng = np.random.default_rng(1_000 * series + day)
    for rank in range(2):
        run.rank(rank, host=f"node{rank}", framework={"name": "torch"}, world_size=2)
    durations = (step_ns * (1 + 0.01 * rng.standard_normal(steps))).astype(int).tolist()
    run.steps(0, durations)
    gpus = [{"id": f"gpu{at}", "name": "H100"} for at in range(num_gpus)]
    run.write("hosts/node0/topology.json", {"cpu_model": cpu, "logical_cpus": num_cpus, "gpus": gpus})
    rate = 64 / (step_ns / 1e9) * (1 + 0.01 * float(rng.standard_normal()))
    run.write("derived/verdict.json", {"headline": "Bound by computation.", "samples_per_s": rate})
    return run


def write_many(folder: Path, count: int, *, num_series: int = 20) -> None:
    """`count` runs; every fourth series becomes slower by a fifth in its middle."""
    days = -(-count // num_series)
    for number in range(count):
        series, day = number % num_series, number // num_series
        slower = series % 4 == 1 and day >= days // 2
        write_run(folder, f"run-{number:04d}", day=day, series=series, step_ns=4.8e7 if slower else 4e7)


def index_of(site: Path) -> dict[str, object]:
    """The index that a site has."""
    document = json.loads((site / "index.json").read_text())
    assert isinstance(document, dict)
    return document
