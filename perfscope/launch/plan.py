"""What is known about a command before it starts, and what is changed in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from perfscope.launch.environment import Injection


@dataclass(frozen=True, kw_only=True)
class CommandContext:
    """What recognizing a command may look at.

    Attributes:
        environment: the environment the command would have had.
        injection: what has to reach the training processes.
        mpi_version: runs `NAME --version` of an MPI launcher and returns its text ("" if that fails).
    """

    environment: Mapping[str, str]
    injection: Injection
    mpi_version: Callable[[str], str]


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """A recognized command.

    Attributes:
        launcher: canonical name: torchrun, python, mpirun, srun, horovodrun, shell, other.
        argv: the command to start; differs from the user's only where the launcher needs it.
        name: what to call the run.
        environment: variables to set besides the injection.
        expected_ranks: training processes this command starts (on all hosts it reaches); None = unknown.
        world_size: ranks of the whole job, other hosts' launchers included; None = unknown.
        hosts: True when ranks may start on other hosts than this one.
        warnings: lines for the user.
        unreachable: why no probe can get into the training processes; None = it can.
    """

    launcher: str
    argv: tuple[str, ...]
    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    expected_ranks: int | None = None
    world_size: int | None = None
    hosts: bool = False
    warnings: tuple[str, ...] = ()
    unreachable: str | None = None

    def behind(self, *prefix: str) -> LaunchPlan:
        """The same plan with `prefix` words in front of its command."""
        return replace(self, argv=(*prefix, *self.argv))


Launcher = Callable[[tuple[str, ...], CommandContext], "LaunchPlan | None"]
