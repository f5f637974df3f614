"""docs/tables.md is the code's own list of tables and columns."""

from __future__ import annotations

from pathlib import Path

from perfscope.api.reference import page


def test_the_page_of_tables_is_current() -> None:
    text = (Path(__file__).parents[3] / "docs" / "tables.md").read_text()
    assert text == page(), "python -m perfscope.api.reference docs/tables.md"
