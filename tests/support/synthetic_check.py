"""Checks with the figures of real trainings (a small CNN on two processes), one of each kind of outcome."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfscope.gate.metrics import METRICS
from perfscope.gate.records import Composition, Fingerprint, LayerTime, RunFigures, Surroundings
from perfscope.gate.results import (
    CheckResult,
    Difference,
    ExcludedRun,
    Explanation,
    MetricVerdict,
    Moved,
    Noise,
    Outcome,
    Side,
    State,
)

FINGERPRINT = Fingerprint(
    cpu="AMD EPYC 7B13",
    num_cpus=2,
    num_hosts=1,
    torch="2.13.0+cpu",
    perfscope="0.1.0",
    world_size=2,
    batch=32,
)
BASE_P10 = (26.24, 26.93, 27.09, 25.72, 26.21, 25.72, 27.13, 26.79)  # ms, eight runs of the same training
HEAD_P10 = (28.92, 29.37, 29.94, 28.77, 29.04, 28.16, 30.11, 29.37)
AGAIN_P10 = (26.80, 26.54, 27.31, 25.38, 26.47, 26.02, 26.90, 26.35)
ABSENT = {"energy": "no energy counter was readable", "peak_device_memory": "no device memory was used"}


def run(side: str, pair: int, p10_ms: float, **changes: object) -> RunFigures:
    step = p10_ms * 1e6
    made = RunFigures(
        name=f"perfscope-runs/{side}-{pair}",
        fingerprint=FINGERPRINT,
        metrics={
            "step_p10": step,
            "step_mean": step * 1.17,
            "stalls": 0.0,
            "throughput": 28.1e9 / step,
            "input_wait": 385_122.0,
            "exposed_comm": 6_230_000.0,
            "peak_memory": 431_800_320.0,
        },
        absent=dict(ABSENT),
        num_steps=139,
        composition=Composition(
            step=39.6e6,
            compute=27.75e6,
            exposed_comm=7.59e6,
            copy=0,
            input_wait=0.43e6,
            optimizer=0.62e6,
            idle=3.21e6,
            num_steps=6,
        ),
        layers=(LayerTime(layer="block2.conv", forward_ns=963_136, backward_ns=1_720_299),),
        surroundings=Surroundings(
            start_unix_ns=1_795_296_413_505_695_508 + pair * 20_000_000_000,
            commit={"base": "4f1c2e8", "head": "9ab03d7"}[side] * 5,
            hosts=("ci-7",),
            packages={"torch": "2.13.0+cpu"},
        ),
        clean=True,
        side=side,
        pair=pair,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def runs(side: str, p10_ms: Sequence[float]) -> tuple[RunFigures, ...]:
    return tuple(run(side, pair, value) for pair, value in enumerate(p10_ms, 1))


def verdict(
    id_: str,
    state: State = "ok",
    figures: tuple[float | None, float | None] = (None, None),
    worse: tuple[float, float, float] | None = None,
    p: float | None = None,
    reason: str = "",
    severity: str | None = None,
) -> MetricVerdict:
    metric = METRICS[id_]
    if severity is not None:
        metric = replace(metric, severity=severity)  # type: ignore[arg-type]
    by, low, high = worse if worse is not None else (None, None, None)
    known = figures[0] is not None
    return MetricVerdict(
        metric=metric,
        state=state,
        base=figures[0],
        head=figures[1],
        worse=by,
        low=low,
        high=high,
        p=p,
        num_base=8 * known,
        num_head=8 * known,
        paired=True,
        reason=reason,
    )


def _unmeasured() -> tuple[MetricVerdict, ...]:
    return tuple(verdict(id_, "unknown", reason=ABSENT[id_]) for id_ in ("peak_device_memory", "energy"))


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) * 1e6


def _compared(
    base: Sequence[float],
    head: Sequence[float],
    states: Mapping[str, tuple[State, tuple[float, float, float], float]],
) -> tuple[MetricVerdict, ...]:
    first, second = _median(base), _median(head)
    figures = {
        "step_p10": (first, second),
        "step_mean": (first * 1.17, second * 1.17),
        "stalls": (0.0, 0.0),
        "throughput": (28.1e9 / first, 28.1e9 / second),
        "input_wait": (385_122.0, 398_326.0),
        "exposed_comm": (6_230_000.0, 6_192_000.0),
        "peak_memory": (431_800_320.0, 432_013_312.0),
    }
    quiet: tuple[State, tuple[float, float, float], float] = ("ok", (0.0003, -0.0015, 0.0012), 0.422)
    found = []
    for id_, values in figures.items():
        state, worse, p = states.get(id_, quiet)
        found.append(verdict(id_, state, values, worse, p))
    return (*found, *_unmeasured())


def check(name: str, outcome: Outcome, headline: str, **fields: object) -> CheckResult:
    made = CheckResult(name=name, outcome=outcome, headline=headline, planned=8, fingerprint=FINGERPRINT)
    return replace(made, **fields)  # type: ignore[arg-type]


def _pairs(base: Sequence[float], head: Sequence[float]) -> tuple[float, ...]:
    return tuple(second / first - 1 for first, second in zip(base, head, strict=True))


def passed() -> CheckResult:
    return check(
        "small-cnn",
        Outcome.PASS,
        "Pass: no slow-down beyond 5 %; a step takes −0.2 % (26.5 → 26.5 ms), 95 % interval −1.4 to +1.2 %.",
        metrics=_compared(BASE_P10, AGAIN_P10, {"step_p10": ("ok", (-0.0016, -0.0142, 0.0118), 0.629)}),
        base=Side(label="base", runs=runs("base", BASE_P10[:6])),
        head=Side(label="head", runs=runs("head", AGAIN_P10[:6])),
        pairs=_pairs(BASE_P10[:6], AGAIN_P10[:6]),
        stopped="after 6 pairs no slow-down can be proven any more",
        noise=Noise(spread=0.011, visible=0.062),
        elapsed_s=248.0,
    )


def regression() -> CheckResult:
    return check(
        "small-cnn",
        Outcome.REGRESSION,
        "Regression: a step takes 10.3 % longer (26.5 → 29.2 ms), 95 % interval +9.2 to +11.1 %, p = 0.004.",
        metrics=_compared(
            BASE_P10,
            HEAD_P10,
            {
                "step_p10": ("worse", (0.1027, 0.0922, 0.1107), 0.0039),
                "step_mean": ("worse", (0.1034, 0.0781, 0.1266), 0.0039),
                "throughput": ("worse", (0.1027, 0.0922, 0.1107), 0.0039),
            },
        ),
        base=Side(label="main", runs=runs("base", BASE_P10)),
        head=Side(label="head", runs=runs("head", HEAD_P10)),
        pairs=_pairs(BASE_P10, HEAD_P10),
        noise=Noise(spread=0.013, visible=0.066),
        left_out=(
            ExcludedRun(
                name="perfscope-runs/head-3",
                side="head",
                reason="disturbed: other processes used 0.81 of 2 CPUs",
            ),
        ),
        explanation=Explanation(
            cause="compute",
            headline="computation takes 2.41 ms longer per step, all of it in block2",
            action="Look at what changed in block2: `git diff main -- train.py`.",
            parts=(
                _moved("part", "compute", "Computation", 21.6e6, 24.0e6, 2.41e6, 0.21e6),
                _moved("part", "idle", "Idle", 3.2e6, 3.3e6, 0.04e6, 0.31e6),
            ),
            layers=(
                _moved(
                    "layer",
                    "block2",
                    "block2",
                    129e3,
                    2.49e6,
                    2.36e6,
                    0.3e6,
                    "forward +980 µs, backward +1.38 ms",
                ),
                _moved("layer", "stem", "stem", 676e3, 690e3, 14e3, 90e3),
            ),
            surroundings=(
                Difference(
                    what="clock",
                    base="2.45 GHz",
                    head="2.44 GHz",
                    weighty=False,
                    text="CPU clock: 2.45 GHz → 2.44 GHz.",
                ),
                Difference(what="commit", base="4f1c2e8", head="9ab03d7", weighty=False, text=""),
            ),
            notes=("Layers are timed in traced steps, which took 1.49 times as long as the others.",),
        ),
        elapsed_s=372.4,
    )


def _moved(
    kind: str, what: str, title: str, base: float, head: float, change: float, half: float, note: str = ""
) -> Moved:
    return Moved(
        kind=kind,
        what=what,
        title=title,
        base_ns=base,
        head_ns=head,
        change_ns=change,
        low_ns=change - half,
        high_ns=change + half,
        note=note,
    )


def other_fingerprint() -> CheckResult:
    other = replace(FINGERPRINT, torch="2.12.1+cpu", num_cpus=4)
    base = tuple(replace(one, fingerprint=other) for one in runs("base", BASE_P10[:5]))
    unknown = [verdict(id_, "unknown", (26.2e6, 29.0e6)) for id_ in ("step_p10", "step_mean")]
    return check(
        "small-cnn",
        Outcome.INCONCLUSIVE,
        "Inconclusive: Not comparable: torch version differs, 2.12.1+cpu in base-1 and 2.13.0+cpu in head-1.",
        reasons=(
            "Not comparable: number of CPUs differs, 4 in base-1 and 2 in head-1.",
            "Compare runs of the same fingerprint; allow the difference with `--allow torch`.",
        ),
        metrics=tuple(unknown),
        base=Side(label="perf/baseline.json", runs=base),
        head=Side(label="head", runs=runs("head", HEAD_P10[:5])),
        planned=5,
    )


def four_runs() -> CheckResult:
    known = {"step_p10": (26.6e6, 29.1e6), "step_mean": (31.1e6, 34.1e6), "peak_memory": (4.3e8, 4.3e8)}
    return check(
        "small-cnn",
        Outcome.INCONCLUSIVE,
        "Inconclusive: 4 pairs (2 disturbed runs left out), at least 5 pairs are needed: repeat.",
        metrics=(
            *(verdict(id_, "unknown", both, reason="known of 4 pairs only") for id_, both in known.items()),
            *_unmeasured(),
        ),
        base=Side(label="base", runs=runs("base", BASE_P10[:4])),
        head=Side(label="head", runs=runs("head", HEAD_P10[:4])),
        pairs=_pairs(BASE_P10[:4], HEAD_P10[:4]),
        noise=Noise(spread=0.021),
        left_out=tuple(
            ExcludedRun(
                name=f"perfscope-runs/{side}-5", side=side, reason="disturbed: 11 % of the time stolen"
            )
            for side in ("base", "head")
        ),
        elapsed_s=201.0,
    )


def no_baseline() -> CheckResult:
    return check(
        "small-cnn",
        Outcome.NO_BASELINE,
        "No baseline: perf/baseline.json has no runs of small-cnn on this machine.",
        reasons=("Make one: perfscope baseline update perf/baseline.json RUN…",),
        base=Side(label="perf/baseline.json"),
        head=Side(label="head", runs=runs("head", AGAIN_P10[:5])),
        planned=5,
    )


def failed() -> CheckResult:
    return check(
        "small-cnn",
        Outcome.FAILED,
        "Measurement failed: nothing was measured of head: perfscope-runs/head-1: its command ended with "
        "exit code 3.",
        base=Side(label="base", runs=runs("base", BASE_P10[:1])),
        left_out=(
            ExcludedRun(
                name="perfscope-runs/head-1", side="head", reason="its command ended with exit code 3"
            ),
        ),
        elapsed_s=41.8,
    )


def warnings_only() -> CheckResult:
    made = passed()
    changed = {
        "peak_memory": verdict(
            "peak_memory", "worse", (431_800_320.0, 512_000_000.0), (0.1857, 0.1832, 0.1881), 0.0156
        ),
        "input_wait": verdict(
            "input_wait", "worse", (385_122.0, 1_868_293.0), (0.0559, 0.0512, 0.0604), 0.0156
        ),
    }
    return replace(
        made,
        metrics=tuple(changed.get(one.metric.id, one) for one in made.metrics),
        warnings=("12 of 16 runs say nothing of the commit.",),
    )


def better() -> CheckResult:
    return check(
        "small-cnn",
        Outcome.PASS,
        "Pass: a step takes 9.3 % less time (29.2 → 26.5 ms), 95 % interval −10.0 to −8.5 %.",
        metrics=_compared(
            HEAD_P10,
            BASE_P10,
            {
                "step_p10": ("better", (-0.0931, -0.0996, -0.0845), 1.0),
                "throughput": ("better", (-0.0931, -0.0996, -0.0845), 1.0),
            },
        ),
        base=Side(label="base", runs=runs("base", HEAD_P10)),
        head=Side(label="head", runs=runs("head", BASE_P10)),
        pairs=_pairs(HEAD_P10, BASE_P10),
        noise=Noise(spread=0.013, visible=0.066),
        elapsed_s=365.0,
    )


SAMPLES = {
    "pass": passed,
    "regression": regression,
    "other-fingerprint": other_fingerprint,
    "four-runs": four_runs,
    "no-baseline": no_baseline,
    "failed": failed,
    "warnings-only": warnings_only,
    "better": better,
}

HOSTILE = (
    "\x1b[31mred\x1b[0m\x07\x00",
    "\u202eevil\u202c\u200b",
    "half \udc80 \ud83d surrogate",
    "a]]>b<script>alert(1)</script>&amp;",
    "|cell|\\|`code`|``",
    "::error title=x::pwned",
    "##[add-mask]x",
    "line\nbreak\r\n::warning::two\x85three\u2028four",
    "\"quoted\" 'single' \\ back\\",
    "@octocat #1 https://example.org www.example.org [link](javascript:x) ![i](x) <!-- c -->",
    "宽字宽字宽字" * 30,
    "x" * 5000,
    "\ufffe\uffff",
    "   ",
    "",
)


def hostile(name: str) -> CheckResult:
    """A regression in which every string is `name`."""
    made = regression()
    assert made.explanation is not None
    moved = tuple(
        Moved(
            kind="layer",
            what=name,
            title=name,
            base_ns=1.0,
            head_ns=math.inf,
            change_ns=3.0,
            low_ns=2.0,
            high_ns=4.0,
            note=name,
        )
        for _ in range(3)
    )
    around = Surroundings(commit=name, command=(name,), hosts=(name,), packages={name: name})
    own = replace(
        run("head", 1, 28.9), name=name, absent={name: name}, surroundings=around, clean_reason=name
    )
    verdicts = tuple(replace(one, reason=name) for one in made.metrics)
    return replace(
        made,
        name=name,
        headline=name,
        reasons=(name, name),
        metrics=verdicts,
        base=Side(label=name, runs=(own,)),
        head=Side(label=name, runs=(own,) * 2),
        stopped=name,
        left_out=(ExcludedRun(name=name, side=name, reason=name),) * 9,
        explanation=Explanation(
            cause="compute",
            headline=name,
            action=name,
            parts=moved,
            layers=moved,
            collectives=moved,
            surroundings=tuple(
                Difference(what=name, base=name, head=name, weighty=weighty, text=text)
                for weighty in (True, False)
                for text in (name, "")
            ),
            notes=(name,),
        ),
        fingerprint=Fingerprint(cpu=name, gpus=(name, name), scheme=name),
        warnings=(name,),
        settings={name: name, "thresholds": (math.nan, name)},
    )
