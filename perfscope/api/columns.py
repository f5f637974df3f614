"""Arrow tables of typed results, with a documented column for each figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa

from perfscope.errors import PerfscopeError

Value = str | int | float | bool | None
TYPES: Mapping[str, pa.DataType] = {
    "text": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
}
_MAY_BE_EMPTY = frozenset({"layer", "series"})  # the model itself, the only series


class Column(NamedTuple):
    """One column of a table.

    Attributes:
        name: with the unit, where it has one.
        type: a key of TYPES.
        meaning: for the reference.
        value: of a row's record; None = its attribute of that name.
    """

    name: str
    type: str
    meaning: str
    value: Callable[[Any], object] | None = None


class TableSpec(NamedTuple):
    """A table of the API.

    Attributes:
        name: as given to `Run.table`.
        row: what a row is.
        columns: in order.
        records: the records of which each gives a row.
    """

    name: str
    row: str
    columns: tuple[Column, ...]
    records: Callable[[Any], Iterable[object]]


def build(spec: TableSpec, source: object) -> pa.Table:
    """The table of a spec; a record's None becomes null."""
    records = list(spec.records(source))
    arrays = []
    for column in spec.columns:
        value = column.value or attrgetter(column.name)
        values = [_plain(value(record), column.name) for record in records]
        arrays.append(pa.array(values, TYPES[column.type]))
    return pa.Table.from_arrays(arrays, names=[column.name for column in spec.columns])


def not_installed(package: str) -> PerfscopeError:
    """For a package of the extra ``notebook`` that is not there."""
    return PerfscopeError(f"{package} is not installed: pip install 'perfscope-hpc[notebook]'")


def _plain(value: object, column: str) -> object:
    """Enumerations as their values; what is not a number, or an empty text, as missing."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and value != value:
        return None
    if value == "" and column not in _MAY_BE_EMPTY:
        return None
    return value
