"""How many bytes an mpi4py call hands over, and of what type, from the arguments it was given.

Upper-case calls take a buffer, or a list or tuple: [data, count, datatype], [data, (counts, displacements),
datatype], and shorter forms (mpi4py.typing has them all). Lower-case calls take any object and pickle it: how
many bytes that makes is not known without pickling it again, so it is recorded for bytes, text and buffers
only.
"""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping, NamedTuple, Optional, Tuple

_FORMATS = {
    "b": "int8", "c": "int8", "B": "uint8", "h": "int16", "H": "uint16", "i": "int32", "I": "uint32",
    "l": "int64", "L": "uint64", "q": "int64", "Q": "uint64", "?": "bool", "e": "float16", "f": "float32",
    "d": "float64", "g": "float128", "Zf": "complex64", "Zd": "complex128",
}  # fmt: skip
_NAMES = {
    "MPI_BYTE": "uint8", "MPI_CHAR": "int8", "MPI_SIGNED_CHAR": "int8", "MPI_UNSIGNED_CHAR": "uint8",
    "MPI_SHORT": "int16", "MPI_UNSIGNED_SHORT": "uint16", "MPI_INT": "int32", "MPI_UNSIGNED": "uint32",
    "MPI_LONG": "int64", "MPI_UNSIGNED_LONG": "uint64", "MPI_LONG_LONG": "int64",
    "MPI_LONG_LONG_INT": "int64", "MPI_UNSIGNED_LONG_LONG": "uint64", "MPI_FLOAT": "float32",
    "MPI_DOUBLE": "float64", "MPI_LONG_DOUBLE": "float128", "MPI_C_BOOL": "bool", "MPI_CXX_BOOL": "bool",
    "MPI_INT8_T": "int8", "MPI_INT16_T": "int16", "MPI_INT32_T": "int32", "MPI_INT64_T": "int64",
    "MPI_UINT8_T": "uint8", "MPI_UINT16_T": "uint16", "MPI_UINT32_T": "uint32", "MPI_UINT64_T": "uint64",
    "MPI_C_COMPLEX": "complex64", "MPI_C_FLOAT_COMPLEX": "complex64", "MPI_COMPLEX": "complex64",
    "MPI_C_DOUBLE_COMPLEX": "complex128", "MPI_DOUBLE_COMPLEX": "complex128", "MPI_REAL": "float32",
    "MPI_INTEGER": "int32", "MPI_DOUBLE_PRECISION": "float64",
}  # fmt: skip


class Size(NamedTuple):
    """What a buffer argument holds; None = not known."""

    num_bytes: Optional[int]
    dtype: Optional[str]


UNKNOWN = Size(None, None)
# What comes of reading what is no buffer, or of a form we do not know; the call itself says what is wrong.
_UNREADABLE = (TypeError, ValueError, LookupError, AttributeError, BufferError)


class Buffers:
    """Reads buffer arguments.

    Args:
        in_place: mpi4py's IN_PLACE.
        datatype: mpi4py's class of datatypes.
        by_name: letters such as "d" -> datatype, as mpi4py looks them up.
    """

    def __init__(self, in_place: Any, datatype: type, by_name: Mapping[str, Any]) -> None:
        self._in_place = in_place
        self._datatype = datatype
        self._by_name = by_name

    def is_in_place(self, argument: Any) -> bool:
        """Whether a buffer argument stands for the other one."""
        return argument is None or argument is self._in_place

    def simple(self, argument: Any, blocks: int = 1) -> Size:
        """A buffer of one count.

        Args:
            argument: as given to the call.
            blocks: how many parts of that count it has (a gather's receive buffer: one for each rank). A
                count that is not given is that of the whole buffer.
        """
        try:
            data, count, shift, kind = self._parts(argument, ())
            if count is None:
                return self._rest(data, shift, kind)
            unit = self._unit(data, kind)
            size = int(count) * max(1, blocks) * unit if unit is not None else None
            return Size(size, self._dtype(data, kind))
        except _UNREADABLE:
            return UNKNOWN

    def vector(self, argument: Any, blocks: int) -> Size:
        """A buffer of a count for each of `blocks` ranks (Gatherv, Alltoallv)."""
        try:
            data, counts, _, kind = self._parts(argument, (list,))
            if counts is None:
                return self._rest(data, None, kind)
            unit = self._unit(data, kind)
            total = sum(int(count) for count in counts) if _is_many(counts) else int(counts) * blocks
            return Size(total * unit if unit is not None else None, self._dtype(data, kind))
        except _UNREADABLE:
            return UNKNOWN

    def each(self, argument: Any, blocks: int) -> Size:
        """A buffer of a count and a datatype for each of `blocks` ranks (Alltoallw)."""
        try:
            return self._each(list(argument), blocks)
        except _UNREADABLE:
            return UNKNOWN

    def _each(self, items: List[Any], blocks: int) -> Size:
        kinds = list(items[-1])
        counts: Iterable[int] = [1] * blocks
        if len(items) > 2:
            counts = items[1][0] if len(items) == 3 else items[1]
        total = sum(int(count) * int(kind.Get_size()) for count, kind in zip(counts, kinds))  # noqa: B905 - Python 3.8
        names = {self._dtype(None, kind) for kind in kinds}
        return Size(total, names.pop() if len(names) == 1 else None)

    def object(self, value: Any) -> Optional[int]:
        """Bytes of an object's content: of bytes, text and buffers; None for others."""
        if isinstance(value, str):
            return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        return None if value is None else _num_bytes(value)

    def objects(self, values: Any) -> Optional[int]:
        """The same for a list of objects together; None if it is none, or one of them is not known."""
        if not isinstance(values, (list, tuple)):
            return None
        sizes = [self.object(value) for value in values]
        return sum(size for size in sizes if size is not None) if None not in sizes else None

    # -- inside ---------------------------------------------------------------------------------------

    def _parts(self, argument: Any, lists: Tuple[type, ...]) -> Tuple[Any, Any, Any, Any]:
        """(data, count, displacement, datatype). `lists`: types of a plain list of counts, not of a pair."""
        if not isinstance(argument, (list, tuple)):
            return argument, None, None, None
        items: List[Any] = list(argument)
        data, count, shift, kind = items[0], None, None, None
        if len(items) == 2:
            if isinstance(items[1], (self._datatype, str)):
                kind = items[1]
            else:
                count = items[1]
        elif len(items) == 3:
            count, kind = items[1:]
        elif len(items) == 4:
            return data, items[1], items[2], self._look_up(items[3])
        if isinstance(count, (list, tuple)) and not isinstance(count, lists):
            count, shift = count
        return data, count, shift, self._look_up(kind)

    def _look_up(self, kind: Any) -> Any:
        return self._by_name.get(kind) if isinstance(kind, str) else kind

    def _rest(self, data: Any, shift: Any, kind: Any) -> Size:
        """All of a buffer, from `shift` datatype entries on."""
        num_bytes = _num_bytes(data) if data is not None else None
        dtype = self._dtype(data, kind)
        if num_bytes is None:
            return Size(None, dtype)
        extent = int(kind.Get_extent()[1]) if kind is not None else _item_bytes(data)
        if shift and extent:
            num_bytes -= int(shift) * extent
        if kind is not None and extent:
            num_bytes = num_bytes // extent * int(kind.Get_size())
        return Size(num_bytes, dtype)

    def _unit(self, data: Any, kind: Any) -> Optional[int]:
        """Bytes of one entry."""
        return int(kind.Get_size()) if kind is not None else _item_bytes(data)

    def _dtype(self, data: Any, kind: Any) -> Optional[str]:
        if kind is not None:
            return _NAMES.get(str(kind.Get_name()))
        named = getattr(data, "dtype", None)
        if named is not None:
            return str(named).rpartition(".")[2]
        try:
            return _FORMATS.get(memoryview(data).format.lstrip("@<=>!"))
        except (TypeError, ValueError, BufferError):
            return None


def _is_many(counts: Any) -> bool:
    return hasattr(counts, "__len__") or hasattr(counts, "__iter__")


def _num_bytes(data: Any) -> Optional[int]:
    try:
        return memoryview(data).nbytes
    except (TypeError, ValueError, BufferError):  # a GPU's array, which has no such view
        size = getattr(data, "nbytes", None)
        return size if isinstance(size, int) else None


def _item_bytes(data: Any) -> Optional[int]:
    try:
        return memoryview(data).itemsize
    except (TypeError, ValueError, BufferError):
        size = getattr(data, "itemsize", None)
        return size if isinstance(size, int) else None
