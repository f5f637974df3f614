"""Curve charts and interval bars for paper, by matplotlib; inside `paper_style()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.reports import curve_places as places
from perfscope.reports.curves import CurveChart, IntervalBars
from perfscope.reports.display import path_end
from perfscope.reports.palette import light_palette
from perfscope.reports.paper import bare, keep_inside, new_figure
from perfscope.reports.plots import LINE_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D"}
DASHES = {"ideal": (1, 2), "level": (5, 3)}
HEIGHT, FOOT, TOP, ROW = 2.35, 0.36, 0.16, 0.135  # inches: plot, its axis, its title, a row of the legend
LEFT, RIGHT = 0.085, 0.995
ENTRIES = 4  # of the legend side by side
LONGEST_ENTRY, LONGEST_LABEL = 34, 34


def draw_curves(chart: CurveChart) -> Figure:
    curves = places.slots(chart)
    longest = max((len(curve.label) for curve, _ in curves), default=0)
    per_row = ENTRIES if longest <= 30 else 2 if longest <= 62 else 1
    rows = -(-len(curves) // per_row)
    height = rows * ROW + TOP + HEIGHT + FOOT
    figure = new_figure(height)
    axes = figure.add_axes((LEFT, FOOT / height, RIGHT - LEFT, HEIGHT / height))
    _frame(axes, chart)
    handles = [_curve(axes, chart, number) for number in range(len(curves))]
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(LEFT - 0.008, 1.0),
        ncols=per_row,
        frameon=False,
        fontsize=6.3,
        handlelength=2.4,
        columnspacing=1.4,
        handletextpad=0.5,
        borderpad=0,
        borderaxespad=0,
        labelspacing=0.35,
    )
    palette = light_palette()
    figure.text(0.004, (FOOT + HEIGHT + 0.05) / height, chart.y_title, fontsize=6.3, color=palette["ink-2"])
    axes.set_xlabel(chart.x_title, fontsize=6.3, color=palette["ink-2"], labelpad=3)
    return figure


def _frame(axes: Axes, chart: CurveChart) -> None:
    palette = light_palette()
    bare(axes)
    axes.set_facecolor(palette["surface"])
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    across, up = places.x_ticks(chart), places.y_ticks(chart)
    axes.set_xticks([tick.position for tick in across])
    axes.set_xticklabels([tick.text for tick in across])
    keep_inside(axes, across)
    axes.set_yticks([tick.position for tick in up])
    axes.set_yticklabels([tick.text for tick in up], fontsize=6.2, color=palette["ink-2"])
    axes.grid(axis="y", color=palette["line-2"], linewidth=0.4, dashes=(2, 3))
    axes.set_axisbelow(True)


def _curve(axes: Axes, chart: CurveChart, number: int) -> Line2D:
    """Draws one curve; gives its entry for the legend."""
    from matplotlib.lines import Line2D

    palette = light_palette()
    curve, slot = places.slots(chart)[number]
    colour = palette["ink-2"] if slot is None else palette[f"part-{LINE_COLOURS[slot]}"]
    for low, high in places.band(chart, curve):
        axes.fill_between(
            [p[0] for p in low],
            [p[1] for p in low],
            [p[1] for p in high],
            color=colour,
            alpha=0.16,
            linewidth=0,
            zorder=2,
        )
    width = 1.0 if curve.kind in places.NEUTRAL else 0.9 if curve.kind == "fit" else 1.3
    for points, dashed in places.strokes(chart, curve):
        (drawn,) = axes.plot([p[0] for p in points], [p[1] for p in points], color=colour, linewidth=width)
        if slot is None:
            drawn.set_dashes(DASHES[curve.kind])
        elif dashed:
            drawn.set_dashes((4, 2))
    entry = Line2D([], [], color=colour, linewidth=width, label=path_end(curve.label, 110))
    if slot is None:
        entry.set_dashes(DASHES[curve.kind])
        return entry
    name, hollow = places.shape(slot)
    style: dict[str, Any] = {
        "marker": MARKERS[name],
        "markersize": 3.6,
        "markeredgecolor": colour,
        "markeredgewidth": 0.8,
        "markerfacecolor": palette["surface"] if hollow or curve.kind == "fit" else colour,
    }
    spots = places.marks(chart, curve)
    axes.plot(
        [p[0] for p in spots], [p[1] for p in spots], linestyle="none", zorder=4, clip_on=False, **style
    )
    entry.set(**style)
    return entry


BAR, LEGEND = 0.2, 0.05


def draw_intervals(chart: IntervalBars) -> Figure:
    palette = light_palette()
    count = max(len(chart.bars), 1)
    height = LEGEND + count * BAR + FOOT
    figure = new_figure(height)
    left = min(0.0082 * max(len(path_end(b.label, LONGEST_LABEL)) for b in chart.bars) + 0.02, 0.32)
    right = 1 - 0.0082 * max(len(places.bar_words(chart.unit, bar)) for bar in chart.bars) - 0.012
    axes = figure.add_axes((left, FOOT / height, right - left, count * BAR / height))
    bare(axes)
    for number, bar in enumerate(chart.bars):
        at, place = count - 1 - number, places.bar_place(chart, bar)
        if place.end is not None:
            axes.barh(
                at, place.end, height=0.72, color=palette["part-compute" if bar.leading else "part-host"]
            )
        if place.low is not None and place.high is not None:
            axes.plot([place.low, place.high], [at, at], color=palette["ink"], linewidth=1.0, zorder=4)
            for edge in (place.low, place.high):
                axes.plot([edge, edge], [at - 0.2, at + 0.2], color=palette["ink"], linewidth=1.0, zorder=4)
        weight = "bold" if bar.leading else "normal"
        axes.text(101, at, place.text, va="center", fontsize=6.5, fontweight=weight, clip_on=False)
    axes.set_xlim(0, 100)
    axes.set_ylim(-0.6, count - 0.4)
    axes.set_yticks(range(count))
    axes.set_yticklabels([path_end(bar.label, LONGEST_LABEL) for bar in reversed(chart.bars)], fontsize=6.5)
    ticks = places.interval_ticks(chart)
    axes.set_xticks([tick.position for tick in ticks])
    axes.set_xticklabels([tick.text for tick in ticks])
    keep_inside(axes, ticks)
    axes.set_xlabel(chart.axis_title, fontsize=6.3, color=palette["ink-2"], labelpad=2)
    return figure
