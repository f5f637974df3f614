"""`perfscope run`: parse, call, exit with the command's code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from perfscope.cli.host_duties import host_duties
from perfscope.cli.labels import parse_labels
from perfscope.errors import EXIT_OWN_FAILURE, PerfscopeError, UsageError
from perfscope.launch.environment import ProbeOptions
from perfscope.launch.process import CommandNotStarted
from perfscope.launch.session import RunRequest, describe_run, run_command, say
from perfscope.units import parse_ns, parse_ratio

SHORTEST_MS, LONGEST_MS = 10.0, 60_000.0


def _to_ratio(ctx: click.Context, param: click.Parameter, value: str) -> float:
    try:
        return parse_ratio(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a share such as `1%` or `0.01`", ctx, param) from None


def _to_interval(ctx: click.Context, param: click.Parameter, value: str) -> float | None:
    """Milliseconds; None for `off`."""
    if value.strip().lower() in ("off", "0"):
        return None
    try:
        milliseconds = parse_ns(value) / 1e6
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time such as `100ms` or `1s`", ctx, param) from None
    if not SHORTEST_MS <= milliseconds <= LONGEST_MS:
        raise click.BadParameter(
            f"{value!r} is not between {SHORTEST_MS:.0f} ms and {LONGEST_MS / 1000:.0f} s", ctx, param
        )
    return milliseconds


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    options_metavar="[OPTIONS]",
)
@click.argument("command_line", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="DIR", help="Run directory to make.")
@click.option("--force", is_flag=True, help="Replace a run that is already in DIR.")
@click.option("--name", metavar="TEXT", help="Name of the run (default: the script's name).")
@click.option(
    "--label", "labels", multiple=True, metavar="KEY=VALUE", help="Keep a label with the run; repeatable."
)
@click.option(
    "--overhead",
    callback=_to_ratio,
    default="1%",
    show_default=True,
    metavar="SHARE",
    help="Training time that traced windows may cost.",
)
@click.option(
    "--windows",
    type=click.IntRange(0, 1000),
    default=3,
    show_default=True,
    help="Windows to trace; 0 traces none.",
)
@click.option(
    "--steps-per-window",
    type=click.IntRange(1, 1000),
    default=2,
    show_default=True,
    help="Steps in one window.",
)
@click.option("--no-trace", is_flag=True, help="Record steps only, trace no windows.")
@click.option(
    "--samples-per-step",
    type=click.IntRange(1),
    metavar="N",
    help="Samples in a step over all ranks (default: derived from the input tensors).",
)
@click.option(
    "--sample-interval",
    callback=_to_interval,
    default="100ms",
    show_default=True,
    metavar="TIME",
    help="How often hardware counters are read; `off` reads none.",
)
@click.option(
    "--ceilings",
    type=click.Choice(["auto", "refresh", "off"]),
    default="auto",
    show_default=True,
    help="Measure this host's peaks before the command starts: at most 2 s, once per host.",
)
@click.option("--stacks", is_flag=True, help="Sample the ranks' Python stacks with py-spy, in short bursts.")
@click.option("--dry-run", is_flag=True, help="Print what would be run, and make nothing.")
def command(
    command_line: tuple[str, ...],
    output: Path | None,
    force: bool,
    name: str | None,
    labels: tuple[str, ...],
    ceilings: str,
    dry_run: bool,
    **how: Any,
) -> None:
    """Run a training command, unmodified, and record where its steps go.

    The command keeps its stdin, stdout, stderr, signals and exit code; perfscope writes a run
    directory (default: perfscope-runs/<time>-<name>-<4 hex>, also reachable as
    perfscope-runs/latest) and a few lines on stderr at the end.

    \b
    Examples:
      perfscope run -- python train.py --epochs 3
      perfscope run -- torchrun --standalone --nproc-per-node 4 train.py
      perfscope run -o runs/bigger-batch --label batch=64 -- ./train.sh
      perfscope run --overhead 0.5% --windows 5 -- mpirun -np 8 python train.py
      perfscope run --sample-interval 1s --stacks -- python train.py

    \b
    Exit codes:
      the command's own; 128+N when signal N ended it; 126 not executable;
      127 not found; 125 when perfscope could not start it; 2 wrong options.

    \b
    Several nodes, one launcher each (torchrun --nnodes 2): every node makes its own
    run directory, or all share one if PERFSCOPE_RUN_DIR names it on every node.
    """
    if not command_line:
        raise UsageError(
            "no command given; write `perfscope run -- python train.py` (see perfscope run --help)"
        )
    if name is not None and not name.strip():
        raise UsageError("--name is empty")
    request = RunRequest(
        command=command_line,
        output=output,
        force=force,
        name=name,
        labels=parse_labels(labels),
        probe=_probe_options(**how),
        host=host_duties(ceilings, tell=os.isatty(2)),
        options={"ceilings": ceilings},
    )
    context = click.get_current_context()
    try:
        if dry_run:
            click.echo(describe_run(request, os.environ))
            return
        code = run_command(request, os.environ)
    except CommandNotStarted as error:
        say(str(error))
        code = error.exit_code
    except UsageError:
        raise
    except PerfscopeError as error:
        error.exit_code = EXIT_OWN_FAILURE  # the user's code 1 must stay distinguishable from ours
        raise
    context.exit(code)


def _probe_options(
    *,
    overhead: float,
    windows: int,
    steps_per_window: int,
    no_trace: bool,
    samples_per_step: int | None,
    sample_interval: float | None,
    stacks: bool,
) -> ProbeOptions:
    if stacks and sample_interval is None:
        raise UsageError("--stacks needs the sampler; leave out `--sample-interval off`")
    if stacks:
        from perfscope.collectors.stacks.bursts import missing_py_spy

        problem = missing_py_spy()
        if problem is not None:
            raise UsageError(f"--stacks: {problem}")
    return ProbeOptions(
        overhead=overhead,
        windows=windows,
        steps_per_window=steps_per_window,
        trace=not no_trace and windows > 0,
        samples_per_step=samples_per_step,
        sampling=sample_interval is not None,
        sample_interval_ms=sample_interval or 0,
        stacks=stacks,
    )
