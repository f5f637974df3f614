"""What a check yields. Reports draw these and nothing else.

A change is always given as "worse by": positive is bad, whatever the metric's direction. Shares are ratios.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from perfscope.gate.metrics import GateMetric
from perfscope.gate.records import Fingerprint, RunFigures


class Outcome(enum.Enum):
    """The verdict, and the exit code that says it."""

    PASS = 0
    REGRESSION = 1
    INCONCLUSIVE = 3
    NO_BASELINE = 4
    FAILED = 5

    @property
    def word(self) -> str:
        return self.name.lower()


# ok: no proof of worse than the threshold. worse: proven. unproven: the median is beyond the threshold, the
# test does not prove it. better: proven better by more than the threshold. unknown: not measured on one
# side, or too few runs.
State = Literal["ok", "worse", "unproven", "better", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricVerdict:
    """One metric of one check.

    Attributes:
        base, head: median over the side's runs, in the metric's unit.
        worse: median over pairs (or ratio of medians) by which head is worse; negative = better.
        low, high: 95 % interval of `worse`.
        p: one-sided p value that head is worse than base.
        reason: one sentence; why unknown or unproven, "" where there is nothing to add.
        in_reasons: the check's headline or its reasons state `reason`.
    """

    metric: GateMetric
    state: State
    base: float | None = None
    head: float | None = None
    worse: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    num_base: int = 0
    num_head: int = 0
    paired: bool = False
    reason: str = ""
    in_reasons: bool = False

    @property
    def fails(self) -> bool:
        """Whether this alone makes the check a regression."""
        return self.state == "worse" and self.metric.severity == "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedRun:
    """A run that is not judged: `disturbed` by the machine, or failed, or no run at all."""

    name: str
    side: str
    reason: str
    disturbed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of the check. `label`: "base" and "head", a git reference, or a baseline file."""

    label: str
    runs: tuple[RunFigures, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How much runs of the same thing differ here.

    Attributes:
        spread: standard deviation of a run's step_p10 over the runs of one side (drift taken out by pairs
            where there are any), as a share; robust (from the median absolute deviation).
        visible: the smallest slow-down that this check would have found four times out of five.
    """

    spread: float
    visible: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A part of the step, a layer or a collective that takes longer or shorter than it did.

    Attributes:
        kind: "part", "layer" or "collective".
        what: id: a name of records.PARTS, a layer's path, a collective's name.
        title: the same for a person.
        base_ns, head_ns: medians over runs, per step.
        change_ns: median change; low_ns, high_ns its 95 % interval.
        note: what else is known: "calls per step 1 → 2, bytes 133 KiB → 693 KiB".
    """

    kind: str
    what: str
    title: str
    base_ns: float
    head_ns: float
    change_ns: float
    low_ns: float
    high_ns: float
    note: str = ""

    @property
    def is_certain(self) -> bool:
        """The interval leaves out zero."""
        return self.low_ns > 0 or self.high_ns < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something around the runs that is not the same on both sides.

    Attributes:
        what: "clock", "throttling", "pressure", "neighbours", "steal", "hosts", "kernel", "command",
            "commit", "package torch", "environment OMP_NUM_THREADS", "option windows".
        weighty: it can explain a change of speed by itself, so code must not be blamed before it is looked
            at.
    """

    what: str
    base: str
    head: str
    weighty: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Which part of the step moved, and what differed around it.

    Attributes:
        cause: "compute", "exposed_comm", "copy", "input_wait", "optimizer", "idle", "surroundings" or
            "unknown".
        headline: one sentence with figures: "computation takes 2.4 ms longer, all of it in block2".
        action: what to do next, one sentence.
    """

    cause: str
    headline: str
    action: str = ""
    parts: tuple[Moved, ...] = ()
    layers: tuple[Moved, ...] = ()
    collectives: tuple[Moved, ...] = ()
    surroundings: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check.

    Attributes:
        name: the benchmark's name.
        headline: one sentence that begins with the verdict's word, and has its figures.
        reasons: further sentences a reader must know (why inconclusive, what was repeated), weightiest first.
        pairs: worse-by of step_p10 of each judged pair, in order; () where runs were not paired.
        planned: pairs (or runs a side) that were asked for.
        stopped: why fewer pairs were made than planned; "" = all were.
        warnings: what a reader should know besides, and what changes no outcome.
    """

    name: str
    outcome: Outcome
    headline: str
    reasons: tuple[str, ...] = ()
    metrics: tuple[MetricVerdict, ...] = ()
    base: Side = field(default_factory=lambda: Side(label="base"))
    head: Side = field(default_factory=lambda: Side(label="head"))
    pairs: tuple[float, ...] = ()
    planned: int = 0
    stopped: str = ""
    alpha: float = 0.05
    noise: Noise | None = None
    left_out: tuple[ExcludedRun, ...] = ()
    explanation: Explanation | None = None
    fingerprint: Fingerprint | None = None
    warnings: tuple[str, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    elapsed_s: float | None = None

    @property
    def deciding(self) -> MetricVerdict | None:
        """The verdict on step_p10."""
        return next((verdict for verdict in self.metrics if verdict.metric.id == "step_p10"), None)
