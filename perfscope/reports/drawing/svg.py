"""Shapes as SVG. The page and paper differ in where a box lies and in how a look is written, nowhere else."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import singledispatch

from msgspec import Struct
from msgspec.structs import replace

from perfscope.reports.drawing.patterns import PATTERNS
from perfscope.reports.drawing.shapes import (
    Cells,
    Data,
    Line,
    Marker,
    Path,
    Point,
    Rect,
    Shape,
    ShapeGroup,
    Text,
)

Paint = Callable[[str], str]  # look -> attributes, with a space in front
_TEXT = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})
_NOT_XML = re.compile("[\ufffe\uffff]")  # visible() leaves no other character that XML refuses
_PATH_BOX = 1000  # units that a path's box has on the page, where its size is not known


def escape(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text).translate(_TEXT)


def attributes(*pairs: tuple[str, str]) -> str:
    """`` name="value"`` of each pair that has a value."""
    return "".join(f' {name}="{escape(value)}"' for name, value in pairs if value)


def decimal(value: float) -> str:
    """Two decimals at most: a hundredth of a pixel cannot be seen."""
    text = f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _per_cent(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") + "%"


class Canvas(Struct, frozen=True):
    """Where a box lies. Without `per_cent` a place is `left` + x · `wide`, `top` + y · `tall`."""

    paint: Paint
    left: float = 0.0
    top: float = 0.0
    wide: float = 1.0
    tall: float = 1.0
    per_cent: bool = False
    clip: bool = False  # cut paths off at the edges of the 100 × 100 places

    def across(self, value: float) -> str:
        return _per_cent(value) if self.per_cent else decimal(self.left + value * self.wide)

    def down(self, value: float) -> str:
        return _per_cent(value) if self.per_cent else decimal(self.top + value * self.tall)

    def width(self, value: float) -> str:
        return _per_cent(value) if self.per_cent else decimal(value * self.wide)

    def height(self, value: float) -> str:
        return _per_cent(value) if self.per_cent else decimal(value * self.tall)


def draw(shapes: Iterable[Shape], canvas: Canvas) -> str:
    """The shapes in painting order."""
    parts: list[str] = []
    for is_path, run in itertools.groupby(shapes, lambda shape: isinstance(shape, Path)):
        if is_path and canvas.per_cent:
            box = f'viewBox="0 0 {_PATH_BOX} {_PATH_BOX}" preserveAspectRatio="none"'
            inside = "".join(_draw(shape, canvas) for shape in run)
            parts.append(f'<svg width="100%" height="100%" {box}>{inside}</svg>')
        elif is_path and canvas.clip:
            here = f'x="{canvas.across(0)}" y="{canvas.down(0)}"'
            size = f'width="{canvas.width(100)}" height="{canvas.height(100)}"'
            inner = replace(canvas, left=0.0, top=0.0)
            parts.append(f"<svg {here} {size}>{''.join(_draw(shape, inner) for shape in run)}</svg>")
        else:
            parts += (_draw(shape, canvas) for shape in run)
    return "".join(parts)


def _data(data: Data) -> str:
    return attributes(*((f"data-{name}", value) for name, value in data))


@singledispatch
def _draw(shape: Shape, canvas: Canvas) -> str:
    raise TypeError(f"no SVG for a {type(shape).__name__}")


@_draw.register
def _(shape: Rect, canvas: Canvas) -> str:
    position = f' x="{canvas.across(shape.x)}" y="{canvas.down(shape.y)}"'
    size = f' width="{canvas.width(shape.width)}" height="{canvas.height(shape.height)}"'
    corner = f' rx="{decimal(shape.rx)}"' if shape.rx else ""
    drawn = f"<rect{canvas.paint(shape.look)}{position}{size}{corner}{_data(shape.data)}/>"
    if shape.pattern:
        over = canvas.paint("over")
        drawn += f'<rect{over} fill="url(#p-{shape.pattern})"{position}{size}{corner}/>'
    return drawn


@_draw.register
def _(shape: Line, canvas: Canvas) -> str:
    return (
        f'<line{canvas.paint(shape.look)} x1="{canvas.across(shape.x1)}" y1="{canvas.down(shape.y1)}"'
        f' x2="{canvas.across(shape.x2)}" y2="{canvas.down(shape.y2)}"/>'
    )


@_draw.register
def _(shape: Path, canvas: Canvas) -> str:
    way = f'd="{"".join(_run(run, shape, canvas) for run in shape.runs)}"/>'
    over = f'<path{canvas.paint("over")} fill="url(#p-{shape.pattern})" {way}' if shape.pattern else ""
    return f"<path{canvas.paint(shape.look)} {way}{over}"


def _run(points: Sequence[Point], shape: Path, canvas: Canvas) -> str:
    if canvas.per_cent:
        scale = _PATH_BOX / 100
        coordinates = [f"{x * scale:.1f},{y * scale:.1f}" for x, y in points]
    else:
        coordinates = [
            f"{canvas.left + x * canvas.wide:.1f},{canvas.top + y * canvas.tall:.1f}" for x, y in points
        ]
    end = "Z" if shape.closed else "h1" if len(points) == 1 else ""
    return f"M{'L'.join(coordinates)}{end}"


@_draw.register
def _(shape: Text, canvas: Canvas) -> str:
    anchor = f' text-anchor="{shape.anchor}"' if shape.anchor != "start" else ""
    offset = "".join(
        f' {name}="{decimal(value)}"' for name, value in (("dx", shape.dx), ("dy", shape.dy)) if value
    )
    position = f' x="{canvas.across(shape.x)}" y="{canvas.down(shape.y)}"'
    return f"<text{canvas.paint(shape.look)}{position}{offset}{anchor}>{escape(shape.text)}</text>"


@_draw.register
def _(shape: Marker, canvas: Canvas) -> str:
    x, y, paint, r = canvas.across(shape.x), canvas.down(shape.y), canvas.paint(shape.look), shape.size
    if shape.kind == "circle":
        return f'<circle{paint} cx="{x}" cy="{y}" r="{decimal(r)}"/>'
    if shape.kind == "square":
        corners = [(-0.92, -0.92), (0.92, -0.92), (0.92, 0.92), (-0.92, 0.92)]
    elif shape.kind == "triangle":
        corners = [(0.0, -1.3), (1.15, 0.75), (-1.15, 0.75)]
    elif shape.kind == "arrow":
        corners = [(0.0, 1.3), (1.15, -0.75), (-1.15, -0.75)]
    else:
        corners = [(0.0, -1.3), (1.22, 0.0), (0.0, 1.3), (-1.22, 0.0)]
    path = "L".join(f"{decimal(a * r)} {decimal(b * r)}" for a, b in corners)
    if canvas.per_cent:  # a path has no percent
        return f'<svg x="{x}" y="{y}" overflow="visible"><path{paint} d="M{path}Z"/></svg>'
    return f'<path{paint} transform="translate({x} {y})" d="M{path}Z"/>'


@_draw.register
def _(shape: Cells, canvas: Canvas) -> str:
    way = "".join(f"M{column} {row}h{length}v1h-{length}z" for column, row, length in shape.runs)
    path = f'<path{canvas.paint(shape.look)} d="{way}"'
    if canvas.per_cent:
        box = f'viewBox="0 0 {shape.columns} {shape.rows}" preserveAspectRatio="none"'
        return f'<svg width="100%" height="100%" {box}>{path}/></svg>'
    wide, tall = 100 * canvas.wide / shape.columns, 100 * canvas.tall / shape.rows
    place = f"translate({decimal(canvas.left)} {decimal(canvas.top)}) scale({wide:.5f} {tall:.5f})"
    return f'{path} transform="{place}"/>'


@_draw.register
def _(shape: ShapeGroup, canvas: Canvas) -> str:
    return f"<g{canvas.paint(shape.look)}{_data(shape.data)}>{draw(shape.shapes, canvas)}</g>"


def pattern_defs(paint: Paint, keys: Iterable[str]) -> str:
    """`<defs>` with the patterns of these parts."""
    return f"<defs>{''.join(_pattern(paint, key) for key in keys)}</defs>"


def _pattern(paint: Paint, key: str) -> str:
    size, angle, shape = PATTERNS[key]
    turn = f' patternTransform="rotate({decimal(angle)})"' if angle else ""
    units = f'width="{decimal(size)}" height="{decimal(size)}" patternUnits="userSpaceOnUse"{turn}'
    return f'<pattern id="p-{key}" {units}>{draw([shape], Canvas(paint))}</pattern>'


def patterns_of(shapes: Iterable[Shape]) -> Iterator[str]:
    """Keys of the patterns that the shapes use."""
    for shape in shapes:
        if isinstance(shape, (Rect, Path)) and shape.pattern:
            yield shape.pattern
        elif isinstance(shape, ShapeGroup):
            yield from patterns_of(shape.shapes)
