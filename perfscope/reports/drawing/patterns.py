"""Hatches, so that no two neighbors differ by color alone: one table for the page and for paper."""

from __future__ import annotations

from perfscope.reports.drawing.shapes import Line, Marker, Shape


def _line(size: float, at: float, look: str, *, level: bool = False) -> Shape:
    if level:
        return Line(x1=0, y1=at, x2=size, y2=at, look=look)
    return Line(x1=at, y1=0, x2=at, y2=size, look=look)


# key of a part -> (size of a tile in pixels, degrees it is turned by, what is on it)
PATTERNS: dict[str, tuple[float, float, Shape]] = {
    "exposed_comm": (8, 45, _line(8, 0, "hatch-line")),
    "transfer": (8, 45, _line(8, 0, "hatch-line")),
    "wait": (7, 45, _line(7, 0, "hatch-line-dark")),
    "idle_host_wait": (7, 45, _line(7, 0, "hatch-line-dark")),
    "input_wait": (7, 0, _line(7, 3, "hatch-line")),
    "idle_kernel_wait": (6, 0, _line(6, 3, "hatch-line-dark")),
    "copy": (6, 0, _line(6, 3, "hatch-line", level=True)),
    "optimizer": (6, 0, Marker(x=3, y=3, kind="circle", size=1.3, look="hatch-dot")),
    "disturbed": (8, -45, _line(8, 0, "hatch-line-warn")),
}


def pattern(key: str) -> str:
    """The pattern of a part, "" where it has none."""
    return key if key in PATTERNS else ""
