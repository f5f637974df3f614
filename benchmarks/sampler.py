"""What sampling the hardware costs: CPU per sample of each collector, of the sampler, and of training.

    python benchmarks/sampler.py                   # collectors here, on a large synthetic machine, and A/B
    python benchmarks/sampler.py --pairs 0         # without the A/B trainings
    python benchmarks/sampler.py --json

1. Each available collector is sampled beside a busy process; CPU time of the reading and of writing it down.
2. The same on a made-up machine of 200 CPUs, 8 NUMA nodes, 4 fabric ports: what grows with the machine.
3. The real sampler beside a real process: its CPU time over 10 s, as a share of one core.
4. Interleaved trainings with and without the sampler (and A/A), by p10 step time. Budget: the sampler takes
   at most 0.5 % of one core at 10 Hz.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from overhead import Bench, compare

from perfscope.collectors.base import Collector
from perfscope.collectors.context import Context, captured_context, live_context
from perfscope.collectors.registry import own_collectors
from perfscope.collectors.sample_log import SampleLog

BUSY = "import time\nwhile True: sum(range(20000)); time.sleep(0.001)"
BUDGET_RATIO = 0.005
TICK_NS = 100_000_000
Row = dict[str, float | str | int]


def cost_of(collector: Collector, ctx: Context, folder: Path, samples: int) -> Row | None:
    """Median and p90 CPU time of one sample, written down; None where the source is not available."""
    if not collector.probe(ctx).available:
        return None
    collector.open(ctx)
    log = SampleLog(folder / f"{collector.name}.jsonl", "bench", TICK_NS)
    times, readings = [], 0
    number = min(samples, 20) if collector.slow else samples
    for _ in range(number):
        time.sleep(0.02)  # cold caches, as between two ticks
        began = time.thread_time_ns()
        found = collector.sample()
        log.readings(collector.name, found)
        log.flush()
        times.append((time.thread_time_ns() - began) / 1e3)
        readings = max(readings, len(found))
    collector.close()
    log.close()
    per_s = 1e9 / max(collector.min_interval_ns, TICK_NS)
    median = statistics.median(times[1:])
    return {
        "collector": collector.name,
        "readings": readings,
        "cpu_us": median,
        "p90_us": statistics.quantiles(times[1:], n=10)[8],
        "per_s": per_s,
        "core_ratio": median * per_s / 1e6,
    }


def large_machine(folder: Path) -> Path:
    """The files of a machine with 200 CPUs, 8 nodes and 4 InfiniBand ports, filled with plausible figures."""

    def put(name: str, text: str) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    cpus = 200
    lines = "".join(
        f"cpu{n} 10132153 290696 3084719 46828483 16683 0 25195 0 175628 0\n" for n in range(cpus)
    )
    put("proc/stat", "cpu  1 2 3 4 5 6 7 8 9 0\n" + lines + "intr 5 0 0\nctxt 1990473\nprocesses 2915\n")
    put("sys/devices/system/cpu/online", f"0-{cpus - 1}\n")
    for name in ("online", "has_cpu", "has_memory", "possible"):
        put(f"sys/devices/system/node/{name}", "0-7\n")
    for node in range(8):
        base = f"sys/devices/system/node/node{node}"
        put(f"{base}/cpulist", f"{node * 25}-{node * 25 + 24}\n")
        put(f"{base}/distance", " ".join("10" if node == n else "21" for n in range(8)) + "\n")
        put(f"{base}/numastat", "".join(f"{k} 123456789\n" for k in NUMASTAT))
        put(f"{base}/meminfo", "".join(f"Node {node} {k}: 65536000 kB\n" for k in MEMINFO))
    put("proc/vmstat", "numa_hit 1\nnuma_pages_migrated 5\nnuma_hint_faults 7\nnuma_hint_faults_local 6\n")
    for resource in ("cpu", "memory", "io"):
        row = "avg10=0.00 avg60=0.00 avg300=0.00 total=123456\n"
        put(f"proc/pressure/{resource}", f"some {row}full {row}")
    faces = "".join(f"  eth{n}: " + " ".join(["1234567890"] * 16) + "\n" for n in range(8))
    head = "Inter-|   Receive                            |  Transmit\n face |bytes    packets |bytes\n"
    put("proc/self/net/dev", head + faces)
    for port in range(4):
        base = f"sys/class/infiniband/mlx5_{port}/ports/1"
        for name in ("port_xmit_data", "port_rcv_data", "port_xmit_packets", "unicast_xmit_packets"):
            put(f"{base}/counters/{name}", "12345678901\n")
        put(f"{base}/counters/port_xmit_wait", "7\n")
        put(f"{base}/link_layer", "InfiniBand\n")
        put(f"{base}/rate", "200 Gb/sec (4X HDR)\n")
        put(f"{base}/state", "4: ACTIVE\n")
    return folder


NUMASTAT = ("numa_hit", "numa_miss", "numa_foreign", "interleave_hit", "local_node", "other_node")
MEMINFO = ("MemTotal", "MemFree", "MemUsed", "Active", "Inactive", "FilePages", "AnonPages", "Mapped")


def sampler_cost(folder: Path, seconds: float) -> Row:
    """The real sampler beside a real process for a while; what it says it cost."""
    host = folder / "hosts" / "bench"
    (host / "pids").mkdir(parents=True)
    rank = subprocess.Popen([sys.executable, "-c", BUSY])
    options = json.dumps({"interval_ns": TICK_NS, "collectors": {}})
    module = "perfscope.collectors.sampler"
    sampler = subprocess.Popen([sys.executable, "-m", module, str(folder), "bench", str(rank.pid), options])
    time.sleep(seconds)
    rank.kill()
    rank.wait()
    sampler.wait()
    path = host / "samples.jsonl"
    cost = json.loads(path.read_text().splitlines()[-1])["cost"]
    return {
        "core_ratio": cost["cpu_ns"] / cost["wall_ns"],
        "start_up_ms": cost["start_up_ns"] / 1e6,
        "ticks": cost["ticks"],
        "late_ticks": cost["late_ticks"],
        "readings": cost["readings"],
        "bytes_per_s": path.stat().st_size / (cost["wall_ns"] / 1e9),
    }


def collectors_table(ctx: Context, folder: Path, samples: int) -> list[Row]:
    rows = []
    for collector in own_collectors():
        if collector.name == "stacks":
            continue  # off unless asked for, and a process of its own
        row = cost_of(collector, ctx, folder, samples)
        if row is not None:
            rows.append(row)
    return rows


def show(title: str, rows: list[Row]) -> None:
    print(f"\n{title}")
    print(f"  {'collector':20}{'readings':>9}{'CPU µs':>9}{'p90 µs':>9}{'per s':>7}{'of one core':>13}")
    for row in rows:
        print(
            f"  {row['collector']:20}{row['readings']:9}{row['cpu_us']:9.0f}{row['p90_us']:9.0f}"
            f"{row['per_s']:7.1f}{100 * float(row['core_ratio']):11.3f} %"
        )
    total = sum(float(row["core_ratio"]) for row in rows)
    print(f"  {'together':54}{100 * total:11.3f} %   (budget {100 * BUDGET_RATIO:.1f} %)")


def measure(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    busy = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        ctx = live_context(pids=lambda: (busy.pid,))
        here = collectors_table(ctx, folder, args.samples)
    finally:
        busy.kill()
        busy.wait()
    large = collectors_table(captured_context(large_machine(folder / "large")), folder, args.samples)
    results: dict[str, object] = {"here": here, "large": large}
    results["sampler"] = sampler_cost(folder / "run", args.seconds)
    if args.pairs:
        bench = Bench(folder, "resnet", args.steps)
        tools = ["perfscope", "perfscope without sampler"]
        results["training"] = compare(bench, tools, args.pairs, random.Random(0))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=100, help="of each fast collector")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the real sampler")
    parser.add_argument("--pairs", type=int, default=8, help="A/B trainings; 0 for none")
    parser.add_argument("--steps", type=int, default=150, help="of each training")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(args, Path(folder))
    if args.json:
        print(json.dumps(results, indent=1))
        return
    show("Collectors on this machine", results["here"])  # type: ignore[arg-type]
    show("The same on a made-up machine: 200 CPUs, 8 nodes", results["large"])  # type: ignore[arg-type]
    cost = results["sampler"]
    assert isinstance(cost, dict)
    print(
        f"\nThe sampler as a whole: {100 * cost['core_ratio']:.3f} % of one core over {cost['ticks']} ticks "
        f"({cost['late_ticks']} late), {cost['bytes_per_s'] / 1e3:.1f} kB/s; "
        f"start-up {cost['start_up_ms']:.0f} ms."
    )
    training = results.get("training")
    if isinstance(training, dict):
        print("\nTraining, p10 step time against plain (median over pairs, quartiles)")
        for tool, row in training.items():
            if tool != "plain":
                low, high = row["p10_ratio_q1"], row["p10_ratio_q3"]
                print(f"  {tool:28}{row['p10_ratio']:8.3f}   {low:.3f} .. {high:.3f}")


if __name__ == "__main__":
    main()
