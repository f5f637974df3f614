"""Where the critical path lies on the timeline: stretches on lanes in time order, and why it went on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from perfscope.analysis.critical.results import CriticalPath, PathSegment
from perfscope.analysis.spans import ANNOTATION
from perfscope.analysis.timeline_extract import LaneExtract, WindowExtract

NO_LANE = -1  # the rank is not among those drawn
_OWN_ROLES = ("main", "autograd", "executor")  # threads that a rank's main line runs on


class PathPiece(Struct, frozen=True, kw_only=True):
    """A stretch of the path on one lane. Times are ns since the window's start."""

    lane: int  # index into WindowExtract.lanes; NO_LANE = not drawn
    rank: int
    step: int
    start_ns: int
    end_ns: int
    reason: str  # why what follows on the path had to wait for it


def path_pieces(paths: Sequence[CriticalPath], window: WindowExtract) -> tuple[PathPiece, ...]:
    """The pieces of all of a window's steps; those of one step follow one another."""
    lane_places = _Places(window)
    pieces: list[PathPiece] = []
    for path in paths:
        if path.window != window.window:
            continue
        first = len(pieces)
        for segment in path.segments:
            piece = PathPiece(
                lane=lane_places.of(segment),
                rank=segment.rank,
                step=path.step,
                start_ns=segment.start_ns - window.start_ns,
                end_ns=segment.end_ns - window.start_ns,
                reason=segment.reason,
            )
            before = pieces[-1] if len(pieces) > first else None
            if before is not None and (before.lane, before.rank) == (piece.lane, piece.rank):
                piece = structs.replace(piece, start_ns=before.start_ns)
                pieces.pop()
            pieces.append(piece)
    return tuple(pieces)


class _Places:
    """Finds the lane of a segment; what is not listed by thread is put where the rank's operators are."""

    def __init__(self, window: WindowExtract) -> None:
        self.start_ns = window.start_ns
        self.exact = {(lane.rank, lane.device, lane.lane): at for at, lane in enumerate(window.lanes)}
        self.own: dict[int, list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]] = {}
        for at, lane in enumerate(window.lanes):
            if lane.device < 0 and lane.role in _OWN_ROLES:
                self.own.setdefault(lane.rank, []).append((at, *_work(lane)))
        for at, lane in enumerate(window.lanes):  # a trace that names no thread's part
            if lane.device < 0 and lane.rank not in self.own:
                self.own[lane.rank] = [(at, *_work(lane))]
        self.last: dict[int, int] = {}  # rank -> lane it was on

    def of(self, segment: PathSegment) -> int:
        if segment.lane >= 0:
            exact = self.exact.get((segment.rank, segment.device, segment.lane))
            if exact is not None:
                return exact
        own_lanes = self.own.get(segment.rank)
        if not own_lanes:
            return NO_LANE
        middle = (segment.start_ns + segment.end_ns) // 2 - self.start_ns
        busy = [at for at, start, reach in own_lanes if _covers(start, reach, middle)]
        last = self.last.get(segment.rank, own_lanes[0][0])
        lane = last if last in busy or not busy else busy[0]
        self.last[segment.rank] = lane
        return lane


def _work(lane: LaneExtract) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts of the lane's spans, bare marks left out, and how far they reach."""
    is_work = lane.kind != ANNOTATION
    start = lane.start_ns[is_work]
    end = start + lane.dur_ns[is_work]
    return start, np.maximum.accumulate(end) if len(end) else end


def _covers(start: NDArray[np.int64], reach: NDArray[np.int64], time: int) -> bool:
    index = int(np.searchsorted(start, time, side="right")) - 1
    return index >= 0 and int(reach[index]) > time
