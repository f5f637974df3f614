"""Metrics of memory in use: by what name the collector writes them and the analysis finds them."""

from __future__ import annotations

from enum import Enum

RANK_RESIDENT = "rank_resident_bytes"
RANK_SHARED = "rank_shared_bytes"
HOST_AVAILABLE = "host_memory_available"
HOST_TOTAL = "host_memory_total"
JOB_USED = "job_memory_used"
JOB_LIMIT = "job_memory_limit"
# Groups of the lines that the section Memory draws.
RANK_MEMORY, HOST_MEMORY = "rank_memory", "host_memory"
FULL = 0.92  # of a device's memory, from which a larger input or a fragmented allocator may not fit


class LimitOf(str, Enum):
    """What has a memory limit."""

    HOST = "host"
    CONTROL_GROUP = "control_group"
    DEVICE = "device"
