"""History charts for paper, by matplotlib; inside `paper_style()`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from perfscope.reports.gate_history import places
from perfscope.reports.gate_history.chart import HistoryChart
from perfscope.reports.geometry import Tick
from perfscope.reports.palette import light_palette
from perfscope.reports.paper import HATCH, bare, keep_inside, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEFT, RIGHT = 0.085, 0.995
TOP, WORDS, POINTS, SMALL, BETWEEN, COLUMNS, FOOT = 0.3, 0.26, 1.75, 0.95, 0.36, 1.15, 0.42  # inches


def draw_history(chart: HistoryChart) -> Figure:
    palette = light_palette()
    plot = SMALL if chart.small else POINTS
    words = WORDS * places.label_rows(chart)
    below = BETWEEN + COLUMNS if chart.parts else 0.0
    height = (0.06 if chart.small else TOP) + words + plot + below + FOOT
    figure = new_figure(height)
    bottom = (FOOT + below) / height
    axes = figure.add_axes((LEFT, bottom, RIGHT - LEFT, plot / height))
    _points(axes, chart)
    _breaks(axes, chart, words / plot)
    if not chart.small:
        said = f"{chart.y_title}; below: {chart.parts_title}" if chart.parts else chart.y_title
        figure.text(0.004, 1 - 0.1 / height, said, fontsize=6.3, color=palette["ink-2"], va="center")
        _point_legend(figure, chart, height)
    if chart.parts:
        lower = figure.add_axes((LEFT, FOOT / height, RIGHT - LEFT, COLUMNS / height))
        _columns(lower, chart)
        _part_legend(figure, chart, (FOOT + COLUMNS + 0.2) / height)
        _ticks(lower, chart)
        axes.set_xticks([])
    else:
        _ticks(axes, chart)
    return figure


def _points(axes: Axes, chart: HistoryChart) -> None:
    palette, box = light_palette(), places.frame(chart)
    bare(axes)
    axes.set_facecolor(palette["surface"])
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    up = places.y_ticks(chart)
    axes.set_yticks([tick.position for tick in up])
    axes.set_yticklabels([tick.text for tick in up], fontsize=6.2, color=palette["ink-2"])
    axes.grid(axis="y", color=palette["line-2"], linewidth=0.4, dashes=(2, 3))
    axes.set_axisbelow(True)
    spots = places.spots(chart)
    _dots(axes, chart)
    axes.plot(
        [box.x(point.number) for point in chart.points],
        [box.y(point.value) if math.isfinite(point.value) else math.nan for point in chart.points],
        color=palette["line-2"],
        linewidth=0.6,
        zorder=2,
    )
    for level in chart.levels:
        span = [box.x(level.first - 0.5), box.x(level.last + 0.5)]
        axes.plot(span, [box.y(level.value)] * 2, color=palette["ink"], linewidth=1.1, zorder=3)
    size = 2.6 if len(spots) <= 120 else 1.6
    for doubtful in (False, True):
        for above in (False, True):
            some = [one for one in spots if one.point.doubtful == doubtful and one.above == above]
            axes.plot(
                [one.x for one in some],
                [one.y for one in some],
                linestyle="none",
                marker="^" if above else "o",
                markersize=max(size, 3.4) if above else size,
                markeredgewidth=0.7,
                markeredgecolor=palette["part-compute"],
                markerfacecolor=palette["surface"] if doubtful else palette["part-compute"],
                clip_on=False,
                zorder=4,
            )


def _dots(axes: Axes, chart: HistoryChart) -> None:
    """The single runs, small and faint."""
    blue, dots = light_palette()["part-compute"], places.dots(chart)
    for doubtful in (False, True):
        some = [one for one in dots if one.doubtful == doubtful]
        axes.plot(
            [one.x for one in some],
            [one.y for one in some],
            linestyle="none",
            marker="o",
            markersize=1.3,
            markeredgewidth=0.4 if doubtful else 0.0,
            markeredgecolor=blue,
            markerfacecolor="none" if doubtful else blue,
            alpha=0.4,
            clip_on=False,
            zorder=2.5,
        )


def _breaks(axes: Axes, chart: HistoryChart, words: float) -> None:
    """`words`: height of the words above the plot, of the plot's own."""
    palette = light_palette()
    rows = max(places.label_rows(chart), 1)
    for rule in places.rules(chart):
        colour = palette["caution" if rule.mark.is_worse else "good"]
        top = 1.0 if rule.row is None else 1 + words * (1 - rule.row / rows)
        (line,) = axes.plot(
            [rule.x] * 2, [0, 100 * top], color=colour, linewidth=0.9, clip_on=False, zorder=3
        )
        if not rule.mark.is_worse:
            line.set_dashes((4, 2))
        if chart.small or rule.row is None:
            continue
        place: dict[str, Any] = {"ha": "right" if rule.left else "left", "va": "top", "clip_on": False}
        x, y = rule.x + (-0.5 if rule.left else 0.5), 100 * top
        down = 100 * words / rows * 0.46
        axes.text(x, y, _arrowed(rule), fontsize=6.6, fontweight="bold", color=colour, **place)
        axes.text(x, y - down, rule.mark.label, fontsize=5.6, color=palette["ink-2"], **place)


def _arrowed(rule: places.Rule) -> str:
    return f"{'▲' if rule.mark.text.startswith('+') else '▼'} {rule.mark.text}"


def _columns(axes: Axes, chart: HistoryChart) -> None:
    palette = light_palette()
    bare(axes)
    axes.set_facecolor(palette["surface"])
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    up = places.part_ticks(chart)
    axes.set_yticks([tick.position for tick in up])
    axes.set_yticklabels([tick.text for tick in up], fontsize=6.2, color=palette["ink-2"])
    for key, _ in places.shown_parts(chart):
        own = [piece for piece in places.pieces(chart) if piece.key == key]
        axes.bar(
            [piece.x for piece in own],
            [piece.height for piece in own],
            width=[piece.width for piece in own],
            bottom=[piece.bottom for piece in own],
            align="edge",
            color=palette[f"part-{key}"],
            edgecolor="#8f99a6" if key == "idle" else "#ffffff80",
            hatch=HATCH.get(key),
            linewidth=0,
        )
    for rule in places.rules(chart):
        colour = palette["caution" if rule.mark.is_worse else "good"]
        (line,) = axes.plot([rule.x] * 2, [0, 100], color=colour, linewidth=0.9, zorder=5)
        if not rule.mark.is_worse:
            line.set_dashes((4, 2))


def _ticks(axes: Axes, chart: HistoryChart) -> None:
    marks = places.x_ticks(chart)
    axes.set_xticks([x for x, _ in marks])
    axes.set_xticklabels([f"{point.number:,}\n{point.date}".rstrip() for _, point in marks], fontsize=6.2)
    keep_inside(axes, [Tick(position=x, text="") for x, _ in marks])
    axes.set_xlabel("Session, oldest first", fontsize=6.3, color=light_palette()["ink-2"], labelpad=1)


def _point_legend(figure: Figure, chart: HistoryChart, height: float) -> None:
    from matplotlib.lines import Line2D

    palette = light_palette()
    blue = palette["part-compute"]
    handles = [Line2D([], [], linestyle="none", marker="o", markersize=3, color=blue, label="session")]
    if places.dots(chart):
        handles.append(
            Line2D(
                [],
                [],
                linestyle="none",
                marker="o",
                markersize=1.4,
                color=blue,
                alpha=0.5,
                label="single run",
            )
        )
    if places.has_doubtful(chart):
        handles.append(
            Line2D(
                [],
                [],
                linestyle="none",
                marker="o",
                markersize=3,
                markerfacecolor=palette["surface"],
                markeredgecolor=blue,
                label="disturbed",
            )
        )
    if chart.levels:
        handles.append(Line2D([], [], color=palette["ink"], linewidth=1.1, label="level (median)"))
    figure.legend(
        handles=handles,
        loc="upper right",
        bbox_to_anchor=(RIGHT, 1 - 0.02 / height),
        ncols=len(handles),
        frameon=False,
        fontsize=6.3,
        borderpad=0,
        borderaxespad=0,
        handletextpad=0.4,
        columnspacing=1.2,
    )


def _part_legend(figure: Figure, chart: HistoryChart, at: float) -> None:
    from matplotlib.patches import Patch

    palette = light_palette()
    shown = places.shown_parts(chart)
    figure.legend(
        handles=[
            Patch(
                facecolor=palette[f"part-{key}"],
                edgecolor="#8f99a6" if key == "idle" else "#ffffff80",
                hatch=HATCH.get(key),
                linewidth=0,
                label=title,
            )
            for key, title in shown
        ],
        loc="center right",
        bbox_to_anchor=(RIGHT, at),
        ncols=max(len(shown), 1),
        frameon=False,
        fontsize=6.3,
        handlelength=1.5,
        handleheight=1.0,
        columnspacing=1.1,
        handletextpad=0.5,
        borderpad=0,
        borderaxespad=0,
    )
