"""Counter charts and rooflines for paper, by matplotlib; inside `paper_style()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfscope.reports import plots
from perfscope.reports.display import path_end
from perfscope.reports.model import CounterChart, Counters, RooflineChart, Unit
from perfscope.reports.palette import light_palette
from perfscope.reports.paper import WIDTH, bare, new_figure, time_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL, HEAD, ROW = 0.52, 0.15, 0.115  # inches: a plot, its title, one row of its legend
FOOT, MARKS, GAP = 0.36, 0.2, 0.1
LEFT, RIGHT = 0.095, 0.995
LONGEST_ENTRY = {3: 38, 2: 60, 1: 120}  # entries of a legend side by side -> letters each has
DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (4, 2),
    (1.4, 1.4),
    (6, 2, 1.4, 2),
    (),
    (4, 2),
    (1.4, 1.4),
    (6, 2, 1.4, 2),
)
ROOF_HEIGHT = 3.3


def draw_counters(block: Counters) -> Figure:
    rows = [-(-len(chart.lines) // _per_row(chart)) for chart in block.charts]
    heights = [HEAD + count * ROW + PANEL + GAP for count in rows]
    height = MARKS + sum(heights) + FOOT
    figure = new_figure(height)
    _marks(figure, block, height)
    top = height - MARKS
    for number, (chart, count, tall) in enumerate(zip(block.charts, rows, heights, strict=True)):
        _legend(figure, chart, top / height, height)
        bottom = top - HEAD - count * ROW - PANEL
        axes = figure.add_axes((LEFT, bottom / height, RIGHT - LEFT, PANEL / height))
        _panel(axes, block, chart, last=number == len(block.charts) - 1)
        top -= tall
    return figure


def _entry(chart: CounterChart, number: int) -> str:
    line = chart.lines[number]
    return f"{line.label}, {plots.line_note(chart, line, plots.counter_frame(chart))}"


def _per_row(chart: CounterChart) -> int:
    """Entries of the legend side by side: as many as have room for their words."""
    longest = max(len(_entry(chart, number)) for number in range(len(chart.lines)))
    return next((count for count, letters in LONGEST_ENTRY.items() if longest <= letters), 1)


def _marks(figure: Figure, block: Counters, height: float) -> None:
    """A strip above the charts: the training's steps, traced windows, numbers of the disturbances."""
    palette = light_palette()
    axes = figure.add_axes((LEFT, 1 - (MARKS - 0.02) / height, RIGHT - LEFT, (MARKS - 0.04) / height))
    axes.set_xlim(0, block.span_ns)
    axes.set_ylim(0, 1)
    axes.set_axis_off()
    if block.steps:
        axes.plot(
            [block.steps.start_ns, block.steps.end_ns], [0.85, 0.85], color=palette["ink"], linewidth=1.6
        )
    _stretches(axes, block)
    for number, mark in enumerate(block.disturbances, 1):
        middle = (mark.start_ns + mark.end_ns) / 2
        axes.text(middle, 0.35, str(number), ha="center", va="center", fontsize=6, fontweight="bold")


def _stretches(axes: Axes, block: Counters) -> None:
    palette = light_palette()
    for mark in block.disturbances:
        axes.axvspan(
            mark.start_ns,
            mark.end_ns,
            facecolor="#faf1de",
            edgecolor="#ead3a0",
            linewidth=0,
            hatch="\\\\\\\\",
            zorder=0,
        )
    for mark in block.windows:
        axes.axvspan(mark.start_ns, mark.end_ns, color=palette["accent"], alpha=0.6, linewidth=0.6, zorder=1)


def _panel(axes: Axes, block: Counters, chart: CounterChart, *, last: bool) -> None:
    palette, frame = light_palette(), plots.counter_frame(chart)
    bare(axes)
    axes.set_facecolor(palette["surface"])
    axes.spines["bottom"].set_visible(last)
    _stretches(axes, block)
    for number, line in enumerate(chart.lines):
        colour = palette[f"part-{plots.LINE_COLOURS[number]}"]
        for run in plots.line_runs(line):
            at = [line.t_ns[i] for i in run]
            if len(chart.lines) <= plots.MOST_BANDS:
                low, high = [line.low[i] for i in run], [line.high[i] for i in run]
                axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0, zorder=2)
            (drawn,) = axes.plot(at, [line.mean[i] for i in run], color=colour, linewidth=0.8, zorder=3)
            if _dashes(chart, number):
                drawn.set_dashes(_dashes(chart, number))
    for peak in frame.peaks:
        axes.axhline(peak, color=palette["ink-2"], linewidth=0.7, dashes=(5, 3), zorder=2)
    ticks = plots.value_ticks(frame.unit, frame.low, frame.high, 4)
    axes.set_ylim(frame.low, frame.high)
    axes.set_yticks([frame.low + (frame.high - frame.low) * tick.position / 100 for tick in ticks])
    axes.set_yticklabels([tick.text for tick in ticks], fontsize=5.8, color=palette["ink-2"])
    axes.grid(axis="y", color=palette["line-2"], linewidth=0.4, dashes=(2, 3))
    axes.set_axisbelow(True)
    time_axis(axes, 0, block.span_ns, 8)
    if last:
        axes.set_xlabel("time since the first reading", fontsize=6.3, color=palette["ink-2"], labelpad=2)
    else:
        axes.set_xticklabels([])
        axes.tick_params(axis="x", length=0)


def _dashes(chart: CounterChart, number: int) -> tuple[float, ...]:
    """Where lines are many, dashes only for those whose colours are near another's."""
    return () if len(chart.lines) > plots.MOST_BANDS and number < 5 else DASHES[number]


def _legend(figure: Figure, chart: CounterChart, top: float, height: float) -> None:
    from matplotlib.lines import Line2D

    palette, frame = light_palette(), plots.counter_frame(chart)
    more = f"{chart.num_left_out} more, with a lower mean" if chart.num_left_out else ""
    figure.text(LEFT, top, chart.title, fontsize=6.8, fontweight="bold", va="top")
    notes = ". ".join(filter(None, (plots.chart_note(chart, frame), more)))
    figure.text(RIGHT, top, notes, fontsize=5.8, va="top", ha="right", color=palette["ink-2"])
    per_row = _per_row(chart)
    width = (RIGHT - LEFT) / per_row
    for number in range(len(chart.lines)):
        row, place = divmod(number, per_row)
        x, y = LEFT + place * width, top - (HEAD + (row + 0.4) * ROW) / height
        sample = Line2D(
            [x, x + 0.024], [y, y], color=palette[f"part-{plots.LINE_COLOURS[number]}"], linewidth=1.1,
            transform=figure.transFigure, figure=figure,
        )  # fmt: skip
        if _dashes(chart, number):
            sample.set_dashes(_dashes(chart, number))
        figure.add_artist(sample)
        text = path_end(_entry(chart, number), LONGEST_ENTRY[per_row])
        figure.text(x + 0.029, y, text, fontsize=5.6, va="center_baseline", color=palette["ink-2"])


def draw_roofline(chart: RooflineChart) -> Figure:
    palette, frame = light_palette(), plots.roof_frame(chart)
    figure = new_figure(ROOF_HEIGHT)
    left, bottom, top = 0.1, 0.4 / ROOF_HEIGHT, 1 - 0.06 / ROOF_HEIGHT
    axes = figure.add_axes((left, bottom, 0.995 - left, top - bottom))
    bare(axes)
    axes.set_facecolor(palette["surface"])
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    _roof_axes(axes, frame)
    corners = plots.roof_line(chart, frame)
    axes.plot([c[0] for c in corners], [c[1] for c in corners], color=palette["ink"], linewidth=1.2, zorder=3)
    axes.plot([corners[1][0]] * 2, [0, corners[1][1]], color=palette["ink-2"], linewidth=0.6, dashes=(1.5, 3))
    words = plots.roof_words(chart)
    for text, at, shift in (
        (chart.peak_text, words.peak, (-3, 3)),
        (chart.bandwidth_text, words.memory, (-5, 2)),
    ):
        axes.annotate(
            text, at, xytext=shift, textcoords="offset points", ha="right", fontsize=6.6, fontweight="bold"
        )
    _roof_points(axes, chart, frame)
    return figure


def _roof_axes(axes: Axes, frame: plots.RoofFrame) -> None:
    palette = light_palette()
    across = plots.log_ticks(Unit.NUMBER, frame.x_low, frame.x_high)
    up = plots.log_ticks(Unit.FLOP_RATE, frame.y_low, frame.y_high)
    axes.set_xticks([tick.position for tick in across])
    axes.set_xticklabels([tick.text for tick in across])
    if across and across[-1].position > 97:
        axes.get_xticklabels()[-1].set_horizontalalignment("right")
    axes.set_yticks([tick.position for tick in up])
    axes.set_yticklabels([tick.text for tick in up], fontsize=6)
    axes.grid(color=palette["line-2"], linewidth=0.4, dashes=(2, 3))
    axes.set_axisbelow(True)
    axes.set_xlabel(
        "arithmetic intensity, FLOP per byte (modelled)", fontsize=6.5, color=palette["ink-2"], labelpad=3
    )


def _roof_points(axes: Axes, chart: RooflineChart, frame: plots.RoofFrame) -> None:
    palette = light_palette()
    for phase, marker in (("forward", "o"), ("backward", "^")):
        chosen = [p for p in chart.points if (p.phase == "backward") == (phase == "backward")]
        # matplotlib counts a marker's area in points squared; the page's radius is in pixels.
        sizes = np.array([(2 * plots.radius(chart, p.time_ns) * 0.6) ** 2 for p in chosen])
        axes.scatter(
            [frame.x(p.intensity) for p in chosen],
            [frame.y(p.flops_per_s) for p in chosen],
            s=sizes,
            marker=marker,
            color=palette[f"part-{phase}"],
            edgecolors="#ffffff",
            linewidths=0.6,
            zorder=4,
            label=phase,
        )
    width, height = WIDTH * 0.895 * 120, (ROOF_HEIGHT - 0.46) * 120
    for label in plots.roof_labels(chart, width, height, most=10, letter=6.2):
        axes.annotate(
            label.text,
            (label.x, label.y),
            xytext=(label.right * 0.6, label.up * 0.6),
            textcoords="offset points",
            ha={"start": "left", "middle": "center", "end": "right"}[label.anchor],
            fontsize=5.6,
            zorder=5,
        )
    axes.legend(loc="lower right", frameon=False, fontsize=6.3, markerscale=0.7, handletextpad=0.3)
