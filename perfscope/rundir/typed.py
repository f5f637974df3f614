"""Documents as typed records: defaults, wrong types and impossible values end here.

An entry that is null is absent. One of a wrong type, or out of its range, gives the default and is named to
the caller (the reader makes a note of it). An unknown one is ignored. So a document of another version, or a
damaged one, keeps the others.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec

from perfscope.rundir.documents import Document

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Figure = Annotated[float, msgspec.Meta(ge=0, lt=1e300)]  # finite
Size = Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
NumRanks = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
WorldSize = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=10 * 366 * 86_400 * 10**9)]  # of something that ran

_T = TypeVar("_T", bound=msgspec.Struct)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all: a key that is absent has its default."""


class WholeLists(Record, frozen=True):
    """A record whose lists and mappings are read whole or not at all: what is in them belongs together."""


class PartialRow(WholeLists, frozen=True):
    """A row of a list that is kept without the entries that cannot be read; any other row is left out whole.

    Every field has a default.
    """


def decode_record(kind: type[_T], document: Mapping[str, object]) -> tuple[_T, tuple[str, ...]]:
    """The document as a record, and the entries that are not in it by name (`memory.peak_rss_bytes`)."""
    present = {name: value for name, value in document.items() if value is not None}
    try:
        return msgspec.convert(present, kind), ()
    except msgspec.ValidationError:
        damaged: dict[str, None] = {}
        record = _lenient_struct(kind, present, "", damaged)
        return record, tuple(damaged)


def read_as(kind: type[_T], document: Mapping[str, object]) -> _T:
    """A document as a record, where a wrong type is of no account to the caller."""
    return decode_record(kind, document)[0]


def _lenient_struct(kind: type[_T], document: Document, where: str, damaged: dict[str, None]) -> _T:
    values: dict[str, Any] = {}
    in_part = not issubclass(kind, WholeLists)
    for field in msgspec.structs.fields(kind):
        if field.encode_name not in document:
            continue
        value = document[field.encode_name]
        try:
            field_path = where + field.encode_name
            values[field.name] = _lenient(field.type, value, field_path, damaged, in_part=in_part)
        except msgspec.ValidationError:
            if value is not None:
                damaged[where + field.encode_name] = None
    try:
        return kind(**values)
    except TypeError as error:  # an entry without which the others mean nothing
        raise msgspec.ValidationError(str(error)) from None


def _lenient(kind: Any, value: object, where: str, damaged: dict[str, None], *, in_part: bool) -> Any:
    """`value` as `kind`, without what does not fit in it; ValidationError where nothing of it does.

    Args:
        kind, value: the type wanted and what the document has.
        where: dotted path of `value` in the document.
        damaged: what is left out is added, by its path.
        in_part: whether a list or a mapping may lose some of its values.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        kinds = get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
        inner = kinds[0]
        if isinstance(value, dict) and isinstance(inner, type) and issubclass(inner, Record):
            return _lenient_struct(inner, value, f"{where}.", damaged)
        if in_part and isinstance(value, list) and get_origin(inner) is tuple and get_args(inner)[-1] is ...:
            return tuple(_those_that_fit(get_args(inner)[0], value, where, damaged))
        if in_part and isinstance(value, dict) and get_origin(inner) is dict:
            of = get_args(inner)[1]
            pairs = (
                (name, fitting)
                for name, item in value.items()
                for fitting in _those_that_fit(of, [item], where, damaged)
            )
            return dict(pairs)
        raise


def _those_that_fit(
    kind: Any, values: Iterable[object], where: str, damaged: dict[str, None]
) -> Iterator[Any]:
    for value in values:
        with contextlib.suppress(msgspec.ValidationError):
            yield _element(kind, value, where, damaged)


def _element(kind: Any, value: object, where: str, damaged: dict[str, None]) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, PartialRow):
            return _lenient_struct(kind, value, f"{where}.", damaged)
        damaged[where] = None
        raise
