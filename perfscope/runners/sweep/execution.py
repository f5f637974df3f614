"""Running the cells of a study one after the other, each as `perfscope bench run` in a process of its own."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfscope.children import Signals, await_child, held_signals
from perfscope.errors import RunDirectoryError, UsageError
from perfscope.rundir import layout
from perfscope.rundir.file_locks import try_lock
from perfscope.runners.sweep.state import DONE, FAILED, LOCK, PENDING, RUNS, CellState, Run, Study, save_study

ENV_SWEEP = "PERFSCOPE_SWEEP"  # pid of the sweep; its runs end when it does
_LOCK_TIMEOUT_S = 30.0
_LONGEST_ERROR = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How runs are made.

    Attributes:
        folder: of the study.
        cell_timeout_s: a run that takes longer is ended.
        recording: options of the recording, by name.
        ceilings: `--ceilings` of the runs.
        environment: of the runs.
    """

    folder: Path
    cell_timeout_s: float
    recording: Mapping[str, Any]
    ceilings: str = "off"
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


class Interrupted(Exception):
    """Ctrl-C or SIGTERM: the run that was going has been ended and is pending again."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def run_order(study: Study, only: Collection[str] | None = None) -> list[tuple[CellState, Run]]:
    """Pending runs. Repeats are the outermost loop, cells shuffled in each, so that drift hits all alike.

    The same seed gives the same order, also when a study is continued. `only`: names of cells; None = all.
    """
    runs = []
    for repeat in range(1, study.repeats + 1):
        cells = sorted(study.wanted, key=lambda cell: cell.name)
        random.Random(f"{study.seed} {repeat}").shuffle(cells)
        runs += [
            (cell, run)
            for cell in cells
            for run in cell.runs
            if run.repeat == repeat and run.status == PENDING and (only is None or cell.name in only)
        ]
    return runs


def run_all(
    study: Study,
    how: How,
    only: Collection[str] | None,
    *,
    begins: Callable[[CellState, Run, int, int], None],
    ended: Callable[[CellState, Run], None],
) -> None:
    """Runs what is pending, and keeps the study up to date on disk after each.

    Args:
        study: changed in place.
        how: see How.
        only: names of cells to run; None = all.
        begins: called with (cell, run, its number from 1, how many there are).
        ended: called when a run is done or has failed.

    Raises:
        Interrupted: by a signal.
        RunDirectoryError: the study cannot be written.
    """
    (how.folder / RUNS).mkdir(exist_ok=True)
    order = run_order(study, only)
    with held_signals() as signals:
        for number, (cell, run) in enumerate(order, start=1):
            begins(cell, run, number, len(order))
            _run_one(cell, run, how, signals)
            save_study(study, how.folder)
            if run.status == PENDING:
                raise Interrupted(signals.received or signal.SIGINT)
            ended(cell, run)


def command_of(cell: CellState, run: Run, how: How) -> list[str]:
    """The command line of a run."""
    argv = [sys.executable, "-m", "perfscope", "bench", "run", cell.scheme]
    for name, value in cell.settings.items():
        argv += [f"--{name.replace('_', '-')}", option_text(name, value)]
    if cell.cluster:
        argv += ["--cluster", cell.cluster]
    for name, value in _whole_periods(how.recording, int(cell.plan.get("period", 1))).items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    argv += ["--ceilings", how.ceilings, "--name", f"{cell.name} r{run.repeat}"]
    return [*argv, "--json", "--force", "-o", str(how.folder / run.path)]


def _whole_periods(recording: Mapping[str, Any], period: int) -> dict[str, Any]:
    """Windows hold whole periods: a part of one shows an exchange too many or none."""
    steps = recording.get("steps_per_window")
    if not isinstance(steps, int) or steps % period == 0:
        return dict(recording)
    return {**recording, "steps_per_window": -(-steps // period) * period}


def option_text(name: str, value: Any) -> str:
    """A setting as an option's word: mesh [2, 2] -> 2,2; input [3, 32, 32] -> 3x32x32."""
    if isinstance(value, list | tuple):
        return ("x" if name == "input" else ",").join(map(str, value))
    return str(value)


@contextmanager
def sole_user(folder: Path, tell: Callable[[str], None]) -> Iterator[int]:
    """Holds the study's lock and gives its file descriptor. Runs of a killed sweep hold it until they end.

    Raises:
        UsageError: the folder is a file.
        RunDirectoryError: another sweep works on the study, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except FileExistsError:
        raise UsageError(f"{folder} is a file; choose another -o") from None
    except OSError as error:
        raise RunDirectoryError(f"cannot make the study {folder}: {error.strerror}") from error
    try:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        has_told = False
        while not try_lock(descriptor):
            if not has_told:
                tell("waiting: another sweep, or a run that one left behind, still uses this study")
                has_told = True
            if time.monotonic() > deadline:
                raise RunDirectoryError(
                    f"another sweep is working on {folder}; wait for it, or choose another -o"
                )
            time.sleep(0.2)
        os.set_inheritable(descriptor, True)
        yield descriptor
    finally:
        os.close(descriptor)


def _run_one(cell: CellState, run: Run, how: How, signals: Signals) -> None:
    """One run, from its command to its figures in `run`. An interrupted run stays pending."""
    if signals.received:
        return
    log = how.folder / f"{run.path}.log"
    began = time.monotonic()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command_of(cell, run, how),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_environment(how.environment),
            start_new_session=True,  # the terminal's Ctrl-C is for us; we pass it on
            close_fds=False,  # the study's lock
        )
        with signals.passed_to(process):
            output, late = await_child(process, how.cell_timeout_s)
    run.seconds = round(time.monotonic() - began, 3)
    if signals.received:
        return
    run.status, run.error, run.figures = FAILED, None, None
    if late:
        run.error = f"took longer than {how.cell_timeout_s:g} s and was ended (cell_timeout)"
    elif process.returncode != 0:
        run.error = f"exit code {process.returncode}: {last_error(log)}"
    else:
        take_figures(run, output, log)


def take_figures(run: Run, output: bytes, log: Path) -> None:
    """What `bench run --json` printed, into `run`; one that printed none has failed."""
    try:
        document = json.loads(output)
        run.figures = {**document["figures"], "scheme": document["scheme"]["full_name"]}
        run.status = DONE
    except (ValueError, KeyError, TypeError):
        run.error = f"ended well but printed no figures: {last_error(log)}"


def last_error(log: Path) -> str:
    """The line of a run's stderr that says most: a rank's first, else perfscope's last, else the last."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "its log cannot be read"
    lines = [line.strip() for line in lines if line.strip()]
    bench_lines = [line for line in lines if line.startswith("perfscope bench: ")]
    error_lines = [line for line in lines if line.startswith(("perfscope: ", "Error: ", "perfscope bench: "))]
    chosen = bench_lines[:1] or error_lines[-1:] or lines[-1:]
    text = chosen[0] if chosen else "it said nothing"
    for prefix in ("perfscope bench: ", "perfscope: ", "Error: "):
        text = text.removeprefix(prefix)
    return text[:_LONGEST_ERROR]


def _environment(base: Mapping[str, str]) -> dict[str, str]:
    """Ours without what would make the run join something else."""
    kept = {name: value for name, value in base.items() if name != layout.ENV_RUN_DIR}
    return {**kept, ENV_SWEEP: str(os.getpid())}
