"""The launcher that has started this process once per rank (srun, mpirun, torchrun), by its variables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfscope.runners.config import BenchError

_NODES = re.compile(r"([^,\[\]]+(?:\[[^\[\]]*\][^,\[\]]*)*|(?:\[[^\[\]]*\][^,\[\]]*)+)(?:,|$)")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_MAX_NODES = 1 << 20
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """What the launcher around this process says.

    Attributes:
        launcher: torchrun, mpirun or srun.
        variable: the one that holds the rank, for messages.
        rank: global rank of this process.
        size: ranks of the job.
        local_rank: rank on this host.
        local_size: ranks on this host; None = not said.
        first_node: host of rank 0; None = not said.
        job: names the job, the same on every rank and no other job's; None = nothing says it.
        parent: pid of the launcher's process on this host that all ranks here descend from; None = not found.
    """

    launcher: str
    variable: str
    rank: int
    size: int
    local_rank: int
    local_size: int | None
    first_node: str | None
    job: str | None
    parent: int | None

    @property
    def is_one_host(self) -> bool:
        """Whether all ranks are known to be here."""
        return self.local_size == self.size


def find_outer(environment: Mapping[str, str]) -> Outer | None:
    """The launcher, or None where this process is not one of several.

    Open MPI and Hydra go before Slurm: on their other hosts they start a daemon with srun, and every rank
    below it inherits that daemon's SLURM_PROCID.

    Raises:
        BenchError: the variables contradict themselves.
    """
    for find in (_torchrun, _mpi, _slurm):
        outer = find(environment)
        if outer is not None:
            if not 0 <= outer.rank < outer.size:
                raise BenchError(f"{outer.variable}={outer.rank}, but there are {outer.size} ranks")
            return outer
    return None


def expand_nodes(text: str) -> list[str]:
    """Slurm's `node[01-03,7],login` as host names.

    Raises:
        BenchError: it is not written like that.
    """
    names: list[str] = []
    position = 0
    while position < len(text):
        match = _NODES.match(text, position)
        if not match:
            raise BenchError(f"{text!r} is no list of Slurm nodes")
        names += _expand(match[1], text)
        position = match.end()
    return names


def expand_tasks(text: str) -> list[int]:
    """Slurm's `2(x3),1` (tasks per node) as [2, 2, 2, 1]; empty when it is not written like that."""
    counts: list[int] = []
    for word in text.split(","):
        match = _TASKS.fullmatch(word.strip())
        if not match or int(match[2] or 1) > _MAX_NODES:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _torchrun(environment: Mapping[str, str]) -> Outer | None:
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    if rank is None or size is None:
        return None
    parent = _launcher_process("RANK")
    local_size = _number(environment, "LOCAL_WORLD_SIZE")
    run_id = environment.get("TORCHELASTIC_RUN_ID")
    job = None
    if run_id and run_id != "none":  # "none" is torchrun's default, the same for every job
        job = f"torchrun-{run_id}-{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    elif size == local_size and parent is not None:
        job = f"torchrun-{_identity(parent)}"
    elif "MASTER_ADDR" in environment and "MASTER_PORT" in environment and "SLURM_JOB_ID" in environment:
        job = f"slurm-{environment['SLURM_JOB_ID']}-{environment['MASTER_PORT']}"
    return Outer(
        launcher="torchrun",
        variable="RANK",
        rank=rank,
        size=size,
        local_rank=_number(environment, "LOCAL_RANK") or 0,
        local_size=local_size,
        first_node=environment.get("MASTER_ADDR"),
        job=job,
        parent=parent,
    )


def _mpi(environment: Mapping[str, str]) -> Outer | None:
    for prefix, local_rank, local_size in (
        ("OMPI_COMM_WORLD", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ):
        rank, size = _number(environment, f"{prefix}_RANK"), _number(environment, f"{prefix}_SIZE")
        if rank is None or size is None or size < 2:
            continue
        slurm = _slurm(environment)
        if slurm is not None and slurm.rank == rank and slurm.size == size:
            return slurm  # srun --mpi=pmi2: Slurm itself is the launcher
        parent = _launcher_process(f"{prefix}_RANK")
        here = _number(environment, local_size)
        named = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid")
        if named is None and here == size and parent is not None:
            named = _identity(parent)
        nodes = environment.get("SLURM_JOB_NODELIST")
        return Outer(
            launcher="mpirun",
            variable=f"{prefix}_RANK",
            rank=rank,
            size=size,
            local_rank=_number(environment, local_rank) or 0,
            local_size=here,
            first_node=expand_nodes(nodes)[0] if nodes else None,
            job=f"mpi-{named}" if named else None,
            parent=parent,
        )
    return None


def _slurm(environment: Mapping[str, str]) -> Outer | None:
    # A batch script has SLURM_PROCID=0 and SLURM_NTASKS, too, but it is no task of a step.
    size = _number(environment, "SLURM_STEP_NUM_TASKS")
    step = environment.get("SLURM_STEP_ID") or environment.get("SLURM_STEPID")
    if size is None and step is not None:
        size = _number(environment, "SLURM_NTASKS")
    rank = _number(environment, "SLURM_PROCID")
    if rank is None or size is None or size < 2:
        return None
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    per_node = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE") or ""
    counts, node = expand_tasks(per_node), _number(environment, "SLURM_NODEID") or 0
    job = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID")
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    return Outer(
        launcher="srun",
        variable="SLURM_PROCID",
        rank=rank,
        size=size,
        local_rank=_number(environment, "SLURM_LOCALID") or 0,
        local_size=counts[node] if node < len(counts) else _number(environment, "SLURM_NTASKS_PER_NODE"),
        first_node=expand_nodes(nodes)[0] if nodes else None,
        job=f"slurm-{job}.{step or 0}" + (f"-restart{restarts}" if restarts != "0" else "") if job else None,
        parent=_launcher_process("SLURM_PROCID"),
    )


def _number(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "")
    return int(value) if re.fullmatch(r"\d{1,9}", value) else None


def _expand(word: str, text: str) -> Iterator[str]:
    """One entry: every combination of its brackets, the last one changing fastest."""
    head, bracket, remainder = word.partition("[")
    if not bracket:
        yield head
        return
    inside, closed, tail = remainder.partition("]")
    if not closed:
        raise BenchError(f"{text!r} is no list of Slurm nodes")
    for part in inside.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()) or int(high or low) - int(low) > _MAX_NODES:
            raise BenchError(f"{text!r} is no list of Slurm nodes")
        for number in range(int(low), int(high or low) + 1):
            for ending in _expand(tail, text):
                yield f"{head}{number:0{len(low)}d}{ending}"


def _launcher_process(variable: str) -> int | None:
    """The nearest ancestor that was not started as a rank itself: all ranks of this host have it in common.

    Between it and us may be shells and wrappers, which were given the rank's variables.
    """
    mark = f"{variable}=".encode()
    pid = os.getppid()
    for _ in range(_MAX_DEPTH):
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # another user's: Slurm's daemon is root's
            return pid or None
        if not any(entry.startswith(mark) for entry in entries):
            return pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
        if pid <= 1:
            return None
    return None


def _identity(pid: int) -> str:
    """A process, never mistaken for a later one of the same number."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = "0"
    return f"{pid}-{started}"
