"""How far `perfscope predict` is off: fitted on 2 ranks, asked for 4, which are then really run.

    python benchmarks/predict.py                                # about 8 minutes on 2 cores
    python benchmarks/predict.py --schemes dp.ddp --json
    python benchmarks/predict.py --plain                        # ranks of one host, no emulated network

Fitted on: each scheme on 2 ranks, at the batch asked for and at half of it. Held out: the same scheme on 4.
All ranks share the cores of one machine, so fitted runs are made two at a time, each bound to half of the
cores that a held-out run has: a rank has the same share of a core in both (at 2 cores: half a core each), the
cores are as busy, and neighbors on the machine take from both alike. What is held out is the number of
ranks, the group sizes, and with them volumes, batch per rank and stragglers; the machine and its share per
rank are not. Between hosts, bytes pass an emulated link of the given rate, which lets the first 128 KiB after
a pause through unhindered: the batch is large enough for messages that are several times that.

Errors: predicted over measured step, minus 1. Beside them: the spread of equal runs (A/A, the held-out runs
against each other), and the error of taking the 2-rank step halved, as if scaling were perfect. A run during
which other processes took CPUs is marked as in its report; on such a machine the table says little.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfscope.cli.predict.runs import load_runs
from perfscope.errors import PerfscopeError

SCHEMES = ("dp.ddp", "dp.perlayer", "hy.owt", "mp.filter")
FITTED, HELD_OUT = 2, 4
GOAL = 0.15  # of the median error
MEDIANS = ("error", "transfer_error", "noise", "perfect_scaling_error")
_RUN_LIMIT_S = 180


def cores(num_ranks: int, twin: int = 0) -> set[int]:
    """CPUs for so many ranks: all for the held-out number, one half of them for each of two fitted runs."""
    usable = sorted(os.sched_getaffinity(0))
    usable = usable[: len(usable) // 2 * 2] if len(usable) > 1 else usable
    size = max(1, len(usable) * num_ranks // HELD_OUT)
    first = min(twin * size, len(usable) - size)
    return set(usable[first : first + size])


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run that came to its end. Times in ns."""

    folder: Path
    step_ns: float
    transfer_ns: float  # per traced step, without waiting for others
    disturbed: bool


def bench_run(
    folders: Sequence[Path], scheme: str, num_ranks: int, batch: int, asked: argparse.Namespace
) -> list[Measured]:
    """Runs one job per folder, all at once and each on its share of CPUs, unless its folder is there already.

    Those that fail are left out, with a line on stderr.
    """
    where = ["--ranks", str(num_ranks)] if asked.plain else ["--cluster", f"{num_ranks}x1@{asked.rate}"]
    jobs = []
    mine = os.sched_getaffinity(0)
    try:
        for twin, folder in enumerate(folders):
            if (folder / "run.json").exists():
                continue
            os.sched_setaffinity(0, cores(num_ranks, twin))  # children inherit it
            command = [
                *(sys.executable, "-m", "perfscope", "bench", "run", scheme, *where),
                *("--model", asked.model, "--input", asked.input, "--batch", str(batch)),
                *("--steps", str(asked.steps), "--threads", "1", "--ceilings", "off", "--json", "--force"),
                *("-o", str(folder), "--overhead", "100%", "--windows", str(asked.windows)),
                *("--steps-per-window", "3"),
            ]
            jobs.append(
                subprocess.Popen(
                    command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=_environment()
                )
            )
    finally:
        os.sched_setaffinity(0, mine)
    for job in jobs:
        try:
            said = job.communicate(timeout=_RUN_LIMIT_S)[1]
        except subprocess.TimeoutExpired:
            job.terminate()
            said = job.communicate()[1]
        if job.returncode:
            print(f"{scheme} on {num_ranks} ranks: {said.strip().splitlines()[-1:]}", file=sys.stderr)
    return [run for folder in folders if (run := _measured(folder)) is not None]


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _measured(folder: Path) -> Measured | None:
    try:
        run = load_runs([folder]).runs[0]
    except PerfscopeError as error:
        print(f"{folder.name}: {error}", file=sys.stderr)
        return None
    disturbed = any("disturbed" in problem for problem in run.problems)
    return Measured(folder=folder, step_ns=run.step_ns, transfer_ns=run.comm_ns, disturbed=disturbed)


def run_all(base: Path, asked: argparse.Namespace) -> tuple[list[Measured], dict[str, list[Measured]]]:
    """(fitted runs, held-out runs by scheme); schemes interleaved."""
    fitted: list[Measured] = []
    held: dict[str, list[Measured]] = {scheme: [] for scheme in asked.schemes}
    rounds = [[(FITTED, asked.batch), (HELD_OUT, asked.batch), (FITTED, asked.batch // 2)]]
    rounds += [[(HELD_OUT, asked.batch)]] * (asked.repeats - 1)
    for repeat, kinds in enumerate(rounds):
        for num_ranks, batch in kinds:
            twins = ("a", "b") if num_ranks == FITTED else ("",)
            for scheme in asked.schemes:
                folders = [base / f"{scheme}-{num_ranks}-{batch}-r{repeat}{twin}" for twin in twins]
                runs = bench_run(folders, scheme, num_ranks, batch, asked)
                (held[scheme] if num_ranks == HELD_OUT else fitted).extend(runs)
    return fitted, held


def predicted(fitted: Sequence[Measured], asked: argparse.Namespace) -> dict[str, Any]:
    """The document of `perfscope predict --json` for the held-out number of ranks."""
    folders = [str(run.folder) for run in fitted]
    per_host = HELD_OUT if asked.plain else 1
    cores_per_rank = len(cores(HELD_OUT)) / HELD_OUT
    command = [
        *(sys.executable, "-m", "perfscope", "predict", *folders, "--json"),
        *("--world-sizes", str(HELD_OUT), "--ranks-per-host", str(per_host), "--mode", "strong"),
        *("--batch", str(asked.batch), "--cores-per-rank", str(cores_per_rank)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_LIMIT_S, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare(
    document: dict[str, Any], fitted: Sequence[Measured], held: dict[str, list[Measured]], batch: int
) -> dict[str, Any]:
    """Error table: one row per scheme, and medians over them."""
    at_two: dict[str, list[float]] = {}
    for run in fitted:
        if f"-{FITTED}-{batch}-" in run.folder.name:
            at_two.setdefault(run.folder.name.split("-")[0], []).append(run.step_ns)
    rows = []
    for one in document["predictions"]:
        runs = held.get(one["scheme"])
        if not runs:
            continue
        measured = statistics.median(run.step_ns for run in runs)
        traced = statistics.median(run.transfer_ns for run in runs)
        span = one["step_interval_ns"]
        steps = [run.step_ns for run in runs]
        two = statistics.median(at_two[one["scheme"]]) if one["scheme"] in at_two else None
        rows.append(
            {
                "scheme": one["scheme"],
                "predicted_ns": one["step_ns"],
                "low_ns": span["low"],
                "high_ns": span["high"],
                "measured_ns": measured,
                "error": one["step_ns"] / measured - 1,
                "inside": sum(span["low"] <= step <= span["high"] for step in steps),
                "held_out_runs": len(steps),
                "noise": (max(steps) - min(steps)) / measured if len(steps) > 1 else None,
                "transfer_error": sum(value for _, value in one["links_ns"]) / traced - 1 if traced else None,
                "perfect_scaling_error": two * FITTED / HELD_OUT / measured - 1 if two else None,
            }
        )
    every = [*fitted, *(run for runs in held.values() for run in runs)]
    return {
        "rows": rows,
        **{f"median_{name}": _median(rows, name) for name in MEDIANS},
        "links": document["links"],
        "num_runs": len(every),
        "disturbed": sum(run.disturbed for run in every),
    }


def _median(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    known = [abs(row[name]) for row in rows if row[name] is not None]
    return statistics.median(known) if known else None


def text(result: dict[str, Any]) -> str:
    """The table, for people (and, as it is, for docs/validation.md)."""
    lines = [
        "| scheme | predicted step | 95 % interval | measured at 4 | error | inside | its transfers alone "
        "| A/A spread | perfect scaling |",
        "|---|---|---|---|---|---|---|---|---|",
        *map(_row, result["rows"]),
        "",
        f"Median of the absolute errors: {_percent(result['median_error'], sign=False)} "
        f"(goal: at most {GOAL:.0%}); of the transfers': "
        f"{_percent(result['median_transfer_error'], sign=False)}; "
        f"of the A/A spread: {_percent(result['median_noise'], sign=False)}; "
        f"of perfect scaling: {_percent(result['median_perfect_scaling_error'], sign=False)}.",
        f"Runs during which other processes took CPUs: {result['disturbed']} of {result['num_runs']}.",
    ]
    return "\n".join(lines)


def _row(row: dict[str, Any]) -> str:
    return (
        f"| `{row['scheme']}` | {_ms(row['predicted_ns'])} | {_ms(row['low_ns'])} to {_ms(row['high_ns'])} "
        f"| {_ms(row['measured_ns'])} | {_percent(row['error'])} | {row['inside']} of {row['held_out_runs']} "
        f"| {_percent(row['transfer_error'])} | {_percent(row['noise'], sign=False)} "
        f"| {_percent(row['perfect_scaling_error'])} |"
    )


def _ms(value: float) -> str:
    return f"{value / 1e6:.1f} ms"


def _percent(value: float | None, *, sign: bool = True) -> str:
    if value is None:
        return "–"
    return f"{100 * value:+.0f} %" if sign else f"{100 * value:.0f} %"


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--schemes", type=lambda one: one.split(","), default=list(SCHEMES))
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--input", default="3x16x16")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--rate", default="400mbit", help="of the emulated links")
    parser.add_argument("--repeats", type=int, default=2, help="of the held-out runs")
    parser.add_argument("--plain", action="store_true", help="ranks of one host, not an emulated cluster")
    parser.add_argument(
        "--keep", type=Path, help="keep the runs in this folder, and take those that it holds"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(words)


def main() -> int:
    asked = options()
    began = time.monotonic()
    base = Path(asked.keep or tempfile.mkdtemp(prefix="perfscope-predict-"))
    base.mkdir(parents=True, exist_ok=True)
    try:
        fitted, held = run_all(base, asked)
        if not fitted or not any(held.values()):
            print("no pair of runs came to its end; what they said stands above", file=sys.stderr)
            return 1
        result = compare(predicted(fitted, asked), fitted, held, asked.batch)
    finally:
        if asked.keep is None:
            shutil.rmtree(base, ignore_errors=True)
    print(json.dumps(result, indent=1) if asked.json else text(result))
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
