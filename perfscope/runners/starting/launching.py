"""From a configuration to the command that starts its ranks, and the environment they need.

    launch_for(config, os.environ, None)          what to start
    shared_run_dir(os.environ, config)            where ranks that were started from outside record together

Nothing is started here: the command goes the way of every other command of `perfscope run`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfscope.children import ask_version, is_open_mpi
from perfscope.rundir import layout
from perfscope.rundir.writer import RUNS
from perfscope.runners.cluster.network import require_rights, require_tools
from perfscope.runners.cluster.spec import ClusterSpec, describe
from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.starting.outer_launcher import Outer, find_outer

ENV_BOUND = "PERFSCOPE_BENCH_BOUND"  # an outer launcher has bound this rank already
_RANK_MODULE = "perfscope.runners.rank"
_ELASTIC_MODULE = "perfscope.runners.starting.elastic"
_CLUSTER_MODULE = "perfscope.runners.cluster"
_PORTS = range(15000, 31000)  # below those that the kernel gives to outgoing connections


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to start for a run.

    Attributes:
        command: its words.
        environment: variables to set besides those that are there.
        joins: this process is one rank of a job that something else has started: the command is that rank
            only, and all ranks record into one directory (`shared_run_dir`).
        num_here: ranks that the command starts.
        notes: lines for the user.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    joins: bool = False
    num_here: int = 1
    notes: tuple[str, ...] = ()


def launch_for(config: BenchConfig, environment: Mapping[str, str], cluster: ClusterSpec | None) -> Launch:
    """How to start the ranks of `config` here.

    Args:
        environment: of this process; tells whether srun, mpirun or torchrun has started it as a rank.
        cluster: emulated hosts to start the ranks on; None = this machine, or whatever has started us.

    Raises:
        BenchError: the ranks cannot be started; the line says what is missing.
    """
    outer = find_outer(environment)
    if cluster is not None:
        return _on_cluster(config, environment, cluster, outer)
    if outer is not None:
        return _join(config, environment, outer)
    if config.backend == "mpi":
        _require_mpi4py()
    if config.num_ranks == 1:
        return Launch(command=_rank_command(config))
    threads = _threads(config, environment, config.num_ranks)
    if config.backend == "mpi":
        mpiexec, *options = mpiexec_command(environment)
        command = (mpiexec, "-n", str(config.num_ranks), *options, *_rank_command(config))
        return Launch(command=command, environment=threads, num_here=config.num_ranks)
    command = (
        *(sys.executable, "-m", _ELASTIC_MODULE, "--standalone", "--nproc-per-node", str(config.num_ranks)),
        *("-m", _RANK_MODULE, config.to_json()),
    )
    return Launch(command=command, environment=threads, num_here=config.num_ranks)


def shared_run_dir(environment: Mapping[str, str], config: BenchConfig | None = None) -> Path | None:
    """The one run directory of all ranks that an outer launcher has started; None = nothing names it.

    PERFSCOPE_RUN_DIR where it is set, else a folder named after the job (and the configuration, as one job
    step may run several), the same on every rank.

    Raises:
        BenchError: the launcher's variables contradict themselves.
    """
    given = environment.get(layout.ENV_RUN_DIR)
    if given:
        return Path(given)
    outer = find_outer(environment)
    if outer is None or outer.job is None:
        return None
    name = outer.job if config is None else f"{outer.job}-{_digest(config.to_json()):08x}"
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
    return Path.cwd() / RUNS / safe


def _on_cluster(
    config: BenchConfig, environment: Mapping[str, str], cluster: ClusterSpec, outer: Outer | None
) -> Launch:
    if outer is not None:
        raise BenchError(
            f"--cluster starts its ranks itself, but {outer.variable} says that {outer.launcher} has started "
            "this process as one: leave one of the two out"
        )
    if config.backend == "mpi":
        raise BenchError("MPI cannot be started on emulated hosts; use --backend gloo with --cluster")
    if cluster.num_ranks != config.num_ranks:
        raise BenchError(
            f"--cluster {cluster} has {cluster.num_ranks} ranks, but the run is for {config.num_ranks}; "
            "make hosts x ranks equal to the number of ranks"
        )
    require_tools()
    require_rights()
    config = replace(config, num_hosts=cluster.num_hosts)
    return Launch(
        command=(
            sys.executable,
            "-m",
            _CLUSTER_MODULE,
            "--quiet",
            str(cluster),
            "--",
            *_rank_command(config),
        ),
        environment=_threads(config, environment, config.num_ranks),
        num_here=cluster.num_ranks,
        notes=tuple(describe(cluster).splitlines()),
    )


def _join(config: BenchConfig, environment: Mapping[str, str], outer: Outer) -> Launch:
    """This process is rank `outer.rank`: tell torch so in its own words."""
    if outer.size != config.num_ranks:
        raise BenchError(
            f"{outer.variable} says that {outer.launcher} has started {outer.size} of this process, "
            f"but the run is for {config.num_ranks} ranks; start as many, or unset {outer.variable}"
        )
    if config.backend == "mpi":
        _require_mpi4py()
    here = outer.local_size or config.num_ranks
    additions = _threads(config, environment, here)
    facts: dict[str, object] = {
        "RANK": outer.rank,
        "WORLD_SIZE": outer.size,
        "LOCAL_RANK": outer.local_rank,
        "LOCAL_WORLD_SIZE": outer.local_size,
    }
    if config.backend != "mpi":
        facts |= meeting_place(environment, outer)
    additions |= {
        name: str(value) for name, value in facts.items() if value is not None and name not in environment
    }
    if _is_bound(outer):
        additions[ENV_BOUND] = "1"
    notes = []
    if outer.rank == 0:
        notes.append(f"joining {outer.size} ranks that {outer.launcher} has started")
        if shared_run_dir(environment, config) is None:
            notes.append(
                f"every rank records a run of its own: set {layout.ENV_RUN_DIR} to one absolute path on a "
                "shared file system for a common one"
            )
    return Launch(command=_rank_command(config), environment=additions, joins=True, notes=tuple(notes))


def meeting_place(environment: Mapping[str, str], outer: Outer) -> dict[str, object]:
    """MASTER_ADDR and MASTER_PORT, the same on every rank."""
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if address is None and outer.is_one_host:
        address = "127.0.0.1"
    address = address or outer.first_node
    if port is None and outer.job is not None:
        port = str(_PORTS[_digest(outer.job) % len(_PORTS)])
    if address is None or port is None:
        missing = " and ".join(
            name for name, value in (("MASTER_ADDR", address), ("MASTER_PORT", port)) if value is None
        )
        raise BenchError(
            f"{outer.launcher} does not say where its ranks can meet: set {missing} for every rank, to the "
            "host of rank 0 and a free port there (mpirun -x NAME=..., mpiexec -genv NAME ...)"
        )
    return {"MASTER_ADDR": address, "MASTER_PORT": port}


def _is_bound(outer: Outer) -> bool:
    """Whether the launcher gave this rank fewer CPUs than it has itself: then it has bound ranks already."""
    if outer.parent is None:
        return False
    try:
        return os.sched_getaffinity(0) < os.sched_getaffinity(outer.parent)
    except OSError:
        return False


def _rank_command(config: BenchConfig) -> tuple[str, ...]:
    return (sys.executable, "-m", _RANK_MODULE, config.to_json())


def _threads(config: BenchConfig, environment: Mapping[str, str], num_local: int) -> dict[str, str]:
    """OpenMP's threads, before torch asks: as many as each rank has CPUs to itself, unless the user says."""
    if "OMP_NUM_THREADS" in environment and config.threads is None:
        return {}
    return {"OMP_NUM_THREADS": str(config.threads or max(len(os.sched_getaffinity(0)) // num_local, 1))}


def mpiexec_command(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The MPI launcher and options it needs. The one beside Python belongs to a wheel's library."""
    beside = str(Path(sys.executable).parent)
    for path in (beside, environment.get("PATH", os.defpath)):
        for name in ("mpiexec", "mpirun"):
            executable = shutil.which(name, path=path)
            if executable:
                # Open MPI refuses more ranks than cores unless asked to; Hydra does not know the option.
                is_strict = is_open_mpi(ask_version(executable))
                return (executable, "--oversubscribe") if is_strict else (executable,)
    raise BenchError(
        "--backend mpi needs mpiexec, neither beside Python nor on PATH: pip install 'perfscope-hpc[mpi]'"
    )


def _require_mpi4py() -> None:
    if importlib.util.find_spec("mpi4py") is None:
        raise BenchError(
            "--backend mpi needs mpi4py, which is not installed: pip install 'perfscope-hpc[mpi]'"
        )


def _digest(text: str) -> int:
    return zlib.crc32(text.encode())
