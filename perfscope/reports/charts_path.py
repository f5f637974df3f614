"""The critical path over a still timeline: a line above the lanes it runs on, arrows between them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from perfscope.reports.palette import light_palette
from perfscope.reports.timeline_path import PathPiece

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

ABOVE = 0.24  # of a row: how far the line lies above its lane
LEAST_ARROW = 1 / 90  # of the picture's width between two arrows; nearer ones are drawn without a head
LEAST_LINK = 1 / 400  # nearer ones become one


def draw_path(axes: Axes, pieces: Sequence[PathPiece], tops: Mapping[int, float], duration: int) -> None:
    """Draws the pieces.

    Args:
        axes: of the picture; x in ns since the window's start, y in rows.
        pieces: in time order, of one step.
        tops: lane (index into the window's lanes) -> its top edge; lanes that are not drawn are absent.
        duration: of the picture, ns.
    """
    if not pieces:
        return
    from matplotlib import patheffects

    ink, paper = light_palette()["ink"], light_palette()["bg"]
    halo = [patheffects.withStroke(linewidth=2.6, foreground=paper)]
    for piece in pieces:
        if piece.lane in tops:
            y = tops[piece.lane] - ABOVE
            least = max(piece.end_ns, piece.start_ns + duration // 1400)
            axes.plot(
                [piece.start_ns, least],
                [y, y],
                color=ink,
                linewidth=1.4,
                solid_capstyle="butt",
                zorder=4,
                clip_on=False,  # the first lane's line lies above the picture
                path_effects=halo,
            )
    last = -duration
    for time, start, end in _links(pieces, duration):
        if start not in tops or end not in tops:
            continue
        roomy = time - last >= duration * LEAST_ARROW
        last = time
        axes.annotate(
            "",
            xy=(time, tops[end] - ABOVE),
            xytext=(time, tops[start] - ABOVE),
            arrowprops={
                "arrowstyle": "-|>,head_length=0.28,head_width=0.14" if roomy else "-",
                "color": ink,
                "linewidth": 0.9 if roomy else 0.5,
                "shrinkA": 0,
                "shrinkB": 0,
                "mutation_scale": 9,
            },
            zorder=5,
            annotation_clip=False,
        )


def _links(pieces: Sequence[PathPiece], duration: int) -> list[tuple[int, int, int]]:
    """(time, lane it leaves, lane it leads to); those too near to be told apart become one."""
    joined: list[tuple[int, int, int]] = []
    for a, b in itertools.pairwise(pieces):
        near = bool(joined) and b.start_ns - joined[-1][0] < duration * LEAST_LINK
        if near and joined[-1][2] == a.lane:
            joined[-1] = (joined[-1][0], joined[-1][1], b.lane)
        elif not near:
            joined.append((b.start_ns, a.lane, b.lane))
    return [link for link in joined if link[1] != link[2]]


def path_handle() -> Line2D:
    """The legend's sample."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=light_palette()["ink"], linewidth=1.4, label="Critical path")
