"""Analysis of a run of many ranks: CPU time and peak memory (DESIGN §8: 1,024 ranks < 60 s, < 2 GB).

    python benchmarks/scale.py [--ranks 1024] [--layers 60] [--axes 1] [--steps 200] [--jobs N] [--keep DIR]

With several axes, each rank makes a call per layer on a group of eight ranks of each axis but the first,
which reduces the gradients.

Writes a made-up run (steps and timelines in the formats of a real one), then analyzes it in a process of its
own, so that the memory shown is the analysis's and not the generator's. Times are for this machine, now.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from perfscope.lean_imports import lean_process
from perfscope.rundir.schema import TIMELINE

EPOCH = 1_780_000_000_000_000_000
WINDOW_STEPS = 3
MAIN, BACKEND = 1, 2
STEP_NS = 40_000_000
BUCKETS = 6


AXES = ("dp", "tp", "cp", "ep")
GROUP_RANKS = 8


def groups_of(rank: int, num_axes: int) -> list[dict[str, object]]:
    """The groups of a rank along each axis but the first: ranks with a stride of 1, 8, 64."""
    groups: list[dict[str, object]] = []
    for axis, stride in zip(AXES[1:num_axes], (1, 8, 64), strict=False):
        first = rank - rank // stride % GROUP_RANKS * stride
        ranks = [first + part * stride for part in range(GROUP_RANKS)]
        groups.append({"pg_name": f"{axis}-{first}", "pg_desc": f"mesh_{axis}", "ranks": ranks})
    return groups


def build(path: Path, num_ranks: int, num_layers: int, num_steps: int, num_axes: int) -> int:
    """Writes the run; returns how many spans it has."""
    manifest = {"schema_version": 1, "origin": "run", "world_size": num_ranks, "expected_ranks": num_ranks}
    (path / "derived" / "timeline").mkdir(parents=True)
    (path / "derived" / "ingest").mkdir(parents=True)
    (path / "run.json").write_text(
        json.dumps({**manifest, "status": "finished", "options": {"overhead": 0.01}})
    )
    rng = np.random.default_rng(7)
    params = 10_000
    layers = [
        {"layer": f"features.{k}", "type": "Conv2d", "params": params, "param_shapes": [[100, 100]]}
        for k in range(num_layers)
    ]
    spans = 0
    for rank in range(num_ranks):
        _raw(path, rank, num_ranks, num_steps, layers, rng)
        spans += _derived(path, rank, num_layers, params, rng, groups_of(rank, num_axes))
    return spans


def _raw(
    path: Path,
    rank: int,
    num_ranks: int,
    num_steps: int,
    layers: list[dict[str, object]],
    rng: np.random.Generator,
) -> None:
    folder = path / "ranks" / str(rank)
    folder.mkdir(parents=True)
    root = {"name": "Net", "data_parallel": True, "dp_size": num_ranks}
    overhead = {"windows_ns": 10**7, "windows": 1, "always_on_ns": 10**5}
    meta = {"schema_version": 1, "rank": rank, "host": f"node{rank // 8:03d}", "world_size": num_ranks}
    document = {**meta, "root": root, "overhead": overhead, "finished": True}
    (folder / "rank.json").write_text(json.dumps(document))
    (folder / "layers.json").write_text(json.dumps({"root": "Net", "layers": layers}))
    columns = ["step", "start_ns", "dur_ns", "window", "input_ns", "samples"]
    lines = [json.dumps({"columns": columns})]
    start = 10**12
    for step, jitter in enumerate(rng.integers(0, STEP_NS // 10, num_steps).tolist()):
        window = 0 if 3 <= step < 3 + WINDOW_STEPS else -1
        lines.append(json.dumps([step, start, STEP_NS + jitter, window, 100_000, 32]))
        start += STEP_NS + jitter
    (folder / "steps.jsonl").write_text("\n".join(lines) + "\n")


def _derived(
    path: Path,
    rank: int,
    num_layers: int,
    params: int,
    rng: np.random.Generator,
    groups: list[dict[str, object]],
) -> int:
    """One window of three steps: forward, backward, buckets all-reduced beside it, optimizer."""
    steps = [_step(rank, step, num_layers, params, rng) for step in range(WINDOW_STEPS)]
    of_layers = [_calls(rank, step, num_layers, groups, rng) for step in range(WINDOW_STEPS) if groups]
    table = pa.concat_tables([*steps, *of_layers]).sort_by("start_ns")
    name = f"rank-{rank:05d}-window-000"
    pq.write_table(table, path / "derived" / "timeline" / f"{name}.parquet", compression="lz4")
    lanes = [(MAIN, "main"), (BACKEND, "backend")]
    summary = {
        "rank": rank,
        "window": 0,
        "host": f"node{rank // 8:03d}",
        "source": {"path": f"ranks/{rank}/windows/0.json.gz"},
        "groups": groups and [{"pg_name": "0", "pg_desc": "mesh_dp"}, *groups],
        "events_read": table.num_rows,
        "events_kept": table.num_rows,
        "step_source": "perfscope",
        "steps": [[3 + k, EPOCH + k * STEP_NS, EPOCH + (k + 1) * STEP_NS] for k in range(WINDOW_STEPS)],
        "lanes": [{"device": -1, "lane": lane, "role": role, "label": role} for lane, role in lanes],
    }
    (path / "derived" / "ingest" / f"{name}.json").write_text(json.dumps(summary))
    return int(table.num_rows)


def _step(rank: int, step: int, num_layers: int, params: int, rng: np.random.Generator) -> pa.Table:
    origin = EPOCH + step * STEP_NS
    per_op = STEP_NS // (num_layers * 8)
    order = np.arange(num_layers)
    forward = origin + order * 2 * per_op
    backward = origin + (2 * num_layers + (num_layers - 1 - order) * 4) * per_op
    # Three nested operators per layer and phase, a mark per layer, one all-reduce per bucket.
    starts = np.concatenate([np.repeat(forward, 3), forward, np.repeat(backward, 3)])
    durations = np.concatenate([np.full(3 * num_layers, per_op), np.full(num_layers, 2 * per_op)])
    durations = np.concatenate([durations, np.full(3 * num_layers, 3 * per_op)])
    kinds = ["compute"] * (3 * num_layers) + ["annotation"] * num_layers + ["compute"] * (3 * num_layers)
    phases = ["forward"] * (4 * num_layers) + ["backward"] * (3 * num_layers)
    names = [f"features.{k}" for k in order]
    layers = [name for name in names for _ in range(3)] + names + [name for name in names for _ in range(3)]
    late = int(rng.integers(0, per_op)) + (per_op if rank == 5 else 0)
    leave = (
        origin + (2 * num_layers + (np.arange(BUCKETS) + 1) * 4 * num_layers // BUCKETS) * per_op + 3 * per_op
    )
    columns = {
        "start_ns": np.concatenate([starts, leave - 2 * per_op + late]),
        "dur_ns": np.concatenate([durations, np.full(BUCKETS, 2 * per_op - late)]),
    }
    num, ops = len(starts) + BUCKETS, len(starts)
    nothing = [None] * ops
    values: dict[str, object] = {
        **columns,
        "rank": np.full(num, rank),
        "window": np.zeros(num, dtype=int),
        "step": np.full(num, 3 + step),
        "device": np.full(num, -1),
        "lane": np.array([MAIN] * ops + [BACKEND] * BUCKETS),
        "depth": np.zeros(num, dtype=int),
        "kind": [*kinds, *["comm"] * BUCKETS],
        "phase": [*phases, *["other"] * BUCKETS],
        "layer": [*layers, *[None] * BUCKETS],
        "name": ["aten::op"] * ops + ["gloo:all_reduce"] * BUCKETS,
        "collective": [*nothing, *["all_reduce"] * BUCKETS],
        "group": [*nothing, *["0"] * BUCKETS],
        "seq": [*nothing, *(step * BUCKETS + np.arange(BUCKETS)).tolist()],
        "in_bytes": [*nothing, *[num_layers * params * 4 // BUCKETS] * BUCKETS],
        "dtype": [*nothing, *["float"] * BUCKETS],
    }
    return _table(values, num)


def _table(values: dict[str, object], num: int) -> pa.Table:
    empty = [None] * num
    return pa.table(
        {field.name: pa.array(values.get(field.name, empty), field.type) for field in TIMELINE}, TIMELINE
    )


def _calls(
    rank: int, step: int, num_layers: int, groups: list[dict[str, object]], rng: np.random.Generator
) -> pa.Table:
    """A call per layer and group, one after the other behind the layer's forward operators."""
    per_op = STEP_NS // (num_layers * 8)
    layer, place = (part.ravel() for part in np.mgrid[:num_layers, : len(groups)])
    num, part = len(layer), per_op // len(groups)
    values: dict[str, object] = {
        "start_ns": EPOCH + step * STEP_NS + (2 * layer + 1) * per_op + place * part,
        "dur_ns": part - rng.integers(0, 1000, num),
        "rank": np.full(num, rank),
        "window": np.zeros(num, dtype=int),
        "step": np.full(num, 3 + step),
        "device": np.full(num, -1),
        "lane": BACKEND + 1 + place,
        "depth": np.zeros(num, dtype=int),
        "kind": ["comm"] * num,
        "phase": ["forward"] * num,
        "layer": [f"features.{k}" for k in layer.tolist()],
        "name": ["gloo:all_reduce"] * num,
        "collective": ["all_reduce"] * num,
        "group": [groups[k]["pg_name"] for k in place.tolist()],
        "group_size": np.full(num, GROUP_RANKS),
        "seq": step * num_layers + layer,
        "in_bytes": np.full(num, 1 << 20),
        "dtype": ["float"] * num,
    }
    return _table(values, num)


def analyze(path: Path, jobs: int) -> None:
    """Analyzes the run in this process and `jobs` workers, to the JSON report, and prints what it cost."""
    lean_process()
    from perfscope.analysis.run import analyze_run
    from perfscope.cycle_collector import in_one_command
    from perfscope.engines.opening import open_executor
    from perfscope.reports.document import json_parts
    from perfscope.rundir.reader import RunReader

    in_one_command()
    begun = time.monotonic()
    with open_executor(jobs=jobs) as executor:
        reader = RunReader(path)
        opened = cpu_of(resource.RUSAGE_SELF)
        analysis = analyze_run(reader, executor=executor)
    analyzed = cpu_of(resource.RUSAGE_SELF)
    digest = hashlib.sha256()
    for part in json_parts(analysis):
        digest.update(part.encode())
    wall = time.monotonic() - begun
    driver, workers = cpu_of(resource.RUSAGE_SELF), cpu_of(resource.RUSAGE_CHILDREN)
    whole, num_ranks = driver + workers, len(analysis.ranks)
    print(f"verdict        {analysis.findings[0].text.title}")
    print(f"ranks          {num_ranks}, layers {len(analysis.layers)}, calls {len(analysis.calls)}")
    print(f"to JSON        {wall:.1f} s wall; sha256 {digest.hexdigest()[:16]}")
    parts = f"opening {opened:.1f}, analysis {analyzed - opened:.1f}, document {driver - analyzed:.1f}"
    print(f"CPU            {driver:.1f} s here ({parts}), {workers:.1f} s in workers")
    print(f"per rank       {1e3 * whole / num_ranks:.2f} ms CPU")
    if executor is not None:
        print(f"serial share   {driver / whole:.0%} of the CPU time")
    for who, name in ((resource.RUSAGE_SELF, "this process"), (resource.RUSAGE_CHILDREN, "a worker")):
        print(f"peak RSS       {resource.getrusage(who).ru_maxrss / 1024:.0f} MiB, {name}")


def cpu_of(who: int) -> float:
    """Seconds."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=60)
    parser.add_argument("--axes", type=int, default=1, choices=range(1, 5))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1, help="worker processes; 1 = none")
    parser.add_argument("--keep", type=Path, help="write the run here and keep it")
    parser.add_argument("--analyze", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.analyze:
        analyze(options.analyze, options.jobs)
        return
    lean_process()  # the analysis inherits it: Arrow's memory pool is chosen while it is imported
    with tempfile.TemporaryDirectory() as scratch:
        path = options.keep or Path(scratch) / "run"
        path.mkdir(parents=True, exist_ok=True)
        spans = build(path, options.ranks, options.layers, options.steps, options.axes)
        print(f"made           {options.ranks} ranks, {spans} spans, {options.steps} steps each", flush=True)
        jobs = ("--jobs", str(options.jobs))
        subprocess.run([sys.executable, __file__, "--analyze", str(path), *jobs], check=True)


if __name__ == "__main__":
    main()
