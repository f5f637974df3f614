"""`perfscope slurm report`: `perfscope report` with the workers of a job."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from perfscope.cli.lazy_group import HELP
from perfscope.cli.report import command as report
from perfscope.cli.slurm.options import resource_options, resources_request
from perfscope.errors import PerfscopeError

_OF_REPORT = {param.name: param for param in report.params}
_OUTPUTS = ("html_file", "pdf_file", "as_json", "as_text", "full", "sections", "width")


@click.command("report", context_settings=HELP)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-N", "--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes.")
@click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="Workers. [default: one per CPU of the job]"
)
@resource_options
def command(run: Path, nodes: int, jobs: int | None, **options: Any) -> None:
    """Write the report of RUN with Dask workers on the nodes of a Slurm job.

    Inside a job (a batch script, a shell of salloc) its CPUs are used; elsewhere salloc allocates what the
    options ask for. The nodes must share RUN.

    \b
    Examples:
      salloc -N 4 --exclusive -t 10 perfscope slurm report my-run
      perfscope slurm report my-run -N 4 -t 10 --json > report.json
    """
    outputs = {name: options.pop(name) for name in _OUTPUTS}
    _require_dask()
    from perfscope.rundir.reader import RunReader
    from perfscope.slurm.dask_steps import dask_steps, find_allocation

    RunReader(run)  # what is no run needs no job
    allocation = find_allocation(os.environ)
    if allocation is None:
        _allocate(nodes, options)
    else:
        with dask_steps(allocation, run, jobs) as scheduler:
            context = click.get_current_context()
            how = {"engine": "dask", "jobs": None, "scheduler": str(scheduler)}
            context.invoke(report, sources=(run,), **outputs, **how)


command.params += [_OF_REPORT[name] for name in _OUTPUTS]


def _require_dask() -> None:
    from importlib.util import find_spec

    if find_spec("distributed") is None:
        raise PerfscopeError(
            "`perfscope slurm report` needs Dask: python -m pip install 'distributed>=2024.1', or "
            "perfscope-hpc[cluster]"
        )


def _allocate(nodes: int, options: dict[str, Any]) -> None:
    """Becomes salloc, which runs this command again inside the job, and ends the job with it."""
    from perfscope.slurm.programs import SlurmError
    from perfscope.slurm.script import options_of

    job = replace(resources_request("report", log="", **options), nodes=nodes)
    salloc_options = [
        f"--{name}" if value is None else f"--{name}={value}" for name, value in options_of(job)
    ]
    again = [sys.executable, "-m", "perfscope", *sys.argv[1:]]
    try:
        os.execvp("salloc", ["salloc", "--quiet", "--kill-command=TERM", *salloc_options, *again])
    except OSError:
        raise SlurmError(
            "salloc is not on PATH: go to a login node of the cluster, or load Slurm's module"
        ) from None
