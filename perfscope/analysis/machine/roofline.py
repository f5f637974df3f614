"""Each layer against what the machine can do (METRICS §5).

attainable = min(peak FLOP/s, FLOP per byte x bandwidth), with ceilings measured on the host. FLOP and bytes
are modelled from shapes: every operator reads its inputs and writes its outputs once, so a layer whose
tensors stay in a cache can be faster than the memory roof. Ranks that share a host's CPUs each have an equal
part of its ceilings; a GPU's are its rank's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfscope.analysis.machine.counters import counted_between
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.peaks import (
    Peak,
    device_memory_peak,
    flops_peaks,
    memory_peak,
    why_missing,
)
from perfscope.analysis.machine.results import Roofline, RooflinePoint
from perfscope.analysis.results import LayerResult, MissingFigure

NEAR = 0.5  # from this share of the attainable on, the roof is what bounds a layer
_BEATEN = 1.1  # a roof that layers beat by more than this is not the one they run under
_DTYPES = ("float32", "tf32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One layer and phase, per step."""

    layer: str
    phase: str
    time_ns: int
    flops: int
    bytes: int
    calls: float

    @property
    def flops_per_s(self) -> float:
        return self.flops * 1e9 / self.time_ns


def roofline_of(host: Host, layers: Sequence[LayerResult]) -> tuple[Roofline | None, MissingFigure | None]:
    """The layers (the mean over all ranks) under one host's roof, or why that cannot be drawn."""
    work = list(_work(layers))
    if not layers:
        return None, None
    if not work:
        reason = "the trace gives no shapes, so neither FLOP nor bytes of a layer are known"
        return None, MissingFigure(what="roofline", reason=reason)
    roofline, reason = _roofline(host, work)
    if roofline is None:
        return None, MissingFigure(what=f"roofline of {host.name}", reason=reason)
    return roofline, None


def _work(layers: Sequence[LayerResult]) -> Iterator[Work]:
    for layer in layers:
        phases = (
            ("forward", layer.forward_ns, layer.forward_flops, layer.forward_bytes),
            ("backward", layer.backward_ns, layer.backward_flops, layer.backward_bytes),
        )
        for phase, time_ns, flops, moved in phases:
            if time_ns > 0 and flops and moved:
                yield Work(
                    layer=layer.layer,
                    phase=phase,
                    time_ns=time_ns,
                    flops=flops,
                    bytes=moved,
                    calls=layer.calls,
                )


def _roofline(host: Host, work: Sequence[Work]) -> tuple[Roofline | None, str]:
    gpus = sorted({rank.gpu for rank in host.ranks if rank.gpu is not None})
    gpu = gpus[0] if gpus else None
    memory = memory_peak(host) if gpu is None else device_memory_peak(host, gpu)
    peaks = flops_peaks(host, gpu)
    if memory is None:
        return None, why_missing(host, "triad" if gpu is None else "copy")
    if not peaks:
        return None, why_missing(host, "gemm")
    sharing = max(1, len(host.ranks)) if gpu is None else max(1, round(len(host.ranks) / len(gpus)))
    dtype = _dtype(peaks, memory, sharing, work)
    peak, bandwidth = peaks[dtype].value / sharing, memory.value / sharing
    points = tuple(_point(one, peak, bandwidth) for one in work)
    roofline = Roofline(
        host=host.name,
        device="cpu" if gpu is None else _gpu_name(host, gpu),
        dtype=dtype,
        peak_flops_per_s=peak,
        bandwidth_bytes_per_s=bandwidth,
        ranks_sharing=sharing,
        points=tuple(sorted(points, key=lambda point: -point.time_ns)),
        ceilings_source=memory.source
        if memory.source == peaks[dtype].source
        else f"{memory.source}, measured",
        cached=_fits_cache(host, sharing, work) if gpu is None else None,
        measured_bytes_per_s=_measured(host, sharing) if gpu is None else None,
    )
    return roofline, ""


def _measured(host: Host, sharing: int) -> float | None:
    """A rank's part of the memory controllers' traffic over the steps; None: not read."""
    if host.counted_ns is None:
        return None
    total = 0.0
    for metric in ("dram_read_bytes", "dram_write_bytes", "mcdram_read_bytes", "mcdram_write_bytes"):
        for _, counted in host.counters(metric):
            moved, covered = counted_between(counted, *host.counted_ns)
            total += moved * 1e9 / covered if covered else 0.0
    return total / sharing if total else None


def _dtype(peaks: dict[str, Peak], memory: Peak, sharing: int, work: Sequence[Work]) -> str:
    """The roof the layers run under: the first of _DTYPES that no layer clearly beats.

    The trace does not name the types of operators; a layer beyond the float32 peak does not run in float32.
    """
    known = [dtype for dtype in _DTYPES if dtype in peaks] or sorted(peaks)
    fastest = max(one.flops_per_s for one in work) * sharing
    return next(
        (dtype for dtype in known if peaks[dtype].value * _BEATEN >= fastest),
        max(known, key=lambda dtype: peaks[dtype].value),
    )


def _point(work: Work, peak: float, bandwidth: float) -> RooflinePoint:
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
        intensity=intensity,
        flops_per_s=work.flops_per_s,
        bytes_per_s=work.bytes * 1e9 / work.time_ns,
        attainable_flops_per_s=attainable,
        fraction=fraction,
        bound=roof if fraction >= NEAR else "neither",
    )


def _fits_cache(host: Host, sharing: int, work: Sequence[Work]) -> bool | None:
    """Whether what one call of most layers moves fits a rank's part of the last-level cache."""
    cache = host.topology.last_cache_bytes
    if cache is None:
        return None
    share = cache / sharing
    fitting = sum(one.time_ns for one in work if one.bytes / max(one.calls, 1.0) <= share)
    return fitting > sum(one.time_ns for one in work) / 2


def _gpu_name(host: Host, gpu: int) -> str:
    known = host.topology.gpus.get(gpu)
    if known is not None:
        return known.name
    return next((rank.device for rank in host.ranks if rank.gpu == gpu), f"GPU {gpu}")
