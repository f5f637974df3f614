"""Messages to the user on stderr: one line for scripts to find; on a terminal folded to its width."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress

_NARROWEST = 40  # columns


def notice(text: str) -> None:
    """Writes a message.

    Paths and commands are never cut: a word that is wider than the terminal keeps its line.

    Raises:
        OSError: stderr takes no more.
    """
    if sys.stderr is None:
        return
    sys.stderr.write(f"{_folded(f'perfscope: {text}')}\n")
    sys.stderr.flush()


def say(text: str) -> None:
    """As `notice`, where a reader that has gone is no reason to fail: what follows goes nowhere."""
    try:
        notice(text)
    except OSError:
        discard_stderr()
    except ValueError:  # it is closed
        return


def discard_stderr() -> None:
    """Let what is still said go nowhere, or Python would fail on it once more when it exits."""
    if sys.stderr is None:
        return
    with suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stderr.fileno())
        os.close(sink)


def _folded(text: str) -> str:
    if not sys.stderr.isatty():
        return text
    import textwrap  # not at the top: few commands have anything to say on a terminal

    width = max(_NARROWEST, shutil.get_terminal_size((100, 24)).columns)
    parts = [
        textwrap.fill(part, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for part in text.split("\n")
    ]
    return "\n".join(parts)
