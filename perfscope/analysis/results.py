"""What analysis yields. Reports draw these and nothing else.

`None` means missing; the reason is in `RunAnalysis.missing`. Times are integer nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from perfscope.analysis.allocations import AllocatorWindow
from perfscope.analysis.bench import BenchResult
from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.counter_results import LayerCounters, StepCounters
from perfscope.analysis.critical.results import CriticalPath
from perfscope.analysis.efficiency.results import Efficiency
from perfscope.analysis.execution import ExecutionStructure
from perfscope.analysis.experts.results import Experts
from perfscope.analysis.fault_results import RankFaults
from perfscope.analysis.file_io import FileIo
from perfscope.analysis.hangs import Hang
from perfscope.analysis.intervals import Float64, Int64
from perfscope.analysis.kernels.results import Kernels, StreamQueue
from perfscope.analysis.loading.results import RankLoading
from perfscope.analysis.machine.results import FlopsUtilization, MachineAnalysis
from perfscope.analysis.missing import Missing
from perfscope.analysis.phases import PhaseResult
from perfscope.analysis.pipeline.results import Pipeline
from perfscope.analysis.progress import GroupProgress
from perfscope.analysis.self_check_results import SelfCheck
from perfscope.analysis.waits.results import StepWaits, WaitAnalysis
from perfscope.analysis.whatif.results import ReplayCheck, WhatIf
from perfscope.analysis.whole_run.results import WholeRun
from perfscope.analysis.window_results import UnlikeWindow
from perfscope.messages.advice import advice_key
from perfscope.messages.findings import FindingFacts, FindingText, Subject, finding_text
from perfscope.messages.findings.confidence import Confidence
from perfscope.messages.findings.facts import Basis
from perfscope.rundir.inspector_records import CommunicatorCalls
from perfscope.rundir.records import RunRecord
from perfscope.vocabulary.communication import NoTimes, Unattributed
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.host_activity import HostActivity
from perfscope.vocabulary.kernels import KernelType
from perfscope.vocabulary.links import LinkClass, NoLink
from perfscope.vocabulary.workload import Workload


class Quantiles(Struct, frozen=True, kw_only=True):
    """Median, 10th and 90th percentile (linear interpolation) of `count` values."""

    median: int  # 50th percentile
    p10: int  # 10th percentile
    p90: int  # 90th percentile
    count: int  # number of values


class Breakdown(Struct, frozen=True, kw_only=True):
    """Where the mean analyzed step of one rank went (METRICS §1). The parts add up to `step` exactly."""

    step: int
    compute: int
    exposed_comm: int
    copy: int
    input_wait: int
    optimizer: int
    idle: int
    num_steps: int  # steps the mean is taken over

    PARTS = ("compute", "exposed_comm", "copy", "input_wait", "optimizer", "idle")


class DeviceBreakdown(Struct, frozen=True, kw_only=True):
    """Device timeline of one rank over a selection of device events; totals, not per step.

    span = last end - first start; idle = span - union of all events;
    idle = idle_host_wait + idle_kernel_wait + idle_other exactly.
    """

    num_events: int  # kernels, copies and sets
    span: int  # first start to last end, ns
    compute: int  # union of compute kernels, ns
    comm: int  # union of communication, ns
    exposed_comm: int  # communication not under compute, ns
    copy: int  # copies and sets not under compute or communication
    idle: int  # no kernel, copy or set, ns
    idle_host_wait: int  # idle until the host launched the next kernel, ns
    idle_kernel_wait: int  # gaps below 30 µs between kernels, ns
    idle_other: int  # other idle time, ns
    overlap_ratio: float | None  # |comm and compute| / |comm|; None when comm = 0


class DeviceIdle(Struct, frozen=True, kw_only=True):
    """Idle time of one rank's devices during which its host was in one call, operator or function.

    The entries of a rank add up to `device_ns.idle`. Runtime calls of any thread go before operators, these
    before Python functions; where several runtime calls cover the same time, a copy goes before a
    synchronization, an allocation and a launch.

    Attributes:
        kind: what the host was in.
        name: of the call, operator or function; None: it has none, or stands for several with little time.
        queue_empty_ns: of it, while nothing that was launched waited to begin: the device waited for the
            host. None where the trace does not say when most device events were launched; so is `after_ns`.
        after_ns: idle time with nothing queued from the end of calls that had waited for all work of the
            device until the next work begins; part of `ns` of other entries, never of this one.
        calls: that cover idle time.
        operator: in which more than half of the time of blocking calls was; None: in no single one.
        range: likewise, a range that the program or a library marks.
        layer: likewise.
    """

    kind: HostActivity
    name: str | None
    ns: int
    queue_empty_ns: int | None
    after_ns: int | None
    calls: int
    operator: str | None = None
    range: str | None = None
    layer: str | None = None


class HostIdle(Struct, frozen=True, kw_only=True):
    """Idle time of the mean analyzed step of a rank that computes on the CPU, by what its thread did.

    The entries of a rank add up to `breakdown_ns.idle`.
    """

    kind: HostActivity
    ns: int


class CommByLayer(Struct, frozen=True, kw_only=True):
    """Communication of one layer, or of the boundary between two pipeline stages, per mean step and rank.

    Attributes:
        layer: the innermost module that needs the calls, or ``stage 0 → 1``.
        exposed_ns: not under computation.
        hidden_ns: under computation.
        calls: of ranks that make any; those that serve several layers count in parts.
        bytes: S of METRICS §2; None: the trace has no size.
        axes: axis -> exposed ns; they add up to `exposed_ns`.
        axis_bytes: axis -> bytes, of the axes whose calls' sizes the trace has.
    """

    layer: str
    exposed_ns: int
    hidden_ns: int
    calls: float
    bytes: int | None
    axes: Mapping[str, int]
    axis_bytes: Mapping[str, int] = {}


class CommByAxis(Struct, frozen=True, kw_only=True):
    """Communication along one axis of the mesh, per mean step and rank.

    Attributes:
        axis: name of the axis, or of the group where its axis is not known.
        inferred: from the calls, because nothing names it.
        group_size: ranks of a group; None: the groups have several sizes, or it is not known.
        link_class: that the group's bytes go over; None: not known, for the reason `no_link`.
        ports: of the hosts, over which they go; () = not known, or not from host to host.
        calls: per rank.
        bytes: S of METRICS §2; None: the trace has no size.
        busbw_bytes_per_s: while data moves, waits not counted; None: no call was matched across ranks.
        wait_ns: waiting for the last rank to enter; None: not known, for the reason `no_times`.
        transfer_ns: what remains of the calls; None likewise.
        hidden_ns: under computation.
        exposed_ns: not under computation.
        collectives: collective -> exposed ns; they add up to `exposed_ns`.
    """

    axis: str
    inferred: bool
    group_size: int | None
    link_class: LinkClass | None
    no_link: NoLink | None
    ports: tuple[str, ...]
    calls: float
    bytes: int | None
    busbw_bytes_per_s: float | None
    wait_ns: int | None
    transfer_ns: int | None
    no_times: NoTimes | None
    hidden_ns: int
    exposed_ns: int
    collectives: Mapping[str, int] = {}


class CommUnattributed(Struct, frozen=True, kw_only=True):
    """Communication of no layer, per mean step and rank.

    Attributes:
        reason: why it has none.
        exposed_ns: not under computation.
        calls: per rank.
        collectives: kind of collective -> exposed ns; they add up to `exposed_ns`.
        axes: axis -> exposed ns, likewise.
    """

    reason: Unattributed
    exposed_ns: int
    calls: float
    collectives: Mapping[str, int]
    axes: Mapping[str, int]


class CommGroupResult(Struct, frozen=True, kw_only=True):
    """Calls on one process group that are of one axis; `inferred`: nothing names the group."""

    group: str
    axis: str
    inferred: bool
    group_size: int | None  # None: not known
    collectives: tuple[str, ...]  # kinds of calls


class Communication(Struct, frozen=True, kw_only=True):
    """All communication of the mean step, averaged over ranks.

    The exposed times of `by_layer` and `unattributed` together, and those of `by_axis`, add up to
    `exposed_ns` exactly.

    Attributes:
        exposed_ns: not under computation; the step breakdown's.
        hidden_ns: under computation.
        by_layer: the longest exposed first.
        by_axis: likewise.
        unattributed: likewise.
    """

    exposed_ns: int
    hidden_ns: int
    by_layer: Sequence[CommByLayer]
    by_axis: tuple[CommByAxis, ...]
    unattributed: tuple[CommUnattributed, ...]


class RankResult(Struct, frozen=True, kw_only=True):
    rank: int
    host: str
    num_steps: int  # steps counted by the always-on probe (imports: ProfilerStep marks)
    num_traced_steps: int  # steps in analyzed windows
    step_ns: Quantiles | None  # of this rank's steps, warm-up excluded
    breakdown_ns: Breakdown | None
    comm_ns: int | None  # |union of communication| per mean analyzed step
    overlap_ratio: float | None  # share of communication overlapped with compute
    device_ns: DeviceBreakdown | None  # every device event in the files
    input_wait_ns: int | None  # always-on: median per step
    samples_per_step: float | None  # median; None: not known
    overhead_ns: int | None  # what the probe cost this rank in all
    elapsed_ns: int | None  # first step's start to last step's end
    idle_host_wait_ns: int | None = (
        None  # part of breakdown_ns.idle: the device waited for a launch; None: no device
    )
    recompute_ns: int | None = (
        None  # of breakdown_ns.compute: forward calls again in backward; None: no marks
    )
    finished: bool | None = None  # the rank closed its files; False: killed or still running; None: imported
    communication: Communication | None = None  # None: no step was traced
    device_idle: tuple[DeviceIdle, ...] | None = None  # the longest first; None: no device was traced
    host_idle: tuple[HostIdle, ...] | None = None  # likewise; None: a device was traced, or no step was
    streams: tuple[StreamQueue, ...] = ()  # by device and stream; (): no launch was traced
    kernel_ns: Mapping[KernelType, int] = {}  # of `kernels`, this rank's: by type
    device: str = ""  # that its model is on, such as "cuda:0 NVIDIA H200"; "": not known
    peak_rss_bytes: int | None = None  # most memory that its process held; None: not recorded
    peak_device_bytes: int | None = None  # most that its framework held of the device's; None likewise
    peak_reserved_bytes: int | None = None  # most that its framework's allocator had reserved there
    parameter_bytes: int | None = None  # what its parameters take; None: not measured, here and below
    gradient_bytes: int | None = None  # when the optimizer's third update began
    optimizer_bytes: int | None = None  # the optimizers' state
    buffer_bytes: int | None = None  # the models' buffers
    unknown: tuple[str, ...] = ()  # parts of `breakdown_ns` that are 0 only because no trace records them


class LayerResult(Struct, frozen=True, kw_only=True):
    """One layer; times are the mean per analyzed step, averaged over ranks."""

    layer: str
    module_type: str | None
    calls: float | None  # forward calls per step; None: the trace does not mark layers' calls
    forward_ns: int  # compute in the forward pass
    backward_ns: int  # compute in the backward pass
    exposed_comm_ns: int | None  # None: the trace does not tie collectives to layers
    flops: int | None  # per step and rank, forward + backward, modeled from shapes
    bytes: int | None  # likewise, read + written
    order: int  # position of first execution, to sort as the network runs
    num_params: int | None = None  # the layer's own parameters; None: an imported trace does not list them
    forward_flops: int | None = None  # `flops` and `bytes` by phase
    backward_flops: int | None = None  # likewise
    forward_bytes: int | None = None  # likewise
    backward_bytes: int | None = None  # likewise
    counters: LayerCounters | None = None  # measured; None: `missing` has the reason, or no probe reads them


class CollectiveResult(Struct, frozen=True, kw_only=True):
    """All calls of one collective on one group, over the analyzed windows, averaged over member ranks."""

    collective: str
    group: str
    group_size: int | None  # ranks of the process group; None: the trace does not say which group it was
    dtype: str | None  # None: several, or not in the trace
    count: int  # calls per rank
    bytes: int | None  # S of METRICS §2 summed over calls whose size the trace has; None: it has no size
    duration_ns: int  # sum over calls of the mean rank's duration
    transfer_ns: int | None  # sum over matched calls; None: fewer ranks traced than the group has
    wait_ns: int | None  # sum over matched calls of the mean rank's wait
    max_wait_ns: int | None  # longest wait of one rank in one call
    algbw_bytes_per_s: float | None  # from transfer_ns
    busbw_bytes_per_s: float | None  # from transfer_ns
    busbw_with_wait_bytes_per_s: float | None  # from duration_ns
    late_counts: tuple[tuple[int, int], ...]  # (rank, times it entered last), most often first
    num_matched: int  # calls found on all ranks of the group
    num_waits_uncertain: int | None = None  # waits (rank x call) smaller than the hosts' clock residual
    num_unsized: int = 0  # calls per rank without a size: not in `bytes`, nor in the bandwidths


class CollectiveCall(Struct, frozen=True, kw_only=True):
    """One matched collective: the k-th of its group and kind in one window."""

    window: int
    seq: int
    collective: str
    group: str
    start_ns: int  # last rank's entry
    transfer_ns: int
    late_rank: int
    start_skew_ns: int
    end_skew_ns: int
    bytes: int | None
    late_uncertain: bool = False  # another host's rank came within the uncertainty of the clocks


class Arrivals(Struct, frozen=True, kw_only=True, eq=False):
    """Matched calls of one kind on one group and window; matrices of shape (ranks, calls)."""

    window: int
    collective: str
    group: str
    ranks: tuple[int, ...]
    seq: Int64  # shape (calls,)
    enter_ns: Int64  # reference host's clock
    exit_ns: Int64
    wait_ns: Int64  # for the last rank to enter


class LayerTimes(Struct, frozen=True, kw_only=True):
    """One layer on each rank that runs it.

    Attributes:
        ranks: which.
        means: of each, per analyzed step, shape (ranks, 7): forward and backward ns, calls, modeled work.
    """

    ranks: Sequence[int]
    means: Float64


class StepMarks(Struct, frozen=True, kw_only=True):
    """What each step of one rank is: a byte for each of its `step_series`, 1 or 0.

    Attributes:
        counted: the quantiles are taken over it: no warm-up, and not traced where enough steps are not.
        traced: by a window.
        numbers: of the traced ones, as their windows number them.
    """

    counted: bytes
    traced: bytes
    numbers: Sequence[int] = ()


class Finding(Struct, frozen=True, kw_only=True):
    """One cause, with the gain removing it would bring. `messages.findings` has its sentences."""

    id: FindingKind
    facts: FindingFacts
    gain_ns: int | None = None  # off the median step; of_training: off the mean step of the whole training
    gain_ratio: float | None = None  # gain_ns / that step
    layer: str | None = None
    rank: int | None = None
    collective: str | None = None
    axis: str | None = None  # of the mesh, where it is about the communication along one
    basis: Basis | None = None  # of the verdict
    symptoms: tuple[FindingKind, ...] = ()  # findings that are consequences of this one; they come next
    confidence: Confidence | None = None  # how far it can be trusted
    symptom_of: FindingKind | None = None  # the finding that this one is a consequence of
    of_training: bool = False  # training_ns / num_steps of whole_run is the step of the gain
    of_mean: bool = False  # the mean untraced step is; of file_sync and object_collectives the mean of all

    @property
    def text(self) -> FindingText:
        """Title, detail and action; a symptom has no action of its own."""
        is_verdict = self.basis is not None and self.symptom_of is None
        subject = Subject(kind=self.id, rank=self.rank, layer=self.layer, is_verdict=is_verdict)
        text = finding_text(self.facts, subject, self.basis)
        return text if self.symptom_of is None else text._replace(action="")


class FileProvenance(Struct, frozen=True, kw_only=True):
    """What became of one input file."""

    path: str  # relative to the run directory
    rank: int
    window: int
    events_read: int  # events in the file
    events_kept: int  # events used by the timeline
    events_cut: int  # launched before the window; counted from the window's start
    events_dropped: int  # unreadable
    events_skipped: int  # readable but of no use to the timeline (Python frames, flow arrows, metadata)
    unclassified: tuple[tuple[str, int], ...]  # device kernels that no rule classifies (name, count)
    salvaged: bool  # the file was damaged
    notes: tuple[str, ...]  # rank source, damage in words, step source
    ends_early: bool = False  # events at the end of the file are lost
    steps_cut: int = 0  # steps that are left out because the file does not hold them whole


class RunAnalysis(Struct, frozen=True, kw_only=True):
    run: RunRecord
    ranks: tuple[RankResult, ...]
    layers: tuple[LayerResult, ...]
    collectives: tuple[CollectiveResult, ...]
    calls: tuple[CollectiveCall, ...]
    step_ns: Quantiles | None  # over all ranks' steps, warm-up excluded
    throughput_samples_per_s: float | None  # of all ranks; None: batch size not known
    # "loader": what it gave; "derived" from the root module's input; "program" reported it; "option";
    # "scheme" (bench)
    samples_source: str | None
    overhead_ratio: float | None  # profiling overhead / training time
    findings: tuple[Finding, ...]  # the verdict first, then by gain
    missing: tuple[Missing, ...]
    provenance: tuple[FileProvenance, ...]  # one per trace file
    step_series: Mapping[int, Sequence[int]] = {}  # rank -> step durations, in order
    step_marks: Mapping[int, StepMarks] = {}  # by rank
    in_calls_ns: int | None = None  # mean rank: |union| of matched collective calls, over all windows
    waiting_ns: int | None = None  # part of in_calls_ns spent waiting for the last rank to enter
    clocks: ClockFit = field(default_factory=lambda: ClockFit(reference=""))  # hosts' clocks, drift included
    clock_residual_ns: int | None = None  # doubt left in comparing hosts' clocks; None: one host, or unknown
    samples_per_step: float | None = None  # of the median step of all ranks (batches vary: mean)
    batch_range: tuple[int, int] | None = None  # samples per rank and step, where they vary
    # Mean step, where it is far from the median: the throughput follows it, unless it is a scheme's.
    uneven_mean_ns: float | None = None
    tokens_per_s: float | None = None  # of all ranks; None: not known, or no model of tokens
    tokens_per_step: float | None = None  # likewise, of the mean step
    flops_utilization: FlopsUtilization | None = None  # None: as `machine.rooflines`, or not by step
    breakdown_of: str = (
        "step"  # "step", or "file" where the traces have no step marks: breakdowns cover the file
    )
    machine: MachineAnalysis | None = None  # None: nothing of the machine was recorded
    bench: BenchResult | None = None  # None: not a run of `perfscope bench`
    page_faults: tuple[RankFaults, ...] = ()  # of ranks whose probe counts them
    loading: tuple[RankLoading, ...] = ()  # of ranks with data loaders that have workers
    file_io: FileIo | None = None  # by logs of Darshan; None: none were imported
    phases: tuple[PhaseResult, ...] = ()  # by name; each before those that are nested in it
    whole_run: WholeRun | None = None  # account of the run's wall time; None: `missing` has the reason
    efficiency: Efficiency | None = None  # None: `missing` has the reason
    what_ifs: tuple[WhatIf, ...] = ()  # largest gain first
    replay: ReplayCheck | None = None  # how well the unchanged replay matches; None: nothing was replayed
    waits: WaitAnalysis | None = None
    critical_paths: tuple[CriticalPath, ...] = ()  # one per window and step
    kernels: Kernels | None = None  # None: nothing was traced
    communication: Communication | None = None  # None: no step was traced
    allocations: tuple[AllocatorWindow, ...] = ()  # by rank and device; (): as `missing` says, or no device
    process_groups: tuple[CommGroupResult, ...] = ()  # on which the traced steps communicate
    labeled_calls: Mapping[tuple[int, int], Any] = {}  # communication.LabeledCalls, of ranks in timelines
    pipeline: Pipeline | None = None  # None: no pipeline, or `missing` has the reason
    experts: Experts | None = None  # None: no expert parallelism, or `missing` has the reason
    counters: StepCounters | None = None  # None: no rank read any
    progress: tuple[GroupProgress, ...] = ()  # of process groups, from dumps of a flight recorder
    communicators: tuple[CommunicatorCalls, ...] = ()  # from records of NCCL Inspector, of all steps
    execution: ExecutionStructure | None = None  # None: no execution trace of PyTorch
    workload: Workload = Workload.TRAINING  # what the program does
    arrivals: tuple[Arrivals, ...] = ()  # every matched call of every rank
    step_waits: StepWaits | None = None  # None: no call was matched in a step
    layer_times: Mapping[str, LayerTimes] = {}  # by layer
    framework: str = "torch"  # that trained, "keras-jax" with Keras's backend; torch where none is recorded
    traced_ratio: float | None = None  # mean traced step / median untraced one; None: none is untraced
    unlike_windows: tuple[UnlikeWindow, ...] = ()  # left out of everything that is traced
    hangs: tuple[Hang, ...] = ()  # in order of time
    self_checks: tuple[SelfCheck, ...] = ()  # of the figures above against each other
    remarks: tuple[str, ...] = ()  # what probes and readers noted of the training, a sentence each

    @property
    def advice_key(self) -> str:
        """Of its recommendations (`messages.advice`)."""
        return advice_key(self.framework, self.workload)
