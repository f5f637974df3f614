"""What can go wrong with a file of figures, and how its path looks in a message."""

from __future__ import annotations

from pathlib import Path

from perfscope.errors import PerfscopeError

EXIT_BASELINE = 4


class BaselineError(PerfscopeError):
    """A baseline or history is missing, damaged, of a newer schema, locked or cannot be written."""

    exit_code = EXIT_BASELINE


def shown(path: Path | str) -> str:
    """A path on one line: as it is, or spelled out where a terminal would not show it as it is."""
    text = str(path)
    return text if text.isprintable() else ascii(text)
