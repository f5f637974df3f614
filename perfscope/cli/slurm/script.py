"""`perfscope slurm script`: parse, print."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import print_result
from perfscope.cli.slurm.options import job_options, job_request

CONTEXT = {"allow_interspersed_args": False, **HELP}


@click.command("script", context_settings=CONTEXT, options_metavar="[OPTIONS]")
@click.argument("command_line", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@job_options
def command(command_line: tuple[str, ...], **options: Any) -> None:
    """Print a batch script that trains COMMAND under `perfscope run`.

    Plain bash, to read, change and keep: the #SBATCH header, the site's modules and environment, how the
    framework's processes find each other, binding, a look at who else uses the nodes before and after, and
    `perfscope run`. Without -o the run goes to perfscope-runs/slurm-<job id>.

    \b
    Examples:
      perfscope slurm script --framework torch -N 2 --ntasks-per-node 4 -c 8 -- python train.py > job.sh
      perfscope slurm script --framework torch --torchrun --gpus-per-node 4 -N 2 --ntasks-per-node 4 \\
          -- python train.py
      perfscope slurm script --framework mpi --mpi pmi2 --ntasks-per-node 16 --shared -- ./heat.py
      sbatch job.sh

    \b
    perfscope-site.toml, here or in a folder above, holds what every job of a site needs:
      modules = ["cuda/12.4"]
      setup = ["source .venv/bin/activate"]
      partition = "gpu"
      account = "project42"
    """
    job = job_request(command_line, **options)
    from perfscope.slurm.quoting import file_pattern
    from perfscope.slurm.script import batch_script

    if job.run is not None:
        from pathlib import PurePath

        base = file_pattern(PurePath(job.run).name)
        job = replace(job, log=f"{base}-%A_%a.log" if job.array else f"{base}-%j.log")
    elif job.array:
        job = replace(job, log="%x-%A_%a.log")
    print_result(batch_script(job))
