"""Comparisons with known figures, made by hand: what a report of several runs is drawn from."""

from __future__ import annotations

import math
from typing import Any

from perfscope.analysis.bench_bytes import LinkBytes
from perfscope.analysis.efficiency.results import Efficiency
from perfscope.analysis.missing import missing_figure
from perfscope.analysis.results import Quantiles
from perfscope.analysis.study.pareto import pareto_points
from perfscope.analysis.study.results import (
    Composition,
    DiffRow,
    DiffSection,
    FitCurvePoint,
    FitParameter,
    Growth,
    Interval,
    LossCurve,
    MachineFacts,
    Pair,
    PopRow,
    PopTree,
    Problem,
    RunDiff,
    ScalingFit,
    ScalingPoint,
    ScalingSeries,
    ScalingStudy,
    SchemeRow,
    SchemeStudy,
    SchemeVerdict,
    StudyAnalysis,
    StudyRun,
    Turn,
)
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.comparison import ProblemKind, StudyPart
from perfscope.vocabulary.efficiency import PopFactor
from perfscope.vocabulary.figures import Figure

MS = 1_000_000


def composition(step_ms: float, exposed: float = 0.2) -> Composition:
    """A mean step of `step_ms` whose parts add up to it."""
    step = step_ms * MS
    parts = {"exposed_comm": exposed, "copy": 0.0, "input_wait": 0.02, "optimizer": 0.05, "idle": 0.03}
    rest = {name: share * step for name, share in parts.items()}
    return Composition(step=step, compute=step - sum(rest.values()), num_steps=4, **rest)


def efficiency(load: float, serial: float, transfer: float) -> Efficiency:
    return Efficiency(
        num_steps=4,
        step_ns=100 * MS,
        ideal_step_ns=round(transfer * 100 * MS),
        useful_ns=((0, 60 * MS), (1, 55 * MS)),
        load_balance=load,
        lb_in=None,
        lb_out=None,
        comm_efficiency=serial * transfer,
        serialisation=serial,
        transfer=transfer,
        parallel_efficiency=load * serial * transfer,
    )


def losses(rate: float, step_s: float, count: int = 20) -> LossCurve:
    steps = range(1, count + 1)
    return LossCurve(
        steps=tuple(steps),
        samples=tuple(32 * step for step in steps),
        seconds=tuple(step_s * step for step in steps),
        losses=tuple(1.2 + 1.5 * math.exp(-rate * step) for step in steps),
    )


def run(label: str, **given: Any) -> StudyRun:
    step_ms = given.pop("step_ms", 100.0)
    values: dict[str, Any] = {
        "label": label,
        "name": f"runs/{label}",
        "group": "",
        "repeat_key": label,
        "repeat": 1,
        "world_size": 4,
        "num_hosts": 2,
        "ranks_per_host": (2, 2),
        "num_ranks_seen": 4,
        "scheme": "",
        "axes": {},
        "mesh": "",
        "model": "alexnet, 3x64x64",
        "dtype": "float32",
        "threads": 1,
        "batch": 32,
        "effective_batch": 32,
        "samples_per_s": 32e3 / step_ms,
        "samples_source": "scheme",
        "step_ns": Quantiles(
            median=round(step_ms * MS), p10=round(0.9 * step_ms * MS), p90=round(1.2 * step_ms * MS), count=40
        ),
        "typical_step_ns": step_ms * MS,
        "num_steps": 40,
        "composition": composition(step_ms),
        "efficiency": None,
        "peak_memory": ((0, 1 << 30), (1, 1 << 29)),
        "peak_memory_bytes": 1 << 30,
        "links": (),
        "first_loss": 2.6,
        "last_loss": 1.3,
        "held_out_loss": 1.4,
        "loss_curve": losses(0.2, step_ms / 1e3),
        "diverged": False,
        "disturbed": False,
        "disturbances": (),
        "incomplete": (),
        "incomplete_causes": (),
        "running": False,
        "machine": MachineFacts(
            hosts=("node0", "node1"), cpu="EPYC 7543", num_cpus=64, cluster="2x2@1gbit", device="cpu"
        ),
        "perfscope_version": "0.1.0",
        "packages": {"torch": "2.13.0"},
        "environment": {"OMP_NUM_THREADS": "1"},
        "options": {},
        "command": ("python", "train.py", "--scheme", label),
        "labels": {},
    }
    return StudyRun(**{**values, **given})


def study(**given: Any) -> StudyAnalysis:
    values: dict[str, Any] = {
        "by": "",
        "by_reason": "",
        "headline": "",
        "runs": (),
        "scaling": None,
        "schemes": (),
        "diff": None,
        "problems": (),
        "missing": (),
    }
    return StudyAnalysis(**{**values, **given})


SPEEDS = {"mp.fc_tp": 320.0, "hy.auto": 250.0, "hy.owt": 244.0, "dp.ddp": 96.0}
EXPOSED = {"mp.fc_tp": 0.24, "hy.auto": 0.41, "hy.owt": 0.43, "dp.ddp": 0.78}
SENT = {"mp.fc_tp": 2.2e6, "hy.auto": 4.3e6, "hy.owt": 3.2e7, "dp.ddp": 6.8e8}


def scheme_study(num_repeats: int = 3) -> StudyAnalysis:
    """Four schemes; hy.auto and hy.owt are level where there are repeats, dp.ddp's wire bytes are missing."""
    some = num_repeats > 1
    runs, rows = [], []
    for title, speed in SPEEDS.items():
        labels = tuple(f"{title}-r{number}" for number in range(1, num_repeats + 1))
        runs += [run(one, scheme=title, step_ms=32e3 / speed, repeat_key=title) for one in labels]
        rows.append(
            SchemeRow(
                key=title,
                title=title,
                group=title,
                scheme=title,
                mesh="4,1",
                axes={},
                runs=labels,
                num_repeats=num_repeats,
                samples_per_s=speed,
                samples_per_s_values=(speed,) * num_repeats,
                samples_per_s_interval=Interval(low=0.97 * speed, high=1.03 * speed, num_repeats=num_repeats)
                if some
                else None,
                step_ns=32e12 / speed / 1e3,
                composition=composition(32e3 / speed, EXPOSED[title]),
                efficiency=None if title == "hy.auto" else efficiency(0.93, 0.88, 1 - EXPOSED[title]),
                links=(
                    LinkBytes(
                        link_class="ethernet",
                        predicted=SENT[title],
                        recorded=SENT[title],
                        predicted_wire=SENT[title],
                        wire=None if title == "dp.ddp" else 1.04 * SENT[title],
                        reason="the counters were not read" if title == "dp.ddp" else "",
                    ),
                ),
                peak_memory_bytes=1.3e9,
                batch=32,
                effective_batch=32,
                first_loss=2.6,
                last_loss=1.3,
                held_out_loss=1.4,
                num_disturbed=int(title == "dp.ddp"),
                num_diverged=0,
            )
        )
    names = list(SPEEDS)
    pairs = []
    for at, a in enumerate(names):
        for b in names[at + 1 :]:
            ratio = SPEEDS[a] / SPEEDS[b]
            interval = Interval(low=0.95 * ratio, high=1.05 * ratio, num_repeats=num_repeats)
            level = interval.low <= 1 <= interval.high
            pairs.append(
                Pair(
                    a=a,
                    b=b,
                    ratio=ratio,
                    interval=interval if some else None,
                    p_value=(0.4 if level else 0.1) if some else None,
                    level=level if some else None,
                    reason="" if some else "one repeat each",
                )
            )
    headline = "mp.fc_tp is fastest with 320 samples/s, 1.28 times as fast as hy.auto (250)."
    return study(
        by="scheme",
        by_reason="the runs differ in their scheme",
        headline=headline,
        runs=tuple(runs),
        schemes=(
            SchemeStudy(
                title="alexnet, 4 ranks, batch 32, emulated cluster 2x2@1gbit",
                by="scheme",
                rows=tuple(rows),
                pairs=tuple(pairs),
                pareto=pareto_points(rows, None, pairs),
                verdict=SchemeVerdict(
                    winner="mp.fc_tp",
                    runner_up="hy.auto",
                    ratio=1.28,
                    level=False if some else None,
                    headline=headline,
                    why="It sends 2.10 MiB between hosts per step where hy.auto sends 4.10 MiB.",
                    turn="hy.auto would overtake it from 3.4 times this bandwidth.",
                    caution="dp.ddp's run was disturbed.",
                ),
                turns=(
                    Turn(
                        challenger="hy.auto",
                        link_class="ethernet",
                        bandwidth_factor=3.4,
                        bandwidth_bytes_per_s=4.2e8,
                        step_ns=80e6,
                        sentence="hy.auto would overtake it from 3.4 times this bandwidth.",
                    ),
                    Turn(
                        challenger="dp.ddp",
                        link_class="ethernet",
                        bandwidth_factor=None,
                        bandwidth_bytes_per_s=None,
                        step_ns=None,
                        sentence="",
                        reason="dp.ddp is slower at any bandwidth: it computes longer.",
                    ),
                ),
            ),
        ),
        problems=(
            Problem(
                severity="warn",
                id=ProblemKind.SUPERLINEAR,
                text="1 of 12 runs was disturbed by another program.",
                runs=("dp.ddp-r1",),
                affects=(StudyPart.SCHEMES,),
            ),
        ),
        missing=(
            missing_figure(
                Figure.OTHER,
                Cause.PROBE_LIMIT,
                what="wire bytes of dp.ddp",
                reason="the counters were not read",
            ),
        ),
    )


COUNTS = (1, 2, 4, 8)
SPEEDUPS = (1.0, 1.86, 3.1, 4.4)


def scaling_study() -> StudyAnalysis:
    """1 to 8 ranks, strong; a fit goes on to 32. Serialization of 1 rank and all of lb_in are missing."""
    runs = tuple(
        run(f"n{count}", world_size=count, step_ms=400 / s) for count, s in zip(COUNTS, SPEEDUPS, strict=True)
    )
    points = tuple(
        ScalingPoint(
            world_size=count,
            runs=(f"n{count}",),
            is_reference=count == 1,
            samples_per_s=80 * speedup,
            samples_per_s_interval=None,
            step_ns=400e6 / speedup,
            speedup=speedup,
            speedup_interval=None
            if count == 1
            else Interval(low=0.95 * speedup, high=1.05 * speedup, num_repeats=3),
            efficiency=speedup / count,
            efficiency_interval=None
            if count == 1
            else Interval(low=0.95 * speedup / count, high=1.05 * speedup / count, num_repeats=3),
            ideal_speedup=float(count),
            karp_flatt=None if count == 1 else (1 / speedup - 1 / count) / (1 - 1 / count),
            no_interval="" if count > 1 else "it is the reference",
            composition=composition(400 / speedup, 0.05 + 0.04 * count),
        )
        for count, speedup in zip(COUNTS, SPEEDUPS, strict=True)
    )
    curve = tuple(
        FitCurvePoint(
            world_size=n,
            speedup=1 / (0.1 + 0.9 / n),
            low=1 / (0.13 + 0.87 / n),
            high=1 / (0.07 + 0.93 / n),
            extrapolated=n > 8,
        )
        for n in (1, 2, 4, 8, 16, 32)
    )
    rows = (
        ("global_efficiency", 0, (1.0, 0.93, 0.78, 0.55)),
        ("parallel_efficiency", 1, (1.0, 0.94, 0.82, 0.61)),
        ("load_balance", 2, (1.0, 0.99, 0.97, 0.96)),
        ("lb_in", 3, (None,) * 4),
        ("serialisation", 2, (None, 0.98, 0.96, 0.93)),
        ("transfer", 2, (1.0, 0.97, 0.88, 0.68)),
        ("computation_scaling", 1, (1.0, 0.99, 0.95, 0.9)),
    )
    pop = PopTree(
        world_sizes=COUNTS,
        rows=tuple(
            PopRow(
                factor=PopFactor(factor),
                depth=depth,
                values=values,
                reasons=tuple("" if value is not None else "one host" for value in values),
            )
            for factor, depth, values in rows
        ),
    )
    headline = "8 ranks are 4.4 times as fast as 1 (55 %); exposed communication grew most."
    return study(
        by="world_size",
        by_reason="the runs differ in their number of ranks",
        headline=headline,
        runs=runs,
        scaling=ScalingStudy(
            series=(
                ScalingSeries(
                    name="dp.ddp, alexnet",
                    mode="strong",
                    mode_reason="strong scaling: 32 samples in every step, whatever the ranks",
                    reference="n1",
                    reference_world_size=1,
                    reference_reason="fewest ranks of the study",
                    points=points,
                    fits=(
                        ScalingFit(
                            law="amdahl",
                            title="Amdahl's law",
                            formula="S = 1 / (f + (1 - f) / N)",
                            parameters=(
                                FitParameter(name="f", meaning="serial part", value=0.1, low=0.07, high=0.13),
                            ),
                            curve=curve,
                            error_ratio=0.02,
                            sentence="10 % of the step does not scale: no ranks are 10 times as fast.",
                        ),
                        ScalingFit(
                            law="pmnf",
                            title="PMNF",
                            formula="t = c0 + c1 N^a log2(N)^b",
                            refused="four points are too few",
                        ),
                    ),
                    pop=pop,
                    what_grew=(
                        Growth(
                            part="exposed_comm",
                            title="exposed communication",
                            before_ns=36e6,
                            after_ns=33.6e6,
                            expected_ns=4.5e6,
                            excess_ns=29.1e6,
                            excess_share=0.32,
                            sentence="Exposed communication is 29.1 ms over what is ideal.",
                        ),
                        Growth(
                            part="compute",
                            title="compute",
                            before_ns=324e6,
                            after_ns=48e6,
                            expected_ns=50e6,
                            excess_ns=-2e6,
                            excess_share=-0.02,
                            sentence="",
                        ),
                    ),
                    sentence=headline,
                    verdict="At 8 ranks perfscope's verdict: the link bounds the step.",
                    action="Send fewer bytes.",
                ),
            )
        ),
        action="Send fewer bytes.",
    )


def diff_study() -> StudyAnalysis:
    """Two runs: the step grew by a quarter, mostly by communication."""
    return study(
        by="",
        headline="after is 1.25 times as slow as before; exposed communication grew most.",
        runs=(run("before", step_ms=100.0), run("after", step_ms=125.0, composition=composition(125, 0.4))),
        diff=RunDiff(
            before="before",
            after="after",
            headline="after is 1.25 times as slow as before; exposed communication grew most.",
            sections=(
                DiffSection(
                    id="parts",
                    title="Parts of the step",
                    rows=(
                        DiffRow(
                            what="exposed communication",
                            unit="time",
                            before=20e6,
                            after=50e6,
                            change=30e6,
                            ratio=2.5,
                            weight=30e6,
                        ),
                        DiffRow(
                            what="compute",
                            unit="time",
                            before=70e6,
                            after=62e6,
                            change=-8e6,
                            ratio=62 / 70,
                            weight=8e6,
                        ),
                    ),
                    num_same=3,
                ),
                DiffSection(
                    id="machine",
                    title="Machine",
                    rows=(
                        DiffRow(
                            what="kernel",
                            unit="text",
                            before="6.18",
                            after="6.19",
                            change=None,
                            ratio=None,
                            weight=1.0,
                        ),
                    ),
                    num_same=5,
                ),
                DiffSection(
                    id="scheme",
                    title="Scheme",
                    rows=(
                        DiffRow(
                            what="calls",
                            unit="count",
                            before=4,
                            after=8,
                            change=4,
                            ratio=2.0,
                            weight=4,
                        ),
                        DiffRow(
                            what="bytes per call",
                            unit="bytes",
                            before=4096,
                            after=None,
                            change=None,
                            ratio=None,
                            weight=1,
                            only="before",
                        ),
                    ),
                    num_same=0,
                ),
                DiffSection(id="environment", title="Environment", rows=(), num_same=9),
                DiffSection(
                    id="layers", title="Layers", rows=(), num_same=0, reason="after traced no window"
                ),
            ),
        ),
        problems=(
            Problem(
                severity="refuse",
                id=ProblemKind.OTHER_MACHINE,
                text="before ran on EPYC 7543, after on Xeon 8358: speeds are the machines'.",
                runs=("before", "after"),
                affects=(StudyPart.DIFF,),
            ),
        ),
    )
