"""Finds run.json and reads it."""

from __future__ import annotations

from pathlib import Path

from perfscope.errors import RunDirectoryError, UnreadableFileError
from perfscope.rundir import layout
from perfscope.rundir.documents import Document, parse_document
from perfscope.rundir.files import names_in
from perfscope.rundir.opening import read_bounded, reason_of
from perfscope.rundir.writer import RUNS

_MOST_NAMED = 3


def locate(path: Path) -> Path:
    """The run directory `path` means, with run.json in it."""
    try:
        if path.is_symlink() and not path.exists():
            raise RunDirectoryError(f"{path} is a link to {path.readlink()}, which is not there")
        if not path.exists():
            raise RunDirectoryError(f"{path} is not there{_newest_runs()}")
        if path.name == layout.RUN_JSON and path.is_file():
            return path.parent
        if not path.is_dir():
            raise RunDirectoryError(
                f"{path} is a file, not a run directory (a trace? use `perfscope import {path}`)"
            )
        if not (path / layout.RUN_JSON).exists():
            raise RunDirectoryError(f"{path} is not a perfscope run: it holds no run.json")
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {reason_of(error)}") from None
    return path.resolve()


def _newest_runs() -> str:
    """``; the newest runs here: a, b``, by when their run.json was written; "" where there is none."""
    folders = (Path(RUNS, name) for name in names_in(Path(RUNS)))
    runs = [run for run in folders if (run / layout.RUN_JSON).is_file() and not run.is_symlink()]
    runs.sort(key=lambda run: ((run / layout.RUN_JSON).stat().st_mtime_ns, run.name), reverse=True)
    newest = [str(run) for run in runs[:_MOST_NAMED]]
    return f"; the newest runs here: {', '.join(newest)}" if newest else ""


def read_manifest(folder: Path) -> tuple[Document, bool]:
    """run.json, and whether it carries a checksum."""
    path = folder / layout.RUN_JSON
    try:
        data = read_bounded(path)
    except FileNotFoundError as error:
        raise UnreadableFileError(path, reason_of(error)) from None
    try:
        return parse_document(data, path)
    except UnreadableFileError as error:
        raise RunDirectoryError(f"{path} is broken: {error.reason}") from None
