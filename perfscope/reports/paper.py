"""Paper for matplotlib: sizes, the style sheet's colours and fonts, axes without clutter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from perfscope.reports import geometry
from perfscope.reports.palette import light_palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 6.9  # inches: the text width of the page
HATCH = {
    "exposed_comm": "////",
    "transfer": "////",
    "wait": "////",
    "input_wait": "|||",
    "copy": "---",
    "optimizer": "...",
    "idle_host_wait": "\\\\\\",
}


@contextmanager
def paper_style() -> Iterator[None]:
    """matplotlib's settings for the block, put back afterwards."""
    import matplotlib

    colours = light_palette()
    settings = {
        "font.family": "DejaVu Sans",
        "font.size": 7,
        "svg.fonttype": "none",
        "svg.hashsalt": "perfscope",
        "hatch.linewidth": 0.45,
        "text.color": colours["ink"],
        "text.parse_math": False,
        "axes.edgecolor": colours["line-2"],
        "axes.linewidth": 0.6,
        "xtick.color": colours["ink-2"],
        "ytick.color": colours["ink"],
        "xtick.major.width": 0.6,
        "xtick.major.size": 2.5,
        "ytick.major.size": 0,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
    }
    with matplotlib.rc_context(settings):
        yield


def new_figure(height: float) -> Figure:
    """A figure as wide as the page's text, outside pyplot's global list."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height))


def bare(axes: Axes) -> None:
    """Only the axis at the bottom keeps its line."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def keep_inside(axes: Axes, ticks: Sequence[geometry.Tick]) -> None:
    """The last label ends at the axis' end, where the page does."""
    labels = axes.get_xticklabels()
    if ticks and labels and ticks[-1].position > 96:
        labels[-1].set_horizontalalignment("right")


def time_axis(axes: Axes, low: float, high: float, count: int) -> None:
    """Round times from `low` to `high` ns along the bottom."""
    ticks = geometry.time_ticks(low, high, count)
    axes.set_xlim(low, high)
    axes.set_xticks([low + (high - low) * tick.position / 100 for tick in ticks])
    axes.set_xticklabels([tick.text for tick in ticks])
    keep_inside(axes, ticks)
