"""Where a sample of a bench run came from."""

from __future__ import annotations

from enum import Enum


class CacheLevel(str, Enum):
    """From the nearest to the farthest."""

    PROCESS = "process"  # decoded, in the rank's own memory
    NODE = "node"  # decoded, in memory that the ranks of a host share
    STORAGE = "storage"  # read and decoded
