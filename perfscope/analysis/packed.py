"""Records of which there are many for each rank, kept as MessagePack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")
Other = TypeVar("Other")


class Packed(Sequence[T]):
    """Records as bytes, a fifth of their size as objects; they are decoded whenever they are read.

    Args:
        kind: class of the records.
        records: of that class.
    """

    __slots__ = ("_content", "_kind", "_length")

    def __init__(self, kind: type[T], records: Sequence[T]) -> None:
        self._kind = kind
        self._content = msgspec.msgpack.encode(records)
        self._length = len(records)

    def _decoded(self) -> list[T]:
        return msgspec.msgpack.decode(self._content, type=list[self._kind])  # type: ignore[name-defined]

    def read_as(self, kind: type[Other]) -> list[Other]:
        """The records with the fields of `kind` alone."""
        return msgspec.msgpack.decode(self._content, type=list[kind])  # type: ignore[valid-type]

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._decoded()[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self._decoded())

    def __len__(self) -> int:
        return self._length

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Packed):
            return NotImplemented
        return self._kind is other._kind and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def __repr__(self) -> str:
        return repr(self._decoded())


def read_as(kind: type[Other], records: Sequence[Any]) -> Sequence[Other]:
    """Records of which only the fields of `kind` are needed; those that are not packed, as they are."""
    return records.read_as(kind) if isinstance(records, Packed) else records
