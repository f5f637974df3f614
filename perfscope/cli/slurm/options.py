"""Options of a batch job, and the job they ask for together with the site's file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from perfscope.cli.lazy_group import with_options
from perfscope.errors import UsageError
from perfscope.slurm.request import BY_MPI, FRAMEWORKS, JobRequest, job_name
from perfscope.slurm.site import FILE, Option, Site, find_site, more_options, read_site

_F = TypeVar("_F", bound=Callable[..., Any])
_TIME = re.compile(r"\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+(?::\d\d){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|m|min|h|d)?")
_SECONDS = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_OURS = ("-o", "--output", "--name", "--force", "--dry-run", "-h", "--help", "--")


def _to_time(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _TIME.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no time such as 30 (minutes), 1:30:00 or 2-12", ctx, param)
    return value


def _to_seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    match = _DURATION.fullmatch(value.strip())
    if not match:
        raise click.BadParameter(f"{value!r} is no time such as 90s, 10m or 2h", ctx, param)
    return float(match[1]) * _SECONDS[match[2] or ""]


_RESOURCES = (
    click.option("-c", "--cpus-per-task", type=click.IntRange(1), metavar="N", help="CPUs of each process."),
    click.option("--gpus-per-node", metavar="[TYPE:]N", help="GPUs of each node."),
    click.option("--mem", metavar="SIZE", help="Memory of each node, e.g. 64G."),
    click.option("-t", "--time", callback=_to_time, metavar="TIME", help="Time limit: minutes, H:M:S, D-H."),
    click.option("-p", "--partition", metavar="NAME", help="Partition."),
    click.option("-A", "--account", metavar="NAME", help="Account."),
    click.option("-q", "--qos", metavar="NAME", help="Quality of service."),
    click.option("-C", "--constraint", metavar="TEXT", help="Features that the nodes must have."),
    click.option(
        "--exclusive/--shared",
        "exclusive",
        default=None,
        help="Whole nodes, or with others.  [default: whole nodes, unless the site file says clean = false]",
    ),
    click.option("-J", "--job-name", metavar="TEXT", help="Name of the job.  [default: the script's]"),
    click.option(
        "--sbatch",
        "more",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Any other option of sbatch; repeatable.",
    ),
    click.option(
        "--site",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"Settings of the site.  [default: {FILE} here or in a folder above]",
    ),
)
_JOB = (
    click.option(
        "--framework",
        type=click.Choice(FRAMEWORKS),
        required=True,
        help="How the processes find each other.",
    ),
    click.option("-N", "--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes."),
    click.option(
        "--ntasks-per-node", type=click.IntRange(1), default=1, show_default=True, help="Processes per node."
    ),
    *_RESOURCES,
    click.option("--array", metavar="LIST", help="As of sbatch; every task makes a run of its own."),
    click.option(
        "--requeue/--no-requeue",
        "requeue",
        default=None,
        help="Start again after a node failed.  [default: as the cluster is set up]",
    ),
    click.option("--torchrun", is_flag=True, help="torch: one torchrun per node, no process per task."),
    click.option("--horovodrun", is_flag=True, help="horovod: horovodrun with the job's hosts, not srun."),
    click.option(
        "--servers-per-node",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="mxnet: parameter servers.",
    ),
    click.option("--mpi", metavar="TYPE", help="As of srun.  [default: pmix for mpi and horovod]"),
    click.option("--cpu-bind", metavar="TEXT", help="As of srun.  [default: cores with --cpus-per-task]"),
    click.option("--mem-bind", metavar="TEXT", help="As of srun, e.g. local: memory of the own NUMA node."),
    click.option("--gpu-bind", metavar="TEXT", help="As of srun, e.g. closest."),
    click.option("--interface", metavar="NAME", help="Network interface for the framework, e.g. ib0."),
    click.option("--stage", metavar="TEXT", help="Shell command run once per node before the clock starts."),
    click.option(
        "--record", metavar="TEXT", help="Options of `perfscope run` in one quoted word: '--windows 5'."
    ),
    click.option(
        "-o", "--output", type=click.Path(), metavar="RUN", help="Run directory that the job is to make."
    ),
)
_WAITING = (
    click.option("--no-wait", is_flag=True, help="Print the job's id and leave it alone."),
    click.option(
        "--timeout-pending",
        callback=_to_seconds,
        metavar="TIME",
        help="Wait so long for the job to start (10m, 2h), then leave it in the queue.",
    ),
)


def resource_options(function: _F) -> _F:
    """What one node of a job is asked for."""
    return with_options(_RESOURCES, function)


def job_options(function: _F) -> _F:
    """Everything a job can be."""
    return with_options(_JOB, function)


def waiting_options(function: _F) -> _F:
    """--no-wait and --timeout-pending."""
    return with_options(_WAITING, function)


def job_request(
    command: tuple[str, ...],
    *,
    framework: str,
    output: str | None,
    nodes: int,
    ntasks_per_node: int,
    torchrun: bool,
    horovodrun: bool,
    record: str | None,
    mpi: str | None,
    site: Path | None,
    more: tuple[str, ...],
    job_name: str | None,
    exclusive: bool | None,
    **options: Any,
) -> JobRequest:
    """The job that the options ask for, with what the site file says where they say nothing.

    Raises:
        UsageError: they contradict each other, or the site file cannot be.
    """
    if not command:
        raise UsageError("no command given; write `perfscope slurm submit ... -- python train.py`")
    _require_fit(framework, torchrun=torchrun, horovodrun=horovodrun)
    settings = the_site(site)
    if mpi is None and framework in BY_MPI and not horovodrun:
        mpi = settings.mpi or "pmix"
    of_site = with_site(options, settings)
    return JobRequest(
        command=command,
        framework=framework,
        name=job_name or default_name(command),
        run=output,
        nodes=nodes,
        tasks_per_node=ntasks_per_node,
        torchrun=torchrun,
        horovodrun=horovodrun,
        mpi=mpi,
        exclusive=settings.clean if exclusive is None else exclusive,
        clean=settings.clean,
        modules=settings.modules,
        setup=settings.setup,
        options=(*more_options(settings.options, "[options]"), *_more(more)),
        record=_record(record),
        **of_site,
    )


def default_name(command: tuple[str, ...]) -> str:
    """The job's name where none is given."""
    return job_name(command)


def the_site(file: Path | None) -> Site:
    """The settings of the site: of `file`, else of the nearest file, else nothing."""
    site_file = file or find_site(Path.cwd())
    return read_site(site_file) if site_file is not None else Site()


def with_site(options: dict[str, Any], site: Site) -> dict[str, Any]:
    """Options that were not given as the site has them."""
    return {name: getattr(site, name, None) if value is None else value for name, value in options.items()}


def resources_request(
    name: str,
    *,
    log: str,
    site: Path | None,
    more: tuple[str, ...],
    job_name: str | None,
    exclusive: bool | None,
    **options: Any,
) -> JobRequest:
    """A job of one node for the tasks of an array, from `resource_options`."""
    settings = the_site(site)
    return JobRequest(
        command=(),
        framework="torch",
        name=job_name or name,
        log=log,
        exclusive=settings.clean if exclusive is None else exclusive,
        modules=settings.modules,
        setup=settings.setup,
        options=(*more_options(settings.options, "[options]"), *_more(more)),
        **with_site(options, settings),
    )


def asked_of(job: JobRequest) -> dict[str, str]:
    """What Slurm may not know, by the name of the option."""
    options = {"partition": job.partition, "account": job.account, "qos": job.qos}
    return {name: value for name, value in options.items() if value is not None}


def _more(options: tuple[str, ...]) -> tuple[tuple[str, str | None], ...]:
    """`--sbatch hint=nomultithread`, with or without dashes."""
    table: dict[str, Option] = {}
    for word in options:
        name, equals, value = word.lstrip("-").partition("=")
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
            raise UsageError(f"--sbatch {word!r} is not NAME or NAME=VALUE, such as hint=nomultithread")
        table[name] = value if equals else True
    return more_options(table, "--sbatch")


def _require_fit(framework: str, *, torchrun: bool, horovodrun: bool) -> None:
    if torchrun and framework != "torch":
        raise UsageError(f"--torchrun starts torch, not {framework}; leave it out")
    if horovodrun and framework != "horovod":
        raise UsageError(f"--horovodrun starts Horovod, not {framework}; leave it out")


def _record(text: str | None) -> tuple[str, ...]:
    """Options of `perfscope run`, checked by its own parser."""
    if text is None:
        return ()
    try:
        options = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--record {text!r} cannot be read: {error}") from None
    for word in options:
        if word.partition("=")[0] in _OURS:
            raise UsageError(f"--record: {word} is set by `perfscope slurm` itself; leave it out")
    from perfscope.cli.run import command as run

    try:
        context = run.make_context("run", [*options, "--", "true"])
    except click.UsageError as error:
        raise UsageError(f"--record {text!r}: {error.format_message()}") from None
    if tuple(context.params["command_line"]) != ("true",):
        raise UsageError(f"--record {text!r} holds a word that is no option of `perfscope run`")
    return tuple(options)
