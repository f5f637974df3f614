"""Each layer against what the machine can do (METRICS §5).

attainable = min(peak FLOP/s, FLOP per byte x bandwidth), with ceilings measured on the host. FLOP and bytes
are modeled from shapes: every operator reads its inputs and writes its outputs once, so a layer whose
tensors stay in a cache can be faster than the memory roof.

Bytes are measured instead (misses of the last-level cache) where the training thread, whose counters are
read, does all the work of its rank: on CPUs, with one thread per rank.

A rank's roof on the CPU is what as many threads as it has reached in the measurement, provided that the host
has a CPU for each thread of its ranks: memory that other ranks leave idle is its own to use. With fewer CPUs
than threads, or where that number of threads was not measured, ranks have equal parts of what all threads
reached; never more than its threads times one thread. A GPU's ceilings are its rank's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from perfscope.analysis.machine.counters import counted_between
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.oversubscription import is_oversubscribed
from perfscope.analysis.machine.peaks import (
    MEASURED,
    Peak,
    device_memory_peak,
    flops_peaks,
    memory_peak,
    most_threads,
    thread_memory_peak,
    why_missing,
)
from perfscope.analysis.machine.results import FlopsUtilization, MachineAnalysis, Roofline, RooflinePoint
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.results import LayerResult, RankResult
from perfscope.messages.lists import counted
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.ceilings import CeilingKind
from perfscope.vocabulary.figures import Figure

NEAR = 0.5  # from this share of the attainable on, the roof is what bounds a layer
_BEATEN = 1.1  # a roof that layers beat by more than this is not the one they run under
_DTYPES = ("float32", "tf32", "bfloat16", "float16", "float64")


class LayerWork(Struct, frozen=True, kw_only=True):
    """One layer and phase, per step."""

    layer: str
    phase: str
    time_ns: int
    flops: int
    bytes: int
    is_measured: bool  # the bytes; else they are modeled
    calls: float | None

    @property
    def flops_per_s(self) -> float:
        return self.flops * 1e9 / self.time_ns


def roofline_of(host: Host, layers: Sequence[LayerResult]) -> tuple[Roofline | None, Missing | None]:
    """The layers (the mean over all ranks) under one host's roof, or why that cannot be drawn."""
    one_thread = all(rank.num_threads == 1 and rank.gpu is None for rank in host.ranks)
    work = list(_work(layers, with_counters=one_thread))
    if not layers:
        return None, None
    if not work:
        cause = Cause.NO_LAYER_BYTES if any(layer.flops for layer in layers) else Cause.NO_SHAPES
        return None, missing_figure(Figure.ROOFLINE, cause)
    roofline, reason = _roofline(host, work)
    if roofline is None:
        return None, missing_figure(Figure.HOST_ROOFLINE, Cause.NO_CEILINGS, host=host.name, reason=reason)
    return roofline, None


def flops_utilization(
    machine: MachineAnalysis | None,
    layers: Sequence[LayerResult],
    step_ns: float | None,
    ranks: Sequence[RankResult],
) -> FlopsUtilization | None:
    """Of the mean rank; None: no ceiling, FLOPs or step time is known.

    Args:
        machine: where rooflines of its hosts differ, the highest peak counts.
        layers: the mean over all ranks.
        step_ns: that stands for the steps of all ranks.
        ranks: that say whether forward passes ran again in backward passes.
    """
    flops = sum(layer.flops or 0 for layer in layers)
    if machine is None or not machine.rooflines or not flops or not step_ns:
        return None
    roofline = max(machine.rooflines, key=lambda entry: entry.peak_flops_per_s)
    return FlopsUtilization(
        ratio=flops * 1e9 / step_ns / roofline.peak_flops_per_s,
        flops_per_step=flops,
        peak_flops_per_s=roofline.peak_flops_per_s,
        dtype=roofline.dtype,
        device=roofline.device,
        peak_source=roofline.ceilings_source,
        recomputes=any(rank.recompute_ns for rank in ranks),
    )


def _work(layers: Sequence[LayerResult], *, with_counters: bool) -> Iterator[LayerWork]:
    for layer in layers:
        counters = layer.counters if with_counters else None
        forward = counters.forward_llc_miss_bytes if counters else None
        backward = counters.backward_llc_miss_bytes if counters else None
        phases = (
            ("forward", layer.forward_ns, layer.forward_flops, layer.forward_bytes, forward),
            ("backward", layer.backward_ns, layer.backward_flops, layer.backward_bytes, backward),
        )
        for phase, time_ns, flops, modeled, missed in phases:
            measured = round(missed or 0)  # without any miss there is no intensity
            moved = measured or modeled
            if time_ns > 0 and flops and moved:
                yield LayerWork(
                    layer=layer.layer,
                    phase=phase,
                    time_ns=time_ns,
                    flops=flops,
                    bytes=moved,
                    is_measured=bool(measured),
                    calls=layer.calls,
                )


def _roofline(host: Host, work: Sequence[LayerWork]) -> tuple[Roofline | None, str]:
    gpus = sorted({rank.gpu for rank in host.ranks if rank.gpu is not None})
    gpu = gpus[0] if gpus else None
    sharing = max(1, len(host.ranks)) if gpu is None else max(1, round(len(host.ranks) / len(gpus)))
    roofs = _cpu_roofs(host, sharing) if gpu is None else _gpu_roofs(host, gpu, sharing)
    if roofs.memory is None:
        return None, why_missing(host, CeilingKind.TRIAD if gpu is None else CeilingKind.DEVICE_COPY)
    if not roofs.flops:
        return None, why_missing(host, CeilingKind.GEMM if gpu is None else CeilingKind.DEVICE_GEMM)
    dtype = _dtype(roofs.flops, work)
    peak, bandwidth = roofs.flops[dtype].value, roofs.memory.value
    points = tuple(_point(layer_work, peak, bandwidth) for layer_work in work)
    roofline = Roofline(
        host=host.name,
        device="cpu" if gpu is None else _gpu_name(host, gpu),
        dtype=dtype,
        peak_flops_per_s=peak,
        bandwidth_bytes_per_s=bandwidth,
        ranks_sharing=roofs.sharing,
        points=tuple(sorted(points, key=lambda point: -point.time_ns)),
        ceilings_source=_named(roofs.memory.source, roofs.flops[dtype].source),
        cached=_fits_cache(host, sharing, work) if gpu is None else None,
        measured_bytes_per_s=_measured(host, sharing) if gpu is None else None,
    )
    return roofline, ""


class _Roofs(Struct, frozen=True, kw_only=True):
    """What one rank can reach."""

    memory: Peak | None
    flops: dict[str, Peak]  # by dtype
    sharing: int  # ranks that divide the host's ceilings; 1 = each has its own


def _gpu_roofs(host: Host, gpu: int, sharing: int) -> _Roofs:
    memory = device_memory_peak(host, gpu)
    flops = flops_peaks(host, gpu)
    return _Roofs(
        memory=_divided(memory, sharing, memory.source) if memory else None,
        flops={dtype: _divided(peak, sharing, peak.source) for dtype, peak in flops.items()},
        sharing=sharing,
    )


def _cpu_roofs(host: Host, sharing: int) -> _Roofs:
    """Each roof with the rank's threads, or a part of the host's."""
    counts = [rank.num_threads for rank in host.ranks]
    recorded_counts = [count for count in counts if count]
    threads = max(recorded_counts) if recorded_counts and len(recorded_counts) == len(counts) else None
    fits = threads is not None and is_oversubscribed(host) is False
    memory, flops = memory_peak(host), flops_peaks(host, None)
    own_memory = thread_memory_peak(host, threads) if threads and fits else None
    own_flops = flops_peaks(host, None, threads) if threads and fits else {}
    one_memory, one_flops = thread_memory_peak(host, 1), flops_peaks(host, None, 1)
    chosen: dict[str, Peak] = {}
    for dtype, host_peak in flops.items():
        chosen[dtype] = _part(host, host_peak, own_flops.get(dtype), one_flops.get(dtype), threads, sharing)
    roof = _part(host, memory, own_memory, one_memory, threads, sharing) if memory else None
    divided = [peak for peak in (roof, *chosen.values()) if peak and peak.is_shared]
    return _Roofs(memory=roof, flops=chosen, sharing=sharing if divided else 1)


def _part(
    host: Host,
    host_peak: Peak,
    with_threads: Peak | None,
    single: Peak | None,
    threads: int | None,
    sharing: int,
) -> Peak:
    """One rank's ceiling: with its threads, else its part of all threads'; at most so many single ones."""
    if with_threads is not None and threads:
        return Peak(value=with_threads.value, source=f"measured, {_threads(threads)}")
    share = host_peak.value / sharing
    if single is not None and threads and threads * single.value < share:
        times = f"{threads} times " if threads > 1 else ""
        return Peak(value=threads * single.value, source=f"measured, {times}1 thread")
    if host_peak.source != MEASURED:
        return _divided(host_peak, sharing, host_peak.source)
    most = most_threads(host)
    every = f"all {_threads(most)}" if most and most > 1 else _threads(most or 1)
    shared = f" shared by {sharing} ranks" if sharing > 1 else ""
    return Peak(value=share, source=f"measured, {every}{shared}", is_shared=sharing > 1)


def _threads(count: int) -> str:
    return counted(count, "thread")


def _divided(peak: Peak, sharing: int, source: str) -> Peak:
    shared = f", shared by {sharing} ranks" if sharing > 1 else ""
    return Peak(value=peak.value / sharing, source=f"{source}{shared}", is_shared=sharing > 1)


def _named(memory: str, flops: str) -> str:
    return memory if memory == flops else f"memory: {memory}; arithmetic: {flops}"


def _measured(host: Host, sharing: int) -> float | None:
    """A rank's part of the memory controllers' traffic over the steps; None: not read."""
    if host.counted_ns is None:
        return None
    total = 0.0
    for metric in ("dram_read_bytes", "dram_write_bytes", "mcdram_read_bytes", "mcdram_write_bytes"):
        for _, rates in host.counters(metric):
            moved, covered = counted_between(rates, *host.counted_ns)
            total += moved * 1e9 / covered if covered else 0.0
    return total / sharing if total else None


def _dtype(peaks: dict[str, Peak], work: Sequence[LayerWork]) -> str:
    """The roof the layers run under: the first of _DTYPES that no layer clearly beats.

    The trace does not name the types of operators; a layer beyond the float32 peak does not run in float32.
    """
    measured_dtypes = [dtype for dtype in _DTYPES if dtype in peaks] or sorted(peaks)
    fastest = max(layer_work.flops_per_s for layer_work in work)
    return next(
        (dtype for dtype in measured_dtypes if peaks[dtype].value * _BEATEN >= fastest),
        max(measured_dtypes, key=lambda dtype: peaks[dtype].value),
    )


def _point(work: LayerWork, peak: float, bandwidth: float) -> RooflinePoint:
    intensity = work.flops / work.bytes
    by_memory = intensity * bandwidth
    attainable = min(peak, by_memory)
    fraction = work.flops_per_s / attainable
    roof = "memory" if by_memory < peak else "compute"
    return RooflinePoint(
        layer=work.layer,
        phase=work.phase,
        time_ns=work.time_ns,
        flops=work.flops,
        bytes=work.bytes,
        bytes_source="measured" if work.is_measured else "modeled",
        intensity=intensity,
        flops_per_s=work.flops_per_s,
        bytes_per_s=work.bytes * 1e9 / work.time_ns,
        attainable_flops_per_s=attainable,
        fraction=fraction,
        bound=roof if fraction >= NEAR else "neither",
    )


def _fits_cache(host: Host, sharing: int, work: Sequence[LayerWork]) -> bool | None:
    """Whether what one call of most layers moves fits a rank's part of the last-level cache."""
    cache = host.topology.last_cache_bytes
    if cache is None:
        return None
    share = cache / sharing
    fitting = sum(
        layer_work.time_ns
        for layer_work in work
        if layer_work.bytes / max(layer_work.calls or 0.0, 1.0) <= share
    )
    return fitting > sum(layer_work.time_ns for layer_work in work) / 2


def _gpu_name(host: Host, gpu: int) -> str:
    gpu_facts = host.topology.gpus.get(gpu)
    if gpu_facts is not None:
        return gpu_facts.name
    return next((rank.device for rank in host.ranks if rank.gpu == gpu), f"GPU {gpu}")
