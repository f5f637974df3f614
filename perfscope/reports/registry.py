"""Every way out of a report: documents drawn from the Report model, exports of the timeline."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from perfscope.analysis.results import RunAnalysis
from perfscope.reports.document import render_json
from perfscope.reports.export_source import ExportFormat
from perfscope.reports.html import render_html
from perfscope.reports.model import Report
from perfscope.reports.openmetrics import render_openmetrics
from perfscope.reports.pdf import render_pdf
from perfscope.reports.perfetto import write_perfetto
from perfscope.reports.speedscope import write_speedscope
from perfscope.reports.tables import write_arrow, write_csv, write_parquet
from perfscope.reports.text import render_text


class Renderer(Struct, frozen=True, kw_only=True):
    """One document format. Heavy libraries are loaded by `render`, not before."""

    name: str
    suffix: str
    render: Callable[[Report], bytes]


RENDERERS: tuple[Renderer, ...] = (
    Renderer(name="text", suffix=".txt", render=lambda report: render_text(report).encode()),
    Renderer(name="json", suffix=".json", render=lambda report: render_json(report.document).encode()),
    Renderer(name="html", suffix=".html", render=lambda report: render_html(report).encode()),
    Renderer(name="pdf", suffix=".pdf", render=render_pdf),
)

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
