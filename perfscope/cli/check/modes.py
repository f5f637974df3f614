"""The ways to make a check: train both sides, train one against a baseline, or judge runs that are there."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.children import held_signals
from perfscope.cli.check.baseline import against_baseline, has_baseline, no_baseline, without_pairs
from perfscope.cli.check.finish import finish, keep_so_far, prepare_history
from perfscope.cli.check.measure import SideCommand, Trainer, one_sided, side_command
from perfscope.cli.check.options import CheckOptions
from perfscope.cli.check.output import say
from perfscope.cli.check.progress import BarWatcher, PlainWatcher
from perfscope.cli.check.runs import ReadRuns, is_check_folder, read_runs, sides_of
from perfscope.cli.check.watched import Pointless, WatchedTrainer
from perfscope.cli.output import print_result
from perfscope.errors import PerfscopeError, UsageError
from perfscope.gate.decide import incomparable, judge
from perfscope.gate.pairs import Conducted, conduct
from perfscope.gate.records import BASE, HEAD, RunFigures
from perfscope.gate.results import CheckResult, ExcludedRun, Outcome, Side
from perfscope.gate.store import open_store
from perfscope.launch.session import planned_name
from perfscope.reports.text import wants_color
from perfscope.rundir.layout import RUN_JSON
from perfscope.rundir.writer import RUNS, default_run_dir_name

if TYPE_CHECKING:
    from perfscope.gate.store import Store

CALIBRATION_PAIRS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """What runs on the base's side.

    Attributes:
        refused: why both sides would be the same code, one sentence; "" = nothing says so.
        notes: sentences for the one who reads the verdict.
    """

    command: SideCommand
    refused: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What the head is compared with: pairs with a base that is trained, too, runs, or a baseline."""

    asked: CheckOptions
    name: str
    label: str = BASE
    store: Store | None = None
    against: ReadRuns | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_two_sided(self) -> bool:
        return self.store is None and self.against is None

    def judged(self, done: Conducted) -> CheckResult:
        settings = self.asked.settings
        head = tuple(done.head)
        base = Side(label=self.label, runs=tuple(done.base))
        lost = list(done.left_out)
        if self.store is not None:
            baseline = against_baseline(self.store, self.name, head, settings.allow)
            if baseline is None:
                return no_baseline(self.name, self.store, head)
            base, head = baseline.base, baseline.head
        elif self.against is not None:
            base = Side(label=self.label, runs=without_pairs(self.against.runs))
            lost += self.against.lost
        result = judge(
            base,
            Side(label=HEAD, runs=head),
            settings,
            name=self.name,
            planned=next((n for n in settings.looks if n >= len(done.head)), settings.looks[-1]),
            stopped=done.stopped,
            left_out=lost,
            failed=done.failed,
        )
        return replace(result, reasons=(*result.reasons, *self.notes))

    def look(self, done: Conducted, folder: Path) -> str:
        """Keeps what there is; why no further run can change the verdict, "" = it can."""
        settings = self.asked.settings
        result = self.judged(done)
        if not self.is_two_sided or len(done.base) == len(done.head):
            keep_so_far(result, folder)
        if result.outcome is Outcome.NO_BASELINE:
            return "there is no baseline that fits"
        if incomparable(result.base, result.head, settings.allow):
            return "these runs may not be compared, and further ones would be like them"
        if not self.is_two_sided and len(result.base.runs) < settings.fewest:
            return "the base has too few runs, however many the head gets"
        return ""


def measure(asked: CheckOptions) -> int:
    """Trains, judges and prints; the exit code."""
    began = time.monotonic()
    name = asked.settings.name or benchmark_name(asked.argv)
    store = None if asked.baseline is None else open_store(asked.baseline)
    if store is not None and not has_baseline(store, name):
        return finish(no_baseline(name, store, ()), asked, None)
    prepare_history(asked)
    against = _read(asked.against, BASE) if asked.against else None
    label = asked.base_ref or (shlex.join(asked.base_words) if asked.base_words else BASE)
    held = _Held(asked=asked, name=name, label=label, store=store, against=against)
    if against is not None and len(against.runs) < asked.settings.fewest:
        return finish(held.judged(Conducted()), asked, None)
    with ExitStack() as stack:
        sides = {HEAD: side_command(asked.argv)}
        if held.is_two_sided:
            base = stack.enter_context(_base(asked))
            if base.refused:
                return finish(_refused(base, held), asked, None)
            held = replace(held, notes=base.notes)
            sides[BASE] = base.command
        folder = _make_folder(asked.output, name)
        done = _train(held, sides, folder)
    result = replace(held.judged(done), elapsed_s=time.monotonic() - began)
    return finish(result, asked, folder)


def _train(held: _Held, sides: dict[str, SideCommand], folder: Path) -> Conducted:
    asked = held.asked
    with held_signals() as signals:
        trainer = WatchedTrainer(
            name=held.name,
            folder=folder,
            sides=sides,
            recording=_recording(asked),
            timeout_s=asked.timeout,
            signals=signals,
            pin_heap=asked.settings.pin_heap,
            settings=asked.settings,
            look=lambda done: held.look(done, folder),
        )
        watcher = _watcher(asked.settings.pairs * len(sides))
        with watcher:
            try:
                if not held.is_two_sided:
                    return one_sided(trainer, asked.settings, watcher)
                seed = asked.seed if asked.seed is not None else secrets.randbelow(2**31)
                return conduct(trainer, asked.settings, watcher, seed=seed)
            except Pointless:
                return trainer.so_far


def _refused(base: _Base, held: _Held) -> CheckResult:
    """Both sides would run the same code: that passes whatever the code is, so nothing is run."""
    return CheckResult(
        name=held.name,
        outcome=Outcome.INCONCLUSIVE,
        headline=f"Inconclusive: {base.refused}",
        reasons=base.notes,
        base=Side(label=held.label),
        alpha=held.asked.settings.alpha,
    )


def judge_runs(asked: CheckOptions) -> int:
    """Judges runs that were made before; the exit code."""
    asked = _judged_again(asked)
    store = None if asked.baseline is None else open_store(asked.baseline)
    prepare_history(asked)
    head = _read(asked.runs, HEAD)
    name = asked.settings.name or head.name or "check"
    lost: list[ExcludedRun] = list(head.lost)
    if store is not None:
        baseline = against_baseline(store, name, head.runs, asked.settings.allow)
        if baseline is None:
            return finish(no_baseline(name, store, head.runs), asked, None)
        base, runs = baseline.base, baseline.head
    elif asked.against:
        against = _read(asked.against, BASE, head)
        lost += against.lost
        base, runs = Side(label=BASE, runs=against.runs), head.runs
        if not _made_together(head.paths, against.paths):
            base, runs = replace(base, runs=without_pairs(base.runs)), without_pairs(runs)
    else:
        raise UsageError("no runs to compare with: give --against RUN... or --baseline FILE")
    result = judge(base, Side(label=HEAD, runs=runs), asked.settings, name=name, left_out=lost)
    return finish(result, asked, None)


def _judged_again(asked: CheckOptions) -> CheckOptions:
    """The folder of a check alone: its own runs are judged again, whatever baseline the settings name."""
    if len(asked.runs) != 1 or not is_check_folder(asked.runs[0]) or asked.against or asked.baseline_given:
        return asked
    sides = sides_of(asked.runs[0])
    if sides[BASE] and sides[HEAD]:
        return replace(asked, runs=sides[HEAD], against=sides[BASE], baseline=None)
    if asked.baseline is None:
        raise UsageError(f"{asked.runs[0]} holds runs of one side only: give --baseline or --against, too")
    return asked


def _read(paths: Sequence[Path], side: str, other: ReadRuns | None = None) -> ReadRuns:
    """See read_runs. Raises UsageError, also where only checks without runs of that side are named."""
    runs_read = read_runs(paths, side, other)
    if not runs_read.paths:
        named = str(paths[0]) if paths else "that check"
        raise UsageError(f"{named} holds no runs of the {side}; name run directories")
    return runs_read


def calibrate(asked: CheckOptions) -> int:
    """Measures the noise of this machine with runs of one command, or with runs that are there."""
    from perfscope.gate.calibrate import calibrate as calibrated
    from perfscope.reports.gate_calibration import calibration_document, render_calibration

    if asked.runs:
        runs = list(read_runs(asked.runs, HEAD).runs)
    elif asked.argv:
        runs = _same_again(asked)
    else:
        raise UsageError("--calibrate needs a command behind `--`, or runs of one and the same command")
    kinds = {(run.surroundings.commit, run.surroundings.command) for run in runs}
    if len(kinds) > 1:
        say(f"warning: the runs are of {len(kinds)} commits or commands; noise is measured with one")
    result = calibrated(runs, asked.settings)
    if asked.as_json:
        document = calibration_document(result)
        print_result(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        print_result(render_calibration(result, width=width, color=wants_color(sys.stdout)))
    return Outcome.PASS.value if result.trials else Outcome.INCONCLUSIVE.value


def benchmark_name(argv: Sequence[str]) -> str:
    """The training script's name, as `perfscope run` has it."""
    return planned_name(argv, os.environ)


def _same_again(asked: CheckOptions) -> list[RunFigures]:
    """Runs of one command: CALIBRATION_PAIRS pairs, unless --pairs says how many."""
    name = asked.settings.name or benchmark_name(asked.argv)
    folder = _make_folder(asked.output, f"{name}-calibration")
    side = side_command(asked.argv)
    num = asked.settings.pairs if asked.pairs_given else max(asked.settings.pairs, CALIBRATION_PAIRS)
    settings = replace(asked.settings, pairs=num, most_pairs=num, early_stop=False)
    with held_signals() as signals:
        trainer = Trainer(
            name=name,
            folder=folder,
            sides={BASE: side, HEAD: side},
            recording=_recording(asked),
            timeout_s=asked.timeout,
            signals=signals,
            pin_heap=asked.settings.pin_heap,
        )
        watcher = _watcher(2 * settings.pairs)
        with watcher:
            done = conduct(trainer, settings, watcher, seed=asked.seed or 0)
    if done.failed:
        raise PerfscopeError(done.failed)
    say(f"runs are in {folder}")
    return sorted((*done.base, *done.head), key=lambda run: run.surroundings.start_unix_ns or 0)


@contextmanager
def _base(asked: CheckOptions) -> Iterator[_Base]:
    """What runs on the base's side, as long as it is there."""
    if asked.base_ref is None:
        yield _Base(command=side_command(asked.base_words))
        return
    from perfscope.checkout.editable_check import own_imports
    from perfscope.checkout.worktree import checked_out

    with checked_out(asked.base_ref, Path.cwd(), environment=os.environ, link=asked.links) as tree:
        say(f"base: {tree.commit[:12]} {tree.subject}")
        imports = own_imports(tree, asked.argv, os.environ)
        missing = tree.missing(asked.argv)
        lacks = f"Git does not keep {', '.join(missing)}: give --link {missing[0]}." if missing else ""
        of_tree, of_imports, refused = list(tree.notes), list(imports.notes), ""
        if tree.identical:
            refused = of_tree.pop(0)
        elif imports.shadowed:
            refused = of_imports.pop(0)
        notes = tuple(filter(None, (*of_tree, *of_imports, lacks)))
        if not refused:
            for note in notes:
                say(f"note: {note}")
        yield _Base(
            command=side_command(tree.command(asked.argv), cwd=tree.folder, environment=imports.environment),
            refused=refused,
            notes=notes,
        )


def _recording(asked: CheckOptions) -> list[str]:
    # Traced steps do not count, so windows may cost what they like; several of them make the explanation.
    argv = ["--ceilings", "off", "--overhead", "50%", "--sample-interval", asked.sample_interval]
    argv += ["--no-trace"] if asked.no_trace or not asked.windows else ["--windows", str(asked.windows)]
    if asked.samples_per_step is not None:
        argv += ["--samples-per-step", str(asked.samples_per_step)]
    return argv


def _watcher(planned: int) -> PlainWatcher:
    return BarWatcher(planned) if sys.stderr.isatty() else PlainWatcher(planned)


def _make_folder(wanted: Path | None, name: str) -> Path:
    """Raises PerfscopeError: it is not empty, or cannot be made."""
    folder = wanted or Path(RUNS) / default_run_dir_name(f"check-{name}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty; choose another -o")
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{folder} is a file; choose another -o") from None
    except OSError as error:
        raise PerfscopeError(f"cannot make {folder}: {error.strerror}") from error
    return folder.resolve()


def _made_together(head: Sequence[Path], base: Sequence[Path]) -> bool:
    """Pair numbers mean something only among runs of one check, which are in one folder.

    Args:
        head, base: places of the runs themselves, links followed.
    """
    runs = [path.parent if path.name == RUN_JSON else path for path in (*head, *base)]
    return len({run.parent for run in runs}) == 1
