"""Ranks started by mpiexec or srun that meet through MPI. The only module that imports mpi4py.

Buffers are handed to MPI as numpy views of CPU tensors (mpi4py's upper-case calls, no pickling). MPI has no
timeouts, and its blocking calls spin on a core: waits here poll with growing pauses and give up in time.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from perfscope.runners.comm import Group
from perfscope.runners.config import DEFAULT_TIMEOUT_S, BenchError
from perfscope.runners.transport import Transport, lost

_EAGER_TESTS = 200  # tries without a pause: a message that is already under way is taken at once
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 1e-3


def _load() -> Any:
    """mpi4py.MPI, initialized. A rank that fails must not wait for the others in MPI_Finalize."""
    try:
        import mpi4py
    except ImportError as error:
        raise BenchError("--backend mpi needs mpi4py and an MPI; pip install 'perfscope-hpc[mpi]'") from error
    mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (
        ImportError,
        RuntimeError,
    ) as error:  # mpi4py is there, the MPI library that it was built for is not
        text = " ".join(str(error).split())
        raise BenchError(f"mpi4py finds no MPI library ({text}); install MPICH or Open MPI") from error
    return MPI


class MpiPeers:
    """MPI's world. See world.Peers.

    Attributes:
        mpi: mpi4py's MPI module.
        comm: MPI_COMM_WORLD.

    Raises:
        BenchError: mpi4py or the MPI library is missing.
    """

    backend = "mpi"

    def __init__(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.mpi = _load()
        self.comm = self.mpi.COMM_WORLD
        self.rank: int = self.comm.Get_rank()
        self.size: int = self.comm.Get_size()
        self.timeout_s = timeout_s

    def barrier(self) -> None:
        """All ranks are here.

        Raises:
            PeerLostError: one of them is not within the timeout.
        """
        wait_for(self.comm.Ibarrier(), self.timeout_s, "waiting for", None)

    def gather(self, value: Any) -> list[Any] | None:
        """Every rank's value on rank 0, None elsewhere."""
        self.barrier()  # the one who is missing is noticed here, with a timeout
        gathered: list[Any] | None = self.comm.gather(value, root=0)
        return gathered

    def agreed(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        self.barrier()  # as in gather
        return self.comm.bcast(value, root=0)

    def transport(self, group: Group) -> Transport:
        """Messages among the ranks of `group`, which must hold all."""
        return MpiTransport(group, self, self.timeout_s)

    def close(self) -> None:
        """Leaves MPI, with all others."""
        if not self.mpi.Is_finalized():
            self.mpi.Finalize()


class MpiTransport(Transport):
    """Over MPI_COMM_WORLD; the group must hold all ranks."""

    def __init__(self, group: Group, peers: MpiPeers, timeout_s: float) -> None:
        super().__init__(group)
        self._mpi, self._comm, self._timeout_s = peers.mpi, peers.comm, timeout_s

    def _send(self, tensor: torch.Tensor, to: int, group: Group) -> None:
        rank = group.ranks[to]
        request = group.call("send", tensor, lambda: self._comm.Isend(_buffer(tensor), dest=rank))
        wait_for(request, self._timeout_s, "sending to", to)

    def _receive(self, into: torch.Tensor, source: int | None, group: Group) -> int:
        rank = self._mpi.ANY_SOURCE if source is None else group.ranks[source]
        status = self._mpi.Status()
        with group.marked(into):
            request = self._comm.Irecv(_buffer(into), source=rank)
            wait_for(request, self._timeout_s, "receiving from", source, status)
        return group.ranks.index(status.Get_source())


def _buffer(tensor: torch.Tensor) -> Any:
    return tensor.reshape(-1).view(torch.uint8).numpy()  # bytes: MPI need not know torch's types


def wait_for(request: Any, timeout_s: float, doing: str, rank: int | None, status: Any | None = None) -> None:
    """Waits for an MPI request without holding a core.

    Raises:
        PeerLostError: it has not ended after `timeout_s`.
    """
    end = time.monotonic() + timeout_s
    pause, tests = _FIRST_PAUSE_S, 0
    while not request.Test(status):
        tests += 1
        if tests < _EAGER_TESTS:
            continue
        if time.monotonic() > end:
            raise lost(doing, rank, f"timed out after {timeout_s:g} s")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
