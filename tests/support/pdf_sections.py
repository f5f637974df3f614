"""The sections that the PDF shows, to compare with the page's."""

from __future__ import annotations

from perfscope.reports.model import Report
from perfscope.reports.pdf import pdf_data


def section_titles(report: Report) -> list[tuple[str, str]]:
    """(id, title) of each."""
    sections = pdf_data(report)["sections"]
    assert isinstance(sections, list)
    return [(section["id"], section["title"]) for section in sections]
