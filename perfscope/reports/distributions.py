"""Charts of how values are spread: histograms, and maps of ranks by color. Data only."""

from __future__ import annotations

import math

from msgspec import Struct

from perfscope.reports.chart import Chart


class HistogramPart(Struct, frozen=True, kw_only=True):
    """Times of one kind: how many are in each bin, and the quantiles that are marked, ns."""

    label: str
    counts: tuple[int, ...]
    median: int
    p95: int


class Histogram(Chart, Struct, frozen=True, kw_only=True):
    """Times in ns by how often they occur, each kind apart, on one axis.

    `edges`: of the bins, rising, one more than there are counts. `log`: bins are equally wide on a
    logarithmic axis.
    """

    id: str
    title: str
    x_title: str
    edges: tuple[float, ...]
    parts: tuple[HistogramPart, ...]
    log: bool = False
    caption: str = ""

    def x(self, value: float) -> float:
        """Where a time lies on the axis, percent."""
        low, high = self.edges[0], self.edges[-1]
        if self.log:
            return 100 * math.log(value / low) / math.log(high / low)
        return 100 * (value - low) / (high - low)


class HeatLevel(Struct, frozen=True, kw_only=True):
    """One color of a HeatMap: `key` of the style sheet, and the values it stands for, in words."""

    key: str
    title: str


class HeatMap(Chart, Struct, frozen=True, kw_only=True):
    """Cells of rows and columns by color. `cells`: the level of each, by row; None: no value is known.

    `compact`: low, with its colors in one entry of the legend. `leads_to`: what a cell leads to in the
    timeline, "step" or "layer"; "": nothing. Then `x_names` and `y_names` say what each column and row stands
    for: steps, ranks (`first-last` of several) or a layer.
    """

    id: str
    title: str
    x_title: str
    x_labels: tuple[str, ...]  # of the columns; not all of them are written
    y_title: str
    y_labels: tuple[str, ...]  # of the rows
    levels: tuple[HeatLevel, ...]
    cells: tuple[tuple[int | None, ...], ...]
    caption: str = ""
    compact: bool = False
    leads_to: str = ""
    x_names: tuple[str, ...] = ()
    y_names: tuple[str, ...] = ()
