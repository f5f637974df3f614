"""A machine's picture: where its boxes and links go for a given width, all in pixels.

Sockets stand side by side where they fit, else one below the other; inside one, a column per NUMA node with
CPUs: the node, the nodes without CPUs that lie closest to it, then network devices, then GPUs. Boxes of one
row line up across the picture. Groups of GPU links hang on rails below.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perfscope.reports.display import path_end
from perfscope.reports.drawing.metrics import FONT
from perfscope.reports.drawing.shapes import Path, Rect, Shape, Text
from perfscope.reports.drawing.style import paint
from perfscope.reports.drawing.svg import Canvas, Paint, attributes, decimal, draw, escape
from perfscope.reports.model import Device, Machine, MemoryNode, Rail

WIDE, NARROW = 1000.0, 348.0
PAPER = 900.0  # on the text's width, so that letters come out near 6.5 pt
SPACE = "http://www.w3.org/2000/svg"
PAD, GAP = 12.0, 9.0
COLUMN = 150.0  # a NUMA node's least width
DEVICE = 96.0  # a device's least width
WIDEST_DEVICE = 236.0
TITLE, LINE = 18.0, 15.0
BETWEEN = 96.0  # gap between sockets that carries the NUMA distance
LETTER = 0.61  # width of a letter in parts of the size, on the safe side for DejaVu Sans
RAIL = 27.0
MARGIN = 4.0  # where rails of several rows are joined


class Drawing(Struct):
    """Shapes in painting order."""

    width: float
    height: float = 0.0
    links: list[Path] = []  # under the boxes
    shapes: list[Shape] = []
    places: dict[str, Rect] = {}  # device id -> its box

    @property
    def all(self) -> list[Shape]:
        frames = [shape for shape in self.shapes if isinstance(shape, Rect) and shape.look == "m-socket"]
        drawn_last = [shape for shape in self.shapes if shape not in frames]
        return [*frames, *self.links, *drawn_last]


class _Heights(Struct, frozen=True, kw_only=True):
    """What the columns of one row of sockets have in common."""

    node: float
    near: float
    network: float
    gpus: float
    network_per_row: int
    gpus_per_row: int

    @property
    def total(self) -> float:
        return self.node + self.near + self.network + self.gpus


def lay_out(machine: Machine, width: float) -> Drawing:
    """The picture of one machine, at most `width` units wide; text sizes assume that a unit is a pixel."""
    width = min(width, _natural_width(machine))
    drawing = Drawing(width=width)
    y, started = 0.0, False
    rows = _socket_rows(machine, width)
    rail_ends: dict[int, tuple[float, float]] = {}
    for sockets in rows:
        if started and machine.between:
            text = f"NUMA distance {machine.between}"
            drawing.shapes.append(Text(x=width / 2, y=y + 18, text=text, look="m-note", anchor="middle"))
            y += 26
        elif started:
            y += GAP
        top, started = y, True
        y = _socket_row(drawing, machine, sockets, y)
        y = _rails(drawing, machine, top, y, rail_ends)
    if machine.loose:
        y = _loose(drawing, machine.loose, y + GAP)
    drawing.height = y + 1
    return drawing


def page_svgs(machine: Machine, paint: Paint) -> str:
    """The picture for wide and for narrow screens; the style sheet shows one."""
    sizes = ((WIDE, "m-picture m-wide"), (NARROW, "m-picture m-narrow"))
    return "\n".join(
        _svg(machine, lay_out(machine, width), paint, attributes(("class", look))) for width, look in sizes
    )


def paper_svg(machine: Machine) -> tuple[str, float]:
    """A document of its own and its share of the text's width."""
    drawing = lay_out(machine, PAPER)
    extra = attributes(("xmlns", SPACE), ("height", decimal(drawing.height)), ("font-family", FONT))
    return _svg(machine, drawing, paint, extra), drawing.width / PAPER


def _svg(machine: Machine, drawing: Drawing, paint: Paint, extra: str) -> str:
    width, height = decimal(drawing.width), decimal(drawing.height)
    title = f"<title>{escape(f'{machine.title}: {machine.summary}')}</title>"
    shapes = draw(drawing.all, Canvas(paint))
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img"{extra}>{title}{shapes}</svg>'


def _natural_width(machine: Machine) -> float:
    """What the machine fills without empty boxes: a guest with two CPUs needs no thousand pixels."""
    gap = BETWEEN if machine.between else GAP
    most = max((len(node.devices) for socket in machine.sockets for node in socket.nodes), default=0)
    column = max(1.45 * COLUMN, min(most, 4) * (1.3 * DEVICE + GAP))
    columns = [len(socket.nodes) * (column + GAP) + 2 * PAD for socket in machine.sockets]
    loose = min(len(machine.loose), 8) * (1.3 * DEVICE + GAP) + 2 * PAD
    return max(sum(columns) + gap * (len(columns) - 1), loose, 300.0)


def _socket_rows(machine: Machine, width: float) -> list[list[int]]:
    if not machine.sockets:
        return []
    gap = BETWEEN if machine.between else GAP
    widest = max((len(socket.nodes) for socket in machine.sockets), default=1)
    # As many sockets in a row as leave every column its least width, and at least one.
    per_row = len(machine.sockets)
    while per_row > 1 and (width - gap * (per_row - 1)) / per_row < 2 * PAD + widest * (0.7 * COLUMN + GAP):
        per_row -= 1
    numbers = list(range(len(machine.sockets)))
    return [numbers[i : i + per_row] for i in range(0, len(numbers), per_row)]


def _socket_row(drawing: Drawing, machine: Machine, sockets: Sequence[int], y: float) -> float:
    gap = BETWEEN if machine.between else GAP
    width = (drawing.width - 2 - gap * (len(sockets) - 1)) / len(sockets)
    inner = width - 2 * PAD
    widest = max(len(machine.sockets[number].nodes) for number in sockets)
    per_row = max(1, min(widest, int((inner + GAP) // (min(COLUMN, inner) * 0.7 + GAP))))
    column = (inner - GAP * (per_row - 1)) / per_row
    bottom = y
    for index, number in enumerate(sockets):
        x = 1 + index * (width + gap)
        end = _socket(drawing, machine, sockets, number, (x, y), column, per_row)
        bottom = max(bottom, end)
    for index, number in enumerate(sockets):
        x = 1 + index * (width + gap)
        drawing.shapes.append(Rect(x=x, y=y + 1, width=width, height=bottom - y, look="m-socket", rx=7))
        title = fitted(machine.sockets[number].title, width - 2 * PAD, 12.5)
        drawing.shapes.append(Text(x=x + PAD, y=y + 21, text=title, look="m-head"))
        if index and machine.between:
            _between(drawing, machine.between, x - gap, x, y + 62)
    return bottom + 1


def _socket(
    drawing: Drawing,
    machine: Machine,
    beside: Sequence[int],
    number: int,
    corner: tuple[float, float],
    column: float,
    per_row: int,
) -> float:
    """Draws one socket; boxes line up with those of the sockets beside it."""
    nodes = machine.sockets[number].nodes
    x, at = corner[0], corner[1] + 32
    together = [node for other in beside for node in machine.sockets[other].nodes]
    for start in range(0, len(nodes), per_row):
        row = nodes[start : start + per_row]
        heights = _heights(together if len(beside) > 1 else row, column)
        for index, node in enumerate(row):
            _column(drawing, node, x + PAD + index * (column + GAP), at, column, heights)
        at += heights.total + (GAP if start + per_row < len(nodes) else 0)
    return at + PAD


def _text_height(lines: int) -> float:
    return 8 + TITLE + LINE * lines + 3


def _heights(nodes: Sequence[MemoryNode], column: float) -> _Heights:
    near = max((sum(_text_height(len(n.lines)) + 6 for n in node.near) for node in nodes), default=0)
    network = [_of_kind(node, ("port", "nic")) for node in nodes]
    gpus = [_of_kind(node, ("gpu",)) for node in nodes]
    network_per_row = max(_per_row(devices, column) for devices in network)
    gpus_per_row = max(_per_row(devices, column) for devices in gpus)
    return _Heights(
        node=max(_text_height(len(_wrapped(node, column))) for node in nodes),
        near=near,
        network=max(_grid_height(devices, network_per_row) for devices in network),
        gpus=max(_grid_height(devices, gpus_per_row) for devices in gpus),
        network_per_row=network_per_row,
        gpus_per_row=gpus_per_row,
    )


def _wrapped(node: MemoryNode, column: float) -> list[str]:
    return [fitted(line, column - 16, 11.5) for line in node.lines]


def _of_kind(node: MemoryNode, kinds: tuple[str, ...]) -> list[Device]:
    return [device for device in node.devices if device.kind in kinds]


def _per_row(devices: Sequence[Device], width: float) -> int:
    most = max(1, int((width + GAP) // (DEVICE + GAP)))
    rows = -(-len(devices) // most)
    return -(-len(devices) // rows) if devices else 1  # 5 in rows of 3 and 2 rather than 4 and 1


def _device_height(devices: Sequence[Device]) -> float:
    return _text_height(max((len(device.lines) for device in devices), default=0))


def _grid_height(devices: Sequence[Device], per_row: int) -> float:
    if not devices:
        return 0.0
    rows = -(-len(devices) // per_row)
    return 12 + rows * (_device_height(devices) + GAP) - GAP


def _column(drawing: Drawing, node: MemoryNode, x: float, y: float, width: float, heights: _Heights) -> None:
    box = Rect(x=x, y=y, width=width, height=heights.node, look=f"m-{node.kind}", rx=4)
    _text_box(drawing, box, node.title, node.lines)
    at, previous = y + heights.node, box
    for near in node.near:
        height = _text_height(len(near.lines))
        close = Rect(x=x, y=at + 6, width=width, height=height, look=f"m-{near.kind}", rx=4)
        _stem(drawing, x + width / 2, at, at + 6, "m-stem")
        _text_box(drawing, close, near.title, near.lines)
        at, previous = at + 6 + height, close
    at = y + heights.node + heights.near
    for kinds, room, per_row in (
        (("port", "nic"), heights.network, heights.network_per_row),
        (("gpu",), heights.gpus, heights.gpus_per_row),
    ):
        devices = _of_kind(node, kinds)
        if devices:
            top = at + room - _grid_height(devices, per_row) if kinds == ("gpu",) else at
            _grid(drawing, devices, x, top + 12, width, per_row)
            _stem(drawing, x + 7, previous.y + previous.height, top + 12, "m-stem")
        at += room


def _grid(
    drawing: Drawing, devices: Sequence[Device], x: float, y: float, width: float, per_row: int
) -> None:
    size = min((width - GAP * (per_row - 1)) / per_row, WIDEST_DEVICE)
    height = _device_height(devices)
    for number, device in enumerate(devices):
        row, column = divmod(number, per_row)
        box = Rect(
            x=x + column * (size + GAP),
            y=y + row * (height + GAP),
            width=size,
            height=height,
            look=f"m-{device.kind}",
            rx=4,
        )
        drawing.places[device.id] = box
        _text_box(drawing, box, device.title, device.lines)


def _text_box(drawing: Drawing, box: Rect, title: str, lines: Sequence[str]) -> None:
    drawing.shapes.append(box)
    drawing.shapes.append(
        Text(x=box.x + 8, y=box.y + 19, text=fitted(title, box.width - 14, 12.5), look="m-title")
    )
    for number, line in enumerate(lines):
        text = fitted(line, box.width - 14, 11.5)
        drawing.shapes.append(Text(x=box.x + 8, y=box.y + 19 + LINE * (number + 1), text=text, look="m-line"))


def _stem(drawing: Drawing, x: float, top: float, bottom: float, look: str) -> None:
    drawing.links.append(Path(runs=(((x, top), (x, bottom)),), look=look))


def _between(drawing: Drawing, text: str, left: float, right: float, y: float) -> None:
    drawing.links.append(Path(runs=(((left, y), (right, y)),), look="m-between"))
    middle = (left + right) / 2
    drawing.shapes.append(Text(x=middle, y=y - 7, text="NUMA distance", look="m-note", anchor="middle"))
    drawing.shapes.append(Text(x=middle, y=y + 16, text=text, look="m-note", anchor="middle"))


def _rails(
    drawing: Drawing, machine: Machine, top: float, y: float, ends: dict[int, tuple[float, float]]
) -> float:
    """Rails of the devices between `top` and `y`; a rail over several rows is joined at the left margin."""
    device_ids = {device.id for socket in machine.sockets for node in socket.nodes for device in node.devices}
    levels: list[float] = []  # right end of the last rail on each level
    lowest = y
    for number, rail in enumerate(machine.rails):
        look = f"m-rail-{rail.link_class}"
        boxes = [
            drawing.places[m] for m in rail.members if m in drawing.places and drawing.places[m].y >= top
        ]
        if not boxes:
            continue
        floor = max(box.y for box in boxes)
        drops = [_drop(box, floor) for box in boxes]
        spread = len(boxes) < len(device_ids & set(rail.members))
        left = MARGIN if spread else min(drop[-1][0] for drop in drops)
        right = max(drop[-1][0] for drop in drops)
        level = next((n for n, end in enumerate(levels) if end + GAP < left), len(levels))
        levels[level : level + 1] = [max(right, left + LETTER * 11.5 * len(rail.title))]
        at = y + 17 + level * (RAIL + LINE)
        drawing.links.append(Path(runs=(((left, at), (right, at)),), look=look))
        drawing.links += [Path(runs=((*drop, (drop[-1][0], at)),), look=look) for drop in drops]
        if number in ends:
            drawing.links.append(Path(runs=((ends[number], (MARGIN, at)),), look=look))
        ends[number] = (MARGIN, at)
        if device_ids & set(rail.members) <= set(drawing.places):  # said once, under the last row
            _rail_label(drawing, rail, left, at)
        lowest = max(lowest, at + LINE + 6)
    return lowest


def _drop(box: Rect, floor: float) -> list[tuple[float, float]]:
    """Where a device's line to its rail starts; past lower rows it takes the gap beside its box."""
    middle, bottom = box.x + box.width / 2, box.y + box.height
    if box.y >= floor:
        return [(middle, bottom)]
    gap = box.x + box.width + GAP / 2
    return [(middle, bottom), (middle, bottom + 3), (gap, bottom + 3)]


def _rail_label(drawing: Drawing, rail: Rail, left: float, at: float) -> None:
    title = fitted(rail.title, drawing.width - left, 11.5)
    drawing.shapes.append(Text(x=left, y=at + 16, text=title, look="m-note"))


def _loose(drawing: Drawing, devices: Sequence[Device], y: float) -> float:
    inner = drawing.width - 2 - 2 * PAD
    per_row = _per_row(devices, inner)
    height = 32 + _grid_height(devices, per_row) - 12 + PAD
    drawing.shapes.append(Rect(x=1, y=y + 1, width=drawing.width - 2, height=height, look="m-socket", rx=7))
    drawing.shapes.append(Text(x=1 + PAD, y=y + 21, text="NUMA node not known", look="m-head"))
    _grid(drawing, devices, 1 + PAD, y + 32, inner, per_row)
    return y + height + 1


def fitted(text: str, width: float, size: float) -> str:
    """`text`, or its beginning and an ellipsis; a path that holds no space keeps its end."""
    letters = max(int(width / (size * LETTER)), 2)
    if len(text) <= letters:
        return text
    return f"{text[: letters - 1].rstrip()}…" if " " in text else path_end(text, letters)
