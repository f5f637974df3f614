"""Finds a run and brings its derived tables up to date."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.engines.opening import executor_or_local
from perfscope.errors import RunDirectoryError
from perfscope.ingest.run import Progress, ingest_run
from perfscope.rundir.links import view_of

if TYPE_CHECKING:
    from concurrent.futures import Executor

LATEST = Path("perfscope-runs") / "latest"


def latest_run() -> Path:
    """The run that was recorded last below the working directory.

    Raises:
        RunDirectoryError: there is none.
    """
    if not LATEST.exists():
        raise RunDirectoryError(
            f"no run named and there is no {LATEST} here: name a run directory, "
            "or make one with `perfscope run`"
        )
    return LATEST


def up_to_date(
    path: Path,
    on_close: Callable[[Callable[[], None]], object],
    *,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> Path:
    """Brings the derived tables of a run up to date.

    Args:
        path: the run directory.
        on_close: is given a function to call when the run is no longer read.
        progress: called with (files done, files to do).
        executor: runs the work on files; None = processes of its own.

    Returns:
        Where the run can be read with its derived tables: `path`, or a temporary directory of links for a run
        that cannot be written to.

    Raises:
        RunDirectoryError: the tables cannot be written.
    """
    with executor_or_local(executor) as workers:
        try:
            ingest_run(path, progress=progress, executor=workers)
        except (OSError, RunDirectoryError) as error:
            if os.access(path, os.W_OK):
                raise RunDirectoryError(f"{path} cannot be brought up to date: {error}") from error
            path = _with_own_tables(path, on_close)
            ingest_run(path, progress=progress, executor=workers)
    return path


def _with_own_tables(path: Path, on_close: Callable[[Callable[[], None]], object]) -> Path:
    """A temporary directory that looks like the run, with room for derived tables."""
    import tempfile  # not at the top: it takes ten milliseconds, and few runs need it

    folder = tempfile.TemporaryDirectory(prefix="perfscope-")
    on_close(folder.cleanup)
    view_of(path, Path(folder.name))
    return Path(folder.name)
