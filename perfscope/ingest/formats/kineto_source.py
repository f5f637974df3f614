"""Bytes of a trace file, plain or gzip, into a buffer the caller owns.

gzip goes through Arrow's inflater (half the CPU of Python's zlib module); when that one meets
damage, the file is read again with zlib, which hands over everything up to the broken byte.
"""

from __future__ import annotations

import os
import zlib
from io import BytesIO, FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import pyarrow as pa

from perfscope.errors import TraceError, UnreadableFileError
from perfscope.ingest.inflate import most_bytes, too_much
from perfscope.rundir.opening import open_regular

_GZIP_MAGIC = b"\x1f\x8b"
_PIECE = 1 << 18


class TraceSource:
    """Reads a trace from its beginning to its end, or to where it breaks.

    Args:
        path: None is a trace of no bytes.

    Attributes:
        damage: what is wrong with the file, in words; None while nothing is.

    Raises:
        TraceError: the file cannot be opened or read at all.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.damage: str | None = None
        self._delivered = 0
        self._arrow: Any = None
        self._zlib: _ZlibReader | None = None
        try:
            self._file: FileIO | BytesIO = open_regular(path) if path else BytesIO()
            magic = self._file.read(2)
            self._file.seek(0)
        except UnreadableFileError as error:
            raise TraceError(f"{path}: cannot be read: {error.reason}") from error
        except OSError as error:
            raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
        self.compressed = magic == _GZIP_MAGIC
        self._packed = os.fstat(self._file.fileno()).st_size if self.compressed else 0
        if self.compressed:
            self._arrow = pa.CompressedInputStream(pa.PythonFile(self._file, "r"), "gzip")

    def __enter__(self) -> TraceSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if self._arrow is not None:
            self._arrow.close()

    def readinto(self, target: memoryview) -> int:
        """Fill `target` from its start; the number of bytes written, 0 at the end of the file."""
        if self.compressed and self._delivered > most_bytes(self._packed):
            self.damage = too_much(self._packed)
            return 0
        try:
            if self._zlib is not None:
                count = self._from_zlib(target)
            elif self._arrow is not None:
                count = self._from_arrow(target)
            else:
                count = self._file.readinto(target)
        except OSError as error:
            self.damage = f"reading stopped after {self._delivered} bytes: {error.strerror or error}"
            return 0
        self._delivered += count
        return int(count)

    def _from_arrow(self, target: memoryview) -> int:
        try:
            return int(self._arrow.readinto(target))
        except (OSError, pa.ArrowException):
            self._file.seek(0)
            self._zlib = _ZlibReader(self._file, skip=self._delivered)
            return self._from_zlib(target)

    def _from_zlib(self, target: memoryview) -> int:
        assert self._zlib is not None
        data = self._zlib.read(len(target))
        if not data:
            self.damage = self._zlib.damage
        target[: len(data)] = data
        return len(data)


class _ZlibReader:
    """Inflates gzip members until the data ends or breaks."""

    def __init__(self, file: BinaryIO, skip: int) -> None:
        self._file = file
        self._skip = skip
        self._inflater = zlib.decompressobj(31)
        self._pending = b""
        self.damage: str | None = None

    def read(self, limit: int) -> bytes:
        """At most `limit` bytes; b"" at the end or at the damage."""
        while self.damage is None:
            data = self._inflate(limit)
            if self._skip:
                data, self._skip = data[self._skip :], max(0, self._skip - len(data))
            if data:
                return data
            if not self._refill():
                break
        return b""

    def _inflate(self, limit: int) -> bytes:
        try:
            data = self._inflater.decompress(self._pending, limit)
        except zlib.error as error:
            self.damage = f"gzip data is corrupt ({error})"
            return b""
        self._pending = self._inflater.unconsumed_tail or self._inflater.unused_data
        return data

    def _refill(self) -> bool:
        """More compressed bytes for the next call of `_inflate`; False when there are none."""
        finished = self._inflater.eof
        if not self._pending:
            self._pending = self._file.read(_PIECE)
            if not self._pending:
                self.damage = None if finished else "gzip data ends early"
                return False
        if finished:
            self._inflater = zlib.decompressobj(31)  # the next member of a concatenation
        return True
