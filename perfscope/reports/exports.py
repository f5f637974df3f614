"""Every export of a run's tables and figures, by name."""

from __future__ import annotations

from collections.abc import Callable

from perfscope.analysis.results import RunAnalysis
from perfscope.reports.export_source import ExportFormat
from perfscope.reports.openmetrics import render_openmetrics
from perfscope.reports.perfetto import write_perfetto
from perfscope.reports.speedscope import write_speedscope
from perfscope.reports.tables import write_arrow, write_csv, write_parquet

EXPORTS: tuple[ExportFormat, ...] = (
    ExportFormat(
        name="perfetto", suffix=".perfetto.json", write=write_perfetto, has_counters=True, timeline_only=True
    ),
    ExportFormat(name="speedscope", suffix=".speedscope.json", write=write_speedscope, timeline_only=True),
    ExportFormat(name="parquet", suffix=".parquet", write=write_parquet),
    ExportFormat(name="csv", suffix=".csv", write=write_csv),
    ExportFormat(name="arrow", suffix=".arrow", write=write_arrow),
)

# Of a run's figures, not of a table.
FIGURES: dict[str, Callable[[RunAnalysis], str]] = {"openmetrics": render_openmetrics}
