"""Who else computes on the GPUs: processes that are no rank's and not below one.

Drivers name processes by the pids of the machine's first PID namespace. In a container these may be others
than ours; then nothing is counted, and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from perfscope.collectors.base import Fact
from perfscope.collectors.context import Context
from perfscope.collectors.process_table import descends, in_container, is_marked, run_marks, user_of
from perfscope.vocabulary.gpu import FOREIGN_PROCESSES


class GpuProcess(NamedTuple):
    """A process on a GPU. `memory_bytes`: what it holds of the GPU's memory; None = not known."""

    pid: int
    memory_bytes: int | None


class ForeignProcesses:
    """Tells foreign processes from the run's own.

    Args:
        ctx: the machine and the ranks.
        name_of: a process's name by its pid; "" = not known.
        services: names (or parts of them) of processes that serve the ranks as well.
    """

    def __init__(self, ctx: Context, name_of: Callable[[int], str], services: Sequence[str] = ()) -> None:
        self._facts: list[Fact] = []
        self._ctx, self._name_of, self._services = ctx, name_of, services
        self._marks = run_marks(ctx)
        self._same_pids = not in_container(ctx)  # whether the driver's pids are those we see
        self._noted = False
        self._named: set[tuple[int, int]] = set()

    def count(self, gpu: int, processes: Sequence[GpuProcess]) -> list[int | None]:
        """Number and memory of the foreign ones among a GPU's processes; None where it cannot be said."""
        ranks = self._ctx.pids()
        foreign = [process for process in processes if not self._is_ours(process.pid, ranks)]
        self._same_pids = self._same_pids or len(foreign) < len(processes)
        if foreign and not self._same_pids:
            self._note_unmatched()
            return [None, None]
        foreign = [process for process in foreign if not self._is_service(process.pid)]
        for process in foreign if ranks else ():
            if (gpu, process.pid) not in self._named:
                self._named.add((gpu, process.pid))
                self._facts.append(self._fact(gpu, process))
        sizes = [process.memory_bytes for process in foreign if process.memory_bytes is not None]
        return [len(foreign), sum(sizes) if sizes or not foreign else None]

    def take_facts(self) -> list[Fact]:
        """Those since the last call: a neighbor's name, once; why nothing can be counted, once."""
        taken, self._facts = self._facts, []
        return taken

    def _is_ours(self, pid: int, ranks: Sequence[int]) -> bool:
        return descends(self._ctx, pid, ranks) or is_marked(self._ctx, pid, self._marks)

    def _is_service(self, pid: int) -> bool:
        return bool(self._services) and any(part in self._name_of(pid) for part in self._services)

    def _note_unmatched(self) -> None:
        if not self._noted and self._ctx.pids():
            self._noted = True
            text = (
                f"{FOREIGN_PROCESSES.name}: the GPUs' processes cannot be matched with the ranks: "
                "this container has pids of its own (start it with --pid=host)"
            )
            self._facts.append(Fact("note", {}, {"text": text}))

    def _fact(self, gpu: int, process: GpuProcess) -> Fact:
        value: dict[str, object] = {
            "pid": process.pid,
            "name": self._name_of(process.pid),
            "user": user_of(self._ctx, process.pid),
            "gpu": gpu,
            "memory_bytes": process.memory_bytes,
        }
        return Fact("neighbour", {"kind": "gpu", "gpu": str(gpu)}, value)
