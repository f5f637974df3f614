"""What Slurm's variables say about this process: the job, and which task of which step it is.

From the environment alone, nothing is asked of Slurm. Names: srun(1), sbatch(1), "output environment".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from perfscope.rundir.redact import redact_text

# Steps that are none of srun's: slurm_protocol_defs.h, SLURM_*_STEP.
_SPECIAL_STEPS = {0xFFFFFFFA: "interactive", 0xFFFFFFFB: "batch", 0xFFFFFFFC: "extern", 0xFFFFFFFD: "pending"}
# Launchers that start ranks of their own inside a job: their ranks inherit the variables of the task that
# the launcher's daemon is.
_OTHER_LAUNCHERS = ("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK")
_PROCESS_MANAGERS = (("PMI_RANK", "PMI_SIZE"), ("PMIX_RANK", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTask:
    """One of several tasks that `srun` has started.

    Attributes:
        cluster: name of the Slurm cluster; "" = not said.
        job, step, restarts: which step; `restarts` counts requeues of the job.
        task: number of this task in the step, from 0.
        num_tasks, num_nodes: of the step.
        mates: tasks of this node by number, this one included; all tasks where Slurm does not tell.
        local_leader: the first task of this node.
    """

    cluster: str
    job: int
    step: int
    restarts: int
    task: int
    num_tasks: int
    num_nodes: int
    mates: tuple[int, ...]
    local_leader: int

    @property
    def step_name(self) -> str:
        """`77.3`, after a requeue `77.3-restart1`: no other step of this cluster is called so."""
        return f"{self.job}.{self.step}" + (f"-restart{self.restarts}" if self.restarts else "")

    @property
    def is_first(self) -> bool:
        """Of all tasks, the one that says what is to be said once."""
        return self.task == 0


def find_step_task(environment: Mapping[str, str]) -> StepTask | None:
    """The task this process is; None outside of steps, and in a step of one task, which has no others to
    join.

    A batch script has SLURM_PROCID and SLURM_NTASKS, too, but belongs to no step of srun's. Ranks of an
    mpirun or torchrun inside a job are those launchers' ranks, not Slurm's tasks.
    """
    task = _number(environment, "SLURM_PROCID")
    job = _job_id(environment)
    step = _step_id(environment)
    size = _number(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if task is None or job is None or step is None or step in _SPECIAL_STEPS or size is None:
        return None
    if not task < size or size < 2 or _is_of_another_launcher(environment, task, size):
        return None
    mates = _numbers(environment.get("SLURM_GTIDS", ""))
    if task not in mates or mates[-1] >= size:
        mates = tuple(range(size))
    return StepTask(
        cluster=environment.get("SLURM_CLUSTER_NAME", ""),
        job=job,
        step=step,
        restarts=_number(environment, "SLURM_RESTART_COUNT") or 0,
        task=task,
        num_tasks=size,
        num_nodes=_number(environment, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES") or 1,
        mates=mates,
        local_leader=mates[0],
    )


def slurm_facts(environment: Mapping[str, str]) -> dict[str, object]:
    """The job as run.json keeps it; empty outside of jobs.

    Returns:
        job_id, array_job_id, array_task_id, restart_count, num_nodes, num_tasks, cpus_per_task: whole
        numbers or None; step_id: a number, "batch", "interactive" or None (no step of srun's);
        job_name, cluster, partition, node_list (`node[1-2]`), tasks_per_node (`2(x2)`): text or None. What a
        step says of itself goes before what the job says.
    """
    job = _job_id(environment)
    if job is None:
        return {}
    step = _step_id(environment)
    parts = _number(environment, "SLURM_HET_SIZE") or 0
    if step is None and parts > 1:
        environment = {**environment, **_of_all_parts(environment, parts)}
    whose = "SLURM_STEP_" if step is not None else "SLURM_JOB_"
    return {
        "job_id": job,
        "step_id": step if step is None else _SPECIAL_STEPS.get(step, step),
        "job_name": _text(environment, "SLURM_JOB_NAME"),
        "cluster": _text(environment, "SLURM_CLUSTER_NAME"),
        "partition": _text(environment, "SLURM_JOB_PARTITION"),
        "num_nodes": _number(environment, f"{whose}NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
        "node_list": _text(environment, f"{whose}NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"),
        "num_tasks": _number(environment, f"{whose}NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
        "tasks_per_node": _text(environment, f"{whose}TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
        "cpus_per_task": _number(environment, "SLURM_CPUS_PER_TASK"),
        "restart_count": _number(environment, "SLURM_RESTART_COUNT") or 0,
        "array_job_id": _number(environment, "SLURM_ARRAY_JOB_ID"),
        "array_task_id": _number(environment, "SLURM_ARRAY_TASK_ID"),
    }


def _of_all_parts(environment: Mapping[str, str], parts: int) -> dict[str, str]:
    """A heterogeneous job as a whole: its plain variables are those of its first part."""

    def each(name: str) -> list[str]:
        values = (environment.get(f"{name}_HET_GROUP_{part}") for part in range(parts))
        return [value for value in values if value]

    nodes, tasks = each("SLURM_JOB_NUM_NODES"), each("SLURM_NTASKS")
    return {
        "SLURM_JOB_NODELIST": ",".join(each("SLURM_JOB_NODELIST")),
        "SLURM_JOB_NUM_NODES": str(sum(map(int, nodes))) if all(map(str.isdecimal, nodes)) else "",
        "SLURM_JOB_NUM_TASKS": str(sum(map(int, tasks))) if all(map(str.isdecimal, tasks)) else "",
        "SLURM_JOB_TASKS_PER_NODE": ",".join(each("SLURM_TASKS_PER_NODE")),
    }


def _is_of_another_launcher(environment: Mapping[str, str], task: int, size: int) -> bool:
    if any(name in environment for name in _OTHER_LAUNCHERS):
        return True
    for rank, world in _PROCESS_MANAGERS:  # srun --mpi=pmi2 sets them as well, to what the task is
        if _number(environment, rank) not in (None, task) or _number(environment, world) not in (None, size):
            return True
    return False


def _step_id(environment: Mapping[str, str]) -> int | None:
    """The step; None in a batch script, also in one that was submitted from inside a step of another job.

    sbatch hands the variables of that step on; those of the job it makes contradict them.
    """
    of_job, of_step = _number(environment, "SLURM_NTASKS"), _number(environment, "SLURM_STEP_NUM_TASKS")
    if None not in (of_job, of_step) and of_job != of_step:
        return None
    return _number(environment, "SLURM_STEP_ID", "SLURM_STEPID")


def _job_id(environment: Mapping[str, str]) -> int | None:
    return _number(environment, "SLURM_JOB_ID", "SLURM_JOBID")


def _number(environment: Mapping[str, str], *names: str) -> int | None:
    """The first of `names` that holds a whole number."""
    for name in names:
        value = environment.get(name, "")
        if re.fullmatch(r"[0-9]{1,10}", value):
            return int(value)
    return None


def _numbers(text: str) -> tuple[int, ...]:
    """`0,2,3` in order; empty where it is not written like that."""
    parts = text.split(",")
    return tuple(sorted({int(word) for word in parts})) if all(word.isdecimal() for word in parts) else ()


def _text(environment: Mapping[str, str], *names: str) -> str | None:
    return next((redact_text(environment[name]) for name in names if environment.get(name)), None)
