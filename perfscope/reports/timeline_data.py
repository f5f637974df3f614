"""Packs the timeline for the page: few long arrays of small integers, repeated facts stored once.

A training step repeats itself, so what DEFINITION lists is a *definition* that
many spans share. A span is then (gap to the previous start, duration, definition). Steps come as runs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfscope.analysis.loading.lanes import NOT_KNOWN, LoaderLane
from perfscope.analysis.timeline_extract import LaneExtract, WindowExtract
from perfscope.reports.display import visible
from perfscope.reports.model import Timeline
from perfscope.reports.timeline_path import path_pieces

DEFINITION = (
    *("name", "layer", "axis", "group", "reason", "kind", "phase", "depth", "flops", "bytes", "count"),
)

Json = dict[str, object]


def timeline_payload(timeline: Timeline) -> Json:
    """JSON-ready data for timeline_data.js; times in integer ns since the window's start."""
    extract = timeline.extract
    lanes = [lane for window in extract.windows for lane in window.lanes]
    rows = [_definition_rows(lane) for lane in lanes]
    all_rows = np.concatenate(rows) if rows else np.empty((0, len(DEFINITION)), np.int64)
    unique, inverse = np.unique(all_rows, axis=0, return_inverse=True)
    ends = np.cumsum([len(block) for block in rows])
    numbers = iter(np.split(inverse.reshape(-1), ends[:-1]) if rows else [])
    return {
        "groupings": _groupings(timeline),
        "compared": _compared(timeline),
        "strings": list(timeline.strings),
        "kinds": list(extract.kinds),
        "phases": list(extract.phases),
        "definitions": {key: unique[:, index].tolist() for index, key in enumerate(DEFINITION)},
        "focus": timeline.focus,
        "windows": [
            _window(window, [next(numbers) for _ in window.lanes])
            | _machine(timeline, window.window)
            | {"path": _path(timeline, window)}
            for window in extract.windows
            if window.lanes
        ],
    }


def _groupings(timeline: Timeline) -> list[Json]:
    return [
        {
            "key": grouping.key,
            "title": grouping.title,
            "names": grouping.names,
            "of": {str(rank): group for rank, group in grouping.group_of.items()},
        }
        for grouping in timeline.groupings
    ]


def _compared(timeline: Timeline) -> Json | None:
    """Of two runs: their names, whose each rank is, steps of each window. None: the timeline of one run."""
    compared = timeline.compared
    if compared is None:
        return None
    return {
        "runs": compared.runs,
        "ranks": {str(rank): place for rank, place in compared.ranks.items()},
        "steps": compared.steps,
    }


def _definition_rows(lane: LaneExtract) -> NDArray[np.int64]:
    """What the spans of a lane are, shape (spans, len(DEFINITION)); -1 where a column was not asked for."""
    nothing = np.full(len(lane.start_ns), -1)
    columns = [getattr(lane, key) for key in DEFINITION]
    return np.column_stack([nothing if column is None else column for column in columns]).astype(np.int64)


def _window(window: WindowExtract, numbers: list[NDArray[np.intp]]) -> Json:
    return {
        "window": window.window,
        "dur": window.dur_ns,
        "steps": [[mark.rank, mark.step, mark.start_ns, mark.dur_ns] for mark in window.steps],
        "lanes": [_lane(lane, number) for lane, number in zip(window.lanes, numbers, strict=True)],
    }


def _machine(timeline: Timeline, window: int) -> Json:
    """Counters to draw under the spans, and what disturbed the window."""
    return {
        "counters": [
            {
                "host": lane.host,
                "label": lane.label,
                "unit": lane.unit.value,
                "top": lane.top,
                "t": lane.t_ns,
                "mean": lane.mean,
            }
            for lane in timeline.lanes
            if lane.window == window
        ],
        "disturbed": [
            {"start": mark.start_ns, "end": mark.end_ns, "title": mark.title, "detail": mark.detail}
            for number, mark in timeline.disturbances
            if number == window
        ],
    }


def _path(timeline: Timeline, window: WindowExtract) -> Json | None:
    """The critical path as columns (timeline_path.js); None where none is known."""
    pieces = path_pieces(timeline.paths, window)
    if not pieces:
        return None
    reasons = {reason: at for at, reason in enumerate(dict.fromkeys(piece.reason for piece in pieces))}
    return {
        "lane": [piece.lane for piece in pieces],
        "start": [piece.start_ns for piece in pieces],
        "dur": [piece.end_ns - piece.start_ns for piece in pieces],
        "step": [piece.step for piece in pieces],
        "reason": [reasons[piece.reason] for piece in pieces],
        "reasons": list(reasons),
    }


def _lane(lane: LaneExtract, numbers: NDArray[np.intp]) -> Json:
    changed = np.flatnonzero(np.diff(lane.step, prepend=-2)) if len(lane.step) else np.empty(0, np.intp)
    return {
        "rank": lane.rank,
        "host": visible(lane.host),
        "device": lane.device,
        "role": lane.role,
        "label": visible(lane.label),
        "loader": None if lane.loader is None else _loader(lane.loader),
        "gap": np.diff(lane.start_ns, prepend=0).tolist(),
        "dur": lane.dur_ns.tolist(),
        "def": numbers.tolist(),
        "steps": [[int(index), int(lane.step[index])] for index in changed],
    }


def _loader(facts: LoaderLane) -> Json:
    """What timeline_loader.js draws and says of a lane of a data loader; facts of spans as columns."""
    of_spans = {"cpu": facts.cpu_ns, "queued": facts.queued_ns, "early": facts.made_ns}
    known = {key: values for key, values in of_spans.items() if values is not None}
    return {
        "worker": facts.worker,
        "folded": facts.is_folded,
        "top": facts.top,
        "t": facts.curve_ns.tolist(),
        "value": facts.curve.tolist(),
    } | {
        key: [None if value == NOT_KNOWN else value for value in values.tolist()]
        for key, values in known.items()
    }
