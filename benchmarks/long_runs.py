"""CPU time and memory of `perfscope report --json` for long runs: many steps, hours of samples, large traces.

    python benchmarks/long_runs.py                       # 10^6 steps; an hour of 100 series
    python benchmarks/long_runs.py --ranks 1024          # also a run of so many ranks, one job and two
    python benchmarks/long_runs.py --trace T.json.gz     # also this trace, repeated (--times 1 4 32)
    python benchmarks/long_runs.py --trace T.json.gz --peer PYTHON    # beside HolisticTraceAnalysis

Each figure is user + system time of fresh processes with compiled bytecode, the median of `--repeats` rounds;
everything takes turns within a round. The spread is the interquartile range over the median. glibc's heap is
held still by MALLOC_TOP_PAD_. The inputs are made up (a trace: repeated with its steps, correlations and
external ids counted on), in a temporary folder that is removed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from report_cost import spread
from scale import EPOCH, build

NUM_STEPS = 1_000_000
SECONDS, PER_SECOND, COLLECTORS, SERIES = 3600, 10, 10, 10
PEER = """
import sys
from hta.trace_analysis import TraceAnalysis
trace = TraceAnalysis(trace_dir=sys.argv[1])
trace.get_temporal_breakdown(visualize=False)
trace.get_comm_comp_overlap(visualize=False)
trace.get_gpu_kernel_breakdown(visualize=False)
trace.get_idle_time_breakdown(ranks=[0], visualize=False)
"""


def make_samples(run: Path) -> None:
    """One host's samples.jsonl: as many collectors as series of each."""
    folder = run / "hosts" / "node000"
    folder.mkdir(parents=True)
    draw, begin = random.Random(1), 10**12
    with (folder / "samples.jsonl").open("w") as file:
        header = {"schema_version": 1, "host": "node000", "pid": 1, "interval_ns": 10**9 // PER_SECOND}
        file.write(json.dumps({**header, "anchor": [begin, EPOCH]}) + "\n")
        for number in range(COLLECTORS):
            series = [
                {"metric": f"metric_{k}", "labels": {"node": str(k)}, "unit": "bytes", "kind": "counter"}
                for k in range(SERIES)
            ]
            file.write(json.dumps({"id": number, "collector": f"c{number}", "series": series}) + "\n")
        values = [[0] * SERIES for _ in range(COLLECTORS)]
        for tick in range(SECONDS * PER_SECOND):
            for number, row in enumerate(values):
                row[:] = [value + draw.randrange(1_000_000) for value in row]
                at = begin + tick * 10**9 // PER_SECOND + number * 100_000
                file.write(json.dumps([number, at, at + 50_000, row], separators=(",", ":")) + "\n")


def repeated(trace: Path, times: int, folder: Path) -> int:
    """The trace so often, one behind the other, as rank0.json of the folder; how many events that has."""
    document = json.loads(gzip.decompress(trace.read_bytes()))
    events: list[dict[str, Any]] = document["traceEvents"]
    spans = [event for event in events if event.get("ph") == "X"]
    length = max(event["ts"] + event.get("dur", 0) for event in spans) - min(e["ts"] for e in spans) + 100
    steps = [int(found[1]) for event in events if (found := _step(event))]
    num_steps = max(steps) - min(steps) + 1 if steps else 0
    offsets = {key: _largest(events, key) + 1 for key in ("correlation", "External id")}
    document["traceEvents"] = [
        _moved(event, number, length, num_steps, offsets)
        for number in range(times)
        for event in events
        if number == 0 or event.get("ph") != "M"
    ]
    (folder / "rank0.json").write_text(json.dumps(document))
    return len(document["traceEvents"])


def _step(event: dict[str, Any]) -> re.Match[str] | None:
    return re.match(r"ProfilerStep#(\d+)", str(event.get("name", "")))


def _largest(events: list[dict[str, Any]], key: str) -> int:
    values = [event["args"].get(key, 0) for event in events if isinstance(event.get("args"), dict)]
    return max((value for value in values if isinstance(value, int)), default=0)


def _moved(
    event: dict[str, Any], number: int, length: float, num_steps: int, offsets: dict[str, int]
) -> dict[str, Any]:
    event = dict(event)
    if "ts" in event:
        event["ts"] = round(event["ts"] + length * number, 3)
    if found := _step(event):
        event["name"] = f"ProfilerStep#{int(found[1]) + num_steps * number}"
    if isinstance(event.get("id"), int):
        event["id"] += offsets["correlation"] * number
    if isinstance(event.get("args"), dict):
        event["args"] = {
            key: value + offsets[key] * number if key in offsets and isinstance(value, int) else value
            for key, value in event["args"].items()
        }
    return event


def measured(words: list[str], environment: dict[str, str], folder: Path) -> tuple[float, float]:
    """User and system time of a process and its children, seconds, and its own peak memory, MB.

    Raises:
        SystemExit: it failed.
    """
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, cwd=folder
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words[:6])} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def cases_of(args: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    """Makes the inputs; name -> command. In a process of its own: a child's peak memory begins with ours."""
    with ProcessPoolExecutor(1, get_context("spawn")) as maker:
        return maker.submit(_made, args, folder).result()


def _made(args: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    report = [sys.executable, "-m", "perfscope", "report"]
    cases: dict[str, list[str]] = {}
    build(_new(folder / "steps"), 1, 10, NUM_STEPS, 1)
    cases[f"{NUM_STEPS:,} steps"] = [*report, "steps", "--json"]
    build(_new(folder / "samples"), 1, 10, 9000, 1)
    make_samples(folder / "samples")
    cases[f"{SECONDS // 60} min of {COLLECTORS * SERIES} series"] = [*report, "samples", "--json"]
    if args.ranks:
        build(_new(folder / "ranks"), args.ranks, 60, 200, 1)
        for jobs in (1, 2):
            cases[f"{args.ranks:,} ranks, {jobs} jobs"] = [*report, "ranks", "--jobs", str(jobs), "--json"]
    for times in args.times if args.trace else ():
        num = repeated(args.trace, times, _new(folder / f"trace{times}"))
        cases[f"trace of {num:,} events"] = [*report, f"trace{times}", "--json"]
        if args.peer:
            cases[f"trace of {num:,} events, peer"] = [args.peer, "-c", PEER, f"trace{times}"]
    return cases


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 4, 32])
    parser.add_argument("--peer", metavar="PYTHON", help="with HolisticTraceAnalysis installed")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    environment = {**os.environ, "MALLOC_TOP_PAD_": str(64 << 20)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the first, uncounted round compiles
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = cases_of(args, folder)
        found: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
        for number in range(-1, args.repeats):
            print(f"round {max(number, 0)} of {args.repeats}", end="\r", file=sys.stderr, flush=True)
            for case, words in cases.items():
                figures = measured(words, environment, folder)
                if number >= 0:
                    found[case].append(figures)
    print(f"{'':32} {'CPU s':>8} {'spread':>8} {'peak MB':>8}")
    medians = {case: statistics.median(cpu for cpu, _ in values) for case, values in found.items()}
    for case, values in found.items():
        peak = max(memory for _, memory in values)
        noise = spread([cpu for cpu, _ in values])
        ratio = (
            f"{medians[case] / medians[f'{case}, peer']:8.3f} of the peer" if f"{case}, peer" in found else ""
        )
        print(f"{case:32} {medians[case]:8.2f} {noise:8.1%} {peak:8.0f} {ratio}")


if __name__ == "__main__":
    main()
