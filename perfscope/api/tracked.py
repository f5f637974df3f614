"""A run as experiment trackers take it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from perfscope import __version__
from perfscope.analysis.results import Breakdown
from perfscope.reports.trackers import TrackedRun, finite

if TYPE_CHECKING:
    from perfscope.analysis.results import RunAnalysis
    from perfscope.api.run import Run

_MS = 1e-6  # of a nanosecond
_SERIES = {"dur_ns": "step_ms", "input_ns": "input_wait_ms"}


def tracked_run(run: Run) -> TrackedRun:
    """Mean and slowest rank of every step, figures of the run, and its report."""
    analysis, document = run.analysis, run.document
    return TrackedRun(
        name=analysis.run.name or run.path.name,
        series=_series(run),
        figures=_figures(analysis),
        texts={
            "verdict": document.verdict.headline,
            "framework": analysis.framework,
            "ranks": str(len(analysis.ranks)),
            "version": __version__,
        },
        html=run.report("html"),
        text=run.report("text").decode(),
    )


def _series(run: Run) -> dict[str, tuple[tuple[int, int, float], ...]]:
    """Step times of the mean and of the slowest rank, and waits for input, of each step in ms."""
    table = run.table("steps").select(["step", "start_ns", *_SERIES])
    if not table.num_rows:
        return {}
    begin = (run.analysis.run.start_unix_ns or 0) // 1_000_000
    starts: dict[int, int] = {}
    values: dict[str, dict[int, list[float]]] = {name: defaultdict(list) for name in _SERIES}
    for row in table.to_pylist():
        step = row["step"]
        starts[step] = min(starts.get(step, row["start_ns"]), row["start_ns"])
        for column, of_step in values.items():
            if row[column] is not None:
                of_step[step].append(row[column] * _MS)
    first = min(starts.values())

    def rows(of_step: dict[int, float]) -> tuple[tuple[int, int, float], ...]:
        return tuple(
            (step, begin + (starts[step] - first) // 1_000_000, of_step[step])
            for step in sorted(of_step)
            if step >= 0
        )

    series = {
        name: rows({step: sum(times) / len(times) for step, times in values[column].items()})
        for column, name in _SERIES.items()
    }
    series["step_slowest_rank_ms"] = rows({step: max(times) for step, times in values["dur_ns"].items()})
    return {name: points for name, points in series.items() if points}


def _figures(analysis: RunAnalysis) -> dict[str, float]:
    step = analysis.step_ns
    figures: dict[str, float | None] = {
        "step_median_ms": None if step is None else step.median * _MS,
        "step_p90_ms": None if step is None else step.p90 * _MS,
        "throughput_samples_per_s": analysis.throughput_samples_per_s,
        "throughput_tokens_per_s": analysis.tokens_per_s,
        "overhead_ratio": analysis.overhead_ratio,
    }
    traced_ranks = [rank for rank in analysis.ranks if rank.breakdown_ns is not None]
    for part in Breakdown.PARTS:
        times = [getattr(rank.breakdown_ns, part) for rank in traced_ranks if part not in rank.unknown]
        figures[f"{part}_ms"] = sum(times) / len(times) * _MS if times else None
    return finite(figures)
