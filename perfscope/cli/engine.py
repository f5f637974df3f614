"""--engine, --jobs and --scheduler: where a command's work runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from concurrent.futures import Executor

ENGINE_TITLE, ENGINE_NAMES = "Where the work runs", ("engine", "jobs", "scheduler")
MANY_RANKS = 128  # fewer are read faster by one process than others can be started

_OPTIONS = (
    click.option(
        "--engine",
        type=click.Choice(("local", "dask", "mpi")),
        help="Where the work runs: processes of this machine, workers of Dask, or the ranks of mpiexec or "
        "srun. [default: local]",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Worker processes. [default: one per CPU, if there is work for them]",
    ),
    click.option(
        "--scheduler",
        metavar="ADDRESS|FILE",
        help="With --engine dask: a scheduler that runs. [default: workers of this machine]",
    ),
)


class Engine(NamedTuple):
    """Where the work of a command runs; `is_chosen`: the user says so, however little there is."""

    executor: Executor | None
    is_chosen: bool

    def for_ranks(self, num_ranks: int) -> Executor | None:
        """For an analysis of so many ranks."""
        return self.executor if self.is_chosen or num_ranks >= MANY_RANKS else None


UNSTATED = Engine(None, is_chosen=False)  # for commands without these options


def engine_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options to a command, which gets an `engine` that lasts as long as it runs."""

    @functools.wraps(function)
    def with_engine(
        *args: Any, engine: str | None, jobs: int | None, scheduler: str | None, **options: Any
    ) -> None:
        from perfscope.engines.opening import open_executor

        is_chosen = engine is not None or jobs is not None
        with open_executor(engine or "local", jobs=jobs, scheduler=scheduler) as executor:
            function(*args, engine=Engine(executor, is_chosen), **options)

    command: Callable[..., None] = with_engine
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
