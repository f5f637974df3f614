"""Maps of ranks by step, of the first screen: "Step time of each rank", "Waiting of each rank"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope import units
from perfscope.analysis.results import RunAnalysis
from perfscope.reports.distributions import HeatLevel, HeatMap
from perfscope.reports.sections.steps import step_numbers, step_table

MOST_COLUMNS, MOST_ROWS = 200, 64
MOST_CELLS = 2000  # the page's size
NUM_LEVELS = 6
_WAITS = "In collectives of traced steps, until the last rank enters."
_DOUBTED = " Blank: within clock error."
BULK = (2, 98)  # percentiles of the values between which the colors differ


class _Times(Struct, frozen=True, kw_only=True, eq=False):
    """What a map shows: a row a rank, a column a step, nan where no value is known, ns."""

    id: str
    title: str
    table: NDArray[np.float64]
    ranks: Sequence[int]
    steps: Sequence[int]
    about: str = ""  # a sentence


def step_map(analysis: RunAnalysis) -> tuple[HeatMap, ...]:
    """Mean step time by rank and stretch of steps; () for one rank, or where there is nothing to compare."""
    series = {rank: times for rank, times in sorted(analysis.step_series.items()) if times}
    longest = max(map(len, series.values()), default=0)
    if len(series) < 2 or longest < 2:
        return ()
    return _map(
        _Times(
            id="steps-map",
            title="Step time of each rank",
            table=step_table(list(series.values())),
            ranks=list(series),
            steps=step_numbers(analysis).tolist(),
        )
    )


def wait_map(analysis: RunAnalysis) -> tuple[HeatMap, ...]:
    """Waiting for other ranks in calls by rank and traced step; () where nothing is known or all is alike."""
    waits = analysis.step_waits
    if waits is None or len(waits.ranks) < 2:
        return ()
    return _map(
        _Times(
            id="waits-map",
            title="Waiting of each rank for others",
            table=np.where(waits.wait_ns >= 0, waits.wait_ns, np.nan),
            ranks=waits.ranks,
            steps=waits.steps,
            about=_WAITS + _DOUBTED * (len({rank.host for rank in analysis.ranks}) > 1),
        )
    )


def _map(times: _Times) -> tuple[HeatMap, ...]:
    num_ranks, num_steps = times.table.shape
    per_row = -(-num_ranks // MOST_ROWS)
    num_rows = -(-num_ranks // per_row)
    per_column = -(-num_steps // min(MOST_COLUMNS, MOST_CELLS // num_rows))
    means = binned(times.table, per_row, per_column)
    low, high = np.percentile(means[np.isfinite(means)], BULK)
    if low >= high:
        return ()
    inner = np.linspace(low, high, NUM_LEVELS + 1)[1:-1]
    levels = np.digitize(means, inner)
    means_of = [f"{per_column} steps"] * (per_column > 1) + [f"{per_row} ranks"] * (per_row > 1)
    blocks = f"Each cell is the mean of up to {' of '.join(means_of)}." if means_of else ""
    return (
        HeatMap(
            id=times.id,
            title=times.title,
            x_title="step",
            x_labels=tuple(f"{number:,}" for number in times.steps[::per_column]),
            y_title="rank",
            y_labels=tuple(str(rank) for rank in times.ranks[::per_row]),
            levels=_levels(inner),
            cells=tuple(
                tuple(int(level) if np.isfinite(mean) else None for level, mean in zip(*row, strict=True))
                for row in zip(levels, means, strict=True)
            ),
            compact=True,
            caption=f"{times.about} {blocks}".strip(),
            leads_to="step",
            x_names=spans(times.steps, per_column),
            y_names=spans(times.ranks, per_row),
        ),
    )


def spans(numbers: Sequence[int], each: int) -> tuple[str, ...]:
    """`first-last` of so many numbers at a time; the number where that is one."""
    blocks = (numbers[start : start + each] for start in range(0, len(numbers), each))
    return tuple(f"{block[0]}-{block[-1]}" if block[0] != block[-1] else str(block[0]) for block in blocks)


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
