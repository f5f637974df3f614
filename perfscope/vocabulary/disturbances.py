"""What, outside a training, may take part of its machine."""

from __future__ import annotations

from enum import Enum


class DisturbanceKind(str, Enum):
    """The kind of a disturbance. The value is the code in the JSON report and in study.json."""

    CPU_NEIGHBOR = "cpu_neighbour"
    STEAL = "steal"
    THROTTLING = "throttling"
    CGROUP_THROTTLING = "cgroup_throttling"
    PRESSURE = "pressure"
    GPU_NEIGHBOR = "gpu_neighbour"
    NETWORK_NEIGHBOR = "network_neighbour"
    SWAP = "swap"


# Kinds that slow what runs on CPUs and GPUs.
SLOW_COMPUTATION = frozenset(DisturbanceKind) - {DisturbanceKind.NETWORK_NEIGHBOR}


NEIGHBORS = "neighbours"  # the collector that reads the CPU time of other processes
