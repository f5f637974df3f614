"""A Picture on the page: HTML around SVG whose plots grow with the screen. Colors are the style sheets'."""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.reports.drawing.patterns import PATTERNS
from perfscope.reports.drawing.picture import Box, LegendEntry, Panel, Picture
from perfscope.reports.drawing.shapes import Shape
from perfscope.reports.drawing.svg import Canvas, attributes, decimal, draw, escape, pattern_defs

CURSOR = '<line class="cursor" x1="0" x2="0" y1="0" y2="100%"/>'


def paint(look: str) -> str:
    return f' class="{look}"' if look else ""


FLUID, PIXELS = Canvas(paint, per_cent=True), Canvas(paint)


def patterns_svg() -> str:
    """All patterns; other SVGs of the page, and its script, name them."""
    defs = pattern_defs(paint, PATTERNS)
    return f'<svg class="visually-hidden" width="0" height="0" aria-hidden="true">{defs}</svg>'


def figure_html(picture: Picture, *, is_first: bool = False) -> str:
    """The picture as a `<figure>`; `is_first`: it stands above all sections, right below the page's title."""
    title = escape(picture.title)
    level = ' aria-level="2"' if is_first else ""
    group = attributes(
        ("class", picture.look),
        (f"data-{picture.hook}" if picture.hook else "", picture.id if picture.hook else ""),
        ("tabindex", "0" if picture.hook else ""),
        ("role", "group"),
        ("aria-label", f"{picture.title}. {picture.keys}".strip()),
    )
    has_label = any(panel.label for panel in picture.panels)
    has_axis = any(box.axis for panel in picture.panels for box in panel.boxes)
    has_end = any(panel.end for panel in picture.panels)
    columns = (has_label, has_axis, has_end)
    return "".join(
        (
            f'<figure class="chart" id="{escape(picture.id)}">',
            f'<div class="block-head"><h3{level}>{title}</h3>{_legend(picture.legend, "legend")}</div>',
            f"<div{group}>",
            f'<p class="y-title">{escape(picture.y_title)}</p>' if picture.y_title else "",
            *(_panel(panel, columns) for panel in picture.panels),
            _x_axis(picture, columns),
            "</div>",
            _details(picture),
            f'<figcaption class="caption">{escape(picture.caption)}</figcaption>' if picture.caption else "",
            "</figure>",
        )
    )


def _details(picture: Picture) -> str:
    if not picture.details:
        return ""
    items = (
        f"<li><strong>{escape(when)}:</strong> {escape(what)}{_quiet(f'({more})' if more else '')}</li>"
        for when, what, more in picture.details
    )
    return f'<ol class="ct-peaks">{"".join(items)}</ol>'


def _quiet(text: str) -> str:
    return f' <span class="quiet">{escape(text)}</span>' if text else ""


def _legend(entries: Iterable[LegendEntry], look: str) -> str:
    items = "".join(
        f"<li{attributes(('title', entry.hint))}>{sample_svg(entry.sample, entry.width)}"
        f"<span>{escape(entry.title)}{_quiet(entry.note)}</span></li>"
        for entry in entries
    )
    return f'<ul class="{look}">{items}</ul>' if items else ""


def sample_svg(shapes: tuple[Shape, ...], width: float) -> str:
    """A legend's sample, 12 pixels high; "" for none."""
    if not shapes:
        return ""
    size = f'width="{decimal(width)}" height="12"'
    return f'<svg class="sample" {size} aria-hidden="true">{draw(shapes, PIXELS)}</svg>'


def _panel(panel: Panel, columns: tuple[bool, bool, bool]) -> str:
    has_label, has_axis, has_end = columns
    data = attributes(*((f"data-{name}", value) for name, value in panel.data))
    label, axis, end = "", "", ""
    if has_label:
        title = dict(panel.data).get("label", panel.label)
        label = f'<span class="bar-label"{attributes(("title", title))}>{escape(panel.label)}</span>'
    if has_axis:
        axis = f'<svg class="y-axis of-{panel.plot}"{_height(panel)} aria-hidden="true">'
        axis += "".join(_placed(box, box.axis) for box in panel.boxes) + "</svg>"
    if has_end:
        end = f'<span class="bar-total"{attributes(("title", panel.hint))}>{escape(panel.end)}</span>'
    drawn = "".join(_box(box) for box in panel.boxes) + (CURSOR if panel.cursor else "")
    attributes_text = attributes(("role", "img"), ("aria-label", panel.summary))
    plot = f'<svg class="plot {panel.plot}"{_height(panel)}{attributes_text}>{drawn}</svg>'
    row = f'<div class="row"{data}>{label}{axis}{plot}{end}</div>'
    if not (panel.look or panel.title):
        return row
    head = ""
    if panel.title:
        title = f"<h4>{escape(panel.title)}{_quiet(panel.note)}</h4>"
        head = f'<div class="ct-head">{title}{_legend(panel.entries, "ct-legend")}</div>'
    return f"<div{attributes(('class', panel.look), ('id', panel.id))}>{head}{row}</div>"


def _height(panel: Panel) -> str:
    """Only of plots made of several boxes: others are as high as the style sheet says."""
    return f' height="{decimal(panel.height)}"' if any(box.height is not None for box in panel.boxes) else ""


def _box(box: Box) -> str:
    ground = (
        '<rect class="ground" width="100%" height="100%"/>' if box.height is not None and box.ground else ""
    )
    return _placed(box, box.shapes, ground)


def _placed(box: Box, shapes: tuple[Shape, ...], ground: str = "") -> str:
    drawn = ground + draw(shapes, FLUID)
    if box.height is None or not drawn:
        return drawn
    return f'<svg y="{decimal(box.top)}" height="{decimal(box.height)}" overflow="visible">{drawn}</svg>'


def _x_axis(picture: Picture, columns: tuple[bool, bool, bool]) -> str:
    if not (picture.axis or picture.x_title):
        return ""
    has_label, has_axis, has_end = columns
    empty = '<span class="bar-label"></span>' if has_label else ""
    empty += "<span></span>" if has_axis else ""
    end = '<span class="bar-total"></span>' if has_end else ""
    marks, height = draw(picture.axis, FLUID), decimal(picture.axis_height)
    axis = f'<svg class="axis" height="{height}" aria-hidden="true">{marks}</svg>'
    title = f'<p class="x-title">{escape(picture.x_title)}</p>' if picture.x_title else ""
    return f'<div class="row axis-row">{empty}<div>{axis}{title}</div>{end}</div>'
