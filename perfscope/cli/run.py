"""`perfscope run`: parse, call, exit with the command's code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from perfscope.cli.host_duties import host_duties
from perfscope.cli.labels import parse_labels
from perfscope.cli.lazy_group import HELP, GroupedCommand
from perfscope.cli.run_options import (
    hardware_options,
    label_options,
    place_options,
    probe_options,
    tracing_options,
    watch_options,
    watched,
)
from perfscope.cli.run_verdict import verdict_lines
from perfscope.errors import EXIT_OWN_FAILURE, PerfscopeError, UsageError
from perfscope.launch.process import CommandNotStarted
from perfscope.launch.session import RunRequest, describe_run, run_command
from perfscope.notices import say

_WATCHING = ("live", "live_interval", "metrics_file", "metrics_interval")


@click.command(
    "run",
    cls=GroupedCommand,
    groups={
        "Run directory": ("output", "force", "name", "labels", "keep_command_line"),
        "Traced windows": (
            *("overhead", "windows", "steps_per_window", "no_trace"),
            *("layer_counters", "allocations"),
        ),
        "While it runs": ("live", "live_interval", "metrics_file", "metrics_interval", "hang_after"),
        "Machine": ("sample_interval", "ceilings", "stacks"),
    },
    context_settings={"allow_interspersed_args": False, **HELP},
    options_metavar="[OPTIONS]",
)
@click.argument("command_line", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@place_options
@click.option("--name", metavar="TEXT", help="Name of the run (default: the script's name).")
@label_options
@tracing_options
@click.option(
    "--samples-per-step",
    type=click.IntRange(1),
    metavar="N",
    help="Samples in a step over all ranks (default: derived from the input tensors).",
)
@watch_options
@hardware_options
@click.option("--stacks", is_flag=True, help="Sample the ranks' Python stacks with py-spy, in short bursts.")
@click.option(
    "--layer-counters",
    is_flag=True,
    help="Read page faults, CPU time and the PMU's counters at layers of traced steps.",
)
@click.option(
    "--allocations",
    is_flag=True,
    help="Record PyTorch's allocations and frees in traced windows: memory over the step, and what ran at "
    "its peak.",
)
@click.option(
    "--keep-command-line",
    is_flag=True,
    help="Record the command line as it is; by default what looks like a secret in it is hidden.",
)
@click.option(
    "--verdict/--no-verdict",
    "with_verdict",
    default=True,
    envvar="PERFSCOPE_VERDICT",
    help="End with what bounds the step, in two lines, where that takes seconds. Default: on.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be run, and make nothing.")
def command(
    command_line: tuple[str, ...],
    output: Path | None,
    force: bool,
    name: str | None,
    labels: tuple[str, ...],
    ceilings: str,
    keep_command_line: bool,
    with_verdict: bool,
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
      perfscope run --live --metrics-file /var/lib/node_exporter/train.prom -- ./train.sh

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
    watch = watched(**{name: how.pop(name) for name in _WATCHING}, hang_after=how["hang_after"])
    probe = probe_options(**how)
    request = RunRequest(
        command=command_line,
        output=output,
        force=force,
        name=name,
        labels=parse_labels(labels),
        probe=probe,
        host=host_duties(ceilings, tell=os.isatty(2), watched=watch),
        options={"ceilings": ceilings},
        keep_command_line=keep_command_line,
        conclude=verdict_lines if with_verdict else None,
    )
    click.get_current_context().exit(_start(request, dry_run=dry_run))


def _start(request: RunRequest, *, dry_run: bool) -> int:
    """The code to exit with."""
    try:
        if dry_run:
            click.echo(describe_run(request, os.environ))
            return 0
        return run_command(request, os.environ)
    except CommandNotStarted as error:
        say(str(error))
        return error.exit_code
    except UsageError:
        raise
    except PerfscopeError as error:
        error.exit_code = EXIT_OWN_FAILURE  # the user's code 1 must stay distinguishable from ours
        raise
