"""Runs that are there already: run directories, files of step times, and folders of earlier checks."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from perfscope.errors import PerfscopeError, UsageError
from perfscope.gate.records import BASE, HEAD, RunFigures
from perfscope.gate.results import LeftOut
from perfscope.rundir.layout import RUN_JSON

CHECK_JSON = "check.json"  # in the folder of a check, beside its runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRuns:
    """What was named, as far as it can be read. `name`: of the first run, as it was recorded."""

    runs: tuple[RunFigures, ...]
    lost: tuple[LeftOut, ...]
    name: str


def read_runs(paths: Sequence[Path], side: str) -> ReadRuns:
    """Measures the runs, with a line of progress on a terminal.

    Raises:
        UsageError: a path is not there, or is named twice.
    """
    from perfscope.cli.report import ingest
    from perfscope.gate.measure import measure_run
    from perfscope.gate.own_times import read_own_times

    places = [place for path in paths for place in _places(path, side)]
    twice = {place for place in places if places.count(place) > 1}
    if twice:
        raise UsageError(f"{min(twice)} is named twice; name each run once")
    runs: list[RunFigures] = []
    lost: list[LeftOut] = []
    name = ""
    shown = sys.stderr.isatty()
    for number, place in enumerate(places, 1):
        if shown:
            click.echo(f"\r\x1b[Kreading run {number} of {len(places)}", nl=False, err=True)
        try:
            if place.is_file() and place.name != RUN_JSON:
                run = read_own_times(place, str(place))
            else:
                from perfscope.rundir.reader import RunReader

                reader = RunReader(place)
                name = name or str(reader.run.get("name") or "")
                run = measure_run(ingest(reader.path), str(place))
        except PerfscopeError as error:
            lost.append(LeftOut(name=str(place), side=side, reason=str(error)))
            continue
        finally:
            if shown:
                click.echo("\r\x1b[K", nl=False, err=True)
        runs.append(replace(run, side=side))
    return ReadRuns(runs=tuple(runs), lost=tuple(lost), name=name)


def is_check_folder(path: Path) -> bool:
    """A folder that `perfscope check` left its runs in."""
    return path.is_dir() and not (path / RUN_JSON).is_file() and (path / CHECK_JSON).is_file()


def sides_of(folder: Path) -> dict[str, tuple[Path, ...]]:
    """The judged runs of an earlier check, by side. Raises UsageError: its check.json cannot be read."""
    try:
        document = json.loads((folder / CHECK_JSON).read_bytes())
        return {
            side: tuple(folder / str(run["name"]) for run in document[side]["runs"]) for side in (BASE, HEAD)
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder / CHECK_JSON} cannot be read as a check: {error}") from error


def _places(path: Path, side: str) -> Sequence[Path]:
    if not path.exists():
        raise UsageError(f"{path} is not there; name run directories, or put the command behind `--`")
    return sides_of(path)[side] if is_check_folder(path) else (path,)
