"""Messages between two ranks, for schemes with a server: from a given rank, or from the one who comes first.

Two implementations: gloo through `comm`, and MPI (`mpi`, through mpi4py). Both wait no longer than the run's
timeout and report a lost peer alike. Tensors of a GPU travel through host memory: no transport needs to know
about devices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from perfscope.runners import comm
from perfscope.runners.comm import Group


class PeerLostError(RuntimeError):
    """Another rank is gone, or did not answer in time. One line."""


class Transport(ABC):
    """Point-to-point messages among the ranks of a group; every send is noted in the rank's ledger."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """`tensor` (contiguous) to rank `to` of the group; it may be overwritten afterwards.

        Raises:
            PeerLostError: that rank is gone or does not take it in time.
        """
        self._send(tensor.detach().cpu(), to, self.group.carrying(tensor))

    def receive(self, into: torch.Tensor, source: int | None = None) -> int:
        """Fills `into` (contiguous; size and dtype as sent) with the next message of `source`, or of any
        rank.

        Returns:
            Who sent it, as a rank of the group.

        Raises:
            PeerLostError: that rank is gone, or nothing came in time.
        """
        host = into if into.device.type == "cpu" else torch.empty_like(into, device="cpu")
        source_rank = self._receive(host, source, self.group.carrying(into))
        if host is not into:
            into.copy_(host)
        return source_rank

    def start_receive(self, into: torch.Tensor, source: int) -> Callable[[], None]:
        """As receive from one rank, but returns at once; what it returns waits.

        A rank that sends to several and hears from several must not keep one of them waiting for another.
        """
        host = into if into.device.type == "cpu" else torch.empty_like(into, device="cpu")
        wait = self._start_receive(host, source, self.group.carrying(into))

        def finish() -> None:
            try:
                wait()
            except RuntimeError as error:
                if isinstance(error, PeerLostError):
                    raise
                raise lost("receiving from", source, str(error)) from error
            if host is not into:
                into.copy_(host)

        return finish

    @abstractmethod
    def _start_receive(self, into: torch.Tensor, source: int, group: Group) -> Callable[[], Any]: ...

    @abstractmethod
    def _send(self, tensor: torch.Tensor, to: int, group: Group) -> None: ...

    @abstractmethod
    def _receive(self, into: torch.Tensor, source: int | None, group: Group) -> int: ...


class GlooTransport(Transport):
    """Over a process group of gloo, whose timeout bounds every wait."""

    def _send(self, tensor: torch.Tensor, to: int, group: Group) -> None:
        try:
            comm.send(tensor, to, group)
        except RuntimeError as error:
            raise lost("sending to", to, str(error)) from error

    def _receive(self, into: torch.Tensor, source: int | None, group: Group) -> int:
        try:
            return int(comm.receive(into, source, group))
        except RuntimeError as error:
            raise lost("receiving from", source, str(error)) from error

    def _start_receive(self, into: torch.Tensor, source: int, group: Group) -> Callable[[], Any]:
        wait: Callable[[], Any] = comm.receive(into, source, group, async_op=True).wait
        return wait


def lost(doing: str, rank: int | None, reason: str) -> PeerLostError:
    """The one line for a peer that is gone."""
    peer = "any rank" if rank is None else f"rank {rank}"
    text = " ".join(reason.split("] ")[-1].split()).split(". ")[
        0
    ]  # torch puts file names in front, advice behind
    return PeerLostError(f"{doing} {peer}: {text}")
