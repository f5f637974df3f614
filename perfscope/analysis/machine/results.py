"""What the analysis of the machine yields. Reports draw these and nothing else.

`None` means missing; the reason is in `MachineAnalysis.missing`. Instants are Unix ns, durations ns, rates
per second of base units (bytes, FLOP, joules).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from perfscope.analysis.missing import Missing
from perfscope.rundir.host_records import TopologyRecord
from perfscope.vocabulary.disturbances import DisturbanceKind
from perfscope.vocabulary.links import LinkClass
from perfscope.vocabulary.memory import LimitOf


class CounterTrack(Struct, frozen=True, kw_only=True):
    """One line of a chart over the whole run: a gauge, or a counter's rate, thinned to a few hundred points.

    `low` and `high` bound what each point stands for. Gaps (no reading) split a track: nan in `mean`.
    """

    id: str  # unique within the run: "<host>/<metric>{labels}"
    host: str
    # Which chart: rank_memory, host_memory, cpu, pressure, memory, numa, network, fabric, gpu, gpu_link,
    # power, clocks, io.
    group: str
    title: str  # "CPU busy", "eth0 sent", "GPU 0 clock"
    unit: str  # ratio, bytes_per_s, watts, hz, celsius, per_s, bytes
    t_ns: tuple[int, ...]  # middle of each point, Unix ns
    mean: tuple[float, ...]  # per bin
    low: tuple[float, ...]  # minimum per bin
    high: tuple[float, ...]  # maximum per bin
    peak: float | None = None  # what it could be at most, same unit
    peak_source: str = ""  # "measured", "link speed", "theoretical: ..."
    quality: str = "exact"  # the worst of its readings: see rundir.metrics.QUALITIES


class RankMemory(Struct, frozen=True, kw_only=True):
    """Resident memory of one rank's process over the run."""

    rank: int
    host: str
    peak_bytes: int  # the most that a sample saw
    peak_at_ns: int  # when, Unix ns
    shared_bytes: int | None  # part of it that is files or shared memory; None: not read
    first_bytes: int | None  # at the first sample after the first step began; None: no step
    last_bytes: int | None  # at the last sample before the last step ended; None: no step
    num_samples: int
    growth_bytes_per_s: float | None = None  # while steps run, to their end; None: no steady growth is seen


class MemoryLimit(Struct, frozen=True, kw_only=True):
    """Something of a host that has only so much memory, and the most of it that was in use."""

    host: str
    of: LimitOf
    name: str  # path of the control group, number of the device; "" = the host
    limit_bytes: int
    peak_bytes: int  # most in use by all processes, without what the kernel can take back at once
    peak_at_ns: int  # when, Unix ns
    headroom_bytes: int  # limit_bytes - peak_bytes
    headroom_ratio: float  # headroom_bytes / limit_bytes


class StoppedReading(Struct, frozen=True, kw_only=True):
    """A metric that ended before the run did."""

    host: str
    what: str  # the counter
    at_ns: int | None  # when, Unix ns; None: not known
    reason: str  # why it ended


class Ceiling(Struct, frozen=True, kw_only=True):
    """A measured peak of one host, or where nothing was measured the theoretical one."""

    host: str
    what: str  # "STREAM triad", "GEMM float32", "device copy"
    where: str  # "node 0", "all nodes", "GPU 0"
    threads: int | None  # that measured it; None: not by threads
    value: float  # in `unit`
    unit: str  # bytes_per_s or flops_per_s
    dtype: str | None  # of arithmetic; None: bandwidth
    source: str  # "measured", or "theoretical: ..."
    note: str = ""  # spread over repetitions, pressure while it was measured
    spread_ratio: float | None = None  # how far apart the repetitions are, where that is far
    pressure_ratio: float | None = None  # CPU pressure while it was measured, where that is high


class RooflinePoint(Struct, frozen=True, kw_only=True):
    """One layer and phase on the roofline (METRICS §5)."""

    layer: str
    phase: str  # forward, backward
    time_ns: int  # per step
    flops: int  # per step, modeled
    bytes: int  # per step
    intensity: float  # FLOP per byte
    flops_per_s: float  # modeled work / measured time
    bytes_per_s: float  # `bytes` / measured time
    attainable_flops_per_s: float  # min(peak, intensity x bandwidth)
    fraction: float  # flops_per_s / attainable
    bound: str  # compute, memory, neither (latency or overhead)
    bytes_source: str = "modeled"  # from shapes; "measured": misses of the last-level cache


class Roofline(Struct, frozen=True, kw_only=True):
    """Ceilings and points of one device class of one host.

    A CPU rank's roof is what its own number of threads reached, where that was measured and the host has a
    CPU for each; else `ranks_sharing` ranks divide the host's ceilings. A GPU's are its rank's own. What a
    layer does beyond a roof (fraction > 1) came from a cache, or the ceiling was measured too low.
    """

    host: str
    device: str  # "cpu" or the GPU's name
    dtype: str  # that the peak is for
    peak_flops_per_s: float  # peak arithmetic of one rank
    bandwidth_bytes_per_s: float  # peak memory bandwidth of one rank
    ranks_sharing: int  # 1 = the ceilings are each rank's own
    points: tuple[RooflinePoint, ...]  # one per layer and phase
    ceilings_source: str  # "measured, 1 thread", "measured, all 2 threads shared by 4 ranks"
    cached: bool | None = None  # a working set that fits the last-level cache can beat the memory roof
    measured_bytes_per_s: float | None = None  # a rank's part of the memory controllers' traffic


class FlopsUtilization(Struct, frozen=True, kw_only=True):
    """FLOPs of the layers per second of the typical step, of what the mean rank's device can do.

    MFU as in PaLM (Chowdhery et al. 2022, appendix B), but with the FLOPs of the operators that ran instead
    of a formula of the model; HFU where forward passes ran again in backward passes.
    """

    ratio: float
    flops_per_step: int  # of the mean rank: forward and backward of all layers
    peak_flops_per_s: float  # of one rank
    dtype: str  # that the peak is for
    device: str  # "cpu" or the GPU's name
    peak_source: str  # as Roofline.ceilings_source
    recomputes: bool  # activations are recomputed, and their FLOPs count: HFU


class RankPlacement(Struct, frozen=True, kw_only=True):
    """Where one rank runs and where its memory lies."""

    rank: int
    host: str
    pid: int | None  # process id
    cpus: str  # "0-3"; what it may run on
    cpu_nodes: tuple[int, ...]  # NUMA nodes of those CPUs
    memory_nodes: Mapping[int, float]  # node -> share of the sampled pages; empty = not known
    local_ratio: float | None  # share of pages on its CPUs' nodes
    policy: str  # "bind:2", "interleave:0-1", "default", "" = not known
    source: str  # "move_pages, 512 pages", "memory.numa_stat of the job"
    device_node: int | None = None  # NUMA node of its GPU
    note: str = ""  # why memory elsewhere is no mistake


class LinkTraffic(Struct, frozen=True, kw_only=True):
    """Traffic of one link or port over the run."""

    host: str
    link_class: LinkClass  # class of the link
    name: str  # "eth0", "mlx5_0/1", "GPU 0 NVLink", "node 0 DRAM"
    direction: str  # sent, received, read, written
    bytes: int  # sum over the training steps
    mean_bytes_per_s: float  # over the training steps
    p95_bytes_per_s: float  # 95th percentile of the rate
    peak_bytes_per_s: float | None  # maximum rate of the link; None: not known
    peak_source: str  # where the maximum is from
    quality: str  # of the counter: exact, saturated or ambiguous
    errors: int | None = None  # retransmits, symbol errors ...; None = not counted
    numa_node: int | None = None  # of the device; None: not known


class WireBytes(Struct, frozen=True, kw_only=True):
    """Collectives of one window against what the links carried meanwhile (METRICS §2)."""

    window: int
    start_ns: int
    dur_ns: int  # duration
    algorithmic_bytes: int  # the formula's, summed over ranks that cross the link
    wire_bytes: int | None  # None: no reading fell into the window
    link_class: LinkClass  # class of the link
    links: tuple[str, ...]  # names of the links
    covered_ns: int  # time between the readings that were used; longer than the window at 10 Hz
    reason: str = ""  # why not, or what blurs the comparison


class Energy(Struct, frozen=True, kw_only=True):
    """Energy over the training steps."""

    host: str
    domain: str  # "CPU package 0", "DRAM 0", "GPU 0"
    joules: float  # over the training steps
    mean_watts: float  # over the training steps
    source: str  # "RAPL", "NVML field 83"


class Disturbance(Struct, frozen=True, kw_only=True):
    """Another program or the hardware took part of the machine for a while."""

    host: str
    kind: DisturbanceKind  # what took the resource
    start_ns: int
    end_ns: int
    severity: float  # 0..1: share of the resource taken
    title: str  # one sentence with figures
    evidence: tuple[str, ...]  # "stress-ng (pid 4242, user bob): 1.9 CPUs"
    names: tuple[str, ...] = ()  # of the processes, the busiest first; empty: not known, or no processes
    within_steps: bool = True  # False: before the first step or after the last; it disturbed no step
    windows: tuple[int, ...] = ()  # traced windows that the disturbance overlaps
    # Median duration of the host's steps in it, and outside every disturbance, over all the host's ranks;
    # without warm-up and traced steps. None: fewer than effects.FEWEST steps on either side.
    step_ns_during: int | None = None
    step_ns_otherwise: int | None = None  # median step outside every disturbance
    num_steps_during: int = 0  # such steps in it, of the rank that has most


class StackFrame(Struct, frozen=True, kw_only=True):
    """A Python frame and how often it was on top, and anywhere, in the sampled stacks."""

    name: str  # function
    file: str  # source file
    line: int | None  # in the file
    self_ratio: float  # share of samples with the frame on top
    total_ratio: float  # share of samples with the frame anywhere


class StackNode(Struct, frozen=True, kw_only=True):
    """A Python frame below those that called it; nodes are in order of depth-first search."""

    depth: int  # callers above it
    name: str  # function
    file: str  # source file
    ratio: float  # share of samples with this frame below these callers


class SamplerCost(Struct, frozen=True, kw_only=True):
    host: str
    interval_ns: int  # between samples
    num_samples: int  # samples taken
    cpu_ratio: float | None  # of one core
    late_ratio: float | None  # ticks that came more than half an interval late
    ended: str  # "every rank has ended"; "" = killed, or still running


class MachineAnalysis(Struct, frozen=True, kw_only=True):
    """One run's machines.

    `clean` is True when nothing disturbed the run, False when something did, None when that is not known.
    """

    hosts: tuple[str, ...]
    topologies: Mapping[str, TopologyRecord]  # by host
    clean: bool | None  # whether no disturbance took a notable share; None: not known
    clean_reason: str  # what was looked at, what disturbed the run, or what is missing
    disturbed_summary: str = ""  # the first sentence of a disturbed run's `clean_reason`; "" else
    disturbances: tuple[Disturbance, ...] = ()  # of all hosts, those within steps first
    tracks: tuple[CounterTrack, ...] = ()  # lines of the counter charts
    ceilings: tuple[Ceiling, ...] = ()  # measured and theoretical peaks
    rooflines: tuple[Roofline, ...] = ()  # one per host or device that has one
    rank_memory: tuple[RankMemory, ...] = ()  # resident memory of ranks over the run
    memory_limits: tuple[MemoryLimit, ...] = ()  # of hosts, control groups and devices: peak and headroom
    placements: tuple[RankPlacement, ...] = ()  # CPUs and memory of each rank
    traffic: tuple[LinkTraffic, ...] = ()  # bytes over each link
    wire: tuple[WireBytes, ...] = ()  # bytes of collectives by formula and on the wire
    energy: tuple[Energy, ...] = ()  # by host and source
    joules_per_sample: float | None = None  # energy of all hosts / samples
    stacks: tuple[StackFrame, ...] = ()  # Python frames, most time first
    stack_tree: tuple[StackNode, ...] = ()  # frames below their callers
    costs: tuple[SamplerCost, ...] = ()  # overhead of the sampler, by host
    stopped: tuple[StoppedReading, ...] = ()  # counters that ended before the run
    missing: tuple[Missing, ...] = ()
    start_ns: int | None = None  # first and last reading, Unix ns: the time axis of the tracks
    end_ns: int | None = None
    windows: tuple[tuple[int, int, int], ...] = ()  # (window, start, end), Unix ns
    steps_start_ns: int | None = None  # first step's start and last step's end, Unix ns
    steps_end_ns: int | None = None  # end of the last step, Unix ns
    # Some traced window overlaps a disturbance; None: no window, or not known.
    traced_disturbed: bool | None = None
    # What a mean counted step lost to all disturbances, and as a share of it; None = not known or nothing.
    disturbed_ns: int | None = None
    disturbed_ratio: float | None = None  # gain of a run without disturbances / step
    pressures: Mapping[str, float] = {}  # host -> share of time CPUs were waited for
