"""Icicles: boxes below one another, as wide as their share."""

from __future__ import annotations

from perfscope import units
from perfscope.reports.drawing.picture import Box, LegendEntry, Panel, Picture, lay_out
from perfscope.reports.drawing.shapes import Rect, Shape, ShapeGroup, Text
from perfscope.reports.icicle import Icicle, IcicleBox

ROW = 19.0  # pixels
LETTER = 0.8  # percent of paper's width that a character needs


@lay_out.register
def _icicle(chart: Icicle) -> Picture:
    rows = 1 + max((box.depth for box in chart.boxes), default=0)
    shapes: tuple[Shape, ...] = tuple(_box(chart, box, rows) for box in chart.boxes)
    plot = Box(shapes=shapes, height=ROW * rows, ground=False)
    top = [box for box in chart.boxes if box.depth == 1][:5]
    words = ", ".join(f"{box.full} {units.format_ratio(box.share)}" for box in top)
    return Picture(
        id=chart.id,
        title=chart.title,
        caption=chart.caption,
        look="icicle",
        legend=tuple(_entry(part, title) for part, title in chart.legend),
        panels=(Panel(plot="ic-plot", boxes=(plot,), height=ROW * rows, summary=f"{chart.title}: {words}"),),
        hook="icicle",
        keys="Arrow keys step through the boxes, Enter zooms to one, Escape zooms out.",
    )


def _entry(part: str, title: str) -> LegendEntry:
    """Boxes are too small for patterns, and each has its name."""
    return LegendEntry(title=title, sample=(Rect(x=0, width=14, height=12, rx=2, look=f"f-{part}"),))


def _box(chart: Icicle, box: IcicleBox, rows: int) -> ShapeGroup:
    tall = 100 / rows
    left, width = 100 * box.start, 100 * box.share
    shapes = (
        Rect(x=left, y=tall * box.depth, width=width, height=tall * 0.94, look=f"seg f-{box.part}"),
        Text(
            x=left,
            y=tall * box.depth,
            dx=4,
            dy=13,
            text=_fitted(box.label, width),
            look=f"figure t-{box.part}",
        ),
    )
    data = (
        ("path", box.path),
        ("label", box.label),
        ("full", box.full),
        ("value", chart.text(box.value)),
        ("share", units.format_ratio(box.share)),
        ("at", f"{box.depth} {left:.4f} {width:.4f}"),
    )
    return ShapeGroup(shapes=shapes, look="ic", data=data)


def _fitted(text: str, width: float) -> str:
    room = int(width / LETTER) - 1
    if len(text) <= room:
        return text
    return f"{text[: room - 1]}…" if room >= 4 else ""
