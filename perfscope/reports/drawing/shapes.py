"""What pictures are made of. A shape has a place and a look; what a look is, is defined in the style sheets.

Places are percent of the box that holds the shape, from its left and top edge, or pixels in a box that says
so. Sizes of marks, and the offsets `dx` and `dy` of texts, are pixels in either.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

Point = tuple[float, float]
Data = tuple[tuple[str, str], ...]  # (name, value): what the page's script reads as element.dataset


class Rect(Struct, frozen=True, kw_only=True):
    """`pattern` names a pattern of `patterns.PATTERNS` that is laid over it, "" for none."""

    x: float
    y: float = 0.0
    width: float
    height: float = 100.0
    look: str
    pattern: str = ""
    rx: float = 0.0
    data: Data = ()


class Line(Struct, frozen=True, kw_only=True):
    x1: float
    y1: float
    x2: float
    y2: float
    look: str


class Path(Struct, frozen=True, kw_only=True):
    """Runs of points joined by straight lines. In percent, what leaves the box is cut off at its edge."""

    runs: Sequence[Sequence[Point]]
    look: str
    closed: bool = False
    pattern: str = ""


class Text(Struct, frozen=True, kw_only=True):
    """`anchor`: start, middle or end. `dy` moves the baseline down."""

    x: float
    y: float
    text: str
    look: str
    anchor: str = "start"
    dx: float = 0.0
    dy: float = 0.0


class Marker(Struct, frozen=True, kw_only=True):
    """A circle, square, diamond, triangle (point up) or arrow (point down), `size` pixels in radius."""

    x: float
    y: float
    kind: str
    size: float
    look: str


class ShapeGroup(Struct, frozen=True, kw_only=True):
    """Shapes that belong together for the pointer."""

    shapes: tuple[Shape, ...]
    look: str
    data: Data = ()


class Cells(Struct, frozen=True, kw_only=True):
    """A grid of `columns` by `rows` that fills the box. `runs`: (column, row, number of cells)."""

    columns: int
    rows: int
    runs: Sequence[tuple[int, int, int]]
    look: str


Shape = Rect | Line | Path | Text | Marker | ShapeGroup | Cells
