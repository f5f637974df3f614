"""Counters over the run: small charts one above the other on one time axis."""

from __future__ import annotations

import math

from perfscope import units
from perfscope.reports import chart_layout, geometry
from perfscope.reports.drawing.picture import (
    Box,
    Json,
    LegendEntry,
    Panel,
    Picture,
    grid,
    lay_out,
    swatch,
    x_axis,
    y_axis,
)
from perfscope.reports.drawing.shapes import Line, Path, Point, Rect, Shape, Text
from perfscope.reports.model import CounterChart, CounterLine, Counters, TimeLabel

NEAREST_NUMBERS = 2.5  # percent between the numbers of two disturbances
PLAIN = 5  # of many lines, so many need no dashes: their colors are not near another's


@lay_out.register
def _counters(block: Counters) -> Picture:
    return Picture(
        id=block.id,
        title=block.title,
        caption=block.caption,
        look="counters",
        legend=tuple(_legend(block)),
        panels=(_marks(block), *(_panel(block, chart) for chart in block.charts)),
        axis=x_axis(geometry.time_ticks(0, block.span_ns, 8)),
        x_title="time since the first reading",
        details=tuple(
            (f"{units.format_ns(mark.start_ns)} to {units.format_ns(mark.end_ns)}", mark.title, mark.detail)
            for mark in block.disturbances
        ),
        hook="counters",
        keys="Left and right arrow step through the time.",
        data=lambda: counters_payload(block),
    )


def _legend(block: Counters) -> list[LegendEntry]:
    entries = []
    if block.steps:
        sample = Line(x1=0, y1=6, x2=24, y2=6, look="ct-steps")
        entries.append(LegendEntry(title="training steps", sample=(sample,), width=24))
    if block.windows:
        entries.append(
            LegendEntry(title=block.windows_title, sample=(Rect(x=5, width=4, height=12, look="ct-window"),))
        )
    if block.disturbances:
        entries.append(swatch("disturbed", "disturbance"))
    return entries


def _stretch(block: Counters, mark: TimeLabel, look: str, pattern: str = "") -> Rect:
    start, size = 100 * mark.start_ns / block.span_ns, 100 * (mark.end_ns - mark.start_ns) / block.span_ns
    return Rect(x=start, width=size, look=look, pattern=pattern)


def _stretches(block: Counters) -> list[Shape]:
    stretches: list[Shape] = [
        _stretch(block, mark, "ct-disturbed", "disturbed") for mark in block.disturbances
    ]
    return stretches + [_stretch(block, mark, "ct-window") for mark in block.windows]


def _marks(block: Counters) -> Panel:
    """A strip above the charts: the training's steps, traced windows, numbers of the disturbances."""
    shapes = _stretches(block)
    if block.steps:
        start, end = (100 * at / block.span_ns for at in (block.steps.start_ns, block.steps.end_ns))
        shapes.append(Line(x1=start, y1=14, x2=end, y2=14, look="ct-steps"))
    for number, position in mark_numbers(block):
        shapes.append(Text(x=position, y=0, dy=17, text=str(number), look="ct-number", anchor="middle"))
    summary = [f"{mark.title} at {units.format_ns(mark.start_ns)}" for mark in block.windows]
    summary += [
        f"disturbance at {units.format_ns(mark.start_ns)} for {units.format_ns(mark.end_ns - mark.start_ns)}"
        for mark in block.disturbances
    ]
    boxes = (Box(shapes=tuple(shapes), ground=False),)
    return Panel(plot="ct-marks", boxes=boxes, height=22, summary="; ".join(summary))


def mark_numbers(block: Counters) -> list[tuple[int, float]]:
    """(number, percent) of the disturbances whose numbers do not stand on one another."""
    numbers: list[tuple[int, float]] = []
    for number, mark in enumerate(block.disturbances, 1):
        position = 50 * (mark.start_ns + mark.end_ns) / block.span_ns
        if all(abs(position - other) > NEAREST_NUMBERS for _, other in numbers):
            numbers.append((number, min(max(position, 1.0), 99.0)))
    return numbers


def _panel(block: Counters, chart: CounterChart) -> Panel:
    frame = chart_layout.counter_frame(chart)
    ticks = chart_layout.value_ticks(frame.unit, frame.low, frame.high, 4)
    many = len(chart.lines) > chart_layout.MOST_BANDS
    shapes = [*grid(ticks), *_stretches(block)]
    if not many:
        shapes += [
            Path(runs=_band(frame, line, block.span_ns), look=f"ct-band s{slot}", closed=True)
            for slot, line in enumerate(chart.lines)
        ]
    shapes += [
        Path(runs=line_runs(frame, line, block.span_ns), look=_look(slot, many))
        for slot, line in enumerate(chart.lines)
    ]
    for peak in frame.peaks:
        y = _down(frame, peak)
        shapes.append(Line(x1=0, y1=y, x2=100, y2=y, look="ct-peak"))
    notes = [chart_layout.line_note(chart, line, frame) for line in chart.lines]
    entries = [
        LegendEntry(title=line.label, note=note, width=24, sample=(_sample(slot, many),))
        for slot, (line, note) in enumerate(zip(chart.lines, notes, strict=True))
    ]
    if chart.num_left_out:
        entries.append(LegendEntry(title="", note=f"{chart.num_left_out} more, with a lower mean"))
    summary = "; ".join(f"{line.label}, {note}" for line, note in zip(chart.lines, notes, strict=True))
    return Panel(
        id=chart.id,
        plot="ct-plot ct-many" if many else "ct-plot",
        boxes=(Box(shapes=tuple(shapes), axis=y_axis(ticks, 6)),),
        height=84 if many else 64,
        title=chart.title,
        note=chart_layout.chart_note(chart, frame),
        entries=tuple(entries),
        look="ct-chart",
        summary=f"{chart.title}: {summary}",
        cursor=True,
    )


def _look(slot: int, many: bool) -> str:
    return f"ct-line s{slot}{' plain' if many and slot < PLAIN else ''}"


def _sample(slot: int, many: bool) -> Line:
    return Line(x1=0, y1=6, x2=24, y2=6, look=_look(slot, many))


def _down(frame: chart_layout.CounterFrame, value: float) -> float:
    return max(min(100 * (1 - (value - frame.low) / (frame.high - frame.low)), 200), -100)


def line_runs(frame: chart_layout.CounterFrame, line: CounterLine, span_ns: int) -> list[list[Point]]:
    """The line's points in percent, in runs between missing readings."""
    return [
        [(100 * line.t_ns[i] / span_ns, _down(frame, line.mean[i])) for i in run]
        for run in chart_layout.line_runs(line)
    ]


def _band(frame: chart_layout.CounterFrame, line: CounterLine, span_ns: int) -> list[list[Point]]:
    """Around what each point stands for."""
    bands = []
    for run in chart_layout.line_runs(line):
        finite = [i for i in run if math.isfinite(line.low[i]) and math.isfinite(line.high[i])]
        if len(finite) > 1:
            up = [(100 * line.t_ns[i] / span_ns, _down(frame, line.high[i])) for i in finite]
            bands.append(
                up + [(100 * line.t_ns[i] / span_ns, _down(frame, line.low[i])) for i in reversed(finite)]
            )
    return bands


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
