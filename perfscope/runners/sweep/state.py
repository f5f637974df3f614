"""What a study holds and how it is kept: study.json, written aside and renamed after every run.

<study>/study.json    the matrix, the machine, every run's state and figures
<study>/study.csv     one line per cell
<study>/study.md      the table, to be read
<study>/runs/<cell>-r<k>      run directories
<study>/runs/<cell>-r<k>.log  what the run said on stderr
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perfscope import __version__
from perfscope.errors import RunDirectoryError, UsageError
from perfscope.rundir.writer import write_json
from perfscope.runners.config import BenchError
from perfscope.runners.sweep.spec import Cell, Sweep

STUDY_JSON, STUDY_CSV, STUDY_MD, RUNS, LOCK = "study.json", "study.csv", "study.md", "runs", ".lock"
SCHEMA_VERSION = 1
PENDING, DONE, FAILED = "pending", "done", "failed"


@dataclass(slots=True, kw_only=True)
class Run:
    """One run of a cell.

    Attributes:
        repeat: from 1.
        status: pending, done or failed.
        path: of the run directory, relative to the study.
        seconds: it took, start to end, launching and reading back included.
        error: why it failed, one line.
        figures: as `bench run --json` prints them (cli/bench/analysis.py).
    """

    repeat: int
    path: str
    status: str = PENDING
    seconds: float | None = None
    error: str | None = None
    figures: dict[str, Any] | None = None


@dataclass(slots=True, kw_only=True)
class CellState:
    """A cell and its runs.

    Attributes:
        name, scheme, settings, cluster, digest: of the cell.
        impossible: why planning refused it; None = it can be run.
        plan: what planning found: model, input, ranks, mesh, batch, steps, threads, period ...
        runs: by repeat.
        wanted: the sweep file still asks for it.
    """

    name: str
    scheme: str
    settings: dict[str, Any]
    cluster: str | None
    digest: str
    impossible: str | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    wanted: bool = True


@dataclass(slots=True, kw_only=True)
class Study:
    """Everything in study.json."""

    title: str
    machine: dict[str, Any]
    repeats: int
    seed: int
    cells: list[CellState]
    sentences: list[str] = field(default_factory=list)
    trained: str = ""  # see heading.trained_line

    def as_json(self) -> dict[str, Any]:
        """For study.json and `--json`."""
        return {"schema_version": SCHEMA_VERSION, "perfscope_version": __version__, **asdict(self)}

    @property
    def wanted(self) -> list[CellState]:
        """Cells that the sweep file asks for."""
        return [cell for cell in self.cells if cell.wanted]


def run_path(cell: str, repeat: int) -> str:
    """Relative to the study."""
    return f"{RUNS}/{cell}-r{repeat}"


def load_study(folder: Path) -> Study | None:
    """The study in a folder, None where there is none yet.

    Raises:
        UsageError: there is something else.
        RunDirectoryError: study.json cannot be used.
    """
    path = folder / STUDY_JSON
    try:
        raw = json.loads(path.read_bytes())
        if raw["schema_version"] > SCHEMA_VERSION:
            raise RunDirectoryError(
                f"{path} was written by a newer perfscope ({raw.get('perfscope_version')}); update perfscope"
            )
        cells = [CellState(**{**cell, "runs": [Run(**run) for run in cell["runs"]]}) for cell in raw["cells"]]
        names = ("title", "machine", "repeats", "seed", "sentences")
        return Study(cells=cells, **{name: raw[name] for name in names})
    except FileNotFoundError:
        if folder.is_dir() and any(entry.name != LOCK for entry in folder.iterdir()):
            raise UsageError(f"{folder} is not empty and holds no study; choose another -o") from None
        return None
    except NotADirectoryError:
        raise UsageError(f"{folder} is a file; choose another -o") from None
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunDirectoryError(f"{path} is damaged ({error}); move it away to begin anew") from error


def save_study(study: Study, folder: Path) -> None:
    """Writes study.json so that a reader, or a killed writer, never leaves half of it."""
    write_json(folder / STUDY_JSON, study.as_json())


def new_study(
    sweep: Sweep, plans: Mapping[str, dict[str, Any] | BenchError], machine: dict[str, Any]
) -> Study:
    """A study with every run pending. `plans`: by cell, what planning said."""
    cells = [_new_cell(cell, plans[cell.name], sweep.repeats) for cell in sweep.cells]
    return Study(title=sweep.title, machine=machine, repeats=sweep.repeats, seed=sweep.seed, cells=cells)


def continue_study(
    old: Study, sweep: Sweep, plans: Mapping[str, dict[str, Any] | BenchError], *, retry_failed: bool
) -> tuple[Study, list[str]]:
    """The study as the file asks for it now, keeping what was finished under the same settings.

    Returns:
        The study, and lines for the user about what has changed since.
    """
    before = {cell.name: cell for cell in old.cells}
    study = new_study(sweep, plans, old.machine)
    added, changed = [], []
    for cell in study.cells:
        old_cell = before.pop(cell.name, None)
        if old_cell is None:
            added.append(cell.name)
        elif old_cell.digest != cell.digest:
            changed.append(cell.name)
        else:
            _take_over(cell, old_cell, retry_failed)
    for cell in before.values():
        cell.wanted = False
    gone = [cell.name for cell in before.values()]
    study.cells += before.values()
    return study, _changes(added, changed, gone, old.repeats, study.repeats)


def _new_cell(cell: Cell, plan: dict[str, Any] | BenchError, repeats: int) -> CellState:
    impossible = str(plan) if isinstance(plan, BenchError) else None
    return CellState(
        name=cell.name,
        scheme=cell.scheme,
        settings=dict(cell.settings),
        cluster=cell.cluster,
        digest=cell.digest,
        impossible=impossible,
        plan={} if isinstance(plan, BenchError) else plan,
        runs=[]
        if impossible
        else [Run(repeat=k, path=run_path(cell.name, k)) for k in range(1, repeats + 1)],
    )


def _take_over(cell: CellState, old_cell: CellState, retry_failed: bool) -> None:
    kept = {run.repeat: run for run in old_cell.runs}
    for index, run in enumerate(cell.runs):
        old = kept.get(run.repeat)
        if old is not None and (old.status == DONE or (old.status == FAILED and not retry_failed)):
            cell.runs[index] = old
    if cell.runs:  # repeats that are no longer asked for still tell something
        cell.runs += [old for old in old_cell.runs if old.repeat > len(cell.runs) and old.status == DONE]


def _changes(
    added: Sequence[str], changed: Sequence[str], gone: Sequence[str], before: int, repeats: int
) -> list[str]:
    parts = [
        f"{len(names)} {what} ({', '.join(names[:3])}{' ...' if len(names) > 3 else ''})"
        for names, what in (
            (added, "new"),
            (changed, "with other settings, to be run again"),
            (gone, "no longer asked for, kept in study.json"),
        )
        if names
    ]
    if before != repeats:
        parts.append(f"{repeats} repeats instead of {before}")
    return [f"the sweep has changed since this study began: {'; '.join(parts)}"] if parts else []
