"""One way to every engine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from perfscope.errors import UsageError


@contextmanager
def executor_or_local(executor: Executor | None) -> Iterator[Executor | None]:
    """The Executor, which stays open; for None that of a local engine, with a job per CPU."""
    if executor is not None:
        yield executor
    else:
        with open_executor() as local:
            yield local


@contextmanager
def open_executor(
    engine: str = "local", *, jobs: int | None = None, scheduler: str | None = None
) -> Iterator[Executor | None]:
    """An Executor, and none of its workers is left when the context ends.

    Args:
        engine: "local", "dask" or "mpi".
        jobs: worker processes that are started here; None = one per CPU.
        scheduler: of dask: its address or file.

    Yields:
        None where this process is to do all work: a local engine with one job.

    Raises:
        UsageError: options that do not go together.
        PerfscopeError: the engine is not installed, or its scheduler does not answer.
    """
    if scheduler is not None and engine != "dask":
        raise UsageError("--scheduler is for --engine dask")
    if jobs is not None and (engine == "mpi" or scheduler is not None):
        raise UsageError("--jobs is for workers started here: not with --engine mpi, nor with --scheduler")
    if engine == "dask":
        from perfscope.engines.dask import dask_executor

        with dask_executor(scheduler, jobs) as executor:
            yield executor
    elif engine == "mpi":
        from perfscope.engines.mpi import mpi_executor

        with mpi_executor() as executor:
            yield executor
    else:
        from perfscope.engines.local import LocalExecutor

        local = LocalExecutor(jobs)
        try:
            yield local if local.jobs > 1 else None
        finally:
            local.stop()
