"""What disturbed a training, in English."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perfscope.units import format_bytes, format_ns, format_ratio
from perfscope.vocabulary.disturbances import DisturbanceKind

_FREE_MEMORY = "Free memory on that host (other jobs, page cache, a smaller batch) and run again."


class DisturbanceWords(Struct, frozen=True):
    """How reports speak of one kind of disturbance.

    Attributes:
        label: in tables.
        by: as "disturbed by ..." goes on.
        slows: subject and verb before "the steps".
        remedy: what to do about it, a sentence.
    """

    label: str
    by: str
    slows: str = "A disturbance slowed"
    remedy: str = _FREE_MEMORY


WORDS = {
    DisturbanceKind.CPU_NEIGHBOR: DisturbanceWords(
        "other processes",
        "other processes",
        "Other processes slowed",
        "Repeat the run on an idle machine before you change the code, or give the job its own CPUs.",
    ),
    DisturbanceKind.STEAL: DisturbanceWords(
        "hypervisor",
        "the hypervisor",
        "CPU steal slowed",
        "Repeat the run on a host that is not shared: the hypervisor gave CPU time to others.",
    ),
    DisturbanceKind.THROTTLING: DisturbanceWords(
        "throttling",
        "throttling",
        "Throttled clocks slowed",
        "Check cooling, power supply and power limits before comparing step times.",
    ),
    DisturbanceKind.CGROUP_THROTTLING: DisturbanceWords(
        "CPU quota",
        "a CPU quota",
        "The CPU quota slowed",
        "Raise the CPU quota of the job's control group, or compute with fewer threads.",
    ),
    DisturbanceKind.PRESSURE: DisturbanceWords(
        "pressure", "pressure on CPU, memory or disks", "CPU or memory pressure slowed"
    ),
    DisturbanceKind.GPU_NEIGHBOR: DisturbanceWords(
        "GPU shared",
        "others on the GPU",
        "Other processes on the GPU slowed",
        "End the other processes on that GPU, or set CUDA_VISIBLE_DEVICES to another one.",
    ),
    DisturbanceKind.NETWORK_NEIGHBOR: DisturbanceWords("network shared", "others on the network"),
    DisturbanceKind.SWAP: DisturbanceWords("swapping", "swapping"),
}


def disturbed_by(kind: str) -> str:
    """``the hypervisor``: of a recorded kind, which may be another version's."""
    try:
        return WORDS[DisturbanceKind(kind)].by
    except ValueError:
        return kind.replace("_", " ")


PROCESSES_UNNAMED = "their names are not known"
OUTSIDE_THE_GROUP = "busy time of all CPUs minus that of the control group"
NOT_OVERSUBSCRIBED = "the job has no more threads than CPUs, so something else used them"
THROTTLED_TIME = "the driver's counter of throttled time"


def lasted(title: str, dur_ns: int, *, before_steps: bool = False, after_steps: bool = False) -> str:
    """`title` as a sentence with the disturbance's length and its place."""
    when = " before the first step" if before_steps else " after the last step" if after_steps else ""
    return f"{title} for {format_ns(dur_ns)}{when}."


def cpus_taken(cpus: float, num_cpus: int, names: Sequence[str] = (), *, by_group: bool = False) -> str:
    """Other processes' CPU time, in CPUs. `by_group`: all that is known is that they are not the job's."""
    by = f" ({', '.join(names)})" if names else ""
    group = " outside the job's control group" if by_group else ""
    processes = f"Processes{group}" if by_group else f"Other processes{by}"
    return f"{processes} took {cpus:.1f} of {num_cpus} CPUs"


def steal(share: float, most: float) -> tuple[str, str]:
    """(title, evidence) of CPU time that the hypervisor took; `most`: the largest reading."""
    return (
        f"CPU steal: the hypervisor took {format_ratio(share, 0)} of CPU time",
        f"steal in /proc/stat, at most {format_ratio(most, 0)}",
    )


def quota(share: float, source: str, limit: float | None) -> tuple[str, list[str]]:
    """(title, evidence) of a CPU quota of `limit` CPUs that stopped threads in this share of the time."""
    stopped = format_ratio(min(1.0, share), 0)
    evidence = [f"throttled time in {source}"]
    if limit:
        evidence.append(f"the quota is {limit:g} CPUs")
    return f"The control group's CPU quota stopped the job's threads {stopped} of the time", evidence


def cpu_throttled(part: str, number: str, share: float | None, per_s: float) -> str:
    """A package or core slowed by heat. `share`: of the time; None: only how often is known."""
    often = f"{per_s:.0f} times a second" if share is None else f"{format_ratio(share, 0)} of the time"
    return f"CPU {part} {number} was throttled by heat {often}"


def gpu_throttled(gpu: str, reason: str, share: float | None = None) -> str:
    often = "" if share is None else f" {format_ratio(share, 0)} of the time"
    return f"GPU {gpu} was throttled ({reason}){often}"


def gpu_shared(gpu: str, num_processes: int, memory_bytes: float | None) -> str:
    held = f" ({format_bytes(memory_bytes)} of its memory)" if memory_bytes else ""
    return f"{num_processes} other process{'es' if num_processes > 1 else ''} used GPU {gpu}{held}"


def memory_pressure(share: float, source: str) -> tuple[str, str]:
    """(title, evidence)."""
    return (
        f"Memory ran short: tasks waited for it {format_ratio(share, 0)} of the time",
        f"pressure in {source}: the kernel reclaimed or swapped",
    )


def cpu_pressure(share: float) -> str:
    return f"The job waited for CPUs {format_ratio(share, 0)} of the time"


def step_effect(during_ns: float | None, otherwise_ns: float | None) -> str:
    """``steps took 25.4 ms during it, 13.4 ms otherwise``; "" where that is not known."""
    if during_ns is None or otherwise_ns is None:
        return ""
    return f"steps took {format_ns(during_ns)} during it, {format_ns(otherwise_ns)} otherwise"
