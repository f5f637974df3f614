"""CPU and memory of reading a trace: perfscope against HolisticTraceAnalysis.

Both start a fresh interpreter, read the same file, build their table of it and compute the device's time
breakdown and the overlap of communication with computation; the peer also its breakdowns of kernels and idle
time, beside which stands all of `perfscope report TRACE --json`. CPU is user + system time of that process,
memory its peak resident size. Rounds are interleaved in random order; the figure is the median over rounds of
the ratio peer/perfscope. perfscope against itself is measured the same way: that is the noise.

    python benchmarks/ingest.py --make-venv /tmp/peers          # makes the peers' environments, then measures
    python benchmarks/ingest.py --peer-python /tmp/peers/hta/bin/python --repeats 7 --json

Cases: the trace itself (its fixed cost is mostly imports), and copies of it behind one another in time, with
correlation ids, step numbers and so on of their own, gzip and plain.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRACE = ROOT / "tests" / "data" / "traces" / "mi300_resnet" / "resnet_act_checkpoint.json.gz"
PEERS = {
    "HolisticTraceAnalysis": ["HolisticTraceAnalysis==0.5.0", "pandas<3"],
    "traceinsight": ["traceinsight", "pandas<3"],
}
CPU_TARGET, RSS_TARGET_MB = 20, 100

# Both print figures, so that nobody is paid for not computing them.
PERFSCOPE = """
import glob, sys
from perfscope.cli.import_ import command
command([sys.argv[1], "-o", sys.argv[2], "--jobs", "1"], standalone_mode=False)
import pyarrow.parquet as pq
from perfscope.analysis.breakdown import DEVICE_COLUMNS, device_breakdown, every_gpu_event
for path in glob.glob(sys.argv[2] + "/derived/timeline/*.parquet"):
    table = pq.ParquetFile(path).read(columns=[*DEVICE_COLUMNS, "name"], use_threads=False)
    print(device_breakdown(table, every_gpu_event(table)))
"""
PERFSCOPE_REPORT = """
import sys
sys.argv[1:] = ["report", sys.argv[1], "--json"]
from perfscope.__main__ import main
main()
"""
PERFSCOPE_INGEST = """
import sys
from pathlib import Path
from perfscope.ingest.run import ingest_run
from perfscope.lean_imports import lean_process
lean_process()
print(ingest_run(Path(sys.argv[2]))[0].events_kept)
"""
PEER = """
import logging, os, sys, warnings
logging.disable(logging.CRITICAL); warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=os.path.dirname(sys.argv[1]))
print(analysis.get_temporal_breakdown(visualize=False).to_dict())
print(analysis.get_comm_comp_overlap(visualize=False).to_dict())
print([frame.to_dict() for frame in analysis.get_gpu_kernel_breakdown(visualize=False)])
print(analysis.get_idle_time_breakdown(ranks=[0], visualize=False)[0].to_dict())
"""


@dataclass
class Case:
    """One input file."""

    name: str
    path: Path
    num_events: int
    size: int
    cpu_s: dict[str, list[float]] = field(default_factory=dict)
    rss_mb: dict[str, float] = field(default_factory=dict)


def main() -> None:
    options = parse_arguments()
    if options.replicate:
        source, target, copies = options.replicate
        print(write_copies(Path(source), Path(target), int(copies)))
        return
    peers = {f"peer {number}": python for number, python in enumerate(options.peer_python)}
    if options.make_venv:
        peers |= make_venvs(options.make_venv)
    if not peers:
        sys.exit("nothing to compare with: give --peer-python or --make-venv")
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        cases = make_cases(Path(scratch), options.trace, options.copies)
        for case in cases:
            measure(case, peers, options.repeats, Path(scratch))
    results = [result_of(case, list(peers)) for case in cases]
    if options.json:
        print(json.dumps({"schema_version": 1, "repeats": options.repeats, "cases": results}, indent=1))
    else:
        print(table(results))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer-python", action="append", default=[], help="Python that has the peer installed"
    )
    parser.add_argument("--make-venv", type=Path, help="make the peers' environments under this directory")
    parser.add_argument("--trace", type=Path, default=TRACE, help="a Kineto trace, plain or gzip")
    parser.add_argument("--copies", type=int, nargs="*", default=[8], help="how often to repeat it")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="directory for the copies")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--replicate", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def make_venvs(directory: Path) -> dict[str, str]:
    """One environment per peer, reused if it is there."""
    found = {}
    for name, packages in PEERS.items():
        python = directory / name / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", directory / name], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        found[name] = str(python)
    return found


# Inputs

_IDS = re.compile(
    rb'"(ts|id|correlation|External id|Sequence number|Python (?:parent )?id|Ev Idx)": (\d+)'
    rb"|ProfilerStep#(\d+)"
)


def write_copies(source: Path, target: Path, copies: int) -> int:
    """`copies` of a trace's events behind one another, valid JSON in the source's own formatting.

    Returns:
        The number of events written.
    """
    raw = source.read_bytes()
    raw = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    start = raw.index(b"[", raw.index(b'"traceEvents"')) + 1
    end = raw.rindex(b"]", 0, raw.rindex(b'"traceName"'))
    events = raw[start:end].strip()
    moments = [float(text) for text in re.findall(rb'"ts": ([\d.]+)', events)]
    shift = int(max(moments) - min(moments)) + 100_000
    steps = {int(text) for text in re.findall(rb"ProfilerStep#(\d+)", events)}
    with gzip.open(target, "wb", 6) if target.suffix == ".gz" else target.open("wb") as file:
        file.write(raw[:start])
        for copy in range(copies):

            def move(match: re.Match[bytes], copy: int = copy) -> bytes:
                if match[3]:
                    return b"ProfilerStep#%d" % (int(match[3]) + copy * (max(steps) - min(steps) + 1))
                by = copy * (shift if match[1] == b"ts" else 10_000_000)
                return match[0] if match[2] == b"0" else b'"%b": %d' % (match[1], int(match[2]) + by)

            file.write((b",\n" if copy else b"") + _IDS.sub(move, events))
        file.write(raw[end:])
    return copies * len(moments)


def make_cases(scratch: Path, trace: Path, copies: Sequence[int]) -> list[Case]:
    cases = []
    for count, suffix in [(1, ".json.gz"), *((n, s) for n in copies for s in (".json.gz", ".json"))]:
        folder = scratch / f"{count}x{suffix}"
        folder.mkdir()
        path = folder / f"rank0{suffix}"
        # In a process of its own: a child's peak memory starts with that of its parent.
        command = [sys.executable, __file__, "--replicate", str(trace), str(path), str(count)]
        written = subprocess.run(command, check=True, capture_output=True, text=True)
        cases.append(Case(f"{count}x {suffix}", path, int(written.stdout), path.stat().st_size))
    return cases


# Measuring


def measure(case: Case, peers: dict[str, str], repeats: int, scratch: Path) -> None:
    """Interleaved rounds, after one that only warms the caches."""
    runs = {
        "perfscope": PERFSCOPE,
        "perfscope again": PERFSCOPE,
        "perfscope report": PERFSCOPE_REPORT,
        "perfscope ingest": PERFSCOPE_INGEST,
    }
    subjects = {name: [sys.executable, "-c", code] for name, code in runs.items()}
    subjects |= {name: [python, "-c", PEER] for name, python in peers.items()}
    for round_number in range(repeats + 1):
        for name in random.sample(list(subjects), len(subjects)):
            run = scratch / "run"
            shutil.rmtree(run, ignore_errors=True)
            if name == "perfscope ingest":  # a run that holds the trace already
                window = run / "ranks" / "0" / "windows"
                window.mkdir(parents=True)
                (window / case.path.name.replace("rank0", "0")).hardlink_to(case.path)
            cpu, rss = child_usage([*subjects[name], str(case.path), str(run)])
            if round_number:
                case.cpu_s.setdefault(name, []).append(cpu)
                case.rss_mb[name] = max(case.rss_mb.get(name, 0), rss)
        print(f"{case.name}: round {round_number} of {repeats}", file=sys.stderr)


def child_usage(command: Sequence[str]) -> tuple[float, float]:
    """(CPU seconds, peak resident MB) of a process that must succeed."""
    # Byte code is cached for all, as it is for an installed package.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command[:1]} failed: {said}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


# Reporting


def result_of(case: Case, peers: Sequence[str]) -> dict[str, object]:
    fastest = min(peers, key=lambda name: statistics.median(case.cpu_s[name]))
    own = case.cpu_s["perfscope"]
    ratios = {name: paired_ratio(case.cpu_s[name], own) for name in peers}
    return {
        "case": case.name,
        "bytes": case.size,
        "events": case.num_events,
        "cpu_s": {name: statistics.median(times) for name, times in case.cpu_s.items()},
        "rss_mb": case.rss_mb,
        "ratio": ratios,
        "fastest_peer": fastest,
        "ratio_to_fastest_peer": ratios[fastest],
        "report_to_fastest_peer": paired_ratio(case.cpu_s["perfscope report"], case.cpu_s[fastest]),
        "ratio_ingest_only": paired_ratio(case.cpu_s[fastest], case.cpu_s["perfscope ingest"]),
        "noise": paired_ratio(case.cpu_s["perfscope again"], own),
        "noise_spread": spread(case.cpu_s["perfscope again"], own),
    }


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def spread(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return min(ratios), max(ratios)


def table(results: Sequence[dict[str, object]]) -> str:
    lines = []
    for result in results:
        cpu, rss = result["cpu_s"], result["rss_mb"]
        assert isinstance(cpu, dict)
        assert isinstance(rss, dict)
        lines.append(f"{result['case']}: {result['events']:,} events, {result['bytes']:,} bytes")
        lines += [f"  {name:24s} {cpu[name]:8.3f} s CPU {rss[name]:8.1f} MB peak" for name in cpu]
        noise = result["noise_spread"]
        assert isinstance(noise, tuple)
        lines.append(
            f"  {result['fastest_peer']} / perfscope = {result['ratio_to_fastest_peer']:.1f}"
            f" (ingest alone {result['ratio_ingest_only']:.1f}); target {CPU_TARGET};"
            f" A/A {result['noise']:.2f} ({noise[0]:.2f}..{noise[1]:.2f}); memory target {RSS_TARGET_MB} MB"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
