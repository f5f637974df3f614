"""Map "Layer times of each rank", of section "Layers"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfscope.analysis.results import LayerResult, RunAnalysis
from perfscope.reports.display import path_end, visible
from perfscope.reports.distributions import HeatLevel, HeatMap
from perfscope.reports.sections.step_map import binned, spans

MOST_COLUMNS, MOST_ROWS = 100, 20
LONGEST_NAME = 12  # the room left of a map
EDGES = (1.05, 1.1, 1.25, 1.5, 2.0)  # times the layer's median; one scale in every report


def layer_map(analysis: RunAnalysis, layers: Sequence[LayerResult], root_name: str) -> tuple[HeatMap, ...]:
    """Time of each rank in each layer over the layer's median rank; () where no rank is slower anywhere.

    Args:
        analysis: of the run.
        layers: in rows, from the top; only those that two ranks run are drawn.
        root_name: of the layer without a name.
    """
    times = analysis.layer_times
    shared = [layer for layer in layers if layer.layer in times and len(times[layer.layer].ranks) > 1]
    shared = shared[:MOST_ROWS]
    ranks = sorted({int(rank) for layer in shared for rank in times[layer.layer].ranks})
    if len(ranks) < 2:
        return ()
    column = {rank: index for index, rank in enumerate(ranks)}
    table = np.full((len(shared), len(ranks)), np.nan)
    for row, layer in zip(table, shared, strict=True):
        own = times[layer.layer]
        for rank, means in zip(own.ranks, own.means.tolist(), strict=True):
            row[column[int(rank)]] = means[0] + means[1]
    ratios = _over_median(table)
    if not (ratios[np.isfinite(ratios)] >= EDGES[0]).any():
        return ()
    per_column = -(-len(ranks) // MOST_COLUMNS)
    cells = binned(ratios, 1, per_column)
    levels = np.digitize(cells, EDGES)
    return (
        HeatMap(
            id="layers-map",
            title="Layer times of each rank",
            x_title="rank",
            x_labels=tuple(str(rank) for rank in ranks[::per_column]),
            y_title="layer",
            y_labels=tuple(path_end(visible(layer.layer) or root_name, LONGEST_NAME) for layer in shared),
            levels=_levels(),
            cells=tuple(
                tuple(int(level) if np.isfinite(cell) else None for level, cell in zip(*row, strict=True))
                for row in zip(levels, cells, strict=True)
            ),
            caption=_caption(per_column),
            leads_to="layer",
            x_names=spans(ranks, per_column),
            y_names=tuple(visible(layer.layer) for layer in shared),
        ),
    )


def _over_median(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each value over its row's median; nan where there is none, or where the median is 0."""
    medians = np.nanmedian(table, axis=1, keepdims=True)
    ratios = np.full(table.shape, np.nan)
    np.divide(table, medians, out=ratios, where=medians > 0)
    return ratios


def _levels() -> tuple[HeatLevel, ...]:
    titles = [f"below {EDGES[0]:g} × the layer's median", *(f"from {edge:g} ×" for edge in EDGES)]
    return tuple(HeatLevel(key=f"seq{level + 1}", title=title) for level, title in enumerate(titles))


def _caption(per_column: int) -> str:
    text = "Forward and backward compute per traced step, over the median of the layer's ranks."
    return f"{text} Each cell is the mean of up to {per_column} ranks." if per_column > 1 else text
