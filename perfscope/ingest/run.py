"""Every window of a run that has no fresh timeline yet, in worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perfscope.children import without_main
from perfscope.errors import RunDirectoryError, TraceError
from perfscope.ingest.files import WindowFile, fresh_summary, window_files
from perfscope.ingest.formats.registry import format_of_window
from perfscope.ingest.summary import IngestSummary
from perfscope.no_pandas import hide_pandas
from perfscope.rundir import layout
from perfscope.rundir.documents import seal_of_file
from perfscope.rundir.links import refuse_links
from perfscope.rundir.writer import write_json

if TYPE_CHECKING:
    from concurrent.futures import Executor

Progress = Callable[[int, int], None]


def ingest_run(
    run_dir: Path,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> list[IngestSummary]:
    """Bring derived/ of a run up to date with its windows.

    Args:
        run_dir: a run directory.
        jobs: worker processes; None means one per file, at most one per CPU. One file or one job is
            ingested in this process.
        progress: called with (files done, files to do) before the first and after every file.
        executor: ingests the files, instead of worker processes.

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
        for done, summary in enumerate(_ingest_all(todo, jobs, executor), 1):
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


def _ingest_all(
    files: list[WindowFile], jobs: int | None, executor: Executor | None
) -> Iterator[IngestSummary]:
    if executor is not None:
        yield from executor.map(_ingest_one, files)
        return
    workers = min(len(files), jobs or os.cpu_count() or 1)
    if workers <= 1:
        yield from map(_ingest_one, files)
        return
    # Here, because a single trace needs no pool and should not pay for loading it.
    from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    # Fresh interpreters: this process may have threads (progress bar, BLAS); forking would copy their locks.
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=lean_process) as pool:
        largest_first = sorted(files, key=lambda file: -file.source.stat().st_size)
        with without_main():  # each submit may start a process
            waiting = [pool.submit(_ingest_one, file) for file in largest_first]
        try:
            for future in as_completed(waiting):
                yield future.result()
        except BrokenExecutor as error:
            raise RunDirectoryError(
                "a worker process of the ingest died (out of memory?); try again with --jobs 1"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def lean_process() -> None:
    """Settings of numpy and Arrow for a process that does nothing but ingest. Before they are imported."""
    # Ingest multiplies no matrices; the threads of a BLAS would cost more CPU than parsing a small trace.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Arrow's own allocator keeps memory back; malloc shares it with the rest of the process.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    hide_pandas()


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
