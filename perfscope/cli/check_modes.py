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
from dataclasses import replace
from pathlib import Path

from perfscope.children import held_signals
from perfscope.cli.check_baseline import against_baseline, has_baseline, no_baseline, without_pairs
from perfscope.cli.check_measure import SideCommand, Trainer, one_sided, side_command
from perfscope.cli.check_options import Asked
from perfscope.cli.check_output import add_to_history, emit, say, write_text
from perfscope.cli.check_progress import BarWatcher, PlainWatcher
from perfscope.cli.check_runs import CHECK_JSON, is_check_folder, read_runs, sides_of
from perfscope.cli.output import print_result
from perfscope.errors import PerfscopeError, UsageError
from perfscope.gate.decide import judge
from perfscope.gate.pairs import conduct
from perfscope.gate.records import BASE, HEAD, RunFigures
from perfscope.gate.results import CheckResult, LeftOut, Outcome, Side
from perfscope.gate.store import open_store
from perfscope.launch.session import planned_name
from perfscope.reports.text import wants_color
from perfscope.rundir.writer import RUNS, default_run_dir_name

CALIBRATION_PAIRS = 20


def measure(asked: Asked) -> int:
    """Trains, judges and prints; the exit code."""
    began = time.monotonic()
    name = asked.settings.name or benchmark_name(asked.words)
    store = None if asked.baseline is None else open_store(asked.baseline)
    if store is not None and not has_baseline(store, name):
        return no_baseline(asked, name, store, ())
    against = read_runs(asked.against, BASE) if asked.against else None
    folder = _make_folder(asked.output, name)
    two_sided = store is None and against is None
    base_label = asked.base_ref or (shlex.join(asked.base_words) if asked.base_words else BASE)
    with ExitStack() as stack:
        sides = {HEAD: side_command(asked.words)}
        if two_sided:
            sides[BASE] = stack.enter_context(_base(asked))
        signals = stack.enter_context(held_signals())
        trainer = Trainer(
            name=name,
            folder=folder,
            sides=sides,
            recording=_recording(asked),
            timeout_s=asked.timeout,
            signals=signals,
        )
        watcher = _watcher(asked.settings.pairs * (2 if two_sided else 1))
        seed = asked.seed if asked.seed is not None else secrets.randbelow(2**31)
        with watcher:
            if two_sided:
                done = conduct(trainer, asked.settings, watcher, seed=seed)
            else:
                done = one_sided(trainer, asked.settings, watcher)
    head = tuple(done.head)
    if store is not None:
        found = against_baseline(store, name, head, asked.settings.allow)
        if found is None:
            return no_baseline(asked, name, store, head)
        base, head = found.base, found.head
    elif against is not None:
        base = Side(label="base", runs=without_pairs(against.runs))
    else:
        base = Side(label=base_label, runs=tuple(done.base))
    result = judge(
        base,
        Side(label=HEAD, runs=head),
        asked.settings,
        name=name,
        planned=asked.settings.pairs,
        stopped=done.stopped,
        left_out=[*done.left_out, *(against.lost if against else ())],
        failed=done.failed,
    )
    result = replace(result, elapsed_s=time.monotonic() - began)
    return _finish(result, asked, folder)


def judge_runs(asked: Asked) -> int:
    """Judges runs that were made before; the exit code."""
    if len(asked.runs) == 1 and is_check_folder(asked.runs[0]) and not asked.has_base:
        sides = sides_of(asked.runs[0])
        asked = replace(asked, runs=sides[HEAD], against=sides[BASE])
    head = read_runs(asked.runs, HEAD)
    name = asked.settings.name or head.name or "check"
    lost: list[LeftOut] = list(head.lost)
    if asked.baseline is not None:
        store = open_store(asked.baseline)
        found = against_baseline(store, name, head.runs, asked.settings.allow)
        if found is None:
            return no_baseline(asked, name, store, head.runs)
        base, runs = found.base, found.head
    elif asked.against:
        against = read_runs(asked.against, BASE)
        lost += against.lost
        base, runs = Side(label=BASE, runs=against.runs), head.runs
        if not _made_together(asked.runs, asked.against):
            base, runs = replace(base, runs=without_pairs(base.runs)), without_pairs(runs)
    else:
        raise UsageError("no runs to compare with: give --against RUN... or --baseline FILE")
    result = judge(base, Side(label=HEAD, runs=runs), asked.settings, name=name, left_out=lost)
    return _finish(result, asked, None)


def calibrate(asked: Asked) -> int:
    """Measures the noise of this machine with runs of one command, or with runs that are there."""
    from perfscope.gate.calibrate import calibrate as calibrated
    from perfscope.reports.gate_calibration import calibration_document, render_calibration

    if asked.runs:
        runs = list(read_runs(asked.runs, HEAD).runs)
    elif asked.words:
        runs = _same_again(asked)
    else:
        raise UsageError("--calibrate needs a command behind `--`, or runs of one and the same command")
    result = calibrated(runs, asked.settings)
    if asked.as_json:
        document = calibration_document(result)
        print_result(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        print_result(render_calibration(result, width=width, color=wants_color(sys.stdout)))
    return 0


def benchmark_name(words: Sequence[str]) -> str:
    """The training script's name, as `perfscope run` has it."""
    return planned_name(words, os.environ)


def _same_again(asked: Asked) -> list[RunFigures]:
    """Runs of one command: CALIBRATION_PAIRS pairs, unless --pairs says how many."""
    name = asked.settings.name or benchmark_name(asked.words)
    folder = _make_folder(asked.output, f"{name}-calibration")
    side = side_command(asked.words)
    num = asked.settings.pairs if asked.pairs_given else max(asked.settings.pairs, CALIBRATION_PAIRS)
    settings = replace(asked.settings, pairs=num, early_stop=False)
    with held_signals() as signals:
        trainer = Trainer(
            name=name,
            folder=folder,
            sides={BASE: side, HEAD: side},
            recording=_recording(asked),
            timeout_s=asked.timeout,
            signals=signals,
        )
        watcher = _watcher(2 * settings.pairs)
        with watcher:
            done = conduct(trainer, settings, watcher, seed=asked.seed or 0)
    if done.failed:
        raise PerfscopeError(done.failed)
    say(f"runs are in {folder}")
    return sorted((*done.base, *done.head), key=lambda run: run.surroundings.start_unix_ns or 0)


@contextmanager
def _base(asked: Asked) -> Iterator[SideCommand]:
    """What runs on the base's side."""
    if asked.base_ref is None:
        yield side_command(asked.base_words)
        return
    from perfscope.launch.shadowed import own_imports
    from perfscope.launch.worktree import checked_out

    with checked_out(asked.base_ref, Path.cwd(), environment=os.environ, link=asked.links) as tree:
        say(f"base: {tree.commit[:12]} {tree.subject}")
        imports = own_imports(tree, asked.words, os.environ)
        missing = tree.missing(asked.words)
        lacks = f"git does not keep {', '.join(missing)}: give --link {missing[0]}" if missing else ""
        for note in (*tree.notes, *imports.notes, lacks):
            if note:
                say(f"note: {note}")
        yield side_command(tree.command(asked.words), cwd=tree.folder, environment=imports.environment)


def _recording(asked: Asked) -> list[str]:
    # Traced steps do not count, so windows may cost what they like; several of them make the explanation.
    words = ["--ceilings", "off", "--overhead", "50%", "--sample-interval", asked.sample_interval]
    words += ["--no-trace"] if asked.no_trace or not asked.windows else ["--windows", str(asked.windows)]
    if asked.samples_per_step is not None:
        words += ["--samples-per-step", str(asked.samples_per_step)]
    return words


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
    """Pair numbers mean something only among runs of one check."""
    return len({path.resolve().parent for path in (*head, *base)}) == 1


def _finish(result: CheckResult, asked: Asked, folder: Path | None) -> int:
    from perfscope.gate.explain.explain import explain
    from perfscope.reports.gate.registry import FORMATS

    if result.outcome is not Outcome.FAILED and result.base.runs and result.head.runs:
        explanation = explain(result.base.runs, result.head.runs, result.metrics)
        result = replace(result, explanation=explanation)
    if folder is not None:
        write_text(folder / CHECK_JSON, FORMATS["json"](result))
    add_to_history(result, asked.history)
    emit(result, as_json=asked.as_json, formats=asked.formats)
    if folder is not None:
        say(f"runs and {CHECK_JSON} are in {folder}")
    return result.outcome.value
