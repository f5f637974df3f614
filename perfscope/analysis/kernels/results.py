"""What the report says of kernels, copies, streams and graphs; of host operators where no device was traced.

Every table is a division of the same time: the sum over all kernels, copies and sets (or, without a device,
of all operators' own time), so each adds up to `Kernels.total_ns` exactly.
"""

from __future__ import annotations

from msgspec import Struct

from perfscope.vocabulary.kernels import CopyKind, KernelType


class TypeTime(Struct, frozen=True, kw_only=True):
    """All kernels, copies or operators of one type, over all ranks and windows.

    Attributes:
        share: of `total_ns`.
        matrix_ns: of it, in kernels whose names say that they use matrix units (tensor cores); None: not of
            this type, or no name tells.
        matrix_unknown_ns: in kernels whose names do not tell; None: not of this type.
    """

    type: KernelType
    calls: int
    total_ns: int
    mean_ns: float
    share: float
    matrix_ns: int | None = None
    matrix_unknown_ns: int | None = None


class KernelTime(Struct, frozen=True, kw_only=True):
    """All calls of one kernel, or operator where no device was traced; the last may stand for all others.

    Attributes:
        name: None: kernels with little time, together.
        type: None: of several.
        share: of `total_ns`.
        operator: that launched most of its time; None: none, or the launch is not in the trace.
        occupancy: achieved, estimated by the profiler, percent, mean over its time; None: not in the trace.
        registers: per thread, the most of any call; None likewise.
        grid: blocks, of the calls with most time, such as 32x2x1; None likewise.
        block: threads of a block, likewise.
        matrix_units: whether it uses tensor cores or the like; None: the name does not tell.
    """

    name: str | None
    type: KernelType | None
    calls: int
    total_ns: int
    mean_ns: float
    share: float
    operator: str | None = None
    occupancy: float | None = None
    registers: int | None = None
    grid: str | None = None
    block: str | None = None
    matrix_units: bool | None = None


class OperatorTime(Struct, frozen=True, kw_only=True):
    """Device time of what one operator launched: the innermost around the launch.

    Attributes:
        operator: the call itself where it replays a graph outside of all operators; None: launched in no
            operator, or operators with little time together.
        type: of most of its time; None: of no single operator.
        calls: kernels and copies.
        share: of `total_ns`.
    """

    operator: str | None
    type: KernelType | None
    calls: int
    total_ns: int
    mean_ns: float
    share: float
    launch_absent: bool = False  # of all whose launch is not in the trace


class LayerClassTime(Struct, frozen=True, kw_only=True):
    """Time of all layers of one class.

    Attributes:
        layer_class: such as RMSNorm; None: of no layer, or of layers whose class is not known.
        layers: how many there are; 0: of no layer.
        calls: kernels and copies.
        share: of `total_ns`.
    """

    layer_class: str | None
    layers: int
    calls: int
    total_ns: int
    mean_ns: float
    share: float
    forward_ns: int
    backward_ns: int


class PlaceTime(Struct, frozen=True, kw_only=True):
    """Time of one kernel, or operator, in one layer.

    Attributes:
        layer: the innermost; None: in none.
        phase: forward or backward; None: neither, or not known.
        type: None: of several.
        operator: that launched it; None: none, or not known, or there is no device.
        name: of the kernel, copy or operator; None: those of the layer with little time, together.
    """

    layer: str | None
    phase: str | None
    type: KernelType | None
    operator: str | None
    name: str | None
    calls: int
    total_ns: int


class CopyTime(Struct, frozen=True, kw_only=True):
    """Copies, or sets, of one kind.

    Attributes:
        bytes: of the calls whose size the trace has; None: it has none.
        bytes_per_s: of these calls; None likewise.
        num_unsized: calls without a size.
        share: of `total_ns`.
    """

    kind: CopyKind
    calls: int
    total_ns: int
    mean_ns: float
    share: float
    bytes: int | None
    bytes_per_s: float | None
    num_unsized: int


class GraphTime(Struct, frozen=True, kw_only=True):
    """Replays of one graph (CUDA graph, HIP graph): launches of the same kernels in one call.

    Attributes:
        name: ``graph 1``, numbered by time.
        call: of the runtime, such as cudaGraphLaunch.
        place: operator, else layer, in which it was launched most; None: in none.
        replays: launches.
        kernels: of one replay.
        total_ns: device time of all replays.
        share: of `total_ns` of all kernels.
    """

    name: str
    call: str
    place: str | None
    replays: int
    kernels: int
    total_ns: int
    mean_ns: float
    share: float


class Kernels(Struct, frozen=True, kw_only=True):
    """Where the devices' time went by kernel; the host's by operator where no device was traced.

    Over every kernel, copy and set of the files; totals, not per step. What runs at the same time counts
    several times: `total_ns` = `busy_ns` + `concurrent_ns`.

    Attributes:
        of_device: False: operators of the host's threads, each without the operators inside it.
        total_ns: sum over all calls.
        busy_ns: any of them ran; None: on the host.
        concurrent_ns: the rest of `total_ns`: on several streams at once; None: on the host.
        by_type: the longest first, as all tables.
        num_names: kernels of different names.
        launches_absent: kernels and copies whose launch is not in the trace.
        launches_absent_ns: their time.
        graph_ns: time of what graphs launched.
        occupancy: of kernels that compute, mean over their time, percent; None: not in the trace.
    """

    of_device: bool
    calls: int
    total_ns: int
    busy_ns: int | None
    concurrent_ns: int | None
    by_type: tuple[TypeTime, ...]
    by_name: tuple[KernelTime, ...]
    by_operator: tuple[OperatorTime, ...]
    by_layer_class: tuple[LayerClassTime, ...]
    by_place: tuple[PlaceTime, ...]  # longest first
    copies: tuple[CopyTime, ...]
    graphs: tuple[GraphTime, ...]
    num_names: int
    launches_absent: int
    launches_absent_ns: int
    graph_ns: int
    occupancy: float | None


class StreamQueue(Struct, frozen=True, kw_only=True):
    """How launches of one stream waited for the device, over the traced windows.

    Attributes:
        device: number of the device.
        stream: number of the stream.
        launches: kernels, copies and sets whose launch is in the trace.
        delay_median_ns: from the end of the launching call to the start on the device; 0: it began before.
        delay_max_ns: likewise.
        queue_median: launched and not yet begun, at each launch, itself included.
        queue_mean: likewise.
        queue_max: likewise.
        empty_ratio: of the launches, those that found nothing else waiting.
    """

    device: int
    stream: int
    launches: int
    delay_median_ns: int
    delay_max_ns: int
    queue_median: float
    queue_mean: float
    queue_max: int
    empty_ratio: float
