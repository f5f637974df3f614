"""Workers of Dask: those of a scheduler that runs, or of a cluster on this machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path

from perfscope.engines.local import usable_cpus
from perfscope.errors import PerfscopeError, UsageError

CONNECT_S = 60
# Ctrl-C reaches every process of the terminal; the one that started the workers ends them.
_PRELOAD = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"


@contextmanager
def dask_executor(scheduler: str | None, jobs: int | None) -> Iterator[Executor]:
    """Calls run on the scheduler's workers.

    Args:
        scheduler: its address (tcp://host:8786), or the file it wrote (--scheduler-file); None = workers of
            this machine, which end with the context.
        jobs: of these, how many; None = one per CPU.

    Raises:
        PerfscopeError: Dask is not installed, or the scheduler does not answer.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise PerfscopeError(
            "--engine dask needs Dask: python -m pip install 'distributed>=2024.1', or perfscope-hpc[cluster]"
        ) from None
    if scheduler is None:
        workers = jobs or usable_cpus()
        with (
            LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                dashboard_address=None,
                preload=_PRELOAD,
                silence_logs=logging.ERROR,
            ) as cluster,
            Client(cluster) as client,
        ):
            yield client.get_executor(pure=False)
        return
    named = {"address": scheduler} if "://" in scheduler else {"scheduler_file": scheduler}
    if "scheduler_file" in named and not Path(scheduler).is_file():
        raise UsageError(f"--scheduler {scheduler}: no such file, and no address such as tcp://host:8786")
    try:
        client = Client(**named, timeout=CONNECT_S)
    except (OSError, ValueError, asyncio.TimeoutError) as error:
        raise PerfscopeError(f"the scheduler {scheduler} does not answer: {error}") from None
    with client:
        yield client.get_executor(pure=False)
