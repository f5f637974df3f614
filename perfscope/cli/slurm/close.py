"""`perfscope slurm close`: for batch scripts, which know best that they were ended."""

from __future__ import annotations

from pathlib import Path

import click

from perfscope.cli.lazy_group import HELP
from perfscope.errors import RunDirectoryError, UsageError


@click.command("close", context_settings=HELP)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--reason", metavar="TEXT", required=True, help="Why the run is only a part, in one line.")
@click.option(
    "--unless-finished", is_flag=True, help="Leave a run alone whose command ended with exit code 0."
)
def command(run: Path, reason: str, unless_finished: bool) -> None:
    """Mark RUN as incomplete: its job was ended before the training was.

    The batch script calls this when Slurm ends the job. What was recorded stays readable; reports and
    comparisons say that it is a part.

    \b
    Examples:
      perfscope slurm close perfscope-runs/slurm-4711 --reason "preempted"
    """
    from perfscope.slurm.record import close_run

    if not reason.strip() or not reason.isprintable():
        raise UsageError("--reason is empty, or holds a line break")
    if not close_run(run, reason.strip(), unless_finished=unless_finished):
        raise RunDirectoryError(f"{run} holds no run that could be closed")
