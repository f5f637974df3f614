"""What a batch job is to be: everything the script is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

from perfscope.vocabulary.frameworks import FrameworkName

MPI = "mpi"  # any program of MPI
FRAMEWORKS = (
    *(
        variable.value
        for variable in (
            FrameworkName.TORCH,
            FrameworkName.TENSORFLOW,
            FrameworkName.KERAS,
            FrameworkName.JAX,
            FrameworkName.MXNET,
            FrameworkName.HOROVOD,
        )
    ),
    MPI,
)
BY_MPI = (FrameworkName.HOROVOD, MPI)  # those whose processes srun has to introduce to each other


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A batch job.

    Attributes:
        command: the training command, at least one word.
        framework: one of FRAMEWORKS: how its processes find each other.
        run: run directory as the user wrote it; None = perfscope-runs/slurm-<job id>.
        name: of the job and of the run.
        log: Slurm's pattern for what the job prints.
        nodes, tasks_per_node: how many.
        cpus_per_task, gpus_per_node, mem, time, partition, account, qos, constraint: as of sbatch.
        exclusive: whole nodes.
        clean: who else uses the nodes is written down before and after.
        array: as of sbatch; every task makes a run of its own.
        requeue: allow or forbid it; None = as the cluster is set up.
        options: further options of sbatch.
        modules, setup, stage, interface: see site.Site.
        mpi: `--mpi` of srun; None = the cluster's default.
        cpu_bind, mem_bind, gpu_bind: as of srun; None = cores where cpus_per_task is given, else nothing.
        torchrun: one torchrun per node in place of one process per task.
        horovodrun: horovodrun with the job's hosts in place of srun.
        servers_per_node: of MXNet's parameter servers.
        record: options of `perfscope run`.
    """

    command: tuple[str, ...]
    framework: str
    name: str
    run: str | None = None
    log: str = "%x-%j.log"
    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_task: int | None = None
    gpus_per_node: str | None = None
    mem: str | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclusive: bool = True
    clean: bool = True
    array: str | None = None
    requeue: bool | None = None
    options: tuple[tuple[str, str | None], ...] = ()
    modules: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    stage: str | None = None
    interface: str | None = None
    mpi: str | None = None
    cpu_bind: str | None = None
    mem_bind: str | None = None
    gpu_bind: str | None = None
    torchrun: bool = False
    horovodrun: bool = False
    servers_per_node: int = 1
    record: tuple[str, ...] = ()


def job_name(command: tuple[str, ...]) -> str:
    """A name for what a command trains: its script's, else its own.

    `python -m pkg.train` -> pkg.train; `python train.py` -> train.
    """
    arguments = [word for word in command if not word.startswith("-")]
    module = command[command.index("-m") + 1] if "-m" in command[:-1] else None
    script = next((word for word in arguments if word.endswith((".py", ".sh"))), None)
    chosen = module or (
        PurePath(script).stem if script else PurePath(arguments[0] if arguments else "job").stem
    )
    return re.sub(r"[^A-Za-z0-9._-]+", "_", chosen).strip("._-")[:64] or "job"
