"""Opening the files of a run directory: regular files only, and never more bytes than a bound.

A run directory may come from another machine or another person. A pipe, a socket or a device in the place of
a file must not block its reader, and no file may fill the memory. Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path

from perfscope.errors import UnreadableFileError

MAX_DOCUMENT_BYTES = 256 << 20  # one JSON document; the largest known, the layers of a huge model, is 20 MB
MAX_LINES_BYTES = 4 << 30  # an append-only file; a step takes about 50 bytes
# Without O_NONBLOCK, opening a pipe waits for its writer. A link may lead to any file of the reader's.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW


def open_regular(path: Path) -> FileIO:
    """The file at `path`, unbuffered, for reading bytes.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        UnreadableFileError: it is a symbolic link or no regular file, or cannot be opened.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in a name that a document gave
        raise UnreadableFileError(path, reason_of(error)) from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise UnreadableFileError(path, f"it is {_kind(mode)}, not a file")
        return FileIO(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bounded(path: Path, limit: int = MAX_DOCUMENT_BYTES) -> bytes:
    """The bytes of a regular file of at most `limit` bytes.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        UnreadableFileError: it is no regular file, is larger, or cannot be read.
    """
    with open_regular(path) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise UnreadableFileError(path, f"{size:,} bytes, more than the {limit:,} that are read")
            data = b""
            # A file may grow while it is read; a buffer as large as the limit may not be had.
            while piece := file.read(min(limit + 1 - len(data), max(size - len(data), 0) + (1 << 16))):
                data = data + piece if data else piece
        except (OSError, MemoryError) as error:
            raise UnreadableFileError(path, reason_of(error)) from None
    if len(data) > limit:
        raise UnreadableFileError(path, f"more than the {limit:,} bytes that are read")
    return data


def reason_of(error: BaseException) -> str:
    """One line for a person: the system's words without its error number."""
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return "it is a symbolic link, which is not followed"
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFBLK: "a device",
        stat.S_IFCHR: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")
