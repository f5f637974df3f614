"""What must be the same of two machines for their runs to be compared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from msgspec.structs import replace

from perfscope.analysis.study.results import StudyRun


def machine_key(run: StudyRun) -> str:
    """What must be the same of two machines; "" where nothing of it was recorded.

    The number of hosts is not in it (scaling changes it), the speed of an emulated cluster is; one rank uses
    no network at all.
    """
    facts = run.machine
    if not (facts.cpu or facts.gpus):
        return ""
    link = facts.cluster.partition("@")[2] if facts.cluster and run.world_size != 1 else ""
    parts = [
        facts.cpu,
        f"{facts.num_cpus} CPUs" if facts.num_cpus else "",
        f"{facts.num_nodes} NUMA nodes" if (facts.num_nodes or 1) > 1 else "",
        *sorted(set(facts.gpus)),
        f"on {facts.device}" if facts.device else "",
        f"links of {link}" if link else "",
    ]
    return ", ".join(part for part in parts if part)


def placed_machine_key(run: StudyRun) -> str:
    """As machine_key, with the shape of the emulated cluster: for runs with as many ranks."""
    shape = run.machine.cluster.partition("@")[0] if run.world_size != 1 else ""
    return machine_key(run) + (f", {shape} hosts x ranks" if shape and machine_key(run) else "")


def with_short_groups(runs: Sequence[StudyRun]) -> tuple[StudyRun, ...]:
    """Runs grouped by machine, alone or with others, without what the names of all machines begin with."""
    keys = {machine_key(run) for run in runs if run.group}
    if len(keys) < 2 or not all(keys):
        return tuple(runs)
    parts = [key.split(", ") for key in keys]
    shared = [same[0] for same in takewhile(lambda column: len(set(column)) == 1, zip(*parts, strict=False))]
    if shared in parts:  # a machine has nothing else
        shared = shared[:-1]
    start = "".join(f"{part}, " for part in shared)
    return tuple(replace(run, group=run.group.replace(start, "", 1)) for run in runs)
