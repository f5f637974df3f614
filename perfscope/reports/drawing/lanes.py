"""Work of ranks on one axis of time: a lane per rank."""

from __future__ import annotations

from perfscope import units
from perfscope.reports import geometry
from perfscope.reports.drawing.patterns import pattern
from perfscope.reports.drawing.picture import Box, Panel, Picture, lay_out, swatch, x_axis
from perfscope.reports.drawing.shapes import Rect, Shape, Text
from perfscope.reports.model import Lane, LaneChart

LETTER = 0.9  # percent of a wide page's axis that a character needs
NARROW = 2.4  # the same on a telephone
GAP = 0.08  # percent left free between two pieces, so that they stay apart where they touch
MOST_CAPTIONED = 40  # lanes; more are drawn thin


@lay_out.register
def _lanes(chart: LaneChart) -> Picture:
    is_thin = len(chart.lanes) > MOST_CAPTIONED
    used = {span.part for lane in chart.lanes for span in lane.spans}
    return Picture(
        id=chart.id,
        title=chart.title,
        caption=chart.caption,
        look="bars thin" if is_thin else "bars",
        legend=tuple(swatch(part.key, part.title, part.hint) for part in chart.parts if part.key in used),
        panels=tuple(_lane(chart, lane, is_thin=is_thin) for lane in chart.lanes),
        axis=x_axis(geometry.time_ticks(0, chart.length, 6)),
        hook="chart",
        keys="Arrow keys step through the parts.",
    )


def _lane(chart: LaneChart, lane: Lane, *, is_thin: bool) -> Panel:
    shapes: list[Shape] = []
    for span in lane.spans:
        start, end = (100 * time / chart.length for time in (span.start, span.end))
        width, share = max(end - start - GAP, GAP), 100 * (span.end - span.start) / chart.length
        data = (
            ("part", span.title),
            ("value", units.format_ns(span.end - span.start)),
            ("share", f"{share:.1f} %"),
        )
        shapes.append(
            Rect(x=start, width=width, look=f"seg f-{span.part}", pattern=pattern(span.part), data=data)
        )
        if not is_thin and width >= LETTER * (len(span.text) + 1):
            roomy = " roomy" if width < NARROW * (len(span.text) + 1) else ""
            look = f"figure t-{span.part}{roomy}"
            shapes.append(Text(x=(start + end) / 2, y=50, dy=4.2, text=span.text, look=look, anchor="middle"))
    works = ", ".join(f"{span.title} {units.format_ns(span.end - span.start)}" for span in lane.spans)
    return Panel(
        plot="bar",
        boxes=(Box(shapes=tuple(shapes)),),
        height=13 if is_thin else 22,
        label=lane.label,
        end=lane.end,
        data=(("label", lane.label), ("total", units.format_ns(chart.length)), ("note", lane.end)),
        summary=f"{lane.label}: {works}",
    )
