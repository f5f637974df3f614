"""`perfscope slurm`: a group of its own, one file per command."""

from __future__ import annotations

import click

from perfscope.cli.lazy_group import HELP, LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "script": ("perfscope.cli.slurm.script", "Print the batch script of a recorded training."),
    "submit": ("perfscope.cli.slurm.submit", "Submit it, follow it, and bring back the report."),
    "follow": ("perfscope.cli.slurm.follow", "Follow a job, and put what Slurm knows of it into its run."),
    "report": ("perfscope.cli.slurm.report", "Write the report of a run with the CPUs of a job."),
    "close": ("perfscope.cli.slurm.close", "Mark a run as incomplete whose job was ended."),
}


@click.group("slurm", cls=LazyGroup, table=COMMANDS, context_settings=HELP)
def command() -> None:
    """Record trainings as batch jobs of Slurm, and report large ones in jobs.

    Inside a job that you have already, `srun perfscope run -- python train.py` and
    `perfscope run -- srun python train.py` need none of this.

    \b
    Examples:
      perfscope slurm script --framework torch --nodes 2 --ntasks-per-node 4 -- python train.py > job.sh
      perfscope slurm submit --framework torch --nodes 2 --ntasks-per-node 4 --time 30 -- python train.py
      perfscope slurm follow 4711
      perfscope slurm report my-run --nodes 4 --time 10
      perfscope bench sweep examples/hybrid.toml --slurm --partition cpu --array-limit 4
    """
