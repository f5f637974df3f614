"""Charts for paper: each Chart of the model as a vector SVG by matplotlib, without its global state."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from perfscope.reports import geometry
from perfscope.reports.charts_curves import draw_curves, draw_intervals
from perfscope.reports.charts_machine import draw_counters, draw_roofline
from perfscope.reports.charts_path import draw_path, path_handle
from perfscope.reports.display import path_end
from perfscope.reports.gate_history.paper import draw_history
from perfscope.reports.model import (
    Chart,
    Counters,
    CurveChart,
    HistoryChart,
    IntervalBars,
    RooflineChart,
    Series,
    StackedBars,
    Timeline,
)
from perfscope.reports.palette import light_palette
from perfscope.reports.paper import HATCH, bare, keep_inside, new_figure, paper_style, time_axis
from perfscope.reports.timeline_picture import LEGEND, PictureLane, picture_lanes, picture_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

LONGEST_LABEL = 30


def chart_svg(
    block: Chart | Timeline,
) -> str:
    """The chart as an SVG document, WIDTH inches wide, its text as text in DejaVu Sans."""
    with paper_style():
        if isinstance(block, StackedBars):
            figure = _stacked(block)
        elif isinstance(block, Series):
            figure = _series(block)
        elif isinstance(block, Counters):
            figure = draw_counters(block)
        elif isinstance(block, RooflineChart):
            figure = draw_roofline(block)
        elif isinstance(block, CurveChart):
            figure = draw_curves(block)
        elif isinstance(block, IntervalBars):
            figure = draw_intervals(block)
        elif isinstance(block, HistoryChart):
            figure = draw_history(block)
        else:
            figure = _timeline(block)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _short(label: str) -> str:
    return path_end(label, LONGEST_LABEL)


def _stacked(chart: StackedBars) -> Figure:
    count = max(len(chart.bars), 1)
    step = 0.2 if count <= 24 else 0.125
    legend, foot = 0.2, 0.24
    height = legend + count * step + foot
    figure = new_figure(height)
    labelled = count > 1 or chart.bars[0].label != "mean step"
    longest = max(len(_short(bar.label)) for bar in chart.bars)
    left = min(0.008 * longest + 0.02, 0.32) if labelled else 0.004
    right = 0.9 if labelled else 0.996
    axes = figure.add_axes((left, foot / height, right - left, count * step / height))
    bare(axes)
    for number, bar in enumerate(chart.bars):
        at = count - 1 - number
        for segment in geometry.bar_segments(chart, bar):
            _piece(axes, at, segment, chart.longest, readable=count <= 24)
        if labelled:
            axes.text(
                chart.longest * 1.008,
                at,
                geometry.bar_end(chart, bar),
                va="center",
                fontsize=6.5,
                clip_on=False,
            )
    axes.set_ylim(-0.6, count - 0.4)
    axes.set_yticks(range(count) if labelled else [])
    if labelled:
        axes.set_yticklabels([_short(bar.label) for bar in reversed(chart.bars)], fontsize=6.5)
    _bar_axis(axes, chart)
    _legend(figure, [(part.key, part.title) for part in geometry.used_parts(chart)], left)
    return figure


def _bar_axis(axes: Axes, chart: StackedBars) -> None:
    ticks = geometry.bar_ticks(chart, 6)
    axes.set_xlim(0, chart.longest or 1)
    axes.set_xticks([chart.longest * tick.position / 100 for tick in ticks])
    axes.set_xticklabels([tick.text for tick in ticks])
    keep_inside(axes, ticks)


def _piece(axes: Axes, at: float, segment: geometry.Segment, longest: float, readable: bool) -> None:
    palette = light_palette()
    start, width = segment.start * longest / 100, segment.value
    key = segment.part.key
    axes.barh(
        at,
        width,
        left=start,
        height=0.78,
        color=palette[f"part-{key}"],
        edgecolor=_hatch_colour(key),
        hatch=HATCH.get(key),
        linewidth=0,
    )
    axes.barh(at, width, left=start, height=0.78, fill=False, edgecolor="#ffffff", linewidth=0.8)
    if segment.label and readable:
        axes.text(
            start + width / 2,
            at,
            segment.label,
            ha="center",
            va="center_baseline",
            fontsize=6,
            color=palette[f"part-{key}-ink"],
            bbox={"facecolor": palette[f"part-{key}"], "edgecolor": "none", "pad": 0.6}
            if key in HATCH
            else None,
        )


def _hatch_colour(key: str) -> str:
    return "#c9a58c" if key == "wait" else "#8f99a6" if key.startswith("idle") else "#ffffff80"


def _legend(figure: Figure, entries: list[tuple[str, str]], left: float) -> None:
    from matplotlib.patches import Patch

    palette = light_palette()
    handles = [
        path_handle()
        if key == "path"
        else Patch(
            facecolor=palette.get(f"part-{key}", palette["surface"]),
            edgecolor=_hatch_colour(key) if key != "outline" else palette["line-2"],
            hatch=HATCH.get(key),
            linewidth=0 if key != "outline" else 0.5,
            label=title,
        )
        for key, title in entries
    ]
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(left - 0.012, 1.0),
        ncols=len(handles),
        frameon=False,
        fontsize=6.3,
        handlelength=1.5,
        handleheight=1.0,
        columnspacing=1.1,
        handletextpad=0.5,
        borderpad=0,
        borderaxespad=0,
    )


def _series(chart: Series) -> Figure:
    palette, frame = light_palette(), geometry.series_frame(chart)
    count, panel, foot = len(chart.lines), 0.42, 0.24
    height = count * panel + foot
    figure = new_figure(height)
    ticks = geometry.time_ticks(frame.low, frame.high, 2)
    for number, line in enumerate(chart.lines):
        bottom = (foot + (count - 1 - number) * panel) / height
        axes = figure.add_axes((0.15, bottom, 0.845, panel * 0.88 / height))
        bare(axes)
        axes.spines["bottom"].set_visible(False)
        axes.set_facecolor(palette["surface"])
        if line.low != line.y or line.high != line.y:
            axes.fill_between(
                line.x, line.low, line.high, color=palette["part-compute"], alpha=0.25, linewidth=0
            )
        axes.plot(line.x, line.y, color=palette["part-compute"], linewidth=0.7)
        for tick in ticks:
            value = frame.low + (frame.high - frame.low) * tick.position / 100
            axes.axhline(value, color=palette["line-2"], linewidth=0.5, dashes=(2, 3))
        axes.set_xlim(0, frame.x_max)
        axes.set_ylim(frame.low, frame.high)
        # Beside the curve, not on it.
        axes.set_yticks([frame.low + (frame.high - frame.low) * tick.position / 100 for tick in ticks])
        axes.set_yticklabels([tick.text for tick in ticks], fontsize=5.5, color=palette["ink-2"])
        axes.text(-0.068, 0.5, line.label, transform=axes.transAxes, ha="right", va="center", fontsize=6.5)
        marks = geometry.count_ticks(frame.x_max, 8)
        axes.set_xticks([frame.x_max * tick.position / 100 for tick in marks])
        axes.set_xticklabels([tick.text for tick in marks] if number == count - 1 else [])
        if number == count - 1:
            keep_inside(axes, marks)
        axes.tick_params(axis="x", length=0)
    return figure


ROW = 0.085  # inches for one nesting level of the timeline
LANE_LETTERS, LANE_LETTER = 26, 0.0074  # of a lane's label at most; a letter's width, of the picture's
LANES_RIGHT = 0.99


def _timeline(block: Timeline) -> Figure:
    lanes = picture_lanes(block)
    palette = light_palette()
    assert block.focus is not None
    window, start, duration = block.focus
    gaps = 0.55
    heights = [max(lane.num_rows, 2 if lane.first else 1) + gaps for lane in lanes]
    legend, foot = 0.2, 0.24
    body = min(sum(heights) * ROW, 8.2)
    height = legend + body + foot
    figure = new_figure(height)
    left = max(0.145, 0.012 + LANE_LETTER * max(min(len(lane.label), LANE_LETTERS) for lane in lanes))
    axes = figure.add_axes((left, foot / height, LANES_RIGHT - left, body / height))
    bare(axes)
    axes.set_ylim(sum(heights), 0)
    axes.set_yticks([])
    for mark in (mark for number, mark in block.disturbances if number == window):
        begin, end = max(mark.start_ns, start), min(mark.end_ns, start + duration)
        if end > begin:
            axes.axvspan(
                begin,
                end,
                facecolor="#faf1de",
                edgecolor="#ead3a0",
                linewidth=0,
                hatch="\\\\",
            )
    top, tops = 0.0, {}
    for lane, tall in zip(lanes, heights, strict=True):
        _lane(axes, lane, top, left / (LANES_RIGHT - left))
        _boxes_and_names(axes, lane, top)
        tops[lane.index] = top
        top += tall
    path = picture_path(block)
    draw_path(axes, path, tops, duration)
    time_axis(axes, start, start + duration, 7)
    # The axis counts from the step's start: that is what a reader of paper can use.
    ticks = geometry.time_ticks(0, duration, 7)
    axes.set_xticks([start + duration * tick.position / 100 for tick in ticks])
    axes.set_xticklabels([tick.text for tick in ticks])
    keep_inside(axes, ticks)
    axes.grid(axis="x", color=palette["line"], linewidth=0.5)
    axes.set_axisbelow(True)
    used = {key for lane in lanes for key in lane.pieces}
    entries = [("path", "Critical path")] if path else []
    _legend(figure, entries + [(key, title) for key, title in LEGEND if key in used], 0.013)
    return figure


def _lane(axes: Axes, lane: PictureLane, top: float, margin: float) -> None:
    """What stands left of a lane; `margin` is the room there, of the lanes' own width."""
    palette = light_palette()
    across = axes.get_yaxis_transform()
    if lane.first:
        axes.axhline(top - 0.25, color=palette["line-2"], linewidth=0.4, xmin=-margin, clip_on=False)
        axes.text(
            0.006 - margin,
            top + 0.5,
            f"rank {lane.rank}",
            fontsize=6.3,
            fontweight="bold",
            va="center",
            transform=across,
        )
    axes.text(
        0.006 - margin,
        top + (1.5 if lane.first else 0.5),
        lane.label[:LANE_LETTERS],
        fontsize=5.8,
        color=palette["ink-2"],
        va="center",
        transform=across,
    )


def _boxes_and_names(axes: Axes, lane: PictureLane, top: float) -> None:
    palette = light_palette()
    for key, boxes in lane.pieces.items():
        if not len(boxes):
            continue
        colour = palette.get(f"part-{key}", palette["line-2"])
        for tint in (True, False):
            chosen = boxes[boxes[:, 3] == tint]
            if len(chosen):
                axes.add_collection(_boxes(chosen, top, colour, key, tint))
    for left, right, row, name in lane.names:
        axes.text(
            (left + right) / 2,
            top + row + 0.5,
            name,
            fontsize=4.6,
            ha="center",
            va="center_baseline",
            clip_on=True,
        )


def _boxes(boxes: np.ndarray, top: float, colour: str, key: str, tint: bool) -> PolyCollection:
    from matplotlib.collections import PolyCollection

    left, right, row = boxes[:, 0], boxes[:, 1], boxes[:, 2] + top
    corners = np.stack(
        [
            np.column_stack([left, row + 0.06]),
            np.column_stack([right, row + 0.06]),
            np.column_stack([right, row + 0.94]),
            np.column_stack([left, row + 0.94]),
        ],
        axis=1,
    )
    outline = key == "outline"
    return PolyCollection(
        list(corners),
        facecolors="none" if outline else colour,
        edgecolors=colour if outline else "#ffffff",
        linewidths=0.5 if outline else 0.35,
        hatch=None if tint else HATCH.get(key),
        alpha=0.38 if tint and not outline else None,
    )
