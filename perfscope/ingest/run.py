"""Every window of a run that has no fresh timeline yet, in this process or in tasks of an Executor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perfscope.errors import RunDirectoryError, TraceError
from perfscope.ingest.files import WindowFile, fresh_summary, window_files
from perfscope.ingest.summary import IngestSummary
from perfscope.rundir import layout
from perfscope.rundir.documents import seal_of_file
from perfscope.rundir.links import refuse_links
from perfscope.rundir.writer import write_json
from perfscope.tasks import ATTEMPTS, Failure, completed

if TYPE_CHECKING:
    from concurrent.futures import Executor

Progress = Callable[[int, int], None]


def ingest_run(
    run_dir: Path,
    *,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> list[IngestSummary]:
    """Bring derived/ of a run up to date with its windows.

    Args:
        run_dir: a run directory.
        progress: called with (files done, files to do) before the first and after every file.
        executor: ingests the files, if there are several; None = this process.

    Returns:
        The summary of every window, fresh or old, by rank and window. A file that cannot be used gives one
        with no rows and a note.

    Raises:
        RunDirectoryError: derived/ cannot be written, or the run holds a symbolic link.
    """
    run_dir = Path(os.path.abspath(run_dir))  # noqa: PTH100 - Path.resolve would follow the user's links
    refuse_links(run_dir)
    summaries: dict[tuple[int, int], IngestSummary] = {}
    todo = []
    for file in window_files(run_dir):
        fresh = fresh_summary(file)
        if fresh is None:
            todo.append(file)
        else:
            summaries[file.rank, file.window] = fresh
    if todo:
        _make_folders(run_dir)
        if progress:
            progress(0, len(todo))
        for done, summary in enumerate(_ingest_all(todo, executor), 1):
            summaries[summary.rank, summary.window] = summary
            if progress:
                progress(done, len(todo))
    return [summaries[key] for key in sorted(summaries)]


def _make_folders(run_dir: Path) -> None:
    try:
        for folder in (layout.TIMELINE, layout.INGEST):
            (run_dir / layout.DERIVED / folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError(f"cannot write to {run_dir}: {error.strerror}") from error


def _ingest_all(files: list[WindowFile], executor: Executor | None) -> Iterator[IngestSummary]:
    if executor is None or len(files) == 1:  # a single trace should not pay for loading another process
        yield from map(_ingest_one, files)
        return
    largest_first = sorted(files, key=lambda file: -file.source.stat().st_size)
    for number, summary in completed(executor, _ingest_one, largest_first):
        yield _unread(largest_first[number], summary) if isinstance(summary, Failure) else summary


def _unread(file: WindowFile, failure: Failure) -> IngestSummary:
    """Of a window whose task failed; the next ingest tries it again."""
    from perfscope.ingest.window import unusable_window

    summary = unusable_window(file, f"its task failed {ATTEMPTS} times: {failure.reason}")
    summary = replace(summary, ingest_version=0, table=seal_of_file(file.table))
    write_json(file.summary, summary.to_json())
    return summary


def _ingest_one(file: WindowFile) -> IngestSummary:
    from perfscope.ingest.window import unusable_window

    try:
        summary = read_window(file)
    except OSError as error:
        raise RunDirectoryError(f"cannot ingest {file.source}: {error.strerror or error}") from error
    except RunDirectoryError:
        raise
    except Exception as error:  # noqa: BLE001 - one strange trace must not cost the report of all the others
        summary = unusable_window(file, f"internal error, please report it: {type(error).__name__}: {error}")
    if file.table.is_file():
        summary = replace(summary, table=seal_of_file(file.table))
    write_json(file.summary, summary.to_json())
    return summary


def read_window(file: WindowFile) -> IngestSummary:
    """Write the timeline of one window, with the calls and counters beside its trace.

    A trace that cannot be used at all gives a summary with no rows and a note saying why.

    Raises:
        OSError: the timeline cannot be written.
    """
    from perfscope.ingest.formats.registry import format_of_window
    from perfscope.ingest.framework_window import add_calls
    from perfscope.ingest.layer_counters import counted_layers
    from perfscope.ingest.window import renamed_layers, unusable_window

    try:
        summary = format_of_window(file.suffix).read(file)
    except TraceError as error:
        summary = unusable_window(file, str(error).removeprefix(f"{file.source}: "))
    if file.counters is not None:
        summary = replace(summary, counters=counted_layers(file, renamed_layers(file)))
    return add_calls(file, summary)
