"""A Picture on paper: one SVG document as wide as the text, in the light theme's colors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfscope.reports.drawing.metrics import FONT, text_width
from perfscope.reports.drawing.picture import Box, LegendEntry, Panel, Picture
from perfscope.reports.drawing.shapes import Rect, Shape, Text
from perfscope.reports.drawing.style import font_size, paint
from perfscope.reports.drawing.svg import Canvas, attributes, decimal, draw, escape, pattern_defs, patterns_of

WIDTH = 900.0  # pixels on the page's text width of 6.9 inches: a letter of 12 pixels is 6.6 pt high
GAP, LINE, ROW_GAP, PANEL_GAP = 8.0, 16.0, 4.0, 10.0
WIDEST_LABEL = 250.0
LEGEND = "caption"  # look of a legend's words


class _Sheet:
    """What is drawn so far, from the top; `left` and `right` are the plots' edges."""

    def __init__(self, picture: Picture, width: float) -> None:
        panels = picture.panels
        axes = [shape for panel in panels for box in panel.boxes for shape in box.axis]
        labels = _widest(panel.label for panel in panels)
        ends = _widest(panel.end for panel in panels)
        widths = [text_width(label.text, font_size(label.look)) for label in axes if isinstance(label, Text)]
        self.labels = min(labels, WIDEST_LABEL) + GAP if labels else 0.0
        self.left = self.labels + (max(widths) + GAP if widths else 0.0)
        self.width = width
        self.right = width - (ends + GAP if ends else 0.0)
        self.y = ROW_GAP
        self.parts: list[str] = []
        self.used: dict[str, None] = {}

    def draw(self, shapes: Sequence[Shape], canvas: Canvas) -> None:
        self.used |= dict.fromkeys(patterns_of(shapes))
        self.parts.append(draw(shapes, canvas))

    def write(self, text: str, look: str, *, x: float, anchor: str = "start", y: float | None = None) -> None:
        at = self.y + 12 if y is None else y
        self.draw([Text(x=x, y=at, text=text, look=look, anchor=anchor)], Canvas(paint))

    def legend(self, entries: Sequence[LegendEntry], left: float, start: float = 0.0) -> None:
        """Entries side by side from `start` on, further rows from `left` on."""
        x = max(left, start)
        for entry in entries:
            text = " ".join(filter(None, (entry.title, entry.note)))
            size = text_width(text, font_size(LEGEND))
            needed = (entry.width + 5 if entry.sample else 0) + size
            if x > left and x + needed > self.width:
                x, self.y = left, self.y + LINE
            if entry.sample:
                self.draw(entry.sample, Canvas(paint, left=x, top=self.y + 2))
            self.write(text, LEGEND, x=x + needed - size)
            x += needed + 14
        if entries:
            self.y += LINE + ROW_GAP


def _widest(texts: Iterable[str]) -> float:
    return max((text_width(text, font_size("bar-label"), bold=True) for text in texts), default=0.0)


def paper_svg(picture: Picture, wide: float = WIDTH) -> str:
    """The picture as an SVG document, so many pixels wide, its text as text."""
    sheet = _Sheet(picture, wide)
    sheet.legend(picture.legend, 0.0)
    if picture.y_title:
        sheet.write(picture.y_title, "y-title", x=0)
        sheet.y += LINE + 4
    for panel in picture.panels:
        _panel(sheet, panel)
    bottom = Canvas(paint, sheet.left, sheet.y, (sheet.right - sheet.left) / 100, picture.axis_height / 100)
    sheet.draw(picture.axis, bottom)
    sheet.y += picture.axis_height if picture.axis else 0.0
    if picture.x_title:
        sheet.write(picture.x_title, "x-title", x=(sheet.left + sheet.right) / 2, anchor="middle")
        sheet.y += LINE
    width, height = decimal(wide), decimal(sheet.y)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    title = f"<title>{escape(picture.title)}</title>"
    defs = pattern_defs(paint, sheet.used) if sheet.used else ""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}{attributes(("font-family", FONT))}>'
    return f"{head}{title}{defs}{''.join(sheet.parts)}</svg>"


def _panel(sheet: _Sheet, panel: Panel) -> None:
    if panel.title:
        sheet.write(panel.title, "panel-title", x=sheet.left)
        title_width = text_width(panel.title, font_size("panel-title"), bold=True)
        if panel.note:
            sheet.write(panel.note, LEGEND, x=sheet.left + title_width + GAP)
            title_width += GAP + text_width(panel.note, font_size(LEGEND))
        sheet.legend(panel.entries, sheet.left, sheet.left + title_width + 2 * GAP)
        sheet.y += 0.0 if panel.entries else LINE + ROW_GAP
    middle = sheet.y + panel.height / 2 + 4
    strong = "bar-label strong" if panel.look == "strong" else "bar-label"
    if panel.label:
        sheet.write(panel.label, strong, x=0, y=middle)
    if panel.end:
        sheet.write(panel.end, strong, x=sheet.right + GAP, y=middle)
    for box in panel.boxes:
        _box(sheet, box, panel.height)
    sheet.y += panel.height + (PANEL_GAP if panel.title else ROW_GAP)


def _box(sheet: _Sheet, box: Box, full_height: float) -> None:
    top, height = sheet.y + box.top, full_height if box.height is None else box.height
    wide = (sheet.right - sheet.left) / 100
    canvas = Canvas(paint, sheet.left, top, wide, height / 100, clip=True)
    if box.ground:
        sheet.draw([Rect(x=0, width=100, look="ground")], canvas)
    sheet.draw(box.shapes, canvas)
    gutter = (sheet.left - GAP - sheet.labels) / 100
    sheet.draw(box.axis, Canvas(paint, sheet.labels, top, gutter, height / 100))
