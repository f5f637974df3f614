"""Which kind of file a path means."""

from __future__ import annotations

from pathlib import Path

from perfscope.gate.store.entries import Store
from perfscope.gate.store.errors import BaselineError, shown
from perfscope.gate.store.locking import TIMEOUT_S

HISTORY_SUFFIXES = (".sqlite", ".sqlite3", ".db")


def open_store(path: Path, *, create: bool = False, timeout_s: float = TIMEOUT_S) -> Store:
    """The store at `path`: an SQLite history if it ends in .sqlite, .sqlite3 or .db, else a JSON baseline.

    Args:
        create: it need not be there yet (or may be empty), nor its directory. What cannot be read is refused
            all the same, never written over.
        timeout_s: how long writing waits for another process that is writing.

    Raises:
        BaselineError: it is missing, damaged, of a newer schema, or no store.
    """
    if create:
        _make_directory(path)
    if path.suffix.lower() not in HISTORY_SUFFIXES:
        from perfscope.gate.store.json_file import JsonStore

        return JsonStore(path, create=create, timeout_s=timeout_s)
    try:
        from perfscope.gate.store.sqlite_file import SqliteStore
    except ImportError as error:  # a Python that was built without it
        raise BaselineError(
            f"{shown(path)}: this Python has no SQLite ({error}); use a .json file"
        ) from error
    return SqliteStore(path, create=create, timeout_s=timeout_s)


def _make_directory(path: Path) -> None:
    """As early as this, so that what can be reported before a long measurement is reported before it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in it
        reason = (error.strerror if isinstance(error, OSError) else "") or shown(str(error))
        raise BaselineError(f"cannot make the directory of {shown(path)}: {reason}") from error
