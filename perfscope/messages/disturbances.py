"""What disturbed a training, in English."""

from __future__ import annotations

from msgspec import Struct

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
    DisturbanceKind.CPU_NEIGHBOUR: DisturbanceWords(
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
    DisturbanceKind.GPU_NEIGHBOUR: DisturbanceWords(
        "GPU shared",
        "others on the GPU",
        "Other processes on the GPU slowed",
        "End the other processes on that GPU, or set CUDA_VISIBLE_DEVICES to another one.",
    ),
    DisturbanceKind.NETWORK_NEIGHBOUR: DisturbanceWords("network shared", "others on the network"),
    DisturbanceKind.SWAP: DisturbanceWords("swapping", "swapping"),
}


def disturbed_by(kind: str) -> str:
    """``the hypervisor``: of a recorded kind, which may be another version's."""
    try:
        return WORDS[DisturbanceKind(kind)].by
    except ValueError:
        return kind.replace("_", " ")
