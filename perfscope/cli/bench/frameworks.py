"""`perfscope bench frameworks`: the same CNNs in several frameworks, one comparison."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.cli.bench.options import default_threads
from perfscope.cli.formatting import number
from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import notice, print_result, this_command
from perfscope.errors import UsageError
from perfscope.messages.lists import counted
from perfscope.rundir.files import short_path
from perfscope.rundir.shell import quote
from perfscope.vocabulary.defaults import FRAMEWORKS

if TYPE_CHECKING:
    from perfscope.runners.frameworks.interpreters import Interpreter
    from perfscope.runners.frameworks.matrix import FrameworkCell

SCHEMA_VERSION = 1
DEFAULT_PLACE = Path("perfscope-studies") / "frameworks"
_ALL = "torch,tensorflow,keras-tensorflow,keras-jax,keras-torch,jax,mxnet,horovod"
_RECORDING = (
    *("--windows", str(FRAMEWORKS.windows), "--steps-per-window", str(FRAMEWORKS.steps_per_window)),
    *("--overhead", f"{FRAMEWORKS.overhead:.0%}"),
)
_CELL_TIMEOUT_S = 600.0


@click.command("frameworks", context_settings=HELP)
@click.option("--models", default="lenet,smallcnn", show_default=True, metavar="NAME,...")
@click.option("--frameworks", default=_ALL, metavar="NAME,...", help=f"[default: all: {_ALL}]")
@click.option("--ranks", default="1,2", show_default=True, metavar="P,...", help="Numbers of processes.")
@click.option("--repeats", type=click.IntRange(1, 100), default=1, show_default=True, metavar="N")
@click.option("--steps", type=int, default=60, show_default=True, metavar="N", help="Updates of the model.")
@click.option("--batch", type=int, metavar="B", help="Samples in a step, over all processes.  [default: 32]")
@click.option("--input", metavar="CxHxW", help="Size of one sample.  [default: 3x32x32]")
@click.option("--classes", type=int, metavar="K", help="Classes of the samples.  [default: 16]")
@click.option("--lr", type=float, metavar="ETA", help="Learning rate.  [default: the model's]")
@click.option("--momentum", type=float, metavar="MU", help="Momentum.  [default: 0]")
@click.option("--seed", type=int, metavar="N", help="Of weights and samples.  [default: 0]")
@click.option(
    "--threads", type=int, metavar="N", help="Of each process.  [default: cores / the most processes]"
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda: a GPU for each process.",
)
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="FRAMEWORK=PATH",
    help="Python that has a framework; repeatable.  [default: this one, else `bench env`'s]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_PLACE,
    show_default=True,
    metavar="DIR",
    help="Comparison to make, or to continue.",
)
@click.option("--retry-failed", is_flag=True, help="Run again what failed before.")
@click.option(
    "--cell-timeout",
    type=click.FloatRange(1, 86_400),
    default=_CELL_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="A run that takes longer is ended.",
)
@click.option("--dry-run", is_flag=True, help="Print the runs in their order, and make nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def command(
    models: str,
    frameworks: str,
    ranks: str,
    repeats: int,
    pythons: tuple[str, ...],
    output: Path,
    retry_failed: bool,
    cell_timeout: float,
    dry_run: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train the same CNNs in several frameworks, on several numbers of processes.

    All start from the same weights and see the same samples in the same order, in float32. Losses are
    compared with torch's on as many processes before speeds are compared. What is not installed is left out,
    with the reason. A comparison that was interrupted continues when the same command is given again.

    \b
    Examples:
      perfscope bench frameworks
      perfscope bench frameworks --models lenet --frameworks torch,jax --ranks 1 --steps 20
      perfscope bench frameworks --python mxnet=~/mx/bin/python --repeats 3 -o comparison

    \b
    Exit codes: 0 all agree; 1 a run failed, or losses differ; 130 interrupted.
    """
    numbers = [_whole(word) for word in _words("--ranks", ranks)]
    if settings["threads"] is None:
        settings["threads"] = default_threads(max(numbers), os.environ)
    cells = _cells(_words("--models", models), _words("--frameworks", frameworks), numbers, settings, pythons)
    folder = Path.cwd() / output
    from perfscope.runners.frameworks.matrix import changed_cells, continued, load_cells

    old = load_cells(folder)
    for cell in changed_cells(cells, old):
        notice(f"{cell.name}: its settings or its framework's release changed; it runs again")
    every = continued(cells, old, repeats, folder, retry_failed=retry_failed)
    if all(cell.skipped for cell in cells):
        reasons = "; ".join(dict.fromkeys(cell.skipped for cell in cells))
        raise UsageError(f"nothing can be run: {reasons}")
    if dry_run:
        _print_order(cells, folder, as_json)
        return
    code = _run(cells, every, folder, cell_timeout)
    differs = _compare(every, folder)
    failed = any(run["status"] == "failed" for cell in cells for run in cell.runs)
    _tell(every, folder, as_json)
    click.get_current_context().exit(code or int(failed or differs))


def _words(option: str, text: str) -> list[str]:
    names = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not names:
        raise UsageError(f"{option} is empty")
    return names


def _whole(word: str) -> int:
    if not word.isdigit() or int(word) < 1:
        raise UsageError(f"--ranks {word!r} is not a number of processes such as 1,2")
    return int(word)


def _named_pythons(pairs: Sequence[str]) -> dict[str, str]:
    pythons = {}
    for word in pairs:
        name, equals, path = word.partition("=")
        if not equals or not path:
            raise UsageError(f"--python {word!r} is not FRAMEWORK=PATH")
        pythons[name.strip()] = os.path.expanduser(path)  # noqa: PTH111 - keeps the ./ of a path
    return pythons


def _cells(
    models: Sequence[str],
    frameworks: Sequence[str],
    ranks: Sequence[int],
    settings: Mapping[str, Any],
    pythons: Sequence[str],
) -> list[FrameworkCell]:
    """Every combination, those that cannot be run with the reason."""
    from perfscope.runners.frameworks.registry import find_framework
    from perfscope.runners.models.registry import find_model

    named = _named_pythons(pythons)
    for name in (*frameworks, *named):
        find_framework(name)  # an unknown name is no reason to start
    for name in named.keys() - set(frameworks):
        raise UsageError(f"--python {name}=... is not among the --frameworks: {', '.join(frameworks)}")
    for name in models:
        find_model(name)
    look = _Interpreters(named)
    return [
        _cell(model, framework, size, settings, look)
        for model in models
        for framework in frameworks
        for size in ranks
    ]


class _Interpreters:
    """Asks once per framework; the Python, or why there is none."""

    def __init__(self, named: Mapping[str, str]) -> None:
        self._named = named
        self._found: dict[str, Interpreter | str] = {}

    def find(self, framework: str) -> Interpreter | str:
        """The Python that has it, or the reason."""
        from perfscope.runners.config import BenchError
        from perfscope.runners.frameworks.interpreters import find_interpreter
        from perfscope.runners.frameworks.registry import find_framework

        if framework not in self._found:
            python = self._named.get(framework)
            try:
                self._found[framework] = find_interpreter(find_framework(framework), python, None)
            except BenchError as error:
                if python is not None:  # named by the user: nothing to leave out, but a mistake
                    raise UsageError(f"{framework}: {error}") from error
                self._found[framework] = str(error)
        return self._found[framework]


def _cell(
    model: str, framework: str, ranks: int, settings: Mapping[str, Any], look: _Interpreters
) -> FrameworkCell:
    from perfscope.cli.bench.framework import planned_run
    from perfscope.runners.config import BenchError
    from perfscope.runners.frameworks.matrix import FrameworkCell
    from perfscope.runners.frameworks.preparation import check

    cell = FrameworkCell(name=f"{model}-{framework}-{ranks}", framework=framework, model=model, ranks=ranks)
    try:
        run = planned_run(framework, {**settings, "model": model, "ranks": ranks})
        check(run)
    except BenchError as error:
        cell.skipped = str(error)
        return cell
    cell.retired = run.framework.retired
    interpreter = look.find(framework)
    if isinstance(interpreter, str):
        cell.skipped = interpreter
        return cell
    cell.digest = f"{run.digest}-{interpreter.version}-{interpreter.python}"
    argv = ["--framework", framework, "--python", interpreter.path, "--model", model, "--ranks", str(ranks)]
    for name, value in settings.items():
        if value is not None:
            argv += [f"--{name.replace('_', '-')}", str(value)]
    cell.words = [*argv, *_RECORDING, "--ceilings", "off", "--name", cell.name]
    return cell


def _run(
    cells: Sequence[FrameworkCell], every: Sequence[FrameworkCell], folder: Path, timeout_s: float
) -> int:
    from perfscope.runners.frameworks.matrix import run_all, run_order, save_cells
    from perfscope.runners.sweep.execution import Interrupted, sole_user

    with sole_user(folder, notice):
        save_cells(every, folder)
        for cell in cells:
            if cell.skipped:
                notice(f"{cell.name} is left out: {cell.skipped}")
        done = sum(len(cell.runs_done) for cell in cells)
        left = len(run_order(cells))
        if done:
            notice(f"{counted(done, 'run')} finished before" + ("" if left else "; nothing is left to run"))
        try:
            run_all(
                cells,
                every,
                folder,
                (sys.executable, "-m", "perfscope", "bench", "run"),
                timeout_s,
                begins=lambda cell, run, at, total: _line(at, total, f"{cell.name} r{run['repeat']} ..."),
                ended=_ended,
            )
        except Interrupted as stop:
            notice(f"interrupted; what is finished is kept, the same command goes on: {this_command()}")
            return 128 + stop.number
    return 0


def _line(at: int, total: int, text: str) -> None:
    click.echo(f"[{at}/{total}] {text}", err=True)


def _ended(cell: FrameworkCell, run: Mapping[str, Any]) -> None:
    took = f"{run['seconds']:.0f} s"
    if run["status"] != "done":
        notice(f"{cell.name} r{run['repeat']}: failed after {took}: {run['error']}")
        return
    notice(f"{cell.name} r{run['repeat']}: {number(run['figures']['samples_per_s'])} samples/s ({took})")


def _compare(cells: Sequence[FrameworkCell], folder: Path) -> bool:
    """Holds every cell's losses against the reference's on as many processes; whether any differ."""
    from perfscope.cli.bench.framework_figures import compare_losses, keep_parity
    from perfscope.runners.frameworks.matrix import save_cells
    from perfscope.vocabulary.frameworks import REFERENCE

    references = {
        (cell.model, cell.ranks): cell.runs_done[0]
        for cell in cells
        if cell.framework == REFERENCE and cell.runs_done
    }
    for cell in cells:
        reference = references.get((cell.model, cell.ranks))
        if reference is None or cell.framework == REFERENCE:
            continue
        for run in cell.runs_done:
            agreement = compare_losses(reference["figures"], run["figures"])
            keep_parity(folder / run["path"], f"{cell.model}-{REFERENCE}-{cell.ranks}", agreement)
            cell.parity = _worse(cell.parity, agreement)
    save_cells(cells, folder)
    return any(cell.parity is not None and cell.parity["agrees"] is False for cell in cells)


def _worse(first: dict[str, Any] | None, two: dict[str, Any]) -> dict[str, Any]:
    """Of two repeats' verdicts the one that counts for the cell."""
    if first is None:
        return two
    order: Callable[[dict[str, Any]], tuple[bool, float]] = lambda agreement: (  # noqa: E731
        agreement["agrees"] is not True,
        agreement["max_difference"] or 0.0,
    )
    return max(first, two, key=order)


def _tell(cells: Sequence[FrameworkCell], folder: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from perfscope.cli.bench.frameworks_text import matrix_text
    from perfscope.vocabulary.frameworks import REFERENCE

    if as_json:
        document = {"schema_version": SCHEMA_VERSION, "cells": [asdict(cell) for cell in cells]}
        print_result(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    else:
        print_result(matrix_text(cells, REFERENCE))
    runs = [f"{short_path(folder)}/{run['path']}" for cell in cells for run in cell.runs_done]
    if len(runs) > 1:
        folder_text = quote(str(short_path(folder)))
        notice(f"next: perfscope compare {folder_text}")


def _print_order(cells: Sequence[FrameworkCell], folder: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from perfscope.runners.frameworks.matrix import run_order

    if as_json:
        document = {"schema_version": SCHEMA_VERSION, "cells": [asdict(cell) for cell in cells]}
        print_result(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        return
    order = run_order(cells)
    lines = [f"{counted(len(order), 'run')}, in this order, into {short_path(folder)}", ""]
    lines += [f"  {shlex.join(['perfscope', 'bench', 'run', *cell.words])}" for cell, _ in order]
    skipped = [cell for cell in cells if cell.skipped]
    if skipped:
        lines += ["", "Left out", *(f"  {cell.name}: {cell.skipped}" for cell in skipped)]
    print_result("\n".join(lines) + "\n")
