"""Writing files so that a reader never sees half of one, and never through a link inside a run directory.

A run directory may come from anyone. So a name in it is replaced, not opened: the content is written under a
fresh name in the same directory (exclusive creation follows no link) and renamed over the old one, which
replaces a link and leaves what it leads to as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from perfscope.errors import PerfscopeError

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST = 80  # characters of a name that enter the name aside: at most 255 bytes are allowed


class OutputError(PerfscopeError):
    """An output file cannot be written."""


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file that replaces the name `path` when the block ends well; else `path` is as it was.

    A link at `path` is replaced, not followed. Nothing is left aside, whatever happens.

    Raises:
        OSError: it cannot be written.
    """
    aside = path.with_name(f".{path.name[:_LONGEST]}.{os.getpid()}-{os.urandom(4).hex()}.part")
    try:
        with os.fdopen(os.open(aside, _FLAGS, 0o666), "wb") as file:
            yield file
        aside.replace(path)
    except BaseException:
        with suppress(OSError):  # the error that is under way says more
            aside.unlink(missing_ok=True)
        raise


@contextmanager
def write_into_run(path: Path) -> Iterator[BinaryIO]:
    """`replacing`, for a file of a run directory.

    Raises:
        OutputError: it cannot be written (no permission, no space, a directory of that name).
    """
    try:
        with replacing(path) as file:
            yield file
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def write_aside(path: Path) -> Iterator[BinaryIO]:
    """`replacing`, for a file that the user named.

    A link of the user's own is followed, and what is not a regular file (/dev/stdout, a pipe) is written in
    place.

    Raises:
        OutputError: it cannot be written (no directory, no permission, no space).
    """
    try:
        if path.is_dir():
            raise OutputError(f"cannot write {path}: it is a directory; name a file in it")
        if path.exists() and not path.is_file():  # a pipe has no name that could be resolved
            with path.open("wb") as file:
                yield file
            return
        with replacing(path.resolve()) as file:
            yield file
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def names_in(folder: Path) -> list[str]:
    """Names of a folder's entries, without a look at any of them; [] where it cannot be read."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - names alone: called again and again beside a training
    except OSError:
        return []


def short_path(path: Path) -> Path:
    """A path as the user would type it: relative if it is below the current directory."""
    try:
        return path.relative_to(Path.cwd())
    except (ValueError, OSError):
        return path
