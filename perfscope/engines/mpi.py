"""The processes of an MPI job: the first runs the command, the others its calls."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import cast

from perfscope.errors import PerfscopeError, UsageError


@contextmanager
def mpi_executor() -> Iterator[Executor]:
    """Calls run on ranks 1 and up of MPI.COMM_WORLD.

    Raises:
        PerfscopeError: mpi4py or its MPI library is not installed.
        UsageError: the job has one process.
        SystemExit: on ranks 1 and up, once rank 0 has left the context.
    """
    try:
        from mpi4py import MPI
        from mpi4py.futures import MPICommExecutor
    except (ImportError, RuntimeError) as error:  # RuntimeError: there is no MPI library
        reason = str(error).partition("\n")[0]
        raise PerfscopeError(
            f"--engine mpi needs mpi4py and an MPI: python -m pip install mpi4py mpich ({reason})"
        ) from None
    if MPI.COMM_WORLD.Get_size() == 1:
        raise UsageError("--engine mpi: start several processes, as `mpiexec -n 8 perfscope report RUN`")
    with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
        if executor is not None:
            yield cast(Executor, executor)
            return
    raise SystemExit(0)
