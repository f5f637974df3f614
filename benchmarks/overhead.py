"""What `perfscope run` costs the training: interleaved A/B, with the A/A noise beside it.

Each pair trains the same script once plainly and once under a tool, in random order. A run is
judged by its p10 step time, measured by the training itself; the figure is the median over pairs
of the ratio tool/plain. `plain` against `plain` is measured in the same way: a tool whose figure is
inside that noise cannot be told from no tool.

    python benchmarks/overhead.py                      # default: 8 pairs, all tools found
    python benchmarks/overhead.py --pairs 12 --steps 150 --only perfscope --json
    python benchmarks/overhead.py --only perfscope --kinds resnet --save runs     # and then the gate on it:
    perfscope check runs/resnet-perfscope-* --against runs/resnet-plain-* --name overhead

    python benchmarks/overhead.py --descriptor         # what it costs that no descriptor is trusted
    python benchmarks/overhead.py --counters           # how much longer traced steps take with counters
    python benchmarks/overhead.py --windows            # how much longer traced steps take than untraced ones
    python benchmarks/overhead.py --windows --against CHECKOUT    # the same beside another version's windows

Tools: perfscope (default options), torch.profiler on every step, viztracer (if installed).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TRAINING = '''
import json, os, sys, time, torch, torch.nn as nn
torch.manual_seed(0); torch.set_num_threads(1)
kind, steps, out, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False); self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False); self.norm2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
    def forward(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(x + self.norm2(self.conv2(y)))

class Net(nn.Module):
    """ResNet-like: about 30 ms a step on one core; `cnn` about 5 ms, `small` about 1 ms."""
    def __init__(self, width, blocks):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.Sequential(*[Block(width) for _ in range(blocks)])
        self.head = nn.Linear(width, 10)
    def forward(self, x): return self.head(self.body(self.stem(x)).mean((2, 3)))

width, blocks, batch, size = {"resnet": (32, 4, 16, 16), "cnn": (16, 2, 16, 12), "small": (4, 1, 4, 8)}[kind]
model = Net(width, blocks)
if ranks > 1:
    torch.distributed.init_process_group("gloo", f"file://{out}.store", rank=rank, world_size=ranks)
    model = nn.parallel.DistributedDataParallel(model)
x, y = torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,))
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
durations = []

def train(clock=time.perf_counter, after=None):
    for _ in range(steps):
        began = clock()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        durations.append(clock() - began)
        if after is not None:
            after()

began = time.perf_counter()
if mode == "profile":
    with torch.profiler.profile(record_shapes=True) as p:
        train()
    p.export_chrome_trace(out + ".trace.json")
elif mode.startswith("wait="):
    wait, active = (int(value) for value in mode[5:].split(","))
    profile = torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=wait, warmup=0, active=active), record_shapes=True,
        on_trace_ready=lambda p: p.export_chrome_trace(f"{out}.{rank}.trace.json"))
    with profile as p:
        train(time.thread_time, p.step)
    out = f"{out}.{rank}"
elif mode == "thread":
    train(time.thread_time)
    out = f"{out}.{rank}"
else:
    train()
with open(out, "w") as file:
    json.dump({"steps": durations, "elapsed": time.perf_counter() - began}, file)
'''

PERFSCOPE = (sys.executable, "-m", "perfscope", "run", "--no-verdict", "--ceilings", "off")
WARM_UP = 10  # steps


# Put before TRAINING: windows take turns with counters per layer, without ("A/A") and without. Times are CPU
# times of the training thread, which other processes disturb less.
TURNS = """
import sys, time
time.perf_counter = time.thread_time
import torch
counters = next(m for name, m in sys.modules.items() if name.endswith("probes.layer_counters")).LayerCounters
opened, turns = counters.open, iter(range(1 << 30))
counters.open = lambda self: None if next(turns) % 3 else opened(self)
"""


class Bench:
    """Runs the training under a tool and reads the times it measured itself."""

    def __init__(self, folder: Path, kind: str, steps: int, save: Path | None = None) -> None:
        self.folder, self.kind, self.steps, self.save = folder, kind, steps, save
        self.script = folder / "train.py"
        self.script.write_text(TRAINING)

    def command(self, tool: str, out: Path) -> list[str]:
        mode = "profile" if tool == "torch.profiler" else "plain"
        training = [str(self.script), self.kind, str(self.steps), str(out), mode]
        run = out.with_suffix(".run")
        if tool == "perfscope":
            return [*PERFSCOPE, "-o", str(run), "--", sys.executable, *training]
        if tool == "perfscope without sampler":
            return [*PERFSCOPE, "--sample-interval", "off", "-o", str(run), "--", sys.executable, *training]
        if tool == "viztracer":
            trace = str(out.with_suffix(".viz.json"))
            return [sys.executable, "-m", "viztracer", "--quiet", "-o", trace, "--", *training]
        return [sys.executable, *training]  # plain, and A/A

    def once(self, tool: str, tag: str, pair: int) -> dict[str, float]:
        """One training; p10 and mean step time in ms (mean holds the windows too)."""
        out = self.folder / f"{tag}.json"
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(self.command(tool, out), env=env, cwd=self.folder, check=True, capture_output=True)
        measured = json.loads(out.read_text())
        times = sorted(1e3 * value for value in measured["steps"][WARM_UP:])
        if self.save is not None:
            self.keep(tool, pair, measured["steps"][WARM_UP:])
        for leftover in self.folder.glob(f"{tag}*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        return {"p10": times[len(times) // 10], "mean": statistics.fmean(times)}

    def keep(self, tool: str, pair: int, steps: list[float]) -> None:
        """The steps as a file that `perfscope check` reads in the place of a run."""
        assert self.save is not None
        self.save.mkdir(parents=True, exist_ok=True)
        name = f"{self.kind}-{tool.replace(' ', '-').replace('/', '')}-{pair}"
        document = {
            "perfscope_steps": 1,
            "name": name,
            "pair": pair,
            "steps_ns": [round(1e9 * value) for value in steps],
        }
        (self.save / f"{name}.json").write_text(json.dumps(document))


def compare(bench: Bench, tools: list[str], pairs: int, rng: random.Random) -> dict[str, dict[str, float]]:
    """Interleaved: every round trains plain once more than each tool, in random order."""
    ratios: dict[str, dict[str, list[float]]] = {tool: {"p10": [], "mean": []} for tool in ["A/A", *tools]}
    base: list[float] = []
    for index in range(pairs):
        order = ["plain", "A/A", *tools]
        rng.shuffle(order)
        seen = {tool: bench.once(tool, f"{index}-{number}", index + 1) for number, tool in enumerate(order)}
        base.append(seen["plain"]["p10"])
        for tool, kept in ratios.items():
            for figure, values in kept.items():
                values.append(seen[tool][figure] / seen["plain"][figure])
        print(f"  pair {index + 1}/{pairs}", file=sys.stderr)
    rows = {"plain": {"p10_ms": statistics.median(base)}}
    for tool, kept in ratios.items():
        quartiles = statistics.quantiles(kept["p10"], n=4)
        rows[tool] = {
            "p10_ratio": statistics.median(kept["p10"]),
            "p10_ratio_q1": quartiles[0],
            "p10_ratio_q3": quartiles[2],
            "mean_ratio": statistics.median(kept["mean"]),
        }
    return rows


def descriptor_check(rounds: int, rng: random.Random) -> dict[str, float]:
    """µs that one flush of 20 steps takes longer through `AppendFile` (descriptor compared with the file that
    was opened, SIGXFSZ and SIGPIPE blocked, lines counted, CRC) than as a bare write. Interleaved in random
    order, 20 flushes at a time; `noise_us` is the same of two bare writers: half the distance of quartiles.
    """
    from perfscope.probes.files import AppendFile

    batch, flushes = b"[1234567,123456789012345,12345678,-1,12345,null,12345,1,32]\n" * 20, 20
    with tempfile.TemporaryDirectory() as folder:
        descriptors = [os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in "ab"]
        own = AppendFile(f"{folder}/own")
        writers: dict[str, Callable[[bytes], object]] = {
            "own": own.write,
            "plain": lambda data: os.write(descriptors[0], data),
            "A/A": lambda data: os.write(descriptors[1], data),
        }
        longer: dict[str, list[float]] = {"own": [], "A/A": []}
        for _ in range(rounds):
            seen = {}
            for name in rng.sample(list(writers), 3):
                began = time.perf_counter_ns()
                for _ in range(flushes):
                    writers[name](batch)
                seen[name] = (time.perf_counter_ns() - began) / flushes / 1e3
            for name, values in longer.items():
                values.append(seen[name] - seen["plain"])
            for descriptor in descriptors:
                os.ftruncate(descriptor, 0)
        own.close()
        for descriptor in descriptors:
            os.close(descriptor)
    low, _, high = statistics.quantiles(longer["A/A"], n=4)
    flush = statistics.median(longer["own"])
    return {"flush_us": flush, "step_us": flush / 20, "noise_us": (high - low) / 2}


def counters_check(kind: str, steps: int) -> dict[str, float]:
    """Traced steps with counters per layer over traced steps without; `A/A`: of other windows without.

    Each window's figure is its median step without the first. The ratios are medians over groups of three
    consecutive windows, with their quartiles.
    """
    folder = Path(tempfile.mkdtemp())
    bootstrap = Path(__file__).parents[1] / "perfscope" / "probes" / "bootstrap"
    script, run, out = folder / "train.py", folder / "run", folder / "out.json"
    script.write_text(TURNS + TRAINING)
    run.mkdir()
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PERFSCOPE_RUN_DIR": str(run),
        "PERFSCOPE_AGENT": str(bootstrap / "agent.py"),
        "PERFSCOPE_CONFIG": json.dumps({"windows": 1000, "steps_per_window": 12, "overhead": 1000}),
        "PYTHONPATH": str(bootstrap / "site"),
    }
    command = [sys.executable, str(script), kind, str(steps), str(out), "plain"]
    subprocess.run(command, env=env, check=True, capture_output=True)
    header, *lines = (run / "ranks" / "0" / "steps.jsonl").read_text().splitlines()
    place = json.loads(header)["columns"].index("window")
    by_window: dict[int, list[float]] = {}
    for line, time_s in zip(lines, json.loads(out.read_text())["steps"], strict=False):
        by_window.setdefault(json.loads(line)[place], []).append(time_s)
    medians = {
        window: statistics.median(times[1:-1]) for window, times in by_window.items() if len(times) > 9
    }
    ratios: dict[str, list[float]] = {"counters": [], "A/A": []}
    for first in range(3, max(medians) - 1, 3):
        if all(window in medians for window in range(first, first + 3)):
            ratios["counters"].append(medians[first] / medians[first + 2])
            ratios["A/A"].append(medians[first + 1] / medians[first + 2])
    shutil.rmtree(folder)
    result: dict[str, float] = {"groups": len(ratios["A/A"])}
    for name, values in ratios.items():
        low, middle, high = statistics.quantiles(values, n=4)
        result |= {name: round(middle, 4), f"{name} q1": round(low, 4), f"{name} q3": round(high, 4)}
    return result


def windows_check(
    kind: str, steps: int, repeats: int, rng: random.Random, against: Path | None = None
) -> dict[str, dict[str, float]]:
    """Traced steps over the untraced ones beside them, in CPU time of the training thread, for 1, 2 and 4
    ranks (DDP over gloo) under perfscope and under torch.profiler. `A/A`: blocks of as many untraced steps.
    With `against`, under perfscope of that checkout and of this one twice, for 1 and 2 ranks.

    Medians over the windows of all ranks and repeats, with quartiles; the first window of a process apart.
    """
    found: dict[str, list[float]] = {}
    probes = {"perfscope": HERE, "torch.profiler": None}
    if against is not None:
        probes = {"perfscope": HERE, "perfscope again": HERE, "perfscope before": against}
    cases = [(ranks, tool) for ranks in (RANKS if against is None else RANKS[:2]) for tool in probes]
    for _ in range(repeats):
        for ranks, tool in rng.sample(cases, len(cases)):
            folder = Path(tempfile.mkdtemp())
            times = _windows_of(folder, kind, steps, ranks, probes[tool])
            shutil.rmtree(folder)
            for of_rank in times:
                for name, values in _ratios(*of_rank).items():
                    found.setdefault(f"{ranks} {tool}, {name}", []).extend(values)
    rows = {}
    for name, values in sorted(found.items()):
        low, middle, high = statistics.quantiles(values * 2, n=4, method="inclusive")
        rows[name] = {"ratio": middle, "q1": low, "q3": high, "windows": len(values)}
    return rows


HERE = Path(__file__).parents[1]
RANKS = (1, 2, 4)
OF_WINDOW = 6  # traced steps
BESIDE = 12  # untraced steps on either side
APART = 60  # steps from one window of torch.profiler to the next


def _windows_of(
    folder: Path, kind: str, steps: int, ranks: int, checkout: Path | None
) -> list[tuple[list[float], list[int]]]:
    """Of every rank: CPU times of its steps, and the window of each (-1: none). Recorded by the perfscope
    of `checkout`, or by torch.profiler.
    """
    script, run, out = folder / "train.py", folder / "run", folder / "out"
    script.write_text(TRAINING)
    run.mkdir()
    bootstrap = (checkout or HERE).resolve() / "perfscope" / "probes" / "bootstrap"
    of_tool = {
        "PERFSCOPE_RUN_DIR": str(run),
        "PERFSCOPE_AGENT": str(bootstrap / "agent.py"),
        "PERFSCOPE_CONFIG": json.dumps({"windows": 1000, "steps_per_window": OF_WINDOW, "overhead": 1000}),
        "PYTHONPATH": str(bootstrap / "site"),
    }
    mode = "thread" if checkout else f"wait={APART - OF_WINDOW},{OF_WINDOW}"
    command = [sys.executable, str(script), kind, str(steps), str(out), mode]
    processes = [
        subprocess.Popen(
            command,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                **(of_tool if checkout else {}),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(ranks)
    ]
    if any([process.wait() for process in processes]):
        raise SystemExit(
            f"the training failed with {ranks} ranks, recorded by {checkout or 'torch.profiler'}"
        )
    own = [json.loads(Path(f"{out}.{rank}").read_text())["steps"] for rank in range(ranks)]
    if checkout:
        recorded = [_windows_recorded(run / "ranks" / str(rank) / "steps.jsonl") for rank in range(ranks)]
        return [(times[: len(windows)], windows) for times, windows in zip(own, recorded, strict=True)]
    traced = [index // APART if index % APART >= APART - OF_WINDOW else -1 for index in range(steps)]
    return [(times, traced) for times in own]


def _windows_recorded(path: Path) -> list[int]:
    """The window of every step of one rank."""
    header, *lines = path.read_text().splitlines()
    place = json.loads(header)["columns"].index("window")
    return [json.loads(line)[place] for line in lines]


def _ratios(times: list[float], windows: list[int]) -> dict[str, list[float]]:
    """Medians of windows over the median of the steps beside them; A/A of blocks of untraced steps."""
    names = ("first window", "later windows", "first step of later", "A/A")
    found: dict[str, list[float]] = {name: [] for name in names}

    def beside(first: int, end: int) -> list[float]:
        near = [*range(first - BESIDE, first), *range(end + 2, end + 2 + BESIDE)]
        return [times[step] for step in near if 2 < step < len(times) and windows[step] == -1]

    for window in sorted({window for window in windows if window >= 0}):
        first = windows.index(window)
        end = first + windows.count(window)
        base = beside(first, end)
        if len(base) < BESIDE or end - first < OF_WINDOW:
            continue
        ratio = statistics.median(times[first:end]) / statistics.median(base)
        found["later windows" if window else "first window"].append(ratio)
        if window:
            found["first step of later"].append(times[first] / statistics.median(base))
        block = range(end + 2 + BESIDE, end + 2 + BESIDE + OF_WINDOW)
        if block.stop + BESIDE < len(times) and all(windows[step] == -1 for step in block):
            of_block = statistics.median(times[step] for step in block)
            found["A/A"].append(of_block / statistics.median(beside(block.start, block.stop)))
    return {name: values for name, values in found.items() if values}


def one_mechanism(args: argparse.Namespace) -> None:
    """`--counters`, `--descriptor` and `--windows`."""
    if args.descriptor:
        print(json.dumps(descriptor_check(300, random.Random(args.seed)), indent=1))
        return
    if args.windows:
        rows = windows_check("cnn", args.steps * 2, args.pairs, random.Random(args.seed), args.against)
        for name, row in rows.items():
            spread = f"{row['q1']:9.3f} .. {row['q3']:.3f}"
            print(f"  {name:44}{row['ratio']:7.3f}{spread}{row['windows']:8} windows")
        return
    for kind in args.kinds.split(","):
        print(json.dumps({kind: counters_check(kind, args.steps * (5 if kind == "small" else 1))}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument(
        "--steps", type=int, default=200, help="steps of the ~30 ms training; x5 for the ~1 ms one"
    )
    parser.add_argument("--only", help="comma-separated tools")
    parser.add_argument("--kinds", default="resnet,small", help="trainings (default: resnet,small)")
    parser.add_argument("--save", type=Path, metavar="DIR", help="keep the step times for `perfscope check`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--descriptor", action="store_true", help="the cost of checking descriptors, alone")
    parser.add_argument("--counters", action="store_true", help="the cost of counters in traced steps, alone")
    parser.add_argument("--windows", action="store_true", help="traced steps over untraced ones, alone")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="with --windows: another version")
    args = parser.parse_args()
    if args.counters or args.descriptor or args.windows:
        one_mechanism(args)
        return
    tools = ["perfscope", "torch.profiler"]
    if (
        subprocess.run(
            [sys.executable, "-c", "import viztracer"], capture_output=True, check=False
        ).returncode
        == 0
    ):
        tools.append("viztracer")
    if args.only:
        tools = args.only.split(",")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.kinds.split(","):
            steps = args.steps * (5 if kind == "small" else 1)
            print(f"{kind}: {args.pairs} pairs x {len(tools) + 2} trainings", file=sys.stderr)
            bench = Bench(Path(folder), kind, steps, args.save)
            results[kind] = compare(bench, tools, args.pairs, random.Random(args.seed))
    if args.json:
        print(json.dumps(results, indent=1))
        return
    for kind, rows in results.items():
        print(f"\n{kind}: plain p10 step {rows['plain']['p10_ms']:.2f} ms")
        print(f"  {'':16}{'p10 ratio':>10}{'quartiles':>18}{'mean ratio':>12}")
        for tool, row in rows.items():
            if tool != "plain":
                spread = f"{row['p10_ratio_q1']:.3f} .. {row['p10_ratio_q3']:.3f}"
                print(f"  {tool:16}{row['p10_ratio']:10.3f}{spread:>18}{row['mean_ratio']:12.3f}")


if __name__ == "__main__":
    main()
