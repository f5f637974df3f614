"""Stacked bars, and bars with an interval."""

from __future__ import annotations

from perfscope.reports import curve_layout as places
from perfscope.reports import geometry
from perfscope.reports.curves import IntervalBar, IntervalBars
from perfscope.reports.display import path_end
from perfscope.reports.drawing.patterns import pattern
from perfscope.reports.drawing.picture import Box, Panel, Picture, lay_out, swatch, x_axis
from perfscope.reports.drawing.shapes import Line, Rect, Shape, Text
from perfscope.reports.model import Bar, StackedBars

FEW = 14  # bars that carry figures; more are drawn thin
LONG_LABEL = 11  # characters; longer labels get a wider column
LONGEST_LABEL = 34
NARROW_SEGMENT = 18  # percent below which a telephone has no room for the segment's figure


@lay_out.register
def _stacked(chart: StackedBars) -> Picture:
    thin = len(chart.bars) > FEW
    looks = ["bars", "" if chart.labelled else "no-labels", "thin" if thin else ""]
    looks.append("wide-labels" if max(len(bar.label) for bar in chart.bars) > LONG_LABEL else "")
    return Picture(
        id=chart.id,
        title=chart.title,
        caption=chart.caption,
        look=" ".join(filter(None, looks)),
        legend=tuple(swatch(part.key, part.title, part.hint) for part in geometry.used_parts(chart)),
        panels=tuple(_bar(chart, bar, thin=thin) for bar in chart.bars),
        axis=x_axis(geometry.bar_ticks(chart, 6)),
        hook="chart",
        keys="Arrow keys step through the parts.",
    )


def _bar(chart: StackedBars, bar: Bar, *, thin: bool) -> Panel:
    shapes: list[Shape] = []
    segments = geometry.bar_segments(chart, bar)
    for segment in segments:
        key, value = segment.part.key, geometry.bar_text(chart, segment.value)
        shapes.append(
            Rect(
                x=segment.start,
                width=segment.width,
                look=f"seg f-{key}",
                pattern=pattern(key),
                data=(("part", segment.part.title), ("value", value), ("share", f"{segment.share:.1f} %")),
            )
        )
        if segment.label and not thin:
            look = f"figure t-{key}{' roomy' if segment.width < NARROW_SEGMENT else ''}"
            shapes.append(
                Text(x=segment.middle, y=50, dy=4.2, text=segment.label, look=look, anchor="middle")
            )
    end = geometry.bar_end(chart, bar)
    values_text = ", ".join(
        f"{segment.part.title} {geometry.bar_text(chart, segment.value)}" for segment in segments
    )
    return Panel(
        plot="bar",
        boxes=(Box(shapes=tuple(shapes), ground=False),),
        height=13 if thin else 22 if chart.labelled else 32,
        label=path_end(bar.label, LONGEST_LABEL) if chart.labelled else "",
        end=end if chart.labelled else "",
        data=(("label", bar.label), ("total", geometry.bar_text(chart, bar.total)), ("note", bar.note)),
        summary=f"{bar.label}: {end}. {values_text}",
    )


@lay_out.register
def _intervals(chart: IntervalBars) -> Picture:
    return Picture(
        id=chart.id,
        title=chart.title,
        caption=chart.caption,
        look="bars iv-bars",
        panels=tuple(_interval(chart, bar) for bar in chart.bars),
        axis=x_axis(places.interval_ticks(chart)),
        x_title=chart.axis_title,
        sheets=("curves.css",),
    )


def _interval(chart: IntervalBars, bar: IntervalBar) -> Panel:
    location = places.bar_place(chart, bar)
    shapes: list[Shape] = []
    if location.end is not None:
        key = "compute" if bar.leading else "host"
        shapes.append(Rect(x=0, y=14, width=location.end, height=72, look=f"f-{key}"))
    if location.low is not None and location.high is not None:
        shapes += [
            Line(x1=location.low, y1=50, x2=location.high, y2=50, look=look)
            for look in ("iv-halo", "iv-whisker")
        ]
        shapes += [
            Line(x1=edge, y1=30, x2=edge, y2=70, look="iv-whisker") for edge in (location.low, location.high)
        ]
    return Panel(
        plot="bar",
        boxes=(Box(shapes=tuple(shapes), ground=False),),
        height=20,
        label=path_end(bar.label, LONGEST_LABEL),
        end=location.text,
        hint=bar.note,
        look="strong" if bar.leading else "",
        summary=", ".join(filter(None, (f"{bar.label}: {location.text}", bar.note))),
    )
