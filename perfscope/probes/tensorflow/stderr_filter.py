"""Keeps lines that a framework's C++ code logs about its profiler out of the training's stderr."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Iterator, Sequence


@contextlib.contextmanager
def without_lines(marks: Sequence[bytes]) -> Iterator[None]:
    """What is written to file descriptor 2 meanwhile goes there at the end, less lines that hold a mark.

    C++ writes to the descriptor, so that is what has to be turned aside. It is for calls of some
    milliseconds: what other threads write then comes that much later, nothing of theirs is lost.
    """
    try:
        aside = tempfile.TemporaryFile()  # noqa: SIM115 - closed below, whatever happens
        kept = os.dup(2)
    except OSError:  # no room, no descriptors, or no stderr: then the lines show
        yield
        return
    try:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            aside.seek(0)
            text = aside.read()
            remaining = b"".join(line for line in text.splitlines(True) if not any(m in line for m in marks))
            if remaining:
                _write(remaining)
    finally:
        os.close(kept)
        aside.close()


def _write(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:  # a closed pipe: the one who read it is gone
        return
