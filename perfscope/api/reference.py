"""Writes docs/tables.md from the tables' own columns: `python -m perfscope.api.reference docs/tables.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from perfscope.api import study
from perfscope.api.columns import TYPES, Column, TableSpec
from perfscope.api.schema_columns import STEPS_COLUMNS, TIMELINE_COLUMNS
from perfscope.api.tables import SPECS
from perfscope.rundir.schema import EXPORTED, STEPS

_INTRODUCTION = """\
# Tables

What `perfscope.open(...).table(name)`, `.frame(name)` and `perfscope export --table name` give.
Units are in the names: `_ns` nanoseconds, `_bytes`, `_per_s` per second, `_ratio` from 0 to 1. A
missing figure is null; the table `missing` says why. This page is generated from the code.
"""


def page() -> str:
    """The page as Markdown."""
    return "\n".join(
        (
            _INTRODUCTION,
            "## Of a run\n",
            *_table(_of_schema("steps", "step of a rank", STEPS, STEPS_COLUMNS)),
            *(line for spec in SPECS for line in _table(spec)),
            *_table(_of_schema("timeline", "span of a traced window", EXPORTED, TIMELINE_COLUMNS)),
            "## Of a comparison\n",
            "`perfscope.compare(...)` also has `layers` and `axes` of all its runs; the column `run` is\n"
            "the run's label.\n",
            *(line for spec in study.OF_STUDY for line in _table(spec)),
        )
    )


def _of_schema(name: str, row: str, schema: pa.Schema, meanings: Mapping[str, str]) -> TableSpec:
    """Raises KeyError: a column has no meaning."""
    columns = (Column(field.name, _type(field.type), meanings[field.name]) for field in schema)
    return TableSpec(name, row, tuple(columns), lambda _: ())


def _type(type: pa.DataType) -> str:
    if pa.types.is_integer(type):
        return "int"
    return "text" if pa.types.is_dictionary(type) else next(key for key, it in TYPES.items() if it == type)


def _table(spec: TableSpec) -> Iterator[str]:
    yield f"### {spec.name}\n"
    yield f"A row per {spec.row}.\n"
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    yield from (f"| `{column.name}` | {column.type} | {column.meaning} |" for column in spec.columns)
    yield ""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
