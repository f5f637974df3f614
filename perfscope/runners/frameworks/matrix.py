"""Many framework runs, one after the other: models x frameworks x numbers of processes. Resumable.

<folder>/frameworks.json      cells, runs, figures; written after every run
<folder>/runs/<cell>-r<k>     run directories
<folder>/runs/<cell>-r<k>.log what a run said on stderr
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perfscope import __version__
from perfscope.children import Signals, await_child, held_signals
from perfscope.errors import RunDirectoryError, UsageError
from perfscope.rundir import layout
from perfscope.rundir.writer import write_json
from perfscope.runners.sweep.execution import ENV_SWEEP, Interrupted, last_error
from perfscope.runners.sweep.state import LOCK

FRAMEWORKS_JSON, RUNS = "frameworks.json", "runs"
DONE, FAILED, PENDING = "done", "failed", "pending"
SCHEMA_VERSION = 1


@dataclass(slots=True, kw_only=True)
class FrameworkCell:
    """One model in one framework on so many processes, and its runs.

    Attributes:
        name: `lenet-jax-2`.
        framework, model, ranks: what it is.
        retired: what has become of the framework upstream.
        digest: of the settings: a cell whose settings change runs again.
        words: options of `perfscope bench run` that make a run of it.
        skipped: why it is not run; "" where it is.
        runs: by repeat: {"repeat", "path", "status", "seconds", "error", "figures"}.
        parity: of its losses against the reference's, see cli/bench/framework_figures.py; None: not compared.
    """

    name: str
    framework: str
    model: str
    ranks: int
    retired: str = ""
    digest: str = ""
    words: list[str] = field(default_factory=list)
    skipped: str = ""
    runs: list[dict[str, Any]] = field(default_factory=list)
    parity: dict[str, Any] | None = None

    @property
    def runs_done(self) -> list[dict[str, Any]]:
        """Those that came to their end."""
        return [run for run in self.runs if run["status"] == DONE]

    @property
    def samples_per_s(self) -> float | None:
        """Median over the runs that are done and have a speed."""
        recorded = [run["figures"]["samples_per_s"] for run in self.runs_done]
        speeds = [speed for speed in recorded if speed is not None]
        return statistics.median(speeds) if speeds else None


def load_cells(folder: Path) -> list[FrameworkCell]:
    """The cells in a folder, [] where there are none yet.

    Raises:
        UsageError: there is something else.
        RunDirectoryError: frameworks.json cannot be used.
    """
    path = folder / FRAMEWORKS_JSON
    try:
        raw = json.loads(path.read_bytes())
        if raw["schema_version"] > SCHEMA_VERSION:
            raise RunDirectoryError(f"{path} was written by a newer perfscope; update perfscope")
        return [FrameworkCell(**cell) for cell in raw["cells"]]
    except FileNotFoundError:
        if folder.is_dir() and any(entry.name != LOCK for entry in folder.iterdir()):
            raise UsageError(f"{folder} is not empty and holds no comparison; choose another -o") from None
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunDirectoryError(f"{path} cannot be used: {error}; choose another -o") from error


def save_cells(cells: Sequence[FrameworkCell], folder: Path) -> None:
    """Raises RunDirectoryError where it cannot be written."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "perfscope_version": __version__,
        "cells": [asdict(cell) for cell in cells],
    }
    write_json(folder / FRAMEWORKS_JSON, document)


def continued(
    wanted: Sequence[FrameworkCell],
    old: Sequence[FrameworkCell],
    repeats: int,
    folder: Path,
    *,
    retry_failed: bool,
) -> list[FrameworkCell]:
    """The wanted cells with the runs that are done already, and those that are left as pending.

    Cells of the folder that are not asked for this time stay as they are, behind the wanted ones.
    """
    before = {cell.name: cell for cell in old}
    names = {cell.name for cell in wanted}
    for cell in wanted:
        old_cell = before.get(cell.name)
        kept = old_cell.runs if old_cell is not None and old_cell.digest == cell.digest else []
        by_repeat = {run["repeat"]: run for run in kept if _is_there(run, folder)}
        if retry_failed:
            by_repeat = {number: run for number, run in by_repeat.items() if run["status"] != FAILED}
        if cell.skipped and not by_repeat:
            continue
        for repeat in range(1, repeats + 1):
            by_repeat.setdefault(repeat, _pending(cell.name, repeat))
        cell.runs = [by_repeat[number] for number in sorted(by_repeat)]
    return [*wanted, *(cell for cell in old if cell.name not in names)]


def changed_cells(wanted: Sequence[FrameworkCell], old: Sequence[FrameworkCell]) -> list[FrameworkCell]:
    """Wanted cells whose finished runs were of other settings or another release, and run again."""
    before = {cell.name: cell for cell in old if cell.runs_done}
    return [
        cell
        for cell in wanted
        if cell.name in before and cell.digest and before[cell.name].digest != cell.digest
    ]


def _is_there(run: Mapping[str, Any], folder: Path) -> bool:
    return bool(run["status"] != DONE) or (folder / run["path"] / layout.RUN_JSON).is_file()


def _pending(name: str, repeat: int) -> dict[str, Any]:
    path = f"{RUNS}/{name}-r{repeat}"
    return {
        "repeat": repeat,
        "path": path,
        "status": PENDING,
        "seconds": None,
        "error": None,
        "figures": None,
    }


Order = list[tuple[FrameworkCell, dict[str, Any]]]


def run_order(cells: Sequence[FrameworkCell]) -> Order:
    """Pending runs. Every cell runs once before any runs twice, in an order that differs by repeat."""
    order: Order = []
    for repeat in sorted({run["repeat"] for cell in cells for run in cell.runs}):
        of_repeat = [
            (cell, run)
            for cell in sorted(cells, key=lambda cell: cell.name)
            if not cell.skipped
            for run in cell.runs
            if run["repeat"] == repeat and run["status"] == PENDING
        ]
        random.Random(repeat).shuffle(of_repeat)
        order += of_repeat
    return order


def run_all(
    cells: Sequence[FrameworkCell],
    every: Sequence[FrameworkCell],
    folder: Path,
    command: Sequence[str],
    timeout_s: float,
    *,
    begins: Callable[[FrameworkCell, dict[str, Any], int, int], None],
    ended: Callable[[FrameworkCell, dict[str, Any]], None],
) -> None:
    """Runs what is pending; frameworks.json is up to date after each.

    Args:
        cells: whose pending runs are run; changed in place.
        every: what is kept in frameworks.json: these and the folder's others.
        folder: of the comparison.
        command: words in front of a cell's own: `python -m perfscope bench run`.
        timeout_s: a run that takes longer is ended and has failed.
        begins: called with (cell, run, its number from 1, how many there are).
        ended: called when a run is done or has failed.

    Raises:
        Interrupted: by a signal; the run that was going is pending again.
        RunDirectoryError: the folder cannot be written.
    """
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    order = run_order(cells)
    with held_signals() as signals:
        for number, (cell, run) in enumerate(order, start=1):
            begins(cell, run, number, len(order))
            _run_one(cell, run, folder, command, timeout_s, signals)
            save_cells(every, folder)
            if run["status"] == PENDING:
                raise Interrupted(signals.received or signal.SIGINT)
            ended(cell, run)


def _run_one(
    cell: FrameworkCell,
    run: dict[str, Any],
    folder: Path,
    command: Sequence[str],
    timeout_s: float,
    signals: Signals,
) -> None:
    if signals.received:
        return
    run_dir = folder / run["path"]
    log = run_dir.with_name(f"{run_dir.name}.log")
    argv = [*command, *cell.words, "--json", "--force", "-o", str(run_dir)]
    kept = {name: value for name, value in os.environ.items() if name != layout.ENV_RUN_DIR}
    began = time.monotonic()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**kept, ENV_SWEEP: str(os.getpid())},
            start_new_session=True,  # the terminal's Ctrl-C is for us; we pass it on
            close_fds=False,  # the folder's lock
        )
        with signals.passed_to(process):
            output, late = await_child(process, timeout_s)
    if signals.received:
        return
    run.update(seconds=round(time.monotonic() - began, 3), status=FAILED, error=None, figures=None)
    if late:
        run["error"] = f"took longer than {timeout_s:g} s and was ended (--cell-timeout)"
    elif process.returncode != 0:
        run["error"] = f"exit code {process.returncode}: {last_error(log)}"
    else:
        try:
            run.update(figures=json.loads(output)["figures"], status=DONE)
        except (ValueError, KeyError, TypeError):
            run["error"] = f"ended well but printed no figures: {last_error(log)}"
