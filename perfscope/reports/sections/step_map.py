"""Map "Step time of each rank", of the first screen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfscope import units
from perfscope.analysis.results import RunAnalysis
from perfscope.reports.distributions import HeatLevel, HeatMap
from perfscope.reports.sections.steps import step_table

MOST_COLUMNS, MOST_ROWS = 200, 64
MOST_CELLS = 2000  # the page's size
NUM_LEVELS = 6
BULK = (2, 98)  # percentiles of the values between which the colors differ


def step_map(analysis: RunAnalysis) -> tuple[HeatMap, ...]:
    """Mean step time by rank and stretch of steps; () for one rank, or where there is nothing to compare."""
    series = {rank: times for rank, times in sorted(analysis.step_series.items()) if times}
    longest = max(map(len, series.values()), default=0)
    if len(series) < 2 or longest < 2:
        return ()
    table = step_table(list(series.values()))
    per_row = -(-len(series) // MOST_ROWS)
    num_rows = -(-len(series) // per_row)
    per_column = -(-longest // min(MOST_COLUMNS, MOST_CELLS // num_rows))
    means = binned(table, per_row, per_column)
    low, high = np.percentile(means[np.isfinite(means)], BULK)
    if low >= high:
        return ()
    inner = np.linspace(low, high, NUM_LEVELS + 1)[1:-1]
    levels = np.digitize(means, inner)
    ranks = list(series)
    means_of = [f"{per_column} steps"] * (per_column > 1) + [f"{per_row} ranks"] * (per_row > 1)
    return (
        HeatMap(
            id="steps-map",
            title="Step time of each rank",
            x_title="step",
            x_labels=tuple(f"{number:,}" for number in range(0, longest, per_column)),
            y_title="rank",
            y_labels=tuple(str(rank) for rank in ranks[::per_row]),
            levels=_levels(inner),
            cells=tuple(
                tuple(int(level) if np.isfinite(mean) else None for level, mean in zip(*row, strict=True))
                for row in zip(levels, means, strict=True)
            ),
            compact=True,
            caption=f"Each cell is the mean of up to {' of '.join(means_of)}." if means_of else "",
        ),
    )


def binned(table: NDArray[np.float64], per_row: int, per_column: int) -> NDArray[np.float64]:
    """Means of blocks of the table; nan where a block has no value."""
    known = np.isfinite(table)

    def sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
        by_row = np.add.reduceat(values, np.arange(0, table.shape[0], per_row), axis=0)
        result: NDArray[np.float64] = np.add.reduceat(
            by_row, np.arange(0, table.shape[1], per_column), axis=1
        )
        return result

    counts = sums(known.astype(np.float64))
    total = sums(np.where(known, table, 0.0))
    means = np.full(counts.shape, np.nan)
    np.divide(total, counts, out=means, where=counts > 0)
    return means


def _levels(inner: NDArray[np.float64]) -> tuple[HeatLevel, ...]:
    edges = [units.format_ns(edge) for edge in inner]
    titles = [f"below {edges[0]}", *(f"from {edge}" for edge in edges)]
    return tuple(HeatLevel(key=f"seq{level + 1}", title=title) for level, title in enumerate(titles))
