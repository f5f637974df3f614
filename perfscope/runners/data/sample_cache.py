"""Decoded samples in two levels of memory: each process has its own, and all ranks of a host share one.

A sample that neither level has is read from storage and offered to both. A level keeps what it has until the
end of the run, because every epoch visits each sample once in a new order: no sample is likelier to come next
than another, and replacing samples would gain nothing.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np

from perfscope.runners.config import BenchConfig
from perfscope.runners.schemes.shared_memory import SHARED_FOLDER
from perfscope.vocabulary.caches import CacheLevel

if TYPE_CHECKING:
    from perfscope.runners.world import World

_PREFIX = "perfscope-samples-"
_READY = 1
_MIB = 1 << 20
DEFAULT_PROCESS_MB, DEFAULT_NODE_MB = 64.0, 1024.0


class NodeMemory:
    """Memory that the ranks of a host share; without a name in the file system once all have it.

    Attributes:
        size: bytes; 0 = none, because none was asked for or /dev/shm has no room.
    """

    def __init__(self, memory: mmap.mmap | None) -> None:
        self._memory = memory
        self.size = 0 if memory is None else len(memory)

    @classmethod
    def shared(cls, size: int, world: World) -> NodeMemory:
        """`size` bytes of zeros for the ranks of a host, as its first one asks. All ranks call it."""
        first = world.rank - world.local_rank
        path = SHARED_FOLDER / f"{_PREFIX}{world.peers.agreed(token_hex(8))}-{first}"
        try:
            made = _created(path, size) if world.local_rank == 0 and size else None
            world.peers.barrier()
            memory = made if world.local_rank == 0 else _opened(path)
            world.peers.barrier()
        finally:
            if world.local_rank == 0:
                with suppress(FileNotFoundError):
                    path.unlink()
        return cls(memory)

    def array(self, dtype: type[np.generic], first: int, count: int) -> np.ndarray:
        """(count,) values from byte `first`."""
        if self._memory is None:
            return np.zeros(0, dtype)
        return np.frombuffer(self._memory, dtype=dtype, count=count, offset=first)


@dataclass
class LevelUse:
    """What one rank took from a level.

    Attributes:
        capacity_bytes: of decoded samples; None = storage, which has all.
        samples: taken.
        bytes: of decoded samples, or, from storage, of files as they are stored.
    """

    level: CacheLevel
    capacity_bytes: int | None
    samples: int = 0
    bytes: int = 0


class SampleCache:
    """Samples of one size by index. Safe to use from several threads, and from several processes."""

    def __init__(
        self, num_samples: int, shape: tuple[int, ...], process_bytes: int, node: NodeMemory
    ) -> None:
        """
        Args:
            num_samples: indices are below it.
            shape: of a sample, uint8.
            process_bytes: that this process keeps at most.
            node: of this host; every rank of it has the same samples under the same indices.
        """
        size = int(np.prod(shape))
        self._shape = shape
        # A byte for each slot says whether it is filled; sample i has slot i, the samples beyond have none.
        slots = min(num_samples, node.size // (size + 1))
        self._ready = node.array(np.uint8, 0, slots)
        self._slots = node.array(np.uint8, slots, slots * size).reshape(slots, *shape)
        self._kept: dict[int, np.ndarray] = {}
        self._room = process_bytes // size
        self._lock = threading.Lock()
        kept_bytes = min(self._room, num_samples) * size
        self.uses = {
            CacheLevel.PROCESS: LevelUse(CacheLevel.PROCESS, kept_bytes),
            CacheLevel.NODE: LevelUse(CacheLevel.NODE, slots * size),
            CacheLevel.STORAGE: LevelUse(CacheLevel.STORAGE, None),
        }

    def sample(self, index: int, read: Callable[[], tuple[np.ndarray, int]]) -> np.ndarray:
        """The sample, read-only, from the nearest level that has it.

        Args:
            index: of the sample.
            read: decodes it and says how many bytes of storage that took.
        """
        kept = self._kept.get(index)
        if kept is not None:
            return self._taken(CacheLevel.PROCESS, kept, kept.nbytes)
        if index < len(self._ready) and self._ready[index] == _READY:
            level, sample = CacheLevel.NODE, self._slots[index].copy()
            size = sample.nbytes
        else:
            level = CacheLevel.STORAGE
            sample, size = read()
            if index < len(self._ready):
                # Ranks that read the same sample at once write the same bytes.
                self._slots[index] = sample
                self._ready[index] = _READY
        with self._lock:
            if len(self._kept) < self._room:
                self._kept.setdefault(index, sample)
        return self._taken(level, sample, size)

    def record(self) -> list[dict[str, Any]]:
        """The levels' use, for bench.json."""
        return [asdict(use) for use in self.uses.values()]

    def _taken(self, level: CacheLevel, sample: np.ndarray, size: int) -> np.ndarray:
        use = self.uses[level]
        with self._lock:
            use.samples += 1
            use.bytes += size
        return sample


def cache_of(
    config: BenchConfig, num_samples: int, shape: tuple[int, ...], world: World | None
) -> SampleCache:
    """As `--process-cache` and `--node-cache` say; the default of the latter leaves half of /dev/shm free.

    Args:
        config: of the run.
        num_samples, shape: see SampleCache.
        world: of this rank, all of whose ranks call it; None: this process shares nothing.
    """
    process_mb = DEFAULT_PROCESS_MB if config.process_cache_mb is None else config.process_cache_mb
    node = NodeMemory(None)
    if world is not None:
        wanted = num_samples * (int(np.prod(shape)) + 1)
        node = NodeMemory.shared(min(_node_bytes(config), wanted), world)
    return SampleCache(num_samples, shape, int(process_mb * _MIB), node)


def _node_bytes(config: BenchConfig) -> int:
    if config.node_cache_mb is not None:
        return int(config.node_cache_mb * _MIB)
    try:
        free = os.statvfs(SHARED_FOLDER)
    except OSError:
        return 0
    return min(int(DEFAULT_NODE_MB * _MIB), free.f_bavail * free.f_frsize // 2)


def _created(path: Path, size: int) -> mmap.mmap | None:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return None
    try:
        os.posix_fallocate(handle, 0, size)  # a full /dev/shm is an error here, not a SIGBUS later
        return mmap.mmap(handle, size)
    except OSError:
        path.unlink()
        return None
    finally:
        os.close(handle)


def _opened(path: Path) -> mmap.mmap | None:
    """What the first rank of the host created; None: it could not."""
    try:
        with path.open("r+b") as file:
            return mmap.mmap(file.fileno(), 0)
    except OSError:
        return None
