"""The documents that are drawn from the Report model, by name."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from perfscope.reports.document import render_json
from perfscope.reports.html import render_html
from perfscope.reports.model import Report
from perfscope.reports.pdf import render_pdf
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
