"""What a still picture of one step shows: boxes per lane, merged where they are finer than ink."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfscope.analysis.timeline_extract import LaneExtract, TimelineExtract, WindowExtract
from perfscope.reports.display import visible
from perfscope.reports.model import Timeline
from perfscope.reports.timeline_path import PathPiece, path_pieces

MOST_RANKS = 8
MOST_ROWS = 64  # beyond this each lane is one row
LETTER = 1 / 140  # width of a letter on a layer's mark, of the picture's width
INK = 1 / 1400  # of the picture's width: gaps and boxes finer than this are merged

LEGEND = (
    ("forward", "Forward"),
    ("backward", "Backward"),
    ("compute", "Other compute"),
    ("exposed_comm", "Communication"),
    ("copy", "Copy"),
    ("input_wait", "Input"),
    ("optimizer", "Optimizer"),
    ("host", "Host"),
    ("outline", "Step or other mark"),
)
_KIND_KEYS = {"comm": "exposed_comm", "copy": "copy", "input": "input_wait", "optimizer": "optimizer"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PictureLane:
    """One lane: per legend key an array of (left ns, right ns, row, is a layer's mark)."""

    index: int  # of WindowExtract.lanes
    rank: int
    label: str
    first: bool  # first lane of its rank
    num_rows: int
    pieces: dict[str, NDArray[np.int64]]
    names: list[tuple[int, int, int, str]]  # (left ns, right ns, row, layer) where there is room for it


def picture_lanes(block: Timeline) -> list[PictureLane]:
    """The lanes of `block.focus`, of at most MOST_RANKS ranks; lanes without a span there are left out."""
    if block.focus is None:
        return []
    number, start, duration = block.focus
    window = next(w for w in block.extract.windows if w.window == number)
    ranks = shown_ranks(block, window)
    places = [at for at, lane in enumerate(window.lanes) if lane.rank in ranks]
    shown = [window.lanes[at] for at in places]
    if sum(len(set(lane.depth.tolist())) for lane in shown) > MOST_ROWS:
        places, shown = _compact(places, shown, block.extract)
    lanes: list[PictureLane] = []
    for place, lane in zip(places, shown, strict=True):
        pieces = _pieces(lane, block.extract, start, duration)
        if not pieces:
            continue
        rows = 1 + max(int(boxes[:, 2].max()) for boxes in pieces.values())
        first = not lanes or lanes[-1].rank != lane.rank
        names = _names(lane, block, start, duration)
        label = visible(lane.label)
        lanes.append(
            PictureLane(
                index=place,
                rank=lane.rank,
                label=label,
                first=first,
                num_rows=rows,
                pieces=pieces,
                names=names,
            )
        )
    return lanes


def shown_ranks(block: Timeline, window: WindowExtract) -> list[int]:
    """The first ranks, and of many those that the critical path runs on instead of the last of these."""
    ranks = sorted({lane.rank for lane in window.lanes})
    if len(ranks) <= MOST_RANKS:
        return ranks
    on_path = {one.rank for path in block.paths if path.window == window.window for one in path.segments}
    first = sorted(ranks, key=lambda rank: (rank not in on_path, rank))[:MOST_RANKS]
    return sorted(first)


def picture_path(block: Timeline) -> list[PathPiece]:
    """The critical path within `block.focus`, of the step that fills it; times since the window's start."""
    if block.focus is None:
        return []
    number, start, duration = block.focus
    window = next(w for w in block.extract.windows if w.window == number)
    pieces = [
        dataclasses.replace(
            piece, start_ns=max(piece.start_ns, start), end_ns=min(piece.end_ns, start + duration)
        )
        for piece in path_pieces(block.paths, window)
        if piece.start_ns < start + duration and piece.end_ns > start
    ]
    time: dict[int, int] = {}
    for piece in pieces:
        time[piece.step] = time.get(piece.step, 0) + piece.end_ns - piece.start_ns
    step = max(time, key=lambda one: time[one], default=None)
    return [piece for piece in pieces if piece.step == step]


def _compact(
    places: list[int], lanes: list[LaneExtract], extract: TimelineExtract
) -> tuple[list[int], list[LaneExtract]]:
    """One nesting level per lane, the same for all ranks: the topmost that says nearly as much as any.

    Steps and other bare marks do not count; timeline_view.js chooses likewise.
    """
    annotation = extract.kinds.index("annotation")
    said: dict[str, dict[int, int]] = {}
    for lane in lanes:
        telling = (lane.kind != annotation) | (lane.layer >= 0)
        for depth in set(lane.depth[telling].tolist()):
            busy = int(lane.dur_ns[telling & (lane.depth == depth)].sum())
            of_role = said.setdefault(lane.role, {})
            of_role[depth] = of_role.get(depth, 0) + busy
    chosen = {
        role: min(depth for depth, busy in depths.items() if busy >= 0.6 * max(depths.values()))
        for role, depths in said.items()
    }
    kept = [(at, lane) for at, lane in zip(places, lanes, strict=True) if lane.role in chosen]
    return [at for at, _ in kept], [_at_depth(lane, chosen[lane.role]) for _, lane in kept]


def _at_depth(lane: LaneExtract, depth: int) -> LaneExtract:
    kept = lane.depth == depth
    columns = ("start_ns", "dur_ns", "name", "layer", "kind", "phase", "depth", "step", "count")
    cut = {name: getattr(lane, name)[kept] for name in (*columns, "flops", "bytes")}
    return dataclasses.replace(lane, **cut)


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


def colour_key(kind: str, phase: str, has_layer: bool) -> str:
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
        key = colour_key(extract.kinds[lane.kind[i]], extract.phases[lane.phase[i]], bool(lane.layer[i] >= 0))
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
