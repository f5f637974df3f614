"""Ranks started by mpiexec or srun that meet through MPI. The only module that imports mpi4py.

Buffers are handed to MPI as numpy views of CPU tensors (mpi4py's upper-case calls, no pickling). MPI has no
timeouts, and its blocking calls spin on a core: waits here poll with growing pauses and give up in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from perfscope.runners.carriers import Carrier
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

    def group(self, ranks: tuple[int, ...]) -> Carrier | None:
        """Collectives among some ranks; None where this one is no member. Every member calls it."""
        if self.rank not in ranks:
            return None
        return MpiCarrier(self, self.comm.Create_group(self.comm.Get_group().Incl(list(ranks))), ranks)

    def transport(self, group: Group) -> Transport:
        """Messages among the ranks of `group`, which must hold all."""
        return MpiTransport(group, self, self.timeout_s)

    def close(self) -> None:
        """Leaves MPI, with all others."""
        if not self.mpi.Is_finalized():
            self.mpi.Finalize()


class _Work:
    """A request, and what holds the memory that it uses."""

    def __init__(self, request: Any, timeout_s: float, *used: Any) -> None:
        self._request, self._timeout_s, self._used = request, timeout_s, used

    def wait(self) -> None:
        """Until the call has ended here.

        Raises:
            PeerLostError: another rank is not there in time.
        """
        if self._request is not None:
            wait_for(self._request, self._timeout_s, "waiting for", None)
        self._request = None


class MpiCarrier(Carrier):
    """A communicator of some ranks.

    Calls are made as MPI's non-blocking ones, and go on in MPI's progress engine: with most libraries only
    while this process waits for one of them.
    """

    def __init__(self, peers: MpiPeers, communicator: Any, ranks: tuple[int, ...]) -> None:
        self._mpi, self._comm, self._timeout_s = peers.mpi, communicator, peers.timeout_s
        self._index_of = {rank: index for index, rank in enumerate(ranks)}
        self._ranks = ranks

    def _started(self, request: Any, *used: Any, async_op: bool) -> Any:
        work = _Work(request, self._timeout_s, *used)
        if async_op:
            return work
        work.wait()
        return None

    def all_reduce(self, tensor: torch.Tensor, op: Any, *, async_op: bool) -> Any:
        """See Carrier."""
        how = self._mpi.MAX if op == dist.ReduceOp.MAX else self._mpi.SUM
        view = _numbers(tensor)
        request = self._comm.Iallreduce(self._mpi.IN_PLACE, view, op=how)
        return self._started(request, view, async_op=async_op)

    def all_gather(self, out: torch.Tensor, part: torch.Tensor, *, async_op: bool) -> Any:
        """See Carrier."""
        parts, gathered = _buffer(part), _buffer(out)
        return self._started(self._comm.Iallgather(parts, gathered), parts, gathered, async_op=async_op)

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, *, async_op: bool) -> Any:
        """See Carrier."""
        summed, part = _numbers(full), _numbers(out)
        request = self._comm.Ireduce_scatter_block(summed, part)
        return self._started(request, summed, part, async_op=async_op)

    def all_to_all(
        self, out: torch.Tensor, full: torch.Tensor, splits: tuple[list[int], list[int]], *, async_op: bool
    ) -> Any:
        """See Carrier."""
        came, went = _buffer(out), _buffer(full)
        if not splits[0]:
            return self._started(self._comm.Ialltoall(went, came), went, came, async_op=async_op)
        row = full[0].nbytes if len(full) else out[0].nbytes if len(out) else 0
        received, sent = ([length * row for length in lengths] for lengths in splits)
        request = self._comm.Ialltoallv([went, sent], [came, received])
        return self._started(request, went, came, async_op=async_op)

    def broadcast(self, tensor: torch.Tensor, root: int, *, async_op: bool) -> Any:
        """See Carrier."""
        view = _buffer(tensor)
        return self._started(self._comm.Ibcast(view, root=self._index_of[root]), view, async_op=async_op)

    def reduce(self, tensor: torch.Tensor, root: int, *, async_op: bool) -> Any:
        """See Carrier."""
        view, root_index = _numbers(tensor), self._index_of[root]
        is_root = self._comm.Get_rank() == root_index
        ends = (self._mpi.IN_PLACE, view) if is_root else (view, None)
        request = self._comm.Ireduce(*ends, root=root_index)
        return self._started(request, view, async_op=async_op)

    def send(self, tensor: torch.Tensor, to: int, tag: int, *, async_op: bool) -> Any:
        """See Carrier."""
        view = _buffer(tensor.contiguous())
        request = self._comm.Isend(view, dest=self._index_of[to], tag=tag)
        return self._started(request, view, async_op=async_op)

    def receive(self, tensor: torch.Tensor, source: int | None, tag: int, *, async_op: bool) -> Any:
        """See Carrier."""
        view, status = _buffer(tensor), self._mpi.Status()
        sender = self._mpi.ANY_SOURCE if source is None else self._index_of[source]
        request = self._comm.Irecv(view, source=sender, tag=tag)
        if async_op:
            return _Work(request, self._timeout_s, view)
        wait_for(request, self._timeout_s, "receiving from", source, status)
        return self._ranks[status.Get_source()]

    def hop(self, tensor: torch.Tensor, after: int, into: torch.Tensor, before: int) -> Sequence[Any]:
        """See Carrier."""
        return (
            self.send(tensor, after, 0, async_op=True),
            self.receive(into, before, 0, async_op=True),
        )


def _numbers(tensor: torch.Tensor) -> Any:
    if tensor.device.type != "cpu":
        raise BenchError("--backend mpi exchanges in host memory; use --device cpu, or --backend nccl")
    return tensor.detach().view(-1).numpy()  # MPI must know the type, to add


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

    def _start_receive(self, into: torch.Tensor, source: int, group: Group) -> Callable[[], Any]:
        with group.marked(into):
            request = self._comm.Irecv(_buffer(into), source=group.ranks[source])
        return lambda: wait_for(request, self._timeout_s, "receiving from", source)


def _buffer(tensor: torch.Tensor) -> Any:
    return _numbers(tensor.view(-1).view(torch.uint8))  # bytes: MPI need not know torch's types


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
