"""Memory that all ranks of one host write to without a lock: weights, and who has updated how often.

A file in /dev/shm, mapped by every rank and unlinked as soon as all have it: nothing is left behind, whatever
ends the run afterwards. All that is sent here is a file name and a yes or no, before training.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from perfscope.runners.config import BenchError
from perfscope.runners.transport import Transport

SHARED_FOLDER = Path("/dev/shm")
_PREFIX = "perfscope-bench-"
_NAME_BYTES = 512  # of a file name, or of one line that says what is wrong
_WORD = 8  # bytes of a counter


class SharedWeights:
    """Weights and counters in one mapping.

    Each worker has counters that only it writes, so no count is lost although nothing is locked.

    Attributes:
        weights: (num_params,), every rank's.
        updates: (N,) int64, updates that each worker has finished.
        writing: (N,) int64, 1 while that worker writes to `weights`.
    """

    def __init__(self, memory: torch.Tensor, like: torch.Tensor, num_workers: int) -> None:
        """`memory`: uint8, shared by all ranks, at least `bytes_for(like, num_workers)` long."""
        counters = memory[: 2 * num_workers * _WORD].view(torch.int64)
        self.updates, self.writing = counters[:num_workers], counters[num_workers:]
        first = 2 * num_workers * _WORD
        self.weights = memory[first : first + like.numel() * like.element_size()].view(like.dtype)

    @staticmethod
    def bytes_for(like: torch.Tensor, num_workers: int) -> int:
        """Size of the mapping."""
        return 2 * num_workers * _WORD + int(like.numel() * like.element_size())


class UnlockedUpdates:
    """What one worker can honestly say about its unlocked updates.

    Attributes:
        histogram: staleness (updates that others finished between fetch and write) -> updates.
        overlapped: updates during which another worker was seen writing: parts of either may have been lost.
    """

    def __init__(self, shared: SharedWeights, worker: int) -> None:
        self.shared, self.worker = shared, worker
        self.histogram: Counter[int] = Counter()
        self.overlapped = 0
        self._seen = 0

    def _others(self) -> int:
        counts = self.shared.updates
        return int(counts.sum().item()) - int(counts[self.worker].item())

    def _others_write(self) -> bool:
        return bool(self.shared.writing.sum() > self.shared.writing[self.worker])

    def fetch(self, into: torch.Tensor) -> None:
        """Copies the shared weights, which others may be changing meanwhile."""
        self._seen = self._others()
        into.copy_(self.shared.weights)

    def add(self, change: torch.Tensor, alpha: float) -> None:
        """shared weights += alpha * change, without a lock: read, added and written back piece by piece."""
        self.histogram[self._others() - self._seen] += 1
        self.shared.writing[self.worker] = 1
        overlaps = self._others_write()
        self.shared.weights.add_(change, alpha=alpha)
        self.overlapped += overlaps or self._others_write()
        self.shared.writing[self.worker] = 0
        self.shared.updates[self.worker] += 1

    def as_json(self) -> dict[str, Any]:
        """For details()."""
        return {
            "num_updates": self.histogram.total(),
            "staleness": {str(key): self.histogram[key] for key in sorted(self.histogram)},
            "overlapped_updates": self.overlapped,
        }


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The records of all workers as one."""
    staleness: Counter[str] = Counter()
    for part in parts:
        staleness.update(part["staleness"])
    return {
        "num_updates": sum(part["num_updates"] for part in parts),
        "staleness": {key: staleness[key] for key in sorted(staleness, key=int)},
        "overlapped_updates": sum(part["overlapped_updates"] for part in parts),
    }


def map_shared(name: str, like: torch.Tensor, num_workers: int, transport: Transport | None) -> SharedWeights:
    """Makes the mapping; every rank calls it. The memory is zero; rank 0 fills it, and a barrier must follow.

    Args:
        name: of the scheme, for messages.
        like: of the weights' size and dtype.
        num_workers: N.
        transport: to the other ranks; None for a rank alone.

    Raises:
        BenchError: on every rank alike: no /dev/shm, no room there, or a rank on another host.
    """
    size = SharedWeights.bytes_for(like, num_workers)
    if transport is None:
        return SharedWeights(torch.zeros(size, dtype=torch.uint8), like, num_workers)
    if transport.group.index == 0:
        memory, trouble = _offer(name, size, transport)
    else:
        memory, trouble = _take(size, transport)
    if trouble or memory is None:
        raise BenchError(trouble or f"{name}: no shared memory")
    return SharedWeights(memory, like, num_workers)


def _offer(name: str, size: int, transport: Transport) -> tuple[torch.Tensor | None, str]:
    path, memory, trouble = "", None, ""
    try:
        try:
            path, memory = _create(size)
        except OSError as error:
            trouble = (
                f"{name}: no {size:,} bytes of shared memory in {SHARED_FOLDER}: {error.strerror or error}"
            )
        other_ranks = range(1, transport.group.size)
        for rank in other_ranks:
            _send_text(transport, rank, path)
        strangers = [rank for rank in other_ranks if _receive_text(transport, rank) != "mapped"]
        if strangers and not trouble:
            trouble = (
                f"{name} keeps the weights in the memory of one host, and rank {strangers[0]} cannot map "
                f"that of rank 0; start all ranks on one host"
            )
        for rank in other_ranks:
            _send_text(transport, rank, trouble[:_NAME_BYTES])
    finally:
        if path:
            with suppress(FileNotFoundError):
                Path(path).unlink()
    return memory, trouble


def _take(size: int, transport: Transport) -> tuple[torch.Tensor | None, str]:
    path = _receive_text(transport, 0)
    memory = None
    if path and Path(path).is_file() and Path(path).stat().st_size == size:  # else torch would make a new one
        memory = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
    _send_text(transport, 0, "mapped" if memory is not None else "")
    return memory, _receive_text(transport, 0)


def _create(size: int) -> tuple[str, torch.Tensor]:
    handle, path = tempfile.mkstemp(prefix=_PREFIX, dir=SHARED_FOLDER)
    try:
        os.posix_fallocate(handle, 0, size)  # a full /dev/shm is an error here, not a SIGBUS later
        return path, torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
    except BaseException:
        Path(path).unlink()
        raise
    finally:
        os.close(handle)


def _send_text(transport: Transport, to: int, text: str) -> None:
    data = text.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
    transport.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), to)


def _receive_text(transport: Transport, source: int) -> str:
    data = torch.empty(_NAME_BYTES, dtype=torch.uint8)
    transport.receive(data, source)
    return bytes(data.tolist()).rstrip(b"\0").decode(errors="replace")
