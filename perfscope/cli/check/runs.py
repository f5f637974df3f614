"""Runs that are there already: run directories, files of step times, and folders of earlier checks."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from perfscope.errors import PerfscopeError, RunDirectoryError, UsageError
from perfscope.gate.records import BASE, HEAD, RunFigures
from perfscope.gate.results import ExcludedRun
from perfscope.rundir.layout import RUN_JSON

CHECK_JSON = "check.json"  # in the folder of a check, beside its runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRuns:
    """What was named, as far as it can be read.

    Attributes:
        name: of the first run, as it was recorded.
        paths: where all of them are, those that cannot be read as well; links are followed.
    """

    runs: tuple[RunFigures, ...]
    lost: tuple[ExcludedRun, ...]
    name: str
    paths: tuple[Path, ...]


def read_runs(paths: Sequence[Path], side: str, other: ReadRuns | None = None) -> ReadRuns:
    """Measures the runs, with a line of progress on a terminal.

    Args:
        other: what they will be compared with, where that was read before.

    Raises:
        UsageError: a path is not there, or a run is named twice, be it under two names or on both sides.
    """
    from perfscope.cli.report import ingest
    from perfscope.gate.external_timings import read_own_times
    from perfscope.gate.measure import measure_run

    run_dirs = [run_dir for path in paths for run_dir in _places(path, side)]
    resolved = tuple(run_dir.resolve() for run_dir in run_dirs)
    for number, run_dir in enumerate(resolved):
        if run_dir in resolved[:number]:
            raise UsageError(f"{run_dirs[number]} is named twice; name each run once")
        if other is not None and run_dir in other.paths:
            raise UsageError(f"{run_dirs[number]} is on both sides; compare different runs")
    runs: list[RunFigures] = []
    lost: list[ExcludedRun] = []
    name = ""
    show_progress = sys.stderr.isatty()
    for number, run_dir in enumerate(run_dirs, 1):
        if show_progress:
            click.echo(f"\r\x1b[Kreading run {number} of {len(run_dirs)}", nl=False, err=True)
        try:
            if not run_dir.exists():
                raise RunDirectoryError(f"it is gone, though {CHECK_JSON} beside it names it")
            if run_dir.is_file() and run_dir.name != RUN_JSON:
                run = read_own_times(run_dir, str(run_dir))
            else:
                from perfscope.rundir.reader import RunReader

                reader = RunReader(run_dir)
                name = name or reader.run.name
                run = measure_run(ingest(reader.path), str(run_dir))
        except PerfscopeError as error:
            lost.append(ExcludedRun(name=str(run_dir), side=side, reason=str(error)))
            continue
        finally:
            if show_progress:
                click.echo("\r\x1b[K", nl=False, err=True)
        runs.append(replace(run, side=side))
    _refuse_copies(runs, () if other is None else other.runs)
    return ReadRuns(runs=tuple(runs), lost=tuple(lost), name=name, paths=resolved)


def _refuse_copies(runs: Sequence[RunFigures], other_runs: Sequence[RunFigures]) -> None:
    """Copied directories: a run counts once. Raises UsageError."""
    from perfscope.gate.store.entries import identity

    seen: dict[str, str] = {}
    for run in (*other_runs, *runs):
        around = run.surroundings
        if around.start_unix_ns is None or not around.hosts:
            continue
        run_identity = identity(replace(run, name=""))  # whatever the directory is called
        if run_identity in seen:
            raise UsageError(f"{run.name} and {seen[run_identity]} are the same run; name it once")
        seen[run_identity] = run.name


def is_check_folder(path: Path) -> bool:
    """A folder that `perfscope check` left its runs in."""
    return path.is_dir() and not (path / RUN_JSON).is_file() and (path / CHECK_JSON).is_file()


def sides_of(folder: Path) -> dict[str, tuple[Path, ...]]:
    """The runs of an earlier check by side: those it judged, gone or not, and those it left out.

    Raises:
        UsageError: its check.json cannot be read.
    """
    try:
        document = json.loads((folder / CHECK_JSON).read_bytes())
        runs_of_side = {side: document[side]["runs"] for side in (BASE, HEAD)}
        # Only the base of a check in pairs was made in the folder: a baseline's runs are known by figures.
        if all(run["pair"] is None for run in runs_of_side[BASE]):
            runs_of_side[BASE] = []
        run_dirs = {side: [folder / str(run["name"]) for run in runs] for side, runs in runs_of_side.items()}
        for record in document.get("left_out", ()):
            run_dir = folder / str(record["name"])
            if run_dir.is_dir() and run_dir.parent == folder:
                run_dirs[record["side"]].append(run_dir)
        return {side: tuple(dict.fromkeys(paths)) for side, paths in run_dirs.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder / CHECK_JSON} cannot be read as a check: {error}") from error


def _places(path: Path, side: str) -> Sequence[Path]:
    if not path.exists() and not _was_judged(path):
        raise UsageError(f"{path} is not there; name run directories, or put the command behind `--`")
    return sides_of(path)[side] if is_check_folder(path) else (path,)


def _was_judged(path: Path) -> bool:
    """Whether the check beside it names this run."""
    folder = path.parent
    return is_check_folder(folder) and any(path in paths for paths in sides_of(folder).values())
