"""Which rank is this process? Asked once, when the process proves that it trains."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Mapping, NamedTuple, Optional

from ..rundir import layout

# In order of trust. The first launcher variable set to a number wins.
RANK_VARIABLES = (
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "HOROVOD_RANK",
    "SLURM_PROCID",
)
LOCAL_RANK_VARIABLES = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "HOROVOD_LOCAL_RANK",
    "SLURM_LOCALID",
)
WORLD_VARIABLES = (
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "HOROVOD_SIZE",
    "SLURM_NTASKS",
)


class Identity(NamedTuple):
    """A process among its peers; `rank` is None when nothing says which it is."""

    rank: Optional[int]
    local_rank: Optional[int]
    world_size: Optional[int]
    source: str


def _first_number(environment: Mapping[str, str], names: tuple) -> tuple:
    for name in names:
        value = environment.get(name, "")
        if value.isdigit():
            return int(value), name
    return None, ""


def identify(environment: Optional[Mapping[str, str]] = None) -> Identity:
    """Rank of this process: torch.distributed first, then the launchers' variables."""
    env = os.environ if environment is None else environment
    local_rank, _ = _first_number(env, LOCAL_RANK_VARIABLES)
    dist = sys.modules.get("torch.distributed")
    if dist is not None and getattr(dist, "is_initialized", lambda: False)():
        return Identity(dist.get_rank(), local_rank, dist.get_world_size(), "torch.distributed")
    rank, source = _first_number(env, RANK_VARIABLES)
    world_size, _ = _first_number(env, WORLD_VARIABLES)
    return Identity(rank, local_rank, world_size, source)


def claim(ranks_dir: str, identity: Identity) -> tuple:
    """Make this process's own directory under `ranks_dir`.

    A known rank gets its number; when another process of the run already took it (an elastic restart),
    `<rank>.<k>`. An unknown rank gets the lowest number that no living process holds: processes that train
    side by side are ranks of their own, trainings one after the other in a script are `0`, `0.1`, ...

    Returns:
        (rank, attempt k, path of the directory made).

    Raises:
        OSError: the run directory cannot be written.
    """
    os.makedirs(ranks_dir, exist_ok=True)
    rank, attempt = identity.rank or 0, 0
    while True:
        path = os.path.join(ranks_dir, "%d.%d" % (rank, attempt) if attempt else str(rank))
        try:
            os.mkdir(path)
        except FileExistsError:
            if identity.rank is None and (_is_worker() or _held(path)):
                rank, attempt = rank + 1, 0
            else:
                attempt += 1
            continue
        return rank, attempt, path


def _is_worker() -> bool:
    """True in a process that multiprocessing started: such are peers, however short each of them lives."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    parent = getattr(multiprocessing, "parent_process", lambda: None)
    return parent() is not None


def _held(path: str) -> bool:
    """True when the process that took `path` still lives, or has not yet said who it is."""
    try:
        with open(os.path.join(path, layout.RANK_JSON)) as file:
            meta = json.load(file)
    except (OSError, ValueError):
        return True
    if meta.get("finished") or meta.get("host") != socket.gethostname():
        return not meta.get("finished")
    try:
        os.kill(meta["pid"], 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
