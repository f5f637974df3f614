"""The machine's picture as SVG: for the page with classes, for paper with the colours written in."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from perfscope.reports.model import Machine
from perfscope.reports.palette import light_palette
from perfscope.reports.topology_layout import NARROW, WIDE, Box, Drawing, Label, Path, Shape, lay_out

SPACE = "http://www.w3.org/2000/svg"
PRINT_WIDTH = 760.0  # units on the paper's text width, so that letters come out near 7 pt

# look -> (fill, stroke, stroke width, dash): names of the palette, "" = none. machine.css says the same.
LOOKS: dict[str, tuple[str, str, float, str]] = {
    "m-socket": ("", "line-2", 1.0, ""),
    "m-cpu": ("surface", "part-compute", 1.2, ""),
    "m-memory_only": ("surface", "part-copy", 1.2, "5 3"),
    "m-mcdram": ("surface", "part-input_wait", 1.8, ""),
    "m-fast": ("surface", "part-input_wait", 1.8, ""),
    "m-gpu": ("surface", "part-optimizer", 1.2, ""),
    "m-nic": ("surface", "part-host", 1.2, ""),
    "m-port": ("surface", "part-exposed_comm", 1.2, ""),
    "m-stem": ("", "line-2", 1.2, ""),
    "m-between": ("", "ink-2", 2.0, ""),
    "m-rail-nvlink": ("", "part-optimizer", 2.0, ""),
    "m-rail-pcie": ("", "ink-2", 2.0, ""),
}
# look -> (size, weight, ink)
INKS = {
    "m-head": (12.5, "600", "ink-2"),
    "m-title": (12.5, "600", "ink"),
    "m-line": (11.5, "400", "ink-2"),
    "m-note": (11.5, "400", "ink-2"),
}


def page_svgs(machine: Machine) -> list[str]:
    """The picture for wide and for narrow screens; the style sheet shows one."""
    sizes = ((WIDE, "m-picture m-wide"), (NARROW, "m-picture m-narrow"))
    return [_svg(lay_out(machine, width), machine, paint=False, name=name) for width, name in sizes]


def print_svg(machine: Machine) -> tuple[str, float]:
    """A document of its own, in the light theme's colours, and its share of the text's width."""
    drawing = lay_out(machine, PRINT_WIDTH)
    return _svg(drawing, machine, paint=True, name=""), drawing.width / PRINT_WIDTH


def _svg(drawing: Drawing, machine: Machine, *, paint: bool, name: str) -> str:
    size = f"0 0 {_figure(drawing.width)} {_figure(drawing.height)}"
    root = ET.Element("svg", {"viewBox": size, "role": "img"})
    if paint:
        root.set("xmlns", SPACE)
        root.set("width", _figure(drawing.width))
        root.set("height", _figure(drawing.height))
        root.set("font-family", "DejaVu Sans")
    else:
        root.set("class", name)
        root.set("width", _figure(drawing.width))
    title = ET.SubElement(root, "title")
    title.text = f"{machine.title}: {machine.summary}"
    for shape in drawing.all:
        _draw(root, shape, paint=paint)
    return ET.tostring(root, encoding="unicode")


def _draw(root: ET.Element, shape: Shape, *, paint: bool) -> None:
    if isinstance(shape, Box):
        place = {"x": shape.x, "y": shape.y, "width": shape.width, "height": shape.height}
        element = ET.SubElement(root, "rect", {key: _figure(value) for key, value in place.items()})
        element.set("rx", "7" if shape.look == "m-socket" else "4")
    elif isinstance(shape, Path):
        points = " ".join(f"{_figure(x)},{_figure(y)}" for x, y in shape.points)
        element = ET.SubElement(root, "polyline", {"points": points})
    else:
        _write(root, shape, paint=paint)
        return
    if not paint:
        element.set("class", shape.look)
        return
    palette = light_palette()
    fill, stroke, width, dash = LOOKS[shape.look]
    element.set("fill", palette[fill] if fill else "none")
    element.set("stroke", palette[stroke])
    element.set("stroke-width", _figure(width))
    if dash:
        element.set("stroke-dasharray", dash)


def _write(root: ET.Element, label: Label, *, paint: bool) -> None:
    element = ET.SubElement(root, "text", {"x": _figure(label.x), "y": _figure(label.y)})
    element.text = label.text
    if label.anchor != "start":
        element.set("text-anchor", label.anchor)
    if not paint:
        element.set("class", label.look)
        return
    size, weight, ink = INKS[label.look]
    element.set("font-size", _figure(size))
    element.set("font-weight", weight)
    element.set("fill", light_palette()[ink])


def _figure(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
