"""Kernels that another shape or layout of the tensors would make faster or unnecessary, by their names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.kernels.results import KernelTime, PlaceTime
from perfscope.analysis.kernels.types import converts_layout, loads_of
from perfscope.analysis.machine.results import Roofline
from perfscope.analysis.results import Finding
from perfscope.messages.findings.kernels import LayoutConversions, UnalignedProducts
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.kernels import MATRIX

NOTABLE = 0.03  # of the step, in such kernels
_DTYPES = {8: ("bfloat16", "float16"), 4: ("tf32",)}  # of products, by the elements of an aligned load

_Place = tuple[str, str]  # layer and phase; "": none


class _Chosen(Struct, frozen=True, kw_only=True):
    """Kernels of one kind, per step of the mean rank. Places with little time are not listed one by one."""

    time_ns: float
    calls: float
    longest: str  # name
    by_place: Mapping[_Place, float]  # ns
    by_layer: Mapping[str, float]  # ns


def unaligned_products(evidence: Evidence) -> Finding | None:
    """Matrix products that load a few elements at a time: a dimension is no multiple of an aligned load."""
    chosen = _choose(evidence, _is_unaligned)
    if chosen is None:
        return None
    loads, layer = loads_of(chosen.longest), max(chosen.by_layer, key=chosen.by_layer.__getitem__, default="")
    assert loads is not None
    rooflines = evidence.machine.rooflines if evidence.machine is not None else ()
    saved = below_peak(rooflines, loads.aligned, chosen.by_place)
    gain_ns, gain_ratio = evidence.all_of(chosen.time_ns if saved is None else saved)
    return Finding(
        id=FindingKind.UNALIGNED_PRODUCTS,
        facts=UnalignedProducts(
            products=evidence.of_step(chosen.time_ns),
            layer_ratio=chosen.by_layer[layer] / chosen.time_ns if layer else 0.0,
            num_layers=len(chosen.by_layer),
            multiple=loads.aligned,
            kernel=chosen.longest,
            has_peak=saved is not None,
        ),
        layer=layer or None,
        gain_ns=gain_ns,
        gain_ratio=gain_ratio,
    )


def layout_conversions(evidence: Evidence) -> Finding | None:
    """Kernels that convert between NCHW and NHWC, which the convolutions themselves do not need."""
    chosen = _choose(evidence, lambda row: converts_layout(row.name or ""))
    if chosen is None:
        return None
    gain_ns, gain_ratio = evidence.all_of(chosen.time_ns)
    return Finding(
        id=FindingKind.LAYOUT_CONVERSIONS,
        facts=LayoutConversions(
            conversions=evidence.of_step(chosen.time_ns),
            num_kernels=chosen.calls,
            framework=evidence.framework,
        ),
        gain_ns=gain_ns,
        gain_ratio=gain_ratio,
    )


def _choose(evidence: Evidence, is_meant: Callable[[PlaceTime | KernelTime], bool]) -> _Chosen | None:
    """None where they take less than `NOTABLE` of the step, or no device was traced."""
    kernels, step = evidence.kernels, evidence.step
    num_steps = sum(breakdown.num_steps for _, breakdown in evidence.traced)
    if kernels is None or not kernels.of_device or not num_steps or not step:
        return None
    rows = [row for row in kernels.by_name if is_meant(row)]
    time_ns = sum(row.total_ns for row in rows) / num_steps
    if time_ns < NOTABLE * step:
        return None
    by_place: dict[_Place, float] = defaultdict(float)
    by_layer: dict[str, float] = defaultdict(float)
    for place in kernels.by_place:
        if place.layer is not None and is_meant(place):
            by_place[place.layer, place.phase or ""] += place.total_ns / num_steps
            by_layer[place.layer] += place.total_ns / num_steps
    return _Chosen(
        time_ns=time_ns,
        calls=sum(row.calls for row in rows) / num_steps,
        longest=max(rows, key=lambda row: row.total_ns).name or "",
        by_place=by_place,
        by_layer=by_layer,
    )


def _is_unaligned(row: PlaceTime | KernelTime) -> bool:
    loads = loads_of(row.name) if row.name is not None and row.type in MATRIX else None
    return loads is not None and loads.elements < loads.aligned


def below_peak(
    rooflines: Sequence[Roofline], aligned: int, by_place: Mapping[tuple[str, str], float]
) -> float | None:
    """What products would take less at the measured peak, ns per step; at the highest where hosts differ.

    None: no peak for their data type was measured, or no FLOPs are known. At the peak of another type (of
    float32, where they run in bfloat16) nothing would be left to save.

    Args:
        rooflines: of all hosts.
        aligned: elements of an aligned load, which tell the type.
        by_place: (layer, phase) -> ns per step.
    """
    of_type = [entry for entry in rooflines if entry.dtype in _DTYPES.get(aligned, ())]
    if not of_type:
        return None
    roofline = max(of_type, key=lambda entry: entry.peak_flops_per_s)
    points = {(point.layer, point.phase): point for point in roofline.points}
    saved = [
        max(0.0, ns - 1e9 * points[place].flops / roofline.peak_flops_per_s)
        for place, ns in by_place.items()
        if place in points
    ]
    return sum(saved) if saved else None
