"""How to keep each rank's CPUs and memory on one NUMA node: a whole command line only where it is sure.

A line that is copied and starts the wrong thing is worse than advice. Sure are a single process, and torchrun
in its plain form. For other launchers (spawn inside the script, MPI, srun, accelerate)
the result is what each rank needs.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from perfscope.analysis.machine.host import Host
from perfscope.messages.findings.facts import Binding
from perfscope.messages.findings.machine import numactl
from perfscope.rundir.layout import HIDDEN
from perfscope.rundir.records import RunRecord

# torchrun's options without a value; every other one takes the next word.
_TORCHRUN_FLAGS = frozenset({"--standalone", "--use-env", "--virtual-local-rank"})
# With these torchrun starts something else than a script.
_TORCHRUN_OTHERWISE = frozenset({"-m", "--module", "--no-python", "--run-path", "-h", "--help"})
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.elastic.run")
_BINDING = frozenset({"numactl", "taskset"})  # in the command already: the inner one would win


def how_to_bind(run: RunRecord, host: Host, nodes: Mapping[int, tuple[int, ...]]) -> Binding:
    """A command line where it is sure, else what each rank needs.

    Args:
        run: run.json.
        host: whose ranks they are; other hosts are taken to be alike.
        nodes: rank -> the nodes that its CPUs and memory should be on; () where that is not known.
    """
    command = run.command
    binds = any(_base(word) in _BINDING for word in command)
    launcher = run.launcher
    sure = bool(command) and not binds and not any(HIDDEN in word for word in command)
    line = None
    if sure and launcher == "python" and len(host.ranks) == 1:
        nodes_of_first = nodes.get(host.ranks[0].rank, ())
        line = f"{numactl(nodes_of_first)} {shlex.join(command)}" if nodes_of_first else None
    elif sure and launcher == "torchrun":
        line = _torchrun_line(command, _by_local_rank(host, nodes))
    bound = tuple((rank, rank_nodes) for rank, rank_nodes in sorted(nodes.items()) if rank_nodes)
    return Binding(command=line or "", nodes=bound, replaces=binds)


def _by_local_rank(host: Host, nodes: Mapping[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Nodes in the order of local ranks; empty where those of any rank are not known."""
    by_local = {
        rank.local_rank: rank_nodes
        for rank in host.ranks
        if rank.local_rank is not None and (rank_nodes := nodes.get(rank.rank))
    }
    is_complete = len(by_local) == len(host.ranks) and sorted(by_local) == list(range(len(by_local)))
    return [by_local[index] for index in range(len(by_local))] if is_complete else []


def _torchrun_line(command: Sequence[str], nodes_by_rank: Sequence[tuple[int, ...]]) -> str | None:
    """torchrun with a shell that binds between it and the script; None where the script is not sure."""
    begin = _torchrun_begins(command)
    if begin is None or not nodes_by_rank:
        return None
    at = begin
    while at < len(command) and command[at].startswith("-"):
        name, equals, _ = command[at].partition("=")
        if name.replace("_", "-") in _TORCHRUN_OTHERWISE or name == "--":
            return None
        at += 1 if equals or name.replace("_", "-") in _TORCHRUN_FLAGS else 2
    if at >= len(command) or not command[at].endswith(".py"):
        return None
    # ":?" stops where the variable is not set: an empty index would silently mean the first node.
    table, node = (
        " ".join(",".join(map(str, rank_nodes)) for rank_nodes in nodes_by_rank),
        "${n[${LOCAL_RANK:?}]:?}",
    )
    program = shlex.join([_python_beside(command), *command[at:]])
    bind = f"n=({table}); exec numactl --cpunodebind={node} --membind={node} {program}"
    return f"{shlex.join([*command[:at], '--no-python'])} bash -c {shlex.quote(bind)}"


def _torchrun_begins(command: Sequence[str]) -> int | None:
    """Index of the word after `torchrun` or `python -m torch.distributed.run`; None for any other form."""
    if _base(command[0]) == "torchrun":
        return 1
    if len(command) > 2 and _base(command[0]).startswith("python"):
        return 3 if command[1] == "-m" and command[2] in _TORCHRUN_MODULES else None
    return None


def _python_beside(command: Sequence[str]) -> str:
    """The interpreter that torchrun would have started the script with."""
    folder, slash, name = command[0].rpartition("/")
    return command[0] if name.startswith("python") else f"{folder}{slash}python"


def _base(word: str) -> str:
    return word.rpartition("/")[2]
