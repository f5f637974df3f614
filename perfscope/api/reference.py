"""Writes docs/tables.md from the tables' own columns: `python -m perfscope.api.reference docs/tables.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from perfscope.api import study
from perfscope.api.columns import TableSpec
from perfscope.api.tables import SPECS

_INTRODUCTION = """\
# Tables

What `perfscope.open(...).table(name)`, `.frame(name)` and `perfscope export --table name` give.
Units are in the names: `_ns` nanoseconds, `_bytes`, `_per_s` per second, `_ratio` from 0 to 1. A
missing figure is null; the table `missing` says why. This page is generated from the code.

`steps` has the columns of `STEPS`, `timeline` those of `TIMELINE` and `CALL_COLUMNS` in
`perfscope/rundir/schema.py`.
"""


def page() -> str:
    """The page as Markdown."""
    return "\n".join(
        (
            _INTRODUCTION,
            "## Of a run\n",
            *(line for spec in SPECS for line in _table(spec)),
            "## Of a comparison\n",
            "`perfscope.compare(...)` also has `layers` and `axes` of all its runs; the column `run` is\n"
            "the run's label.\n",
            *(line for spec in study.OF_STUDY for line in _table(spec)),
        )
    )


def _table(spec: TableSpec) -> Iterator[str]:
    yield f"### {spec.name}\n"
    yield f"A row per {spec.row}.\n"
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    yield from (f"| `{column.name}` | {column.type} | {column.meaning} |" for column in spec.columns)
    yield ""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
