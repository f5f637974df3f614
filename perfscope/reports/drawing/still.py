"""The timeline on paper: one step, boxes per lane, merged where they are finer than ink."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from perfscope import units
from perfscope.analysis.timeline_extract import LaneExtract, TimelineExtract, WindowExtract
from perfscope.reports import geometry
from perfscope.reports.display import visible
from perfscope.reports.drawing.patterns import pattern
from perfscope.reports.drawing.picture import Box, LegendEntry, Panel, Picture, swatch, x_axis
from perfscope.reports.drawing.shapes import Line, Marker, Path, Rect, Shape, Text
from perfscope.reports.model import ComparedRuns, Timeline
from perfscope.reports.timeline_path import PathPiece, path_pieces

MOST_RANKS = 8
MOST_ROWS = 64  # beyond this each lane is one row
ROW, GAPS = 11.5, 0.55  # pixels for one nesting level; rows between two lanes
HEADING = 1.3  # rows of a group's heading
TALLEST = 1060.0  # pixels
LABEL_LETTERS = 26  # of a lane's label at most
ABOVE = 0.24  # of a row: how far the critical path's line lies above its lane
LEAST_ARROW = 1 / 90  # of the picture's width between two arrows; nearer ones are drawn without a head
LEAST_LINK = 1 / 400  # nearer ones become one
LETTER = 1 / 140  # width of a letter on a layer's mark, of the picture's width
INK = 1 / 1400  # of the picture's width: gaps and boxes finer than this are merged

LEGEND = (
    ("forward", "Forward"),
    ("backward", "Backward"),
    ("compute", "Other compute"),
    ("exposed_comm", "Communication"),
    ("copy", "Copy"),
    ("input_wait", "Input"),
    ("loading", "Loader worker"),
    ("optimizer", "Optimizer"),
    ("host", "Host"),
    ("outline", "Step or other mark"),
)
_KIND_KEYS = {
    "comm": "exposed_comm",
    "copy": "copy",
    "input": "input_wait",
    "optimizer": "optimizer",
    "loading": "loading",
}


class PictureLane(Struct, frozen=True, kw_only=True, eq=False):
    """One lane: per legend key an array of (left ns, right ns, row, is a layer's mark)."""

    index: int  # of WindowExtract.lanes
    rank: int
    label: str
    name: str  # of its rank
    first: bool  # first lane of its rank
    num_rows: int
    pieces: dict[str, NDArray[np.int64]]
    names: list[tuple[int, int, int, str]]  # (left ns, right ns, row, layer) where there is room for it
    heading: str = ""  # of the group that begins with it, such as a host


def lay_out_still(block: Timeline) -> Picture:
    """The picture of `block.focus`, which must be known; times count from the step's start."""
    assert block.focus is not None
    lanes = picture_lanes(block)
    scale = _Scale(block, lanes)
    path = picture_path(block)
    ticks = geometry.time_ticks(0, scale.duration, 7)
    shapes: list[Shape] = [
        Line(x1=tick.position, y1=0, x2=tick.position, y2=100, look="grid") for tick in ticks
    ]
    shapes += _disturbed(block, scale)
    axis: list[Shape] = []
    for lane in lanes:
        shapes += _boxes(lane, scale)
        axis += _words(lane, scale)
    shapes += _path(path, scale)
    used = {key for lane in lanes for key in lane.pieces}
    legend = [swatch(key, title) for key, title in LEGEND if key in used]
    if path:
        sample = Line(x1=0, y1=6, x2=24, y2=6, look="still-path")
        legend.insert(0, LegendEntry(title="Critical path", sample=(sample,), width=24))
    box = Box(shapes=tuple(shapes), axis=tuple(axis), ground=False)
    return Picture(
        id=block.id,
        title=block.title if block.compared else "A step, one row per rank and thread or stream",
        look="still",
        legend=tuple(legend),
        panels=(Panel(plot="still", boxes=(box,), height=scale.height),),
        axis=x_axis(ticks),
        x_title="time since the step's start",
        caption=_caption(block),
    )


def _caption(block: Timeline) -> str:
    assert block.focus is not None
    window, _, duration = block.focus
    if block.compared is not None:
        return _compared_caption(block.compared, window) + block.caption
    of_window = next(entry for entry in block.extract.windows if entry.window == window)
    ranks = {lane.rank for lane in of_window.lanes} | {*of_window.ranks_left_out}
    of_all = f"{MOST_RANKS} of {len(ranks):,} ranks"
    which = f"{of_all}, those on the critical path before others" if block.paths else of_all
    drawn = which if len(ranks) > MOST_RANKS else "all ranks"
    caption = (
        f"One step ({units.format_ns(duration)}) of window {window}, {drawn}; spans finer than the print are "
        "merged, and nesting is left out where there are many lanes."
    )
    if any(path.window == window for path in block.paths):
        caption += " The dark line is the critical path, arrows point to what waited for it."
    if any(number == window for number, _ in block.disturbances):
        caption += " Hatched band: a disturbance."
    return caption


def _compared_caption(compared: ComparedRuns, window: int) -> str:
    steps = zip(compared.runs, compared.steps[window], strict=True)
    return "; ".join(f"{run}: step {step}, {units.format_ns(dur)}" for run, (step, dur) in steps) + ". "


class _Scale:
    """Times and rows in percent of the picture. `tops`: a lane's index -> its first row."""

    def __init__(self, block: Timeline, lanes: Sequence[PictureLane]) -> None:
        assert block.focus is not None
        self.window, self.start, self.duration = block.focus
        self.tops: dict[int, float] = {}
        self.rows = 2 * ABOVE  # of the critical path over the first lane
        for lane in lanes:
            self.rows += HEADING if lane.heading else 0
            self.tops[lane.index] = self.rows
            self.rows += max(lane.num_rows, 2 if lane.first else 1) + GAPS
        self.height = min(self.rows * ROW, TALLEST)

    def x(self, time: int) -> float:
        return 100 * (time - self.start) / self.duration

    def y(self, row: float) -> float:
        return 100 * row / self.rows


def _disturbed(block: Timeline, scale: _Scale) -> Iterator[Shape]:
    end_ns = scale.start + scale.duration
    for number, mark in block.disturbances:
        start, end = max(mark.start_ns, scale.start), min(mark.end_ns, end_ns)
        if number == scale.window and end > start:
            width = scale.x(end) - scale.x(start)
            yield Rect(x=scale.x(start), width=width, look="ct-disturbed", pattern="disturbed")


def _words(lane: PictureLane, scale: _Scale) -> Iterator[Shape]:
    """What is left of a lane."""
    top = scale.tops[lane.index]
    if lane.first:
        above = top - GAPS / 2
        if lane.heading:
            above -= HEADING
            y = scale.y(above + HEADING / 2)
            yield Text(x=0, y=y, dy=4, text=lane.heading[:LABEL_LETTERS], look="tick strong")
        yield Line(x1=0, y1=scale.y(above), x2=100, y2=scale.y(above), look="tick-line")
        yield Text(x=0, y=scale.y(top + 0.5), dy=4, text=lane.name, look="tick strong")
    text = lane.label[:LABEL_LETTERS]
    yield Text(x=0, y=scale.y(top + (1.5 if lane.first else 0.5)), dy=4, text=text, look="tick")


def _boxes(lane: PictureLane, scale: _Scale) -> Iterator[Shape]:
    top = scale.tops[lane.index]
    for key, boxes in lane.pieces.items():
        for tint in (True, False):
            runs = []
            for left, right, row, _ in boxes[boxes[:, 3] == tint].tolist():
                x0, x1 = scale.x(left), scale.x(right)
                y0, y1 = scale.y(top + row + 0.06), scale.y(top + row + 0.94)
                runs.append([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
            if runs:
                look = "still-outline" if key == "outline" else f"still-box f-{key}"
                shade = " tint" if tint and key != "outline" else ""
                hatch = "" if tint else pattern(key)
                yield Path(runs=runs, look=look + shade, closed=True, pattern=hatch)
    for left, right, row, name in lane.names:
        middle = (scale.x(left) + scale.x(right)) / 2
        y = scale.y(top + row + 0.5)
        yield Text(x=middle, y=y, dy=2.6, text=name, look="still-name", anchor="middle")


def _path(pieces: Sequence[PathPiece], scale: _Scale) -> Iterator[Shape]:
    """The critical path: a line above the lanes it runs on, arrows between them."""
    levels = {lane: scale.y(top - ABOVE) for lane, top in scale.tops.items()}
    for look in ("still-halo", "still-path"):
        for piece in pieces:
            if piece.lane in levels:
                y, end = levels[piece.lane], max(piece.end_ns, piece.start_ns + scale.duration // 1400)
                yield Line(x1=scale.x(piece.start_ns), y1=y, x2=scale.x(end), y2=y, look=look)
    last = -scale.duration
    for time, start, end in _links(pieces, scale.duration):
        if start in levels and end in levels:
            yield from _arrow(
                scale.x(time), levels, start, end, roomy=time - last >= scale.duration * LEAST_ARROW
            )
            last = time


def _arrow(x: float, levels: Mapping[int, float], start: int, end: int, *, roomy: bool) -> Iterator[Shape]:
    yield Line(
        x1=x, y1=levels[start], x2=x, y2=levels[end], look="still-link" if roomy else "still-link thin"
    )
    if roomy:
        kind = "arrow" if levels[end] > levels[start] else "triangle"
        yield Marker(x=x, y=levels[end], kind=kind, size=3.4, look="still-head")


def _links(pieces: Sequence[PathPiece], duration: int) -> list[tuple[int, int, int]]:
    """(time, lane it leaves, lane it leads to); those too near to be distinguished become one."""
    joined: list[tuple[int, int, int]] = []
    for a, b in itertools.pairwise(pieces):
        near = bool(joined) and b.start_ns - joined[-1][0] < duration * LEAST_LINK
        if near and joined[-1][2] == a.lane:
            joined[-1] = (joined[-1][0], joined[-1][1], b.lane)
        elif not near:
            joined.append((b.start_ns, a.lane, b.lane))
    return [link for link in joined if link[1] != link[2]]


def picture_lanes(block: Timeline) -> list[PictureLane]:
    """The lanes of `block.focus`, of at most MOST_RANKS ranks; lanes without a span there are left out."""
    if block.focus is None:
        return []
    number, start, duration = block.focus
    window = next(w for w in block.extract.windows if w.window == number)
    ranks = shown_ranks(block, window)
    lane_numbers = [at for at, lane in enumerate(window.lanes) if lane.rank in ranks and not _is_folded(lane)]
    group_of, headings = _groups(block)
    lane_numbers.sort(key=lambda at: group_of.get(window.lanes[at].rank, len(headings)))
    drawn = [window.lanes[at] for at in lane_numbers]
    if sum(len(set(lane.depth.tolist())) for lane in drawn) > MOST_ROWS:
        lane_numbers, drawn = _compact(lane_numbers, drawn, block.extract)
    lanes: list[PictureLane] = []
    for lane_number, lane in zip(lane_numbers, drawn, strict=True):
        pieces = _pieces(lane, block.extract, start, duration)
        if not pieces:
            continue
        rows = 1 + max(int(boxes[:, 2].max()) for boxes in pieces.values())
        first = not lanes or lanes[-1].rank != lane.rank
        names = _names(lane, block, start, duration)
        label = visible(lane.label)
        group = group_of.get(lane.rank, len(headings))
        begins = not lanes or group_of.get(lanes[-1].rank, len(headings)) != group
        lanes.append(
            PictureLane(
                index=lane_number,
                rank=lane.rank,
                label=label,
                name=_rank_name(block, lane.rank),
                first=first,
                num_rows=rows,
                pieces=pieces,
                names=names,
                heading=headings[group] if begins and group < len(headings) else "",
            )
        )
    return lanes


def _is_folded(lane: LaneExtract) -> bool:
    return lane.loader is not None and lane.loader.is_folded


def _groups(block: Timeline) -> tuple[Mapping[int, int], Sequence[str]]:
    """Group of each rank, and what the groups are called: by hosts, else along the mesh, as in the page."""
    if block.compared is not None or not block.groupings:
        return {}, ()
    grouping = block.groupings[0]
    return grouping.group_of, [visible(name) for name in grouping.names]


def _rank_name(block: Timeline, rank: int) -> str:
    """Of two runs with the run's name, as much of it as there is room for."""
    name = block.rank_name(rank)
    if block.compared is None:
        return name
    run = block.compared.runs[block.compared.ranks[rank][0]]
    return f"{run[-(LABEL_LETTERS - len(name) - 2) :]}: {name}"


def shown_ranks(block: Timeline, window: WindowExtract) -> list[int]:
    """All ranks; of many those on the critical path, then those that findings name, then the first."""
    ranks = sorted({lane.rank for lane in window.lanes})
    if len(ranks) <= MOST_RANKS:
        return ranks
    on_path = {
        segment.rank for path in block.paths if path.window == window.window for segment in path.segments
    }
    order = {rank: at for at, rank in enumerate(block.extract.named)}
    ranks.sort(key=lambda rank: (rank not in on_path, order.get(rank, len(order)), rank))
    return sorted(ranks[:MOST_RANKS])


def picture_path(block: Timeline) -> list[PathPiece]:
    """The critical path within `block.focus`, of the step that fills it; times since the window's start."""
    if block.focus is None:
        return []
    number, start, duration = block.focus
    window = next(w for w in block.extract.windows if w.window == number)
    pieces = [
        structs.replace(
            piece, start_ns=max(piece.start_ns, start), end_ns=min(piece.end_ns, start + duration)
        )
        for piece in path_pieces(block.paths, window)
        if piece.start_ns < start + duration and piece.end_ns > start
    ]
    time: dict[int, int] = {}
    for piece in pieces:
        time[piece.step] = time.get(piece.step, 0) + piece.end_ns - piece.start_ns
    step = max(time, key=lambda step_number: time[step_number], default=None)
    return [piece for piece in pieces if piece.step == step]


def _compact(
    lane_numbers: list[int], lanes: list[LaneExtract], extract: TimelineExtract
) -> tuple[list[int], list[LaneExtract]]:
    """One nesting level per lane, the same for all ranks: the topmost that says nearly as much as any.

    Steps and other bare marks do not count; timeline_view.js chooses likewise.
    """
    annotation = extract.kinds.index("annotation")
    depths_of: dict[str, dict[int, int]] = {}
    for lane in lanes:
        telling = (lane.kind != annotation) | (lane.layer >= 0)
        for depth in set(lane.depth[telling].tolist()):
            busy = int(lane.dur_ns[telling & (lane.depth == depth)].sum())
            of_role = depths_of.setdefault(lane.role, {})
            of_role[depth] = of_role.get(depth, 0) + busy
    chosen = {
        role: min(depth for depth, busy in depths.items() if busy >= 0.6 * max(depths.values()))
        for role, depths in depths_of.items()
    }
    kept = [(at, lane) for at, lane in zip(lane_numbers, lanes, strict=True) if lane.role in chosen]
    return [at for at, _ in kept], [_at_depth(lane, chosen[lane.role]) for _, lane in kept]


def _at_depth(lane: LaneExtract, depth: int) -> LaneExtract:
    kept = lane.depth == depth
    columns = ("start_ns", "dur_ns", "name", "layer", "kind", "phase", "depth", "step", "count")
    cut = {name: getattr(lane, name)[kept] for name in (*columns, "flops", "bytes")}
    return structs.replace(lane, **cut)


def _inside(lane: LaneExtract, start: int, duration: int) -> tuple[NDArray[np.intp], dict[int, int]]:
    """Spans that reach into the picture, and the row of each nesting depth among them."""
    ends = lane.start_ns + lane.dur_ns
    inside = np.flatnonzero((ends > start) & (lane.start_ns < start + duration))
    return inside, {depth: row for row, depth in enumerate(sorted(set(lane.depth[inside].tolist())))}


def _names(lane: LaneExtract, block: Timeline, start: int, duration: int) -> list[tuple[int, int, int, str]]:
    """The end of the layer's path on each layer mark wide enough for it."""
    inside, depths = _inside(lane, start, duration)
    annotation = block.extract.kinds.index("annotation")
    names = []
    for i in inside.tolist():
        if lane.kind[i] != annotation or lane.layer[i] < 0:
            continue
        left = max(int(lane.start_ns[i]), start)
        right = min(int(lane.start_ns[i] + lane.dur_ns[i]), start + duration)
        name = _short_name(block.strings[lane.layer[i]], int((right - left) / duration / LETTER))
        if name:
            names.append((left, right, depths[int(lane.depth[i])], name))
    return names


def _short_name(layer: str, letters: int) -> str:
    """The longest end of a path that fits: features.3.conv, 3.conv, conv; else nothing."""
    while len(layer) > letters:
        _, dot, layer = layer.partition(".")
        if not dot:
            return ""
    return "" if layer.isdigit() else layer  # a bare index names nothing


def color_key(kind: str, phase: str, has_layer: bool) -> str:
    """Which entry of LEGEND a span belongs to; timeline_data.js says the same."""
    if kind in _KIND_KEYS:
        return _KIND_KEYS[kind]
    if phase == "optimizer":
        return "optimizer"
    if kind == "compute" or (kind == "annotation" and has_layer):
        return phase if phase in ("forward", "backward") else "compute"
    return "outline" if kind == "annotation" else "host"


def _pieces(
    lane: LaneExtract, extract: TimelineExtract, start: int, duration: int
) -> dict[str, NDArray[np.int64]]:
    inside, depths = _inside(lane, start, duration)
    ends = lane.start_ns + lane.dur_ns
    boxes: dict[tuple[str, int, bool], list[list[int]]] = {}
    slack = int(duration * INK)
    annotation = extract.kinds.index("annotation")
    for i in inside.tolist():
        key = color_key(extract.kinds[lane.kind[i]], extract.phases[lane.phase[i]], bool(lane.layer[i] >= 0))
        tint = bool(lane.kind[i] == annotation)
        left, right = max(int(lane.start_ns[i]), start), min(int(ends[i]), start + duration)
        row = boxes.setdefault((key, depths[int(lane.depth[i])], tint), [])
        fine = right - left < 4 * slack
        if row and fine and left - row[-1][1] < slack:
            row[-1][1] = max(row[-1][1], right)
        else:
            row.append([left, max(right, left + slack)])
    pieces: dict[str, list[list[int]]] = {}
    for (key, depth, tint), spans in boxes.items():
        pieces.setdefault(key, []).extend([left, right, depth, int(tint)] for left, right in spans)
    return {key: np.array(rows, np.int64) for key, rows in pieces.items()}
