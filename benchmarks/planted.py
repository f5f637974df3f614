"""Does `perfscope report` name the cause that was planted, and do its what-ifs come true?

Really trains benchmarks/planted/train.py or hybrid.py with one cause planted, reads the report, then trains
without the cause. A hit is a first finding with the cause's id (and its rank and axis where it has one);
"own": the first finding about the training itself is, whatever disturbed the run. A what-if's error is its
predicted step against the median step of the training without the cause; A/A, the same training against
itself, is the error that no prediction can beat here.

    python benchmarks/planted.py                                  # every cause, 2 repeats, about 15 minutes
    python benchmarks/planted.py --causes straggler,input_bound --repeats 5 --json
    python benchmarks/planted.py --causes hybrid --repeats 10     # all of hybrid.py
    python benchmarks/planted.py --clean 40                       # nothing planted: false alarms

Needs two CPUs; slow links run in the emulated cluster (root or user namespaces, `ip`, `tc`). Remote memory
needs two NUMA nodes and is planted in tests/planted only, where the machine is emulated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "planted"
HYBRID = "hybrid.py"
PERFSCOPE = (sys.executable, "-m", "perfscope")
# Several windows, whatever they cost: the first one falls into the warm-up of a training as short as this.
RECORDING = ("--ceilings", "off", "--overhead", "0.5", "--windows", "6")
# glibc gives memory back to the kernel and maps it again in every step, or not, by chance.
KEEPS_HEAP = {
    "MALLOC_TOP_PAD_": str(2**26),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
}
BUSY_CPUS = 0.25  # used by others: such a run says little


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One way to train.

    Attributes:
        program: of PROGRAMS.
        cluster: SPEC of the emulated cluster, "" = this machine.
        threads: of each rank.
        cpus: the control group's quota, 0 = none.
        keeps_heap: the C library keeps what is freed, so that page faults take no part of the step.
    """

    program: str = "train.py"
    arguments: tuple[str, ...] = ()
    cluster: str = ""
    neighbour: bool = False
    threads: int = 1
    cpus: float = 0.0
    ranks: int = 2
    keeps_heap: bool = True

    def command(self) -> list[str]:
        training = [str(PROGRAMS / self.program), *self.arguments]
        if self.cluster:
            cluster = [sys.executable, "-m", "perfscope.runners.cluster", "--quiet", self.cluster]
            return [*cluster, "--", sys.executable, *training]
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(self.ranks),
            *training,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A cause, and what must be said of it.

    Attributes:
        what_if: the id whose prediction is compared with a training without the cause; "": the gain of the
            finding.
        finding: id of the finding that names it, "" = that of the cause.
        of_mean: the cause is not in every step: gains are of the mean step.
    """

    planted: Setup
    removed: Setup
    what_if: str = ""
    finding: str = ""
    of_mean: bool = False
    rank: int | None = None
    layer: str | None = None
    axis: str | None = None


def _hybrid(*arguments: str, cluster: str = "") -> Setup:
    return Setup(program=HYBRID, arguments=arguments, cluster=cluster)


def _plant(cause: str) -> Setup:
    return Setup(arguments=("--pin", "--plant", cause))


CLEAN = Setup(arguments=("--pin",))
EVEN = Setup(arguments=("--pin", "--pipeline"))
LONGER = ("--pin", "--steps", "200")
CAUSES = {
    "straggler": Cause(
        planted=Setup(arguments=("--pin", "--plant", "straggler")),
        removed=CLEAN,
        what_if="no_stragglers",
        rank=1,
        layer="body.5",
    ),
    "slow_link": Cause(
        planted=Setup(cluster="2x1@200mbit", arguments=("--steps", "60")),
        removed=Setup(cluster="2x1@400mbit", arguments=("--steps", "60")),
        what_if="double_bandwidth",
    ),
    "input_bound": Cause(
        planted=Setup(arguments=("--pin", "--steps", "60", "--plant", "input_bound")),
        removed=CLEAN,
        what_if="no_input_wait",
    ),
    "model_split": Cause(
        planted=Setup(arguments=("--pin", "--pipeline", "--plant", "model_split")),
        removed=EVEN,
        what_if="perfect_balance",
        rank=0,
    ),
    "small_collectives": Cause(
        planted=Setup(arguments=("--pin", "--deep", "--steps", "50", "--plant", "small_collectives")),
        removed=Setup(arguments=("--pin", "--deep")),
        what_if="one_bucket",
    ),
    "disturbed": Cause(
        planted=Setup(arguments=LONGER, neighbour=True), removed=CLEAN, what_if="", of_mean=True
    ),
    "imbalance": Cause(planted=_plant("imbalance"), removed=_plant("even"), what_if="perfect_balance"),
    "lock": Cause(planted=_plant("lock"), removed=CLEAN, finding="host_blocked"),
    "gil": Cause(
        planted=Setup(arguments=("--plant", "gil"), ranks=1), removed=Setup(ranks=1), finding="host_blocked"
    ),
    "logging": Cause(planted=_plant("logging"), removed=CLEAN, finding="host_blocked"),
    "garbage": Cause(planted=_plant("garbage"), removed=CLEAN, finding="garbage_collection"),
    "allocation": Cause(
        planted=replace(_plant("allocation"), keeps_heap=False), removed=CLEAN, finding="page_fault_churn"
    ),
    "checkpoint": Cause(planted=_plant("checkpoint"), removed=CLEAN, of_mean=True),
    "evaluation": Cause(planted=_plant("evaluation"), removed=CLEAN, of_mean=True),
    "major_faults": Cause(
        planted=_plant("major_faults"), removed=CLEAN, what_if="no_idle", finding="host_blocked"
    ),
    "oversubscribed": Cause(planted=Setup(threads=4), removed=Setup(threads=1)),
    "throttled": Cause(planted=Setup(arguments=("--pin",), cpus=1.0), removed=CLEAN, finding="disturbed"),
}
SMALL = ("tensor", "--tp", "2", "--batch", "64")
EXPERTS = ("experts", "--pin", "--width", "512", "--batch", "256")
DEEP = (*SMALL, "--width", "64", "--depth", "10")
CAUSES |= {
    "slow_dp_link": Cause(
        planted=_hybrid(*SMALL, cluster="2x2@200mbit"),
        removed=_hybrid(*SMALL, cluster="2x2"),
        what_if="fast_link:dp",
        finding="slow_link",
        axis="dp",
    ),
    "slow_tp_link": Cause(
        planted=_hybrid(*SMALL, "--outer", "tp", cluster="2x2@40mbit"),
        removed=_hybrid(*SMALL, "--outer", "tp", cluster="2x2"),
        what_if="fast_link:tp",
        finding="slow_link",
        axis="tp",
    ),
    "stage_imbalance": Cause(
        planted=_hybrid("stages", "--pin", "--layers", "7,1"),
        removed=_hybrid("stages", "--pin", "--layers", "4,4"),
        what_if="equal_stages",
        rank=0,
    ),
    "expert_imbalance": Cause(
        planted=_hybrid(*EXPERTS, "--hot", "0.95"),
        removed=_hybrid(*EXPERTS, "--hot", "0.5"),
        what_if="equal_experts",
        rank=1,
    ),
    "uneven_comm": Cause(
        planted=_hybrid("tensor", "--batch", "256", "--heavy", "2", cluster="2x1@100mbit"),
        removed=_hybrid("tensor", "--batch", "256", cluster="2x1@100mbit"),
        layer="2",
        axis="tp",
    ),
    "small_buckets": Cause(
        planted=_hybrid(*DEEP, "--bucket-kb", "1", cluster="2x2"),
        removed=_hybrid(*DEEP, cluster="2x2"),
        what_if="one_bucket",
        finding="small_collectives",
        axis="dp",
    ),
}
OUTSIDE = {"disturbed", "preempted", "oversubscribed"}  # findings about the machine, not the training
PLANTED = {cause.finding or name for name, cause in CAUSES.items()}
IMPOSSIBLE = {"numa_remote": "this needs a machine of two NUMA nodes; see tests/planted"}


def main() -> None:
    args = _arguments()
    causes = args.causes.split(",") if args.causes else [*CAUSES]
    if causes == ["hybrid"]:
        causes = [name for name, cause in CAUSES.items() if cause.planted.program == HYBRID]
    for name in causes:
        if name not in CAUSES:
            why = IMPOSSIBLE.get(name, f"choose from {', '.join(CAUSES)}")
            sys.exit(f"planted.py: cannot plant {name!r}: {why}")
    setups = [CLEAN, EVEN] if not args.causes else []
    for name in causes:
        setups += [CAUSES[name].planted, CAUSES[name].removed]
    setups = list(dict.fromkeys(setups))
    if args.clean:
        causes, setups = [], [CLEAN, EVEN]
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(args.out or scratch)
        results = _all(setups, -(-args.clean // 2) or args.repeats, out)
    document = {
        "causes": {name: _judge(name, CAUSES[name], results) for name in causes},
        "clean": [_verdict(run) for setup in (CLEAN, EVEN) for run in results.get(setup, [])],
        "aa_errors": [error for runs in results.values() for error in _noise(runs)],
        "not_planted": IMPOSSIBLE,
    }
    document["summary"] = _summary(document)
    print(json.dumps(document, indent=1)) if args.json else _print(document)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--causes", help=f"comma-separated: {', '.join(CAUSES)} (all)")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--clean", type=int, default=0, metavar="N", help="N runs of which nothing is wrong")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", help="keep the run directories here")
    return parser.parse_args()


# -- training ------------------------------------------------------------------------------------------------


def _all(setups: list[Setup], repeats: int, out: Path) -> dict[Setup, list[dict[str, Any]]]:
    """Every setup once, then every setup again: a machine that drifts drifts for all."""
    results: dict[Setup, list[dict[str, Any]]] = {setup: [] for setup in setups}
    for repeat in range(repeats):
        for number, setup in enumerate(setups):
            began = time.monotonic()
            results[setup].append(_train(setup, out / f"{number:02d}-{repeat}"))
            what = " ".join((setup.cluster, *setup.arguments)) + (
                " beside a neighbor" if setup.neighbour else ""
            )
            print(f"  {repeat + 1}/{repeats} {what}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return results


def _train(setup: Setup, folder: Path) -> dict[str, Any]:
    """Trains and reads the report. `busy`: CPUs that others used meanwhile."""
    command = [
        *PERFSCOPE,
        "run",
        "--no-verdict",
        *RECORDING,
        "--force",
        "-o",
        str(folder),
        "--",
        *setup.command(),
    ]
    env = {**os.environ, "OMP_NUM_THREADS": str(setup.threads), **(KEEPS_HEAP if setup.keeps_heap else {})}
    began, used, own = time.monotonic(), _busy_s(), _children_s()
    with _neighbour() if setup.neighbour else _quota(setup.cpus) if setup.cpus else _nobody():
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    wall = time.monotonic() - began
    busy = (_busy_s() - used - (_children_s() - own)) / wall
    if done.returncode:
        sys.exit(f"planted.py: training failed ({done.returncode}): {done.stderr.strip()[-2000:]}")
    report = subprocess.run(
        [*PERFSCOPE, "report", str(folder), "--json"], capture_output=True, text=True, check=False
    )
    if report.returncode:
        sys.exit(f"planted.py: perfscope report failed: {report.stderr.strip()[-2000:]}")
    document: dict[str, Any] = json.loads(report.stdout)
    return {**document, "busy": 0.0 if setup.neighbour else busy, "mean_step_ns": _mean_step_ns(folder)}


@contextmanager
def _nobody() -> Iterator[None]:
    yield


@contextmanager
def _quota(cpus: float) -> Iterator[None]:
    """This process and its children in a control group of their own with so many CPUs; needs root."""
    root = Path("/sys/fs/cgroup/cpu") if Path("/sys/fs/cgroup/cpu").is_dir() else Path("/sys/fs/cgroup")
    group = root / f"planted-{os.getpid()}"
    group.mkdir()
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{int(cpus * 1e5)} 100000")
        else:
            (group / "cpu.cfs_quota_us").write_text(str(int(cpus * 1e5)))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (root / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


@contextmanager
def _neighbour() -> Iterator[None]:
    """A process that computes on the last CPU, from some seconds after the start on."""
    process = multiprocessing.Process(target=_burn, args=(9.0,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _burn(after_s: float) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    time.sleep(after_s)
    while True:
        sum(range(10_000))


def _busy_s() -> float:
    """CPU time that all processes of the machine have used, and that the hypervisor has taken."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# -- judging -------------------------------------------------------------------------------------------------


def _judge(name: str, cause: Cause, results: dict[Setup, list[dict[str, Any]]]) -> dict[str, Any]:
    rows = []
    pairs = zip(results[cause.planted], results[cause.removed], strict=True)
    for repeat, (planted, removed) in enumerate(pairs, start=1):
        found = _verdict(planted)
        named = None if cause.layer is None else str(found["layer"] or "").startswith(cause.layer)
        wanted = cause.finding or name
        predicted = _predicted(planted, wanted, cause)
        measured = removed["mean_step_ns"] if cause.of_mean else removed["step_ns"]["median"]
        rows.append(
            {
                **found,
                "hit": _names(found, cause, wanted),
                "own_hit": _names(_first_own(planted), cause, wanted),
                "layer_hit": named,
                "repeat": repeat,
                "step_ns": planted["step_ns"]["median"],
                "predicted_ns": predicted,
                "measured_ns": measured,
                "removed_overshadowed": removed["busy"] > BUSY_CPUS,
                "error": abs(predicted - measured) / measured if predicted is not None else None,
            }
        )
    return {"what_if": cause.what_if or "gain of the finding", "runs": rows}


def _names(finding: dict[str, Any], cause: Cause, wanted: str) -> bool:
    """Whether the finding is the cause, with its rank and axis."""
    places = {"rank": cause.rank, "axis": cause.axis}
    return finding["id"] == wanted and all(
        value is None or finding[key] == value for key, value in places.items()
    )


def _first_own(run: dict[str, Any]) -> dict[str, Any]:
    """The first finding about the training itself that is no symptom of another."""
    own = (one for one in run["findings"] if one["id"] not in OUTSIDE and one["symptom_of"] is None)
    found: dict[str, Any] = next(own, run["findings"][0])
    return found


def _verdict(run: dict[str, Any]) -> dict[str, Any]:
    first = run["findings"][0]
    found = {key: first[key] for key in ("id", "title", "rank", "layer", "axis")}
    found["confidence"] = (first.get("confidence") or {}).get("level")
    return {**found, "busy": run["busy"], "overshadowed": run["busy"] > BUSY_CPUS}


def _predicted(run: dict[str, Any], wanted: str, cause: Cause) -> int | None:
    """The step without the cause, as the report of the run with it says; None where it says nothing."""
    for one in run.get("what_ifs") or []:
        if one["id"] == cause.what_if:
            return int(one["step_ns"])
    for finding in run["findings"]:
        if finding["id"] == wanted and finding["gain_ns"] is not None:
            usual = run["mean_step_ns"] if cause.of_mean else run["step_ns"]["median"]
            return int(usual - finding["gain_ns"])
    return None


def _mean_step_ns(folder: Path) -> float:
    """Mean of the steps that were neither traced nor warm-up, over all ranks."""
    steps = []
    for path in sorted(folder.glob("ranks/*/steps.jsonl")):
        columns, *rows = map(json.loads, path.read_text().splitlines())
        length, window = columns["columns"].index("dur_ns"), columns["columns"].index("window")
        steps += [row[length] for row in rows[3:] if row[window] < 0]
    return statistics.fmean(steps)


def _noise(runs: list[dict[str, Any]]) -> list[float]:
    steps = [run["step_ns"]["median"] for run in runs]
    return [abs(a - b) / b for a, b in itertools.pairwise(steps)]


def _summary(document: dict[str, Any]) -> dict[str, Any]:
    """Over the runs without much load from outside: with it, that load is the cause."""
    rows = [row for judged in document["causes"].values() for row in judged["runs"]]
    counted = [row for row in rows if not row["overshadowed"]]
    clean = [run for run in document["clean"] if not run["overshadowed"]]
    alarms = [run["id"] in PLANTED or run["id"] in IMPOSSIBLE for run in clean]
    judged = [(row["confidence"], row["hit"]) for row in counted]
    judged += [(run["confidence"], not alarm) for run, alarm in zip(clean, alarms, strict=True)]
    errors = [row["error"] for row in counted if row["error"] is not None and not row["removed_overshadowed"]]
    return {
        "planted": len(counted),
        "named_first": sum(row["hit"] for row in counted),
        "all_planted": len(rows),
        "own_first": sum(row["own_hit"] for row in rows),
        "clean": len(clean),
        "false_alarms": sum(alarms),
        "right_by_confidence": {
            level: [sum(right for of, right in judged if of == level), sum(of == level for of, _ in judged)]
            for level in sorted({str(of) for of, _ in judged})
        },
        "overshadowed": len(rows) + len(document["clean"]) - len(counted) - len(clean),
        "what_if_errors": errors,
        "median_what_if_error": statistics.median(errors) if errors else None,
    }


def _print(document: dict[str, Any]) -> None:
    heads = f"{'planted':18}{'repeat':>6}  {'said first':20}{'':7}"
    print(f"\n{heads}{'step ms':>9}{'predicted':>11}{'measured':>10}{'error':>8}{'layer':>7}")
    rows = [(name, row) for name, judged in document["causes"].items() for row in judged["runs"]]
    for name, row in rows:
        mark = "hit" if row["hit"] else "own" if row["own_hit"] else "miss"
        mark += "*" if row["overshadowed"] else ""
        layer = "" if row["layer_hit"] is None else "yes" if row["layer_hit"] else "no"
        print(
            f"{name:18}{row['repeat']:6}  {row['id']:20}{mark:7}{_ms(row['step_ns'], 9)}"
            f"{_ms(row['predicted_ns'], 11)}{_ms(row['measured_ns'], 10)}{_percent(row['error'])}{layer:>7}"
        )
        if not row["hit"]:
            print(f"{'':26}{row['title'][:120]}")
    for one in document["clean"]:
        print(f"{'nothing':24}  {one['id']}{'*' if one['overshadowed'] else ''}: {one['title'][:90]}")
    summary = document["summary"]
    print(f"\nnamed first: {summary['named_first']} of {summary['planted']}")
    print(f"first about the training: {summary['own_first']} of {summary['all_planted']}")
    print(f"false alarms on clean runs: {summary['false_alarms']} of {summary['clean']}")
    for level, (right, runs) in summary["right_by_confidence"].items():
        print(f"verdicts of {level} confidence that are right: {right} of {runs}")
    if summary["overshadowed"]:
        print(
            f"* not counted: {summary['overshadowed']} runs during which other processes and the hypervisor "
            f"used more than {BUSY_CPUS} CPUs"
        )
    _print_spread(f"what-ifs ({len(summary['what_if_errors'])} of {len(rows)})", summary["what_if_errors"])
    _print_spread("A/A", document["aa_errors"])
    for name, why in IMPOSSIBLE.items():
        print(f"not planted here: {name}: {why}")


def _print_spread(what: str, errors: list[float]) -> None:
    if errors:
        print(f"{what}: median error {statistics.median(errors):.1%}, largest {max(errors):.1%}")


def _ms(value: float | None, width: int) -> str:
    return f"{'–':>{width}}" if value is None else f"{value / 1e6:{width}.1f}"


def _percent(value: float | None) -> str:
    return f"{'–':>8}" if value is None else f"{value:8.1%}"


if __name__ == "__main__":
    main()
