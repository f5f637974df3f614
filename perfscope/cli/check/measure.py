"""`perfscope check -- CMD`: runs both sides in child processes of `perfscope run`, and reads them back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.children import Signals, await_child
from perfscope.errors import PerfscopeError
from perfscope.gate.records import HEAD, Fingerprint, RunFigures
from perfscope.rundir.layout import ENV_RUN_DIR
from perfscope.vocabulary.heap import STILL_HEAP

if TYPE_CHECKING:
    from perfscope.gate.pairs import Conducted, Watcher
    from perfscope.gate.settings import Settings

_LONGEST_WORD = 300
_TAIL = 65_536  # bytes of a log in which the last line is looked for


class MeasurementInterrupted(PerfscopeError):
    """Ctrl-C or SIGTERM while a side ran."""

    def __init__(self, number: int, folder: Path) -> None:
        super().__init__(f"interrupted; the runs made so far are in {folder}")
        self.exit_code = 128 + number


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCommand:
    """What runs on one side: the command line, where, and with which variables."""

    argv: tuple[str, ...]
    cwd: Path
    environment: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class Trainer:
    """Trains a side and reads the run.

    Attributes:
        folder: where the runs go, one folder and one log each.
        sides: by name.
        recording: options of `perfscope run`.
        timeout_s: after which a run is ended and counts as failed; None = never.
        signals: how the process is asked to end.
        pin_heap: both sides run with vocabulary.heap.STILL_HEAP.
    """

    name: str
    folder: Path
    sides: Mapping[str, SideCommand]
    recording: Sequence[str]
    timeout_s: float | None
    signals: Signals
    pin_heap: bool = False
    run_dirs: dict[str, Path] = field(default_factory=dict)  # name of a run -> its directory

    def __call__(self, side: str, pair: int, attempt: int) -> RunFigures:
        """See gate.pairs.RunSide. Raises MeasurementInterrupted."""
        again = f"-repeat{attempt}" if attempt else ""
        name = f"{pair:02d}-{side}{again}"
        run_dir = self.folder / name
        log = self.folder / f"{name}.log"
        code, late = self._train(side, pair, run_dir, log)
        if self.signals.received:
            raise MeasurementInterrupted(self.signals.received, self.folder)
        self.run_dirs[name] = run_dir
        if late:
            return _failed(name, f"took longer than {self.timeout_s:g} s and was ended (--timeout)")
        if code:
            ending = f"exit code {code}" if code > 0 else f"signal {-code}"
            return _failed(name, f"ended with {ending}: {last_word(log)} (all it said: {log})")
        return _read_back(run_dir, name)

    def _train(self, side: str, pair: int, run_dir: Path, log: Path) -> tuple[int, bool]:
        side_of_run = self.sides[side]
        argv = [sys.executable, "-m", "perfscope", "run", "--no-verdict", "-o", str(run_dir)]
        argv += ["--name", self.name]
        argv += ["--label", f"check.side={side}", "--label", f"check.pair={pair}", *self.recording]
        environment = {name: value for name, value in side_of_run.environment.items() if name != ENV_RUN_DIR}
        if self.pin_heap:
            environment |= STILL_HEAP
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*argv, "--", *side_of_run.argv],
                cwd=side_of_run.cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the terminal's Ctrl-C is for us; we pass it on
            )
            with self.signals.passed_to(process):
                _, late = await_child(process, self.timeout_s)
        return process.returncode, late


def one_sided(trainer: Trainer, settings: Settings, watcher: Watcher) -> Conducted:
    """Runs of the head alone, for a base that was recorded before."""
    from dataclasses import replace

    from perfscope.gate.pairs import Conducted, run_undisturbed

    done = Conducted()
    repeats = settings.repeats
    for number in range(1, settings.pairs + 1):
        run, used = run_undisturbed(trainer, settings, watcher, done, (HEAD, number), repeats)
        repeats -= used
        if done.failed:
            break
        if run is not None:
            done.head.append(replace(run, side=HEAD, pair=None))
    return done


def _failed(name: str, problem: str) -> RunFigures:
    return RunFigures(name=name, fingerprint=Fingerprint(), problem=problem)


def _read_back(run_dir: Path, name: str) -> RunFigures:
    from perfscope.gate.measure import measure_run
    from perfscope.ingest.run import ingest_run

    try:
        ingest_run(run_dir)
        return measure_run(run_dir, name)
    except PerfscopeError as error:
        return _failed(name, str(error))


def last_word(log: Path) -> str:
    """The last line of a run's output that is not perfscope's own."""
    try:
        with log.open("rb") as file:
            start = max(0, log.stat().st_size - _TAIL)
            file.seek(start)
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return "its log cannot be read"
    if start and len(lines) > 1:
        del lines[0]  # its beginning is cut off
    kept = [line.strip() for line in lines if line.strip()]
    theirs = [line for line in kept if not line.startswith("perfscope: ")]
    return (theirs or kept or ["it said nothing"])[-1][:_LONGEST_WORD]


def side_command(
    argv: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> SideCommand:
    """A command in this directory and environment, unless stated otherwise."""
    return SideCommand(
        argv=tuple(argv),
        cwd=cwd if cwd is not None else Path.cwd(),
        environment=os.environ if environment is None else environment,
    )
