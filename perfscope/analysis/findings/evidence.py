"""What findings are drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from perfscope.analysis.experts.results import Experts
from perfscope.analysis.fault_results import RankFaults
from perfscope.analysis.kernels.results import Kernels
from perfscope.analysis.layers import UnevenLayer
from perfscope.analysis.loading.results import RankLoading
from perfscope.analysis.loading.what_ifs import MeanInput
from perfscope.analysis.machine.cpu_waits import CpuWaits
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.results import MachineAnalysis
from perfscope.analysis.machine.thread_states import ThreadStates
from perfscope.analysis.missing_reasons import NoWindow
from perfscope.analysis.phases import PhaseResult
from perfscope.analysis.pipeline.results import Pipeline
from perfscope.analysis.rank_facts import framework_of
from perfscope.analysis.results import (
    Breakdown,
    CollectiveCall,
    CollectiveResult,
    Communication,
    LayerResult,
    Quantiles,
    RankResult,
)
from perfscope.analysis.server import ServerLoad
from perfscope.analysis.waits.outside import NOT_COMPARED, SlowOutside, UntracedWork
from perfscope.analysis.whatif.analyze import NOTHING, WhatIfs
from perfscope.analysis.whatif.results import WhatIf
from perfscope.analysis.whole_run.growth import StepGrowth
from perfscope.analysis.whole_run.results import WholeRun
from perfscope.messages.advice import advice_key
from perfscope.messages.findings.facts import Basis, PartOfStep, Prediction
from perfscope.rundir.records import RankRecord, RunRecord
from perfscope.vocabulary.run_parts import RunPart
from perfscope.vocabulary.workload import Workload


class Evidence(Struct, frozen=True, kw_only=True):
    """All that findings are drawn from."""

    run: RunRecord
    metas: Mapping[int, RankRecord]
    ranks: Sequence[RankResult]
    layers: Sequence[LayerResult]
    collectives: Sequence[CollectiveResult]
    calls: Sequence[CollectiveCall]
    in_calls_ns: int | None  # as in RunAnalysis
    waiting_ns: int | None
    step_ns: Quantiles | None
    overhead_ratio: float | None
    breakdown_of: str  # "step" or "file"
    machine: MachineAnalysis | None = None
    hosts: Sequence[Host] = ()  # what `machine` was drawn from
    traced_ratio: float | None = None  # mean traced step / median untraced one; None: none is untraced
    spread_ratio: float | None = None  # between the medians of the run's halves; None: too few steps
    cpu_waits: CpuWaits = CpuWaits()
    states: Mapping[int, ThreadStates] = {}  # by rank, what its main thread sleeps in
    other_threads_ns: Mapping[int, float] = {}  # by rank, CPU time of other threads per usual step
    slept_ratio: Mapping[int, float | None] = {}  # by traced rank, share of untraced steps asleep in gaps
    what_ifs: WhatIfs = NOTHING
    communication: Communication | None = None
    uneven: UnevenLayer | None = None  # a layer of which ranks compute unequal shares
    arithmetic_ratio: float | None = None  # of the slowest rank, FLOPs over those of the others
    untraced: UntracedWork = NOT_COMPARED  # how ranks that compute on CPUs differ in untraced steps
    outside: SlowOutside | None = None  # a rank that the others wait for in untraced steps
    server: ServerLoad | None = None  # of a run with one parameter server
    pipeline: Pipeline | None = None
    experts: Experts | None = None
    workload: Workload = Workload.TRAINING
    whole_run: WholeRun | None = None
    loading: tuple[RankLoading, ...] = ()
    mean_input: MeanInput | None = None  # None: no rank timed its waiting for input
    beside: Mapping[RunPart, Mapping[int, float]] = {}  # by part and rank, share of the traced steps
    page_faults: Sequence[RankFaults] = ()
    phases: Sequence[PhaseResult] = ()
    step_growth: StepGrowth | None = None
    kernels: Kernels | None = None
    no_window: NoWindow | None = None  # why no window can be used, where none can

    @property
    def traced(self) -> list[tuple[RankResult, Breakdown]]:
        return [(rank, rank.breakdown_ns) for rank in self.ranks if rank.breakdown_ns is not None]

    @property
    def framework(self) -> str:
        """The key of its recommendations (`messages.advice`)."""
        return advice_key(framework_of(self.metas), self.workload)

    @property
    def step(self) -> float:
        """Mean analyzed step over the traced ranks, ns; 0 without a trace."""
        return self.mean("step")

    @property
    def mean_step_ns(self) -> float | None:
        """Training time per step, with what is in long steps; None: not known."""
        whole_run = self.whole_run
        if whole_run is None or not whole_run.num_steps or not whole_run.training_ns:
            return self.step_ns.median if self.step_ns is not None else None
        return whole_run.training_ns / whole_run.num_steps

    @property
    def has_step_marks(self) -> bool:
        return self.breakdown_of == "step"

    @property
    def basis(self) -> Basis:
        """What a verdict rests on."""
        return Basis(
            num_ranks=len(self.traced), num_steps=self.steps_per_rank, has_step_marks=self.has_step_marks
        )

    def mean(self, part: str) -> float:
        """Mean of one part of the breakdown over the traced ranks, ns."""
        values = [getattr(breakdown, part) for _, breakdown in self.traced]
        return sum(values) / len(values) if values else 0.0

    @property
    def steps_per_rank(self) -> float:
        """Analyzed steps of the mean traced rank."""
        return self.mean("num_steps")

    def gain(self, what_if: str, cost: float) -> tuple[int, float]:
        """(ns, share of the step) that removing a cause brings: by the replay, else all that is laid to it.

        Args:
            what_if: id of the question the replay answers.
            cost: time of the mean traced step that is laid to the cause, ns.
        """
        if self.what_ifs.usable:
            result = self.what_ifs.of(what_if)
            return (result.gain_ns, result.gain_ratio) if result else (0, 0.0)
        return self.all_of(cost)

    def all_of(self, cost: float) -> tuple[int, float]:
        """(ns, share of the step) of time of the mean traced step, on the scale of the usual one."""
        return self.share_of_step(cost / self.step)

    def of_communication(self, gain_ns: int, gain_ratio: float) -> tuple[int, float]:
        """What a remedy of communication brings, no more than all exposed communication.

        The replay may be of fewer windows than the shares of the step. Ranks that communicate wait for the
        one with the least exposed time, so that the mean is not saved in full.
        """
        cost = self.mean("exposed_comm")
        return min((gain_ns, gain_ratio), self.all_of(cost), key=lambda gain: gain[1])

    def share_of_step(self, share: float) -> tuple[int, float]:
        """(ns, share) of the median step."""
        usual = self.step_ns.median if self.step_ns is not None else self.step
        return round(share * usual), share

    def of_step(self, part_ns: float) -> PartOfStep:
        return PartOfStep(part_ns=part_ns, step_ns=self.step, has_step_marks=self.has_step_marks)


def prediction_of(what_if: WhatIf) -> Prediction:
    """What the sentence of a finding says of its replay."""
    return Prediction(change=what_if.title, step_ns=what_if.step_ns, caution=what_if.caution)
