"""Lines that a recording appends, as they come: of files that may be long, and of runs that still go on."""

from __future__ import annotations

import os
from pathlib import Path

from perfscope.errors import UnreadableFileError
from perfscope.rundir.opening import open_regular

FIRST_LOOK_BYTES = (
    256 << 10
)  # of the begin and of the end of a long file: what its lines mean, and the latest


class Tail:
    """Whole lines appended to a file since the last look.

    Args:
        path: of the file, which may not be there yet.

    Attributes:
        head: the first line, with which such files say what is in them; b"" until it is there.
        changed_s: when the file was last written to, seconds of the file system's clock; None = not yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = b""
        self.changed_s: float | None = None
        self._offset = 0

    def lines(self) -> list[bytes]:
        """What is new, without the first line; nothing where the file is missing or cannot be read."""
        try:
            with open_regular(self.path) as file:
                return self._read(file.fileno())
        except (OSError, UnreadableFileError):
            return []

    def _read(self, descriptor: int) -> list[bytes]:
        state = os.fstat(descriptor)
        self.changed_s = state.st_mtime
        if state.st_size < self._offset:  # another file of this name
            self._offset, self.head = 0, b""
        first = self._first(descriptor, state.st_size) if not self.head else []
        if not self.head:
            return []
        data = os.pread(descriptor, state.st_size - self._offset, self._offset)
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [*first, *complete.splitlines()]

    def _first(self, descriptor: int, size: int) -> list[bytes]:
        """Lines of the begin of a long file; reading goes on near its end."""
        begin = os.pread(descriptor, FIRST_LOOK_BYTES, 0)
        complete = begin[: begin.rfind(b"\n") + 1]
        if not complete:
            return []
        self.head, *lines = complete.splitlines()
        self._offset = len(complete)
        if size - self._offset > FIRST_LOOK_BYTES:
            start = size - FIRST_LOOK_BYTES
            self._offset = start + os.pread(descriptor, FIRST_LOOK_BYTES, start).find(b"\n") + 1
        return lines
