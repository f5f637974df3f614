"""A chart laid out: panels of boxes on one axis, and a legend. Page and paper draw the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch

from msgspec import Struct

from perfscope.reports.chart import Chart
from perfscope.reports.drawing.patterns import pattern
from perfscope.reports.drawing.shapes import Data, Line, Rect, Shape, Text
from perfscope.reports.geometry import Tick

Json = dict[str, object]
AXIS_HEIGHT, TICK = 20.0, 4.0  # pixels


class LegendEntry(Struct, frozen=True, kw_only=True):
    """One entry of a legend. `sample` is drawn in pixels, `width` wide and 12 high; () for words alone."""

    title: str
    sample: tuple[Shape, ...] = ()
    width: float = 14.0
    note: str = ""
    hint: str = ""


class Box(Struct, frozen=True, kw_only=True):
    """A rectangle of a plot with axes of its own; its shapes are in percent of it.

    `axis` is what is left of it, at the same height. `height` in pixels, from `top` on; None: all of the
    plot. `ground`: it has the color of a surface.
    """

    shapes: tuple[Shape, ...]
    axis: tuple[Shape, ...] = ()
    top: float = 0.0
    height: float | None = None
    ground: bool = True


class Panel(Struct, frozen=True, kw_only=True):
    """One row: words, axis, plot, words. `plot`: the plot's class on the page, which knows its height there.

    `height`: of the plot on paper, in pixels. `title`, `note` and `entries` stand above it. `summary` says
    what it shows to who cannot see it. `cursor`: the page's script moves a line over it.
    """

    plot: str
    boxes: tuple[Box, ...]
    height: float
    label: str = ""
    end: str = ""
    hint: str = ""
    look: str = ""
    id: str = ""
    title: str = ""
    note: str = ""
    entries: tuple[LegendEntry, ...] = ()
    data: Data = ()
    summary: str = ""
    cursor: bool = False


class Picture(Struct, frozen=True, kw_only=True):
    """`look`: classes of the whole on the page. `hook`: which part of the page's script serves it.

    `keys` tells what the arrow keys do. `data` makes what that script needs. `sheets`: style sheets that not
    every page has. `details` are further sentences below it, each numbered.
    """

    id: str
    title: str
    look: str
    panels: tuple[Panel, ...]
    legend: tuple[LegendEntry, ...] = ()
    axis: tuple[Shape, ...] = ()
    axis_height: float = AXIS_HEIGHT
    x_title: str = ""
    y_title: str = ""
    caption: str = ""
    details: tuple[tuple[str, str, str], ...] = ()  # (when, what, more)
    hook: str = ""
    keys: str = ""
    data: Callable[[], Json] | None = None
    sheets: tuple[str, ...] = ()


@singledispatch
def lay_out(chart: Chart) -> Picture:
    """The picture of a chart; each module of layouts registers its own.

    Raises:
        TypeError: no layout is known for a chart of this type.
    """
    raise TypeError(f"no layout for a {type(chart).__name__}")


def x_axis(
    ticks: Sequence[Tick], *, height: float = AXIS_HEIGHT, marks: bool = True, thin: bool = True
) -> tuple[Shape, ...]:
    """Marks and words below a plot; `thin`: every other word goes where the screen is narrow."""
    shapes: list[Shape] = []
    for index, tick in enumerate(ticks):
        at = tick.position
        anchor = "start" if at < 1 else "end" if at > 97 else "middle"
        look = "tick roomy" if thin and index % 2 else "tick"
        if marks:
            shapes.append(Line(x1=at, y1=0, x2=at, y2=100 * TICK / height, look="tick-line"))
        shapes.append(Text(x=at, y=0, dy=16, text=tick.text, look=look, anchor=anchor))
        if tick.below:
            shapes.append(Text(x=at, y=0, dy=31, text=tick.below, look=look, anchor=anchor))
    return tuple(shapes)


def y_axis(ticks: Sequence[Tick], edge: float = 3) -> tuple[Shape, ...]:
    """Words left of a box; those within `edge` percent of its ends stay beside it."""
    return tuple(
        Text(
            x=100,
            y=100 - tick.position,
            dy=10 if tick.position > 100 - edge else -1 if tick.position < edge else 4,
            text=tick.text,
            look="tick",
            anchor="end",
        )
        for tick in ticks
    )


def grid(ticks: Sequence[Tick]) -> tuple[Shape, ...]:
    """Lines across a box at the ticks of its y axis."""
    return tuple(
        Line(x1=0, y1=100 - tick.position, x2=100, y2=100 - tick.position, look="grid") for tick in ticks
    )


def swatch(key: str, title: str, hint: str = "") -> LegendEntry:
    """The legend's entry for a part."""
    sample = Rect(x=0, width=14, height=12, rx=2, look=f"f-{key}", pattern=pattern(key))
    return LegendEntry(title=title, sample=(sample,), hint=hint)
