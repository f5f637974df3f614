"""What a `fact` line and the `end` line of samples.jsonl say, typed."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.rundir.typed import Count, Figure, PartialRow, Record, read_as


class Neighbor(PartialRow, frozen=True):
    """A process of another user, or several of one name and user.

    Attributes:
        pid: of the busiest; None: not known, or the kernel.
        cpus: that they used, mean over `seconds`.
        seconds: how long they were watched; 0: not recorded.
    """

    pid: Count | None = None
    name: str = ""
    user: str = ""
    cpus: Figure = 0.0
    seconds: Figure = 0.0
    processes: Count = 1


class Binding(PartialRow, frozen=True):
    """Where a rank may run and allocate.

    Attributes:
        cpus: a list as the kernel writes it.
        cpu_nodes: their NUMA nodes; None: not recorded.
        policy: of memory; "": the default one, or not known.
    """

    cpus: str = ""
    cpu_nodes: tuple[int, ...] | None = None
    policy: str = ""


class Gap(PartialRow, frozen=True):
    """A source that is absent, a reading that ended, or a note."""

    what: str = ""
    reason: str = ""


FactValue = Neighbor | Binding | Gap


class SamplerUse(PartialRow, frozen=True):
    """What sampling cost; None: not recorded."""

    cpu_ns: Figure | None = None
    wall_ns: Figure | None = None
    ticks: Figure | None = None
    late_ticks: Figure | None = None


class SamplerEnd(Record, frozen=True):
    """How a sampler ended."""

    end: str = ""  # why
    cost: SamplerUse = SamplerUse()


def fact_value(name: str, document: Mapping[str, object]) -> FactValue:
    """The value of the fact `name`."""
    if name == "neighbour":
        return read_as(Neighbor, document)
    return read_as(Binding, document) if name == "binding" else read_as(Gap, document)
