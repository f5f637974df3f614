"""The map of layer times by rank: what each cell is, and when there is none."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from perfscope.analysis.results import LayerTimes, RunAnalysis
from perfscope.reports.sections.layer_map import layer_map
from tests.unit.reports.test_synthetic import synthetic_analysis


def of(table: np.ndarray) -> RunAnalysis:
    """An analysis of layers (rows) with these forward and backward times of ranks (columns), ns."""
    base = synthetic_analysis(num_ranks=1)
    layer = base.layers[0]
    layers = tuple(
        structs.replace(layer, layer=f"features.{row}", order=row) for row in range(table.shape[0])
    )
    times = {
        one.layer: LayerTimes(
            ranks=[rank for rank, time in enumerate(row) if np.isfinite(time)],
            means=np.array([(time / 4, 3 * time / 4, 1.0) for time in row if np.isfinite(time)]),
        )
        for one, row in zip(layers, table, strict=True)
    }
    return structs.replace(base, layers=layers, layer_times=times)


def test_a_rank_that_is_slow_in_one_layer_stands_out_there_alone() -> None:
    table = np.full((3, 8), 1000.0) * [[1], [50], [7]]
    table[1, 5] *= 1.6
    analysis = of(table)
    [chart] = layer_map(analysis, analysis.layers, "(model)")
    cells = np.array(chart.cells)
    assert cells.shape == (3, 8)
    assert cells[1, 5] == 4  # from 1.5 times, below twice
    assert cells.sum() == 4
    assert chart.y_labels == ("features.0", "features.1", "features.2")
    assert chart.x_labels[5] == "5"


def test_a_rank_without_the_layer_has_no_color() -> None:
    table = np.array([[100.0, 130.0, np.nan, 100.0], [10.0, 10.0, 10.0, 10.0]])
    analysis = of(table)
    [chart] = layer_map(analysis, analysis.layers, "(model)")
    assert chart.cells == ((0, 3, None, 0), (0, 0, 0, 0))


def test_many_ranks_are_means_and_equal_ones_have_no_map() -> None:
    table = np.full((2, 300), 1000.0)
    analysis = of(table)
    assert layer_map(analysis, analysis.layers, "(model)") == ()
    table[0, 30:33] = 3000.0
    analysis = of(table)
    [chart] = layer_map(analysis, analysis.layers, "(model)")
    assert len(chart.x_labels) == 100
    assert chart.cells[0][10] == 5
    assert "mean of up to 3 ranks" in chart.caption
    assert (chart.leads_to, chart.x_names[10], chart.y_names[0]) == ("layer", "30-32", "features.0")


def test_one_rank_has_no_map() -> None:
    analysis = of(np.array([[100.0], [200.0]]))
    assert layer_map(analysis, analysis.layers, "(model)") == ()
