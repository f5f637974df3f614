"""The command line that keeps each rank's CPUs and memory on one NUMA node."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from perfscope.analysis.machine.host import Host
from perfscope.analysis.source import Document

# Launcher -> the variable in which its processes find their number on the host.
_LOCAL_RANK = {
    "torchrun": "LOCAL_RANK",
    "mpirun": "OMPI_COMM_WORLD_LOCAL_RANK",
    "mpiexec": "OMPI_COMM_WORLD_LOCAL_RANK",
    "srun": "SLURM_LOCALID",
}


def bound_command(run: Document, host: Host, nodes: Mapping[int, tuple[int, ...]]) -> str:
    """The run's command with `numactl` in the right place.

    Args:
        run: run.json.
        host: whose ranks they are; other hosts are taken to be alike.
        nodes: rank -> the nodes that its CPUs and memory should be on.
    """
    words = run.get("command")
    command = [str(word) for word in words] if isinstance(words, list) else []
    launcher = str(run.get("launcher") or "")
    wanted = {",".join(map(str, own)) for own in nodes.values() if own}
    if len(wanted) <= 1 and launcher not in ("mpirun", "mpiexec", "srun"):
        node = next(iter(wanted), "0")
        return f"numactl --cpunodebind={node} --membind={node} {shlex.join(command)}".rstrip()
    variable = _LOCAL_RANK.get(launcher, "LOCAL_RANK")
    by_local = {
        rank.local_rank: nodes.get(rank.rank, ()) for rank in host.ranks if rank.local_rank is not None
    }
    table = " ".join(
        ",".join(map(str, by_local.get(index, ()))) or "0" for index in range(max(by_local, default=0) + 1)
    )
    bind = f"n=({table}); exec numactl --cpunodebind=${{n[${variable}]}} --membind=${{n[${variable}]}}"
    at = _program_at(command, launcher)
    if at is None:
        return f"bash -c '{bind} PROGRAM'"
    before, program = command[:at], command[at:]
    if launcher == "torchrun":
        before = [*before, "--no-python"]
        program = ["python", *program]
    return f"{shlex.join(before)} bash -c {shlex.quote(f'{bind} {shlex.join(program)}')}"


def _program_at(command: Sequence[str], launcher: str) -> int | None:
    """Where the training program begins in a launcher's command line; None where that cannot be seen."""
    for index, word in enumerate(command[1:], 1):
        follows = command[index + 1] if index + 1 < len(command) else ""
        if word in ("-m", "--module") and not follows.startswith("torch.distributed"):
            return index
        if launcher != "torchrun" and word.rpartition("/")[2].startswith("python"):
            return index
        if word.endswith(".py"):
            return index
    return None
