"""The documents that are drawn from the Report model, by name; each loads what it needs when it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perfscope.reports.model import Report


def _text(report: Report) -> bytes:
    from perfscope.reports.text import render_text

    return render_text(report).encode()


def _json(report: Report) -> bytes:
    from perfscope.reports.document import render_json

    return render_json(report.document).encode()


def _html(report: Report) -> bytes:
    from perfscope.reports.html import render_html

    return render_html(report).encode()


def _pdf(report: Report) -> bytes:
    from perfscope.reports.pdf import render_pdf

    return render_pdf(report)


RENDERERS: Mapping[str, Callable[[Report], bytes]] = {
    "text": _text,
    "json": _json,
    "html": _html,
    "pdf": _pdf,
}
