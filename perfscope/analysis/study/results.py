"""What the comparison of several runs yields. Reports draw these and nothing else.

`None` means missing; the reason is in the `reason` beside it or in `StudyAnalysis.missing`. Missing is never
0 or 100 %. Times are integer nanoseconds unless a mean makes them float; rates are per second, sizes bytes,
shares ratios. The drawing side was written against these names: add fields with a default, rename none.

A figure that rests on repeats carries an `Interval`; the runs are its unit, never their steps (the steps of
one run share its placement, its cache and its neighbors).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from perfscope.analysis.bench_bytes import LinkBytes
from perfscope.analysis.efficiency.results import Efficiency
from perfscope.analysis.learning import LearningResult
from perfscope.analysis.missing import Missing
from perfscope.analysis.results import Finding, Quantiles, RunAnalysis
from perfscope.analysis.study.diff_results import DiffRow as DiffRow
from perfscope.analysis.study.diff_results import DiffSection as DiffSection
from perfscope.analysis.study.diff_results import RunDiff as RunDiff
from perfscope.analysis.study.figures import Composition as Composition
from perfscope.analysis.study.figures import Interval as Interval
from perfscope.analysis.study.framework_results import FrameworkStudy as FrameworkStudy
from perfscope.analysis.study.pareto_results import ParetoPoint
from perfscope.analysis.study.step_results import StepDifference, StepPart
from perfscope.rundir.records import FrameworkRunRecord, LayersRecord, Options, RankRecord
from perfscope.rundir.scheme_records import BenchRecord
from perfscope.rundir.typed import read_as
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.comparison import CannotTell, ProblemKind, RankBasis, StudyPart
from perfscope.vocabulary.efficiency import PopFactor

Severity = Literal["refuse", "warn"]
REFUSE: Severity = "refuse"
WARN: Severity = "warn"
STRONG, WEAK = "strong", "weak"

PARTS = ("compute", "exposed_comm", "copy", "input_wait", "optimizer", "idle")
POP_ROWS = tuple(factor for factor in PopFactor if factor is not PopFactor.COMMUNICATION)


class RunEntry(Struct, frozen=True, kw_only=True, eq=False):
    """One run as it goes in: its analysis under a name, usually its path as the user gave it.

    Attributes:
        bench_records: reader.bench_records(); loss curves and memory per rank come from it. {} where the run
            is no bench run, or where they are not wanted.
        metas: reader.rank_records; threads, device and library versions come from it.
        layers: rank -> reader.layers(rank); which model it was, with `analysis.layers` in its place.
    """

    name: str
    analysis: RunAnalysis
    bench_records: Mapping[int, BenchRecord] = {}
    metas: Mapping[int, RankRecord] = {}
    layers: Mapping[int, LayersRecord] = {}


class UnusableRun(Struct, frozen=True, kw_only=True):
    """A run that was named and cannot be read, or a cell of a study that was not run."""

    name: str
    reason: str


class Problem(Struct, frozen=True, kw_only=True):
    """Why a comparison is refused, or must be read with care. Loud: shown before any figure.

    Attributes:
        severity: REFUSE: the figures named in `affects` are missing for it. WARN: they stand, with doubt.
        id: which problem; the value is a stable slug.
        text: one sentence for a person, with the figures.
        runs: labels of the runs it is about.
        affects: what of the study.
    """

    severity: Severity
    id: ProblemKind
    text: str
    runs: tuple[str, ...] = ()
    affects: tuple[StudyPart, ...] = (StudyPart.EVERYTHING,)


class LossCurve(Struct, frozen=True, kw_only=True):
    """Training loss after each step, mean over the ranks that know theirs; the four are equally long.

    `samples`: seen until then by all ranks; `seconds`: since the first step's start. Empty: not known.
    """

    steps: tuple[int, ...]
    samples: tuple[int, ...]
    seconds: tuple[float, ...]
    losses: tuple[float, ...]


class MachineFacts(Struct, frozen=True, kw_only=True):
    """What the runs' machines are, as far as comparison goes. "" or None: not recorded."""

    hosts: tuple[str, ...]
    cpu: str = ""  # models of all hosts
    num_cpus: int | None = None  # of the first host
    num_nodes: int | None = None  # NUMA nodes of the first host
    memory_bytes: int | None = None
    gpus: tuple[str, ...] = ()  # models, of all hosts
    kernel: str = ""
    cluster: str = ""  # the emulated cluster of `perfscope bench`, "2x2@1gbit"
    device: str = ""  # what the ranks compute on: "cpu", "cuda"
    link_bytes_per_s: float | None = None  # a host's link to the others, as stated by the cluster or the NIC

    @property
    def text(self) -> str:
        """The machine in one phrase; "" where nothing is known."""
        parts = [self.cpu, f"{self.num_cpus} CPUs" if self.num_cpus else "", *dict.fromkeys(self.gpus)]
        parts.append(f"emulated cluster {self.cluster}" if self.cluster else "")
        return ", ".join(part for part in parts if part)


class StudyRun(Struct, frozen=True, kw_only=True):
    """One run of the study."""

    label: str  # unique within the study, short: what tables and charts call it
    name: str  # as given to RunEntry
    group: str  # value of what runs are grouped by; "" = none
    repeat_key: str  # runs with the same key are repeats of one setting
    repeat: int  # 1 is the first of its key
    world_size: int | None
    num_hosts: int | None
    ranks_per_host: tuple[int, ...]
    num_ranks_seen: int
    scheme: str  # full name with modifiers; "" = not a bench run
    axes: Mapping[str, str]  # the scheme's DDLS axes: parallelism, optimisation, synchrony, topology
    mesh: str = ""
    model: str  # bench: the model and its input; else see models.py; "" = not known
    task: str = ""  # bench: classes, stored data and label noise
    batchless_key: str = ""  # runs with the same differ in batch and labels alone; "": not synchronous
    dtype: str
    threads: int | None  # of each rank
    batch: int | None  # samples of a step over all ranks
    effective_batch: int | None = None  # samples in one update
    samples_per_s: float | None
    samples_source: str | None
    step_ns: Quantiles | None
    num_steps: int | None  # of the rank with most
    composition: Composition | None
    step_parts: tuple[StepPart, ...] = ()  # of the same step, exposed communication by axis and layer
    efficiency: Efficiency | None
    peak_memory: tuple[tuple[int, int], ...]  # (rank, bytes); empty = not known
    peak_memory_bytes: int | None  # of the rank with most
    links: tuple[LinkBytes, ...] = ()  # bytes per step by link class; bench runs only
    first_loss: float | None = None
    last_loss: float | None = None
    held_out_loss: float | None = None
    loss_curve: LossCurve | None
    diverged: bool
    disturbed: bool | None  # None: not known
    disturbances: tuple[str, ...]
    incomplete: tuple[str, ...]  # reasons; () = complete
    incomplete_causes: tuple[Cause, ...]  # of the same
    running: bool
    machine: MachineFacts
    perfscope_version: str = ""
    packages: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}
    options: Mapping[str, object] = {}
    command: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    missing: tuple[Missing, ...] = ()  # what of this run is not there
    origin: str = ""  # "run", "import"
    fixed_share: float | None = None  # of the bytes between hosts: what does not grow with the batch
    num_params: int | None = None  # as far as its ranks hold them; None: not known, or a bench run
    typical_step_ns: float | None = None  # what samples_per_s is of: see gather.typical_step
    findings: tuple[Finding, ...] = ()  # the first of its own report, the verdict foremost
    framework: str = ""  # "torch", "keras-jax"; "" = not known
    framework_version: str = ""
    backend: str = ""  # of collectives, "gloo", "nccl"; "" = not known
    settings: Mapping[str, str] = {}  # options of the run and of its bench, as text
    learning: LearningResult | None = None  # what was measured between its steps
    losses: tuple[float | None, ...] = ()  # by step, mean over ranks; None where one of them knows no number

    @property
    def framework_run(self) -> FrameworkRunRecord | None:
        """What `perfscope bench run --framework` was asked; None of any other run."""
        record = read_as(Options, self.options).framework_run
        return None if record == FrameworkRunRecord() else record

    @property
    def samples_per_rank(self) -> float | None:
        """Samples of a step over the ranks: what tells strong from weak scaling."""
        return self.batch / self.world_size if self.batch and self.world_size else None


class ScalingPoint(Struct, frozen=True, kw_only=True):
    """One number of ranks: median over its repeats (composition: mean).

    `is_reference` has speedup and efficiency exactly 1. `ideal_speedup` is N / N_0 for both modes (weak:
    throughput grows with N). `efficiency` = speedup N_0 / N. `karp_flatt`: strong scaling against one rank
    only; None else, and for the reference.
    """

    world_size: int
    runs: tuple[str, ...]
    is_reference: bool
    samples_per_s: float
    samples_per_s_interval: Interval | None
    step_ns: float | None  # typical step, median over repeats
    speedup: float
    speedup_interval: Interval | None
    efficiency: float
    efficiency_interval: Interval | None
    ideal_speedup: float
    karp_flatt: float | None
    no_interval: str  # why there is none; "" = there is
    composition: Composition | None
    disturbed: int = 0  # of its runs


class FitParameter(Struct, frozen=True, kw_only=True):
    name: str  # "f", "alpha", "beta"
    meaning: str  # "serial part"
    value: float
    low: float | None
    high: float | None


class FitCurvePoint(Struct, frozen=True, kw_only=True):
    """Predicted speedup at `world_size`; `extrapolated` = beyond the largest measured."""

    world_size: float
    speedup: float
    low: float | None
    high: float | None
    extrapolated: bool = False


class ScalingFit(Struct, frozen=True, kw_only=True):
    """One law fitted to a series' points. `refused`: why it is not drawn, with no parameters; "" = it is."""

    law: str  # "amdahl", "gustafson", "usl", "pmnf"
    title: str  # "Amdahl's law"
    formula: str  # "S = 1 / (f + (1 - f) / N)"
    parameters: tuple[FitParameter, ...] = ()
    curve: tuple[FitCurvePoint, ...] = ()
    error_ratio: float | None = None  # SMAPE of the fit over the points
    sentence: str = ""  # the conclusion, in words
    refused: str = ""


class PopRow(Struct, frozen=True, kw_only=True):
    """One factor of the POP hierarchy; `values` are in the order of PopTree.world_sizes, None = missing."""

    factor: PopFactor  # of POP_ROWS
    depth: int  # 0: global_efficiency; how far it is indented
    values: tuple[float | None, ...]
    reasons: tuple[str, ...]  # why a value is missing, in the same order; "" = it is there


class PopTree(Struct, frozen=True, kw_only=True):
    """The heat table: factors by number of ranks (METRICS §3). Acceptable: >= ACCEPTABLE."""

    world_sizes: tuple[int, ...]
    rows: tuple[PopRow, ...]  # in the order of POP_ROWS


class Growth(Struct, frozen=True, kw_only=True):
    """One part of the step between the reference and the largest N. Times per step, mean over ranks.

    `expected_ns`: what ideal scaling would leave (strong: before x N_0 / N; weak: before);
    `excess_ns` = after - expected: what the part costs the efficiency. Largest excess first.
    """

    part: str  # of PARTS
    title: str  # "exposed communication"
    before_ns: float
    after_ns: float
    expected_ns: float
    excess_ns: float
    excess_share: float | None  # of the step at the largest N
    sentence: str


class ScalingSeries(Struct, frozen=True, kw_only=True):
    """Runs that differ in the number of ranks alone, and what follows from the mode.

    Where `refused` is not "", it says why there is no scaling figure: points is () and nothing was guessed.
    """

    name: str  # what they share, where the study has several: scheme, model
    mode: str | None  # STRONG or WEAK; None: not known
    mode_reason: str  # "stated: weak scaling", "strong scaling: 256 samples per step are divided ..."
    reference: str  # label of a run at the reference number of ranks
    reference_world_size: int | None
    reference_reason: str  # "fewest ranks of the study", "stated with --reference"
    points: tuple[ScalingPoint, ...] = ()  # by world size
    fits: tuple[ScalingFit, ...] = ()
    pop: PopTree | None = None
    pop_missing: str = ""
    what_grew: tuple[Growth, ...] = ()
    what_grew_missing: str = ""
    sentence: str = ""  # "4 ranks are 2.9 times as fast as 1 (72 %); exposed communication grew most"
    verdict: str = ""  # of a run at the largest N: what bounds its step
    action: str = ""
    refused: str = ""
    refusal: ProblemKind | Literal[""] = ""  # mixed_settings, no_scaling, no_mode
    reference_stated: bool = False  # by --reference
    cannot_tell: CannotTell | None = None  # why speedup and efficiency say nothing


class ScalingStudy(Struct, frozen=True, kw_only=True):
    series: tuple[ScalingSeries, ...]


class SchemeRow(Struct, frozen=True, kw_only=True):
    """One setting (scheme, or label value): medians over its repeats, composition and bytes means.

    Fastest first.
    """

    key: str  # the repeat key
    title: str  # what tables call it: the scheme, with the mesh where two rows share the scheme
    group: str
    scheme: str
    mesh: str
    axes: Mapping[str, str]
    runs: tuple[str, ...]
    num_repeats: int
    samples_per_s: float | None
    samples_per_s_values: tuple[float, ...]
    samples_per_s_interval: Interval | None
    step_ns: float | None
    composition: Composition | None
    step_parts: tuple[StepPart, ...] = ()  # as of a run, mean over its repeats
    efficiency: Efficiency | None  # of the first repeat that has one
    links: tuple[LinkBytes, ...]
    peak_memory_bytes: float | None
    batch: int | None
    effective_batch: int | None
    first_loss: float | None
    last_loss: float | None
    held_out_loss: float | None
    num_disturbed: int
    num_diverged: int
    missing: tuple[Missing, ...] = ()


class Pair(Struct, frozen=True, kw_only=True):
    """Samples/s of `a` over those of `b` (row titles). Antisymmetric: the pair (b, a) has 1 / ratio.

    `level`: the interval holds 1, so that neither is faster for certain; None: no interval.
    """

    a: str
    b: str
    ratio: float
    interval: Interval | None
    p_value: float | None  # permutation test over runs; None as the interval
    level: bool | None
    reason: str  # why there is no interval; "" = there is


class Turn(Struct, frozen=True, kw_only=True):
    """Where the winner would change, as modeled: exposed communication goes as 1 / bandwidth, nothing else.

    Either `bandwidth_factor` and the rest, or None and `reason`. `challenger` overtakes the winner once the
    links of `link_class` are `bandwidth_factor` times as fast (> 1) or as slow (< 1) as now.
    """

    challenger: str
    link_class: str
    bandwidth_factor: float | None
    bandwidth_bytes_per_s: float | None  # that factor x what the winner's links carried; None: not known
    step_ns: float | None  # of both, there
    sentence: str
    reason: str = ""


class BatchTurn(Struct, frozen=True, kw_only=True):
    """Where the winner would change with the batch, as modeled (see turning.py); only those that would.

    `challenger` overtakes the winner at about `batch` samples per step, `batch_factor` times those of now.
    """

    challenger: str
    batch_factor: float
    batch: int
    step_ns: float  # of both, there
    sentence: str


class LearningRow(Struct, frozen=True, kw_only=True):
    """One setting by what its runs took to the target, or by their goodput."""

    title: str  # of its SchemeRow
    value: float | None  # median over runs: ns, J, price or samples/s; None: no run reached the target
    values: tuple[float, ...]
    interval: Interval | None
    num_runs: int
    num_reached: int  # runs that have a value


class LearningRanking(Struct, frozen=True, kw_only=True):
    """Settings by how fast they learn, best first; see learning.py.

    `level`: the interval of the first two's ratio holds 1: which is better is not known; None: there is none.
    """

    basis: RankBasis
    target: str  # METRIC=VALUE; "" = ranked by goodput
    rows: tuple[LearningRow, ...]
    ratio: float | None  # how many times as good the first is as the second
    interval: Interval | None  # of the ratio
    level: bool | None
    headline: str
    action: str
    note: str = ""  # why it is not the basis that was asked for; "" = it is


class SchemeVerdict(Struct, frozen=True, kw_only=True):
    """Which wins, by how much, why, and where the order would turn: four plain sentences."""

    winner: str  # row title; "" = none
    runner_up: str
    ratio: float | None
    level: bool | None  # the repeats do not tell the two apart; None: no repeats to say
    headline: str
    cannot_tell: CannotTell | None = None  # why the order says nothing
    why: str
    turn: str
    caution: str  # what the samples/s do not say (losses, effective batch, disturbed runs); "" = nothing
    action: str = ""


class SchemeStudy(Struct, frozen=True, kw_only=True):
    """Settings that may be compared: same model, batch, machine and number of ranks, or what `by` names.

    `title` names what they share. `refused`: why no winner is named; rows stand all the same.
    """

    title: str
    by: str  # "scheme", "label:K", "batch,backend": what --by takes
    rows: tuple[SchemeRow, ...]
    pairs: tuple[Pair, ...]  # each unordered pair once, rows' order
    verdict: SchemeVerdict | None
    turns: tuple[Turn, ...] = ()  # against the winner, most likely first
    refused: str = ""
    batch_turns: tuple[BatchTurn, ...] = ()  # the sentence of the nearest is in `verdict.turn`, too
    differences: tuple[StepDifference, ...] = ()  # of the fastest row's step to each other row's
    learning: LearningRanking | None = None  # None: not all runs have the same target, or a noise scale
    unseen: str = ""  # of which rows the exposed share leaves out what was under way before the window
    pareto: tuple[ParetoPoint, ...] = ()  # of the rows, in their order


class StudyAnalysis(Struct, frozen=True, kw_only=True, eq=False):
    """The study. Show `problems` first; a refusal there explains what is missing further down."""

    by: str  # "world_size", "scheme", "label:K", "batch,backend": what --by takes; "" = nothing to group by
    by_reason: str  # "stated with --by", "the runs differ in their number of ranks"
    headline: str  # one sentence over the whole study
    runs: tuple[StudyRun, ...]
    scaling: ScalingStudy | None
    schemes: tuple[SchemeStudy, ...]  # one per set of settings that may be compared; () = none asked for
    diff: RunDiff | None
    problems: tuple[Problem, ...]  # refusals first
    missing: tuple[Missing, ...]
    action: str = ""  # what to do; "" = nothing follows
    frameworks: tuple[FrameworkStudy, ...] = ()  # by framework only: one per model

    @property
    def refused(self) -> bool:
        """Whether something asked for is refused."""
        return any(problem.severity == REFUSE for problem in self.problems)

    def run(self, label: str) -> StudyRun:
        """The run with that label. Raises KeyError."""
        for run in self.runs:
            if run.label == label:
                return run
        raise KeyError(label)
