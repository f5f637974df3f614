"""Writing an output file so that nobody ever meets half of one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from perfscope.errors import PerfscopeError


class OutputError(PerfscopeError):
    """An output file cannot be written."""


@contextmanager
def write_aside(path: Path) -> Iterator[BinaryIO]:
    """A binary file that becomes `path` when the block ends well, and leaves nothing when it does not.

    A link is followed, and what is not a regular file (/dev/stdout, a pipe) is written in place.

    Raises:
        OutputError: it cannot be written (no directory, no permission, no space).
    """
    target = path.resolve()
    try:
        if target.is_dir():
            raise OutputError(f"cannot write {path}: it is a directory; name a file in it")
        if target.exists() and not target.is_file():
            with target.open("wb") as file:
                yield file
            return
        aside = target.with_name(f".{target.name[:80]}.{os.getpid()}-{secrets.token_hex(4)}.part")
        try:
            with aside.open("xb") as file:
                yield file
            aside.replace(target)
        except BaseException:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
