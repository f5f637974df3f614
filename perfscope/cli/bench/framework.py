"""`perfscope bench run --framework`: a CNN in one framework, through the path of `perfscope run`."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.cli.bench.options import default_threads, require_torch
from perfscope.cli.bench.recording import RecordedRequest, RecordingOptions
from perfscope.cli.host_duties import host_duties
from perfscope.cli.output import print_result
from perfscope.cli.run_options import probe_options
from perfscope.errors import UsageError
from perfscope.launch.environment import ProbeOptions
from perfscope.launch.session import RunRequest
from perfscope.messages.lists import counted
from perfscope.notices import say
from perfscope.rundir.layout import ENV_RUN_DIR

if TYPE_CHECKING:
    from perfscope.runners.frameworks.interpreters import Interpreter
    from perfscope.runners.frameworks.request import FrameworkRun

SCHEMA_VERSION = 1
_START = "perfscope.runners.frameworks.start"
_SETTLED = 20  # steps before the first traced one, where there are three times as many


def planned_run(framework: str, settings: Mapping[str, Any]) -> FrameworkRun:
    """The checked run that the options ask for; what cannot be is a BenchError of one line."""
    require_torch()
    from perfscope.runners.frameworks.registry import find_framework
    from perfscope.runners.frameworks.request import framework_run
    from perfscope.runners.models.registry import find_model

    run = framework_run(
        find_framework(framework),
        settings,
        default_learning_rate=lambda model: find_model(model).learning_rate,
        threads=lambda ranks: default_threads(ranks, os.environ),
    )
    _check_devices(run)
    return run


def _check_devices(run: FrameworkRun) -> None:
    from perfscope.runners.frameworks.request import CUDA

    if run.device != CUDA:
        return
    from perfscope.collectors.context import Context
    from perfscope.collectors.gpu.registry import num_visible
    from perfscope.runners.config import BenchError

    num = num_visible(Context(), os.environ)
    if num is not None and num < run.config.num_ranks:
        have = counted(num, "GPU") + (" is" if num == 1 else " are")
        raise BenchError(
            f"--device cuda needs a GPU for each rank, and {have} visible here for "
            f"{counted(run.config.num_ranks, 'rank')}; use --device cpu, or fewer --ranks"
        )


def run_framework(framework: str, asked: RecordingOptions, *, python: str | None, env: str | None) -> int:
    """Plans, trains and tells; the code to exit with.

    Raises:
        PerfscopeError: it cannot be.
    """
    _refuse_outer()
    run = planned_run(framework, asked.settings)
    if taken := sorted(run.labels.keys() & asked.labels.keys()):
        raise UsageError(f"--label {taken[0]} is set by --framework itself; choose another key")
    from perfscope.runners.frameworks.interpreters import find_interpreter, other_release
    from perfscope.runners.frameworks.preparation import check, prepare

    layers = check(run)
    interpreter = find_interpreter(run.framework, python, env)
    if asked.dry_run:
        _print_plan(run, interpreter, asked.as_json)
        return 0
    retired = f"{run.framework.name} is {run.framework.retired}" if run.framework.retired else ""
    for note in filter(None, (retired, other_release(run.framework, interpreter.version))):
        say(f"note: {note}")
    with tempfile.TemporaryDirectory(prefix="perfscope-bench-", ignore_cleanup_errors=True) as folder:
        config, digests = prepare(run, layers, Path(folder))
        recorded = RecordedRequest(
            RunRequest(
                command=_command(run, interpreter, config),
                output=asked.output,
                force=asked.force,
                name=asked.name or f"{run.framework.name} {run.config.model}",
                labels={**run.labels, **asked.labels},
                probe=_probe(run, asked),
                host=host_duties(asked.ceilings, tell=os.isatty(2)),
                options={
                    "ceilings": asked.ceilings,
                    "framework_run": {**describe(run, interpreter), "digests": digests},
                },
                environment=_environment(run),
            )
        )
        code = recorded.run({name: value for name, value in os.environ.items() if name != ENV_RUN_DIR})
    if code == 0 and recorded.run_dir is not None:
        _print_figures(recorded.run_dir, run, interpreter, asked.as_json)
    return code


def _probe(run: FrameworkRun, asked: RecordingOptions) -> ProbeOptions:
    """Traced late enough: compiled frameworks take many steps to get into their stride."""
    options = probe_options(**asked.recording, samples_per_step=run.config.batch)
    return replace(options, first_step=min(_SETTLED, run.config.steps // 3))


def describe(run: FrameworkRun, interpreter: Interpreter | None) -> dict[str, Any]:
    """What is run, for run.json and `--json`."""
    of_python = (
        {"python": interpreter.path, "python_version": interpreter.python, "version": interpreter.version}
        if interpreter
        else {}
    )
    return {
        "framework": run.framework.name,
        "how": run.summary,
        "retired": run.framework.retired,
        **of_python,
        **run.settings,
        "digest": run.digest,
    }


def _refuse_outer() -> None:
    from perfscope.runners.starting.outer_launcher import find_outer

    outer = find_outer(os.environ)
    if outer is not None:
        raise UsageError(
            f"--framework starts its processes itself, but {outer.variable} says that {outer.launcher} has "
            "started this process as one: run it without"
        )


def _command(run: FrameworkRun, interpreter: Interpreter, config: Path) -> tuple[str, ...]:
    from perfscope.runners.frameworks.preparation import OTHERS_ENDED
    from perfscope.runners.frameworks.rendezvous import devices_of
    from perfscope.runners.frameworks.request import CUDA

    job = {
        "meeting": run.framework.meeting,
        "python": interpreter.path,
        "program": str(run.framework.path),
        "config": str(config),
        "size": run.config.num_ranks,
        "threads": run.config.threads,
        "devices": devices_of(run.config.num_ranks, os.environ) if run.device == CUDA else (),
        "others_ended": str(config.with_name(OTHERS_ENDED)),
    }
    return (sys.executable, "-m", _START, json.dumps(job, separators=(",", ":")))


def _environment(run: FrameworkRun) -> dict[str, str]:
    from perfscope.runners.starting.guard import bench_mark

    return {**run.framework.environment, **bench_mark()}


def _print_plan(run: FrameworkRun, interpreter: Interpreter, as_json: bool) -> None:
    command = [interpreter.path, str(run.framework.path), "CONFIG.json"]
    if as_json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "run": describe(run, interpreter),
            "command": command,
            "processes": run.config.num_ranks,
        }
        print_result(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        return
    from perfscope.cli.bench.frameworks_text import plan_lines

    print_result("\n".join([*plan_lines(run, interpreter), "", "Command", f"  {shlex.join(command)}"]) + "\n")


def _print_figures(run_dir: Path, run: FrameworkRun, interpreter: Interpreter, as_json: bool) -> None:
    from perfscope.cli.bench.framework_figures import figures_of_run

    figures = figures_of_run(run_dir)
    if as_json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "run": str(run_dir),
            "framework": describe(run, interpreter),
            "figures": figures,
        }
        print_result(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        return
    from perfscope.cli.bench.frameworks_text import figures_text

    print_result(figures_text(run, interpreter, figures))
