"""What the HTML report needs to draw the machine: paths of counter lines, data for the pointer, pictures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from perfscope import units
from perfscope.reports import geometry, plots
from perfscope.reports.model import CounterLine, Counters, Machine, Unit
from perfscope.reports.topology_svg import page_svgs

if TYPE_CHECKING:
    from markupsafe import Markup

Json = dict[str, object]


def machine_globals() -> dict[str, object]:
    """Names for machine.html.j2."""
    given: dict[str, Callable[..., object] | Unit | float] = {
        "machine_pictures": machine_pictures,
        "counter_frame": plots.counter_frame,
        "counter_ticks": lambda frame: plots.value_ticks(frame.unit, frame.low, frame.high, 4),
        "counter_path": counter_path,
        "counter_band": counter_band,
        "chart_note": plots.chart_note,
        "line_note": plots.line_note,
        "mark_numbers": mark_numbers,
        "axis_ticks": lambda block: geometry.time_ticks(0, block.span_ns, 8),
        "most_bands": plots.MOST_BANDS,
        "roof_frame": plots.roof_frame,
        "roof_line": plots.roof_line,
        "roof_words": plots.roof_words,
        "roof_letter": plots.LETTER,
        "small_letter": plots.SMALL_LETTER,
        "roof_labels": plots.roof_labels,
        "log_ticks": plots.log_ticks,
        "radius": plots.radius,
        "rate_unit": Unit.FLOP_RATE,
        "plain_unit": Unit.NUMBER,
        "pairs": itertools.pairwise,
        "flop_rate": lambda value: units.format_si(value, "FLOP/s"),
        "ratio": units.format_ratio,
    }
    return dict(given)


def machine_pictures(machine: Machine) -> Markup:
    """The picture for wide and for narrow screens. Made by an XML writer, so nothing in it is markup."""
    from markupsafe import Markup

    return Markup("\n".join(page_svgs(machine)))


def mark_numbers(block: Counters) -> list[tuple[int, float]]:
    """(number, per cent) of the disturbances whose numbers do not stand on one another."""
    found: list[tuple[int, float]] = []
    for number, mark in enumerate(block.disturbances, 1):
        place = 50 * (mark.start_ns + mark.end_ns) / block.span_ns
        if all(abs(place - other) > 2.5 for _, other in found):
            found.append((number, min(max(place, 1.0), 99.0)))
    return found


def _point(frame: plots.CounterFrame, span_ns: int, at: int, value: float) -> str:
    up = 1000 * (1 - (value - frame.low) / (frame.high - frame.low))
    return f"{1000 * at / span_ns:.1f},{max(min(up, 2000), -1000):.1f}"


def counter_path(frame: plots.CounterFrame, line: CounterLine, span_ns: int) -> str:
    """SVG path of a line in a 1000 × 1000 box, broken where readings are missing."""
    pieces = []
    for run in plots.line_runs(line):
        points = [_point(frame, span_ns, line.t_ns[i], line.mean[i]) for i in run]
        pieces.append("M" + "L".join(points) if len(points) > 1 else f"M{points[0]}h2")
    return "".join(pieces)


def counter_band(frame: plots.CounterFrame, line: CounterLine, span_ns: int) -> str:
    """SVG path around what each point stands for."""
    pieces = []
    for run in plots.line_runs(line):
        known = [i for i in run if math.isfinite(line.low[i]) and math.isfinite(line.high[i])]
        if len(known) > 1:
            up = [_point(frame, span_ns, line.t_ns[i], line.high[i]) for i in known]
            down = [_point(frame, span_ns, line.t_ns[i], line.low[i]) for i in reversed(known)]
            pieces.append("M" + "L".join([*up, *down]) + "Z")
    return "".join(pieces)


def counters_payload(block: Counters) -> Json:
    """JSON-ready data for machine.js: each set of instants once, in ns since the axis' start."""
    times: dict[tuple[int, ...], int] = {}
    charts = [
        {
            "title": chart.title,
            "unit": chart.unit.value,
            "lines": [
                {
                    "label": line.label,
                    "t": times.setdefault(line.t_ns, len(times)),
                    "mean": [short(value) for value in line.mean],
                    "low": [short(value) for value in line.low],
                    "high": [short(value) for value in line.high],
                }
                for line in chart.lines
            ],
        }
        for chart in block.charts
    ]
    marks = [*block.windows, *block.disturbances]
    return {
        "span": block.span_ns,
        "times": [list(instants) for instants in times],
        "charts": charts,
        "marks": [{"start": mark.start_ns, "end": mark.end_ns, "title": mark.title} for mark in marks],
    }


def short(value: float) -> float | None:
    """Four significant digits; what is no figure is null."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded == int(rounded) else rounded
