"""Section "Roofline": how close each layer comes to what the machine can do (METRICS §5)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from perfscope import units
from perfscope.analysis.machine.results import Roofline, RooflinePoint
from perfscope.analysis.results import RunAnalysis
from perfscope.reports.display import visible
from perfscope.reports.model import Block, Column, Note, RooflineChart, RoofPoint, Section, Table, Unit, Value
from perfscope.reports.sections.layer_names import layer_names

MOST_CHARTS = 2
MOST_POINTS = 200
ROOT_NAME = "(whole model)"


def roofline_section(analysis: RunAnalysis) -> Section | None:
    rooflines = drawable(analysis)
    if not rooflines:
        return None
    rooflines.sort(key=lambda r: -sum(point.time_ns for point in r.points))
    several = len(rooflines) > 1
    names = layer_names(analysis.layers)
    blocks: list[Block] = []
    for number, roofline in enumerate(rooflines[:MOST_CHARTS]):
        blocks += [_chart(roofline, number, several, names), _table(roofline, number, several, names)]
        blocks += _above(roofline)
    if len(rooflines) > MOST_CHARTS:
        left = len(rooflines) - MOST_CHARTS
        text = "host or device has its roofline" if left == 1 else "hosts or devices have theirs"
        blocks.append(Note(text=f"{left:,} further {text} in the JSON report."))
    return Section(
        id="roofline",
        title="Roofline",
        lead=_lead(rooflines[0]),
        blocks=tuple(blocks),
    )


def drawable(analysis: RunAnalysis) -> list[Roofline]:
    """Rooflines that can be drawn; with one, the rates of layers are in its table."""
    return [r for r in (analysis.machine.rooflines if analysis.machine else ()) if _drawable(r)]


def _drawable(roofline: Roofline) -> bool:
    ceilings = (roofline.peak_flops_per_s, roofline.bandwidth_bytes_per_s)
    return all(math.isfinite(c) and c > 0 for c in ceilings) and any(_plain(p) for p in roofline.points)


def _plain(point: RooflinePoint) -> bool:
    values = (point.intensity, point.flops_per_s)
    return all(math.isfinite(value) and value > 0 for value in values)


def _lead(roofline: Roofline) -> str:
    total = sum(point.time_ns for point in roofline.points)
    if total <= 0:
        return ""
    weighted = sum(min(point.fraction, 1.0) * point.time_ns for point in roofline.points) / total
    parts = []
    for bound, text in (
        ("memory", "memory-bound"),
        ("compute", "compute-bound"),
        ("neither", "bound by neither memory nor compute"),
    ):
        share = sum(point.time_ns for point in roofline.points if point.bound == bound) / total
        if share >= 0.005:
            parts.append(f"{units.format_ratio(share, 0)} {text}")
    return (
        f"Weighted by time, layers run at {units.format_ratio(weighted, 0)} of roofline; "
        f"of their time, {', '.join(parts)}."
    )


def _above(roofline: Roofline) -> list[Note]:
    """Why more than 100 % of attainable is no mistake, where a point has more."""
    above = [point for point in roofline.points if point.fraction > 1]
    if not above:
        return []
    reasons = []
    if roofline.bandwidth_bytes_per_s * min(p.intensity for p in above) < roofline.peak_flops_per_s:
        fits = "fits the last-level cache" if roofline.cached else "may fit a cache"
        reasons.append(f"a layer's working set {fits}, which is faster than the memory that was measured")
    if roofline.device == "cpu":
        reasons.append(
            "a kernel (such as the convolution library's) uses wider vectors than the measured matrix "
            "product and triad, so that the measured ceiling is too low"
        )
    if roofline.ranks_sharing > 1:
        reasons.append("a rank has more than its share of the host while others wait")
        reasons.append("with fewer threads at work than in the measurement the clock is higher (turbo)")
    else:
        reasons.append("the ceiling was measured too low (perfscope run --ceilings refresh measures again)")
    count = f"{len(above):,} of {len(roofline.points):,} passes reach"
    if len(above) == 1:
        count = f"1 of {len(roofline.points):,} passes reaches"
    return [Note(text=f"{count} more than 100 % of attainable. Possible reasons: {'; '.join(reasons)}.")]


def _where(roofline: Roofline, several: bool) -> str:
    device = visible(roofline.device, 60)
    device = "CPU" if device == "cpu" else device
    return f"{device} of {visible(roofline.host, 40)}" if several else device


def _share(roofline: Roofline) -> str:
    ranks = roofline.ranks_sharing
    return f"a rank's share of it, {ranks} of them to the host" if ranks > 1 else ""


def _sources(roofline: Roofline) -> str:
    """Where FLOPs and bytes come from."""
    measured = sum(point.bytes_source == "measured" for point in roofline.points)
    if not measured:
        return "FLOPs and bytes are modeled from tensor shapes"
    of_all = (
        "" if measured == len(roofline.points) else f" for {measured:,} of {len(roofline.points):,} passes"
    )
    return f"FLOPs are modeled from tensor shapes, bytes{of_all} are measured (last-level cache misses)"


def _chart(roofline: Roofline, number: int, several: bool, names: Mapping[str, str]) -> RooflineChart:
    points = sorted((p for p in roofline.points if _plain(p)), key=lambda p: -p.time_ns)
    source = visible(roofline.ceilings_source)
    caption = [
        f"Each point is a layer's forward or backward pass, its area the time per step. Roof: {source}"
    ]
    caption.append(f"; {_share(roofline)}." if _share(roofline) else ".")
    caption.append(f" {_sources(roofline)}, times are measured.")
    if len(points) > MOST_POINTS:
        caption.append(f" The {MOST_POINTS} longest of {len(points):,} are drawn.")
    return RooflineChart(
        id=f"roofline-chart-{number}",
        title=f"Roofline of the {_where(roofline, several)}, {visible(roofline.dtype, 30)}",
        peak_flops_per_s=roofline.peak_flops_per_s,
        peak_text=f"{visible(roofline.dtype, 30)} {units.format_si(roofline.peak_flops_per_s, 'FLOP/s')}",
        bandwidth_bytes_per_s=roofline.bandwidth_bytes_per_s,
        bandwidth_text=f"memory {units.format_rate(roofline.bandwidth_bytes_per_s)}",
        points=tuple(
            RoofPoint(
                label=visible(names.get(p.layer, p.layer)) or ROOT_NAME,
                phase=visible(p.phase),
                intensity=p.intensity,
                flops_per_s=p.flops_per_s,
                time_ns=p.time_ns,
                fraction=p.fraction,
                bound=visible(p.bound),
            )
            for p in points[:MOST_POINTS]
        ),
        caption="".join(caption),
    )


def _table(roofline: Roofline, number: int, several: bool, names: Mapping[str, str]) -> Table:
    some_measured = any(point.bytes_source == "measured" for point in roofline.points)
    columns = (
        Column(key="layer", title="Layer", unit=Unit.CODE, primary=True),
        Column(key="phase", title="Pass", primary=True),
        Column(key="time", title="Traced time", unit=Unit.TIME, bar="compute", primary=True, hint="per step"),
        Column(
            key="intensity", title="FLOP/byte", unit=Unit.NUMBER, modeled=True, hint="arithmetic intensity"
        ),
        Column(key="flop_rate", title="FLOP/s", unit=Unit.FLOP_RATE, modeled=True, primary=True),
        Column(key="byte_rate", title="Bytes/s", unit=Unit.RATE, modeled=not some_measured),
        *((Column(key="bytes_source", title="Bytes"),) if some_measured else ()),
        Column(
            key="fraction",
            title="Of attainable",
            unit=Unit.RATIO,
            primary=True,
            hint="attainable: the lower of peak FLOP/s and intensity × bandwidth",
        ),
        Column(key="bound", title="Bound by", primary=True, hint="latency or overhead: far below both roofs"),
    )
    points = sorted(roofline.points, key=lambda p: -p.time_ns)
    return Table(
        id=f"roofline-table-{number}",
        terminal_rows=6 if number == 0 else 0,
        title=f"Layers against the {_where(roofline, several)}'s ceilings",
        columns=columns,
        rows=tuple(_row(point, names, with_source=some_measured) for point in points),
        caption=f"{_sources(roofline)}; a rate is modeled work / measured time. Latency or overhead: far "
        "below both roofs.",
        sorted_by=("time", True),
        print_rows=30,
    )


def _row(point: RooflinePoint, names: Mapping[str, str], *, with_source: bool) -> tuple[Value, ...]:
    return (
        visible(names.get(point.layer, point.layer)) or ROOT_NAME,
        visible(point.phase),
        point.time_ns,
        point.intensity,
        point.flops_per_s,
        point.bytes_per_s,
        *((point.bytes_source,) if with_source else ()),
        point.fraction,
        visible(point.bound),
    )
