"""`perfscope bench run`: plan, run through the path of `perfscope run`, read the result back."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from perfscope.cli.bench.chunks import chunk_notes, with_known_link
from perfscope.cli.bench.memory import require_memory
from perfscope.cli.bench.notes import ignored_settings, period_of
from perfscope.cli.bench.options import (
    framework_options,
    machine_options,
    planned,
    refuse_scheme,
    training_options,
)
from perfscope.cli.bench.recording import RecordedRequest, RecordingOptions
from perfscope.cli.host_duties import host_duties
from perfscope.cli.labels import parse_labels
from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import print_result
from perfscope.cli.run_options import (
    hardware_options,
    label_options,
    place_options,
    probe_options,
    tracing_options,
)
from perfscope.errors import UsageError
from perfscope.launch.session import RunRequest
from perfscope.messages.lists import counted
from perfscope.notices import say
from perfscope.rundir.layout import ENV_RUN_DIR
from perfscope.runners.sweep.execution import ENV_SWEEP

if TYPE_CHECKING:
    from perfscope.runners.starting.launching import Launch

SCHEMA_VERSION = 1


@click.command("run", context_settings=HELP)
@click.argument("scheme", metavar="[SCHEME+MODIFIER...]", required=False)
@framework_options
@training_options
@machine_options
@place_options
@click.option("--name", metavar="TEXT", help="Name of the run (default: the scheme's).")
@label_options
@tracing_options
@hardware_options
@click.option(
    "--seeds",
    type=click.IntRange(min=1, max=1000),
    metavar="N",
    help="N runs with seeds from --seed on, in OUTPUT/seed-K: for `perfscope compare`.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be run, and make nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the metrics (or the plan) as JSON.")
def command(
    scheme: str | None,
    framework: str | None,
    python: str | None,
    env: str | None,
    modifiers: tuple[str, ...],
    cluster: str | None,
    output: Path | None,
    force: bool,
    name: str | None,
    labels: tuple[str, ...],
    ceilings: str,
    seeds: int | None,
    dry_run: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train a model under one parallel scheme, and record it as `perfscope run` does.

    With --framework instead of SCHEME: train it in that framework, data parallel over --ranks processes (1
    without) in the framework's own way, from the same weights on the same samples.

    Invalid combinations (an unknown name, a mesh that does not divide) are rejected before anything starts.
    The run directory is an ordinary one; its run.json states the scheme and what it was predicted to send.

    \b
    Examples:
      perfscope bench run serial --model lenet --input 1x32x32
      perfscope bench run dp.packed --ranks 4 --model alexnet --input 3x64x64 --batch 16
      perfscope bench run 'dp.ddp+topk(0.01)' --ranks 4
      perfscope bench run hy.filter_dp --mesh dp=2,tp=2 --cluster 2x2@1gbit --dry-run
      perfscope bench run --mesh dp=2,tp=2,pp=2 --model transformer
      perfscope bench run --framework jax --model lenet --ranks 2

    \b
    Exit codes:
      0 trained to the end; 2 cannot be; 3 a rank lost another; 125 when perfscope
      could not start it; else the first failing rank's own.
    """
    _end_with_sweep()
    asked = RecordingOptions(
        output=output,
        force=force,
        name=_named(name),
        labels=parse_labels(labels),
        ceilings=ceilings,
        dry_run=dry_run,
        as_json=as_json,
        click_options=settings,
    )
    if not dry_run and seeds is None:
        _require_room(output, force)
    if framework is None:
        named, code = _named_scheme(scheme or (settings.get("mesh") and "mesh"), python, env), 0
        for seeded in _with_seeds(asked, seeds):
            code = code or _run_scheme(named, seeded, modifiers, cluster)
    else:
        refuse_scheme(scheme, modifiers, cluster, seeds)
        code = _run_framework(framework, asked, python, env)
    click.get_current_context().exit(code)


def _named(name: str | None) -> str | None:
    if name is not None and not name.strip():
        raise UsageError("--name is empty")
    return name


def _with_seeds(asked: RecordingOptions, seeds: int | None) -> list[RecordingOptions]:
    """The runs that are asked for: one, or one for each seed in a directory of its own."""
    if seeds is None:
        return [asked]
    from perfscope.runners.starting.outer_launcher import find_outer

    if asked.output is None:
        raise UsageError("--seeds makes several runs; name their directory with -o DIR")
    if find_outer(os.environ) is not None:
        raise UsageError("--seeds starts several runs, which ranks of an outer launcher cannot; give --seed")
    first = int(asked.settings.get("seed") or 0)
    runs = []
    for seed in range(first, first + seeds):
        output = asked.output / f"seed-{seed}"
        if not asked.dry_run:
            _require_room(output, asked.force)
        runs.append(replace(asked, output=output, click_options={**asked.click_options, "seed": seed}))
    return runs


def _named_scheme(scheme: str | None, python: str | None, env: str | None) -> str:
    if python is not None or env is not None:
        raise UsageError("--python and --env name the Python of a --framework; name that, too")
    if scheme is None:
        raise UsageError("name a SCHEME (`perfscope bench list` shows them), a --mesh or a --framework")
    return scheme


def _run_framework(framework: str, asked: RecordingOptions, python: str | None, env: str | None) -> int:
    from perfscope.cli.bench.framework import run_framework

    return run_framework(framework, asked, python=python, env=env)


def _run_scheme(scheme: str, asked: RecordingOptions, modifiers: tuple[str, ...], cluster: str | None) -> int:
    """Plans, trains and tells; the code to exit with. Raises PerfscopeError: it cannot be."""
    planned_job, spec = planned(scheme, asked.settings, modifiers, cluster)
    job = with_known_link(planned_job, spec, os.environ)
    from perfscope.runners.identity import identity
    from perfscope.runners.starting.guard import bench_mark
    from perfscope.runners.starting.launching import launch_for, shared_run_dir
    from perfscope.runners.world import check_devices

    launch = launch_for(job.config, os.environ, spec)
    backend = job.config.backend
    record = identity(job, backend="gloo" if backend == "auto" else backend)
    recording, notes = _whole_periods(asked.recording, record)
    notes = [*ignored_settings(job), *notes, *chunk_notes(job), *launch.notes]
    if asked.dry_run:
        _print_plan(record, launch, notes, asked.as_json)
        return 0
    if not launch.joins:
        check_devices(job.config, launch.num_here)
        require_memory(job, launch.num_here)
    environment = {**launch.environment, **bench_mark()}
    output = asked.output
    if launch.joins:  # all ranks record into one directory, which the first to come makes
        shared = output or shared_run_dir(os.environ, planned_job.config)
        if shared is not None:
            environment[ENV_RUN_DIR], output = str(Path.cwd() / shared), None
    measured = "off" if launch.joins and has_elder(os.environ) else asked.ceilings
    recorded = RecordedRequest(
        RunRequest(
            command=tuple(launch.command),
            output=output,
            force=asked.force,
            name=asked.name or job.config.full_name,
            labels=asked.labels,
            probe=probe_options(**recording, samples_per_step=job.config.batch),
            host=host_duties(measured, tell=os.isatty(2)),
            options={"ceilings": asked.ceilings, "cluster": None if spec is None else str(spec)},
            scheme=record,
            environment=environment,
        )
    )
    for note in notes:
        say(note)
    code = recorded.run(os.environ)
    # Of several joined wrappers none prints: the others may still write.
    if code == 0 and not launch.joins and recorded.run_dir is not None:
        _print_figures(recorded.run_dir, asked.as_json)
    return code


def _end_with_sweep() -> None:
    """A run of a sweep ends when the sweep is killed, as if it were asked to."""
    sweep = os.environ.get(ENV_SWEEP, "")
    if sweep.isdigit() and int(sweep) == os.getppid():
        from perfscope.runners.starting.kernel import die_with_parent

        die_with_parent(signal.SIGTERM, int(sweep))


def has_elder(environment: Mapping[str, str]) -> bool:
    """Whether another rank of this host measures its peaks: several at once would disturb each other."""
    from perfscope.runners.starting.outer_launcher import find_outer

    outer = find_outer(environment)
    return outer is not None and outer.local_rank > 0


def _require_room(output: Path | None, force: bool) -> None:
    """Refuses a place that will not be written, before any time is spent on the plan.

    What prevents it later (no rights, a full disk) is found when the directory is made.

    Raises:
        UsageError: something is there that must not be replaced.
    """
    from perfscope.rundir.recording import LOCK
    from perfscope.rundir.writer import holds_run
    from perfscope.runners.starting.outer_launcher import find_outer

    if output is None or find_outer(os.environ) is not None:  # ranks of one job share a directory
        return
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file; choose another -o")
    if not output.is_dir() or all(path.name == LOCK for path in output.iterdir()):
        return
    if not holds_run(output):
        raise UsageError(f"{output} is not empty and holds no perfscope run; choose another -o")
    if not force:
        raise UsageError(f"{output} already holds a run; choose another -o, or give --force to replace it")


def _whole_periods(
    recording: Mapping[str, Any], record: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Options of the recording whose windows hold a whole period, and a note where the user's do not."""
    period, steps = period_of(record), int(recording["steps_per_window"])
    if steps % period == 0:
        return dict(recording), []
    source = click.get_current_context().get_parameter_source("steps_per_window")
    if source is not ParameterSource.DEFAULT:
        note = (
            f"windows of {counted(steps, 'step')} hold no whole period of {period} steps: "
            "what they show of communication is not the mean"
        )
        return dict(recording), [note]
    return {**recording, "steps_per_window": period}, []


def _print_plan(record: dict[str, Any], launch: Launch, notes: Sequence[str], as_json: bool) -> None:
    if as_json:
        plan = {
            "schema_version": SCHEMA_VERSION,
            "scheme": record,
            "command": list(launch.command),
            "notes": list(notes),
        }
        print_result(json.dumps(plan, indent=1, ensure_ascii=False) + "\n")
        return
    from perfscope.cli.bench.text import plan_text

    print_result(plan_text(record, launch.command, notes))


def _print_figures(run_dir: Path, as_json: bool) -> None:
    from perfscope.cli.bench.analysis import finished_run
    from perfscope.cli.bench.text import verdict_text

    finished = finished_run(run_dir)
    if as_json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "run": str(run_dir),
            "scheme": finished.scheme,
            "figures": finished.figures,
        }
        print_result(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    else:
        print_result(verdict_text(finished.scheme, finished.figures))
