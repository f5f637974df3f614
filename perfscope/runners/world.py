"""This process among the ranks: device, process groups, and the few exchanges every runner needs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from perfscope.runners.comm import Group, Ledger
from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.transport import GlooTransport, Transport


class Peers(Protocol):
    """How ranks meet outside of training: torch.distributed or MPI."""

    rank: int
    size: int
    backend: str

    def barrier(self) -> None:
        """All ranks are here."""

    def gather(self, value: Any) -> list[Any] | None:
        """Every rank's value on rank 0, None elsewhere."""

    def agreed(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""

    def group(self, ranks: tuple[int, ...]) -> Any:
        """What makes collectives among some ranks (comm.Group.handle); None where this one is no member.

        All ranks call it, for the same groups in the same order.
        """

    def transport(self, group: Group) -> Transport:
        """Messages between two ranks of the group.

        Raises:
            BenchError: this backend has no receive from any source.
        """

    def close(self) -> None:
        """No more."""


@dataclass
class World:
    """One rank's view.

    Attributes:
        peers: how ranks meet.
        local_rank: this rank's place on its host.
        device: where tensors live.
        ledger: of this rank; every group of `group` writes into it.
    """

    peers: Peers
    local_rank: int
    device: torch.device
    ledger: Ledger = field(default_factory=Ledger)
    _handles: dict[tuple[int, ...], Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.peers.rank

    @property
    def size(self) -> int:
        """P."""
        return self.peers.size

    def groups(self, axis: str, groups: Sequence[tuple[int, ...]]) -> Group:
        """This rank's group among `groups`, named in the same order by every rank (all are made by all).

        A rank that is in none gets a Group with index -1.
        """
        mine: Group | None = None
        for ranks in groups:
            handle = self._handle(ranks)
            if self.rank in ranks:
                mine = Group(axis, ranks, ranks.index(self.rank), handle, self.ledger)
        return mine or Group(axis, (), -1, None, self.ledger)

    def _handle(self, ranks: tuple[int, ...]) -> Any:
        if len(ranks) < 2:
            return None
        if ranks not in self._handles:
            self._handles[ranks] = self.peers.group(ranks)
        return self._handles[ranks]


class TorchPeers:
    """torch.distributed."""

    def __init__(self, backend: str) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.backend = backend

    def barrier(self) -> None:
        """All ranks are here."""
        dist.barrier()

    def gather(self, value: Any) -> list[Any] | None:
        """Every rank's value on rank 0, None elsewhere."""
        gathered: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, gathered, dst=0)
        return gathered

    def agreed(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        shared = [value]
        dist.broadcast_object_list(shared, src=0)
        return shared[0]

    def group(self, ranks: tuple[int, ...]) -> Any:
        """See Peers."""
        if ranks == tuple(range(self.size)):
            return dist.group.WORLD
        made = dist.new_group(list(ranks))
        return made if self.rank in ranks else None

    def transport(self, group: Group) -> Transport:
        """See Peers."""
        if self.backend != "gloo":
            raise BenchError(f"no receive from any rank over {self.backend}; use --backend gloo or mpi")
        return GlooTransport(group)

    def close(self) -> None:
        """Leaves the group; a peer that is gone already is no error any more."""
        with suppress(RuntimeError, ValueError):
            dist.destroy_process_group()


class Alone:
    """One process without a launcher."""

    rank = 0
    size = 1
    backend = "none"

    def barrier(self) -> None:
        """No rank to wait for."""

    def gather(self, value: Any) -> list[Any] | None:
        """The one value."""
        return [value]

    def agreed(self, value: Any) -> Any:
        """The one value."""
        return value

    def group(self, ranks: tuple[int, ...]) -> Any:
        """See Peers."""
        raise BenchError("one rank has no other to exchange with")

    def transport(self, group: Group) -> Transport:
        """See Peers."""
        raise BenchError("one rank has no other to send to")

    def close(self) -> None:
        """Nothing to leave."""


# Of perfscope's own start and of torchrun, of MPICH, Open MPI and Slurm.
_LOCAL_RANKS = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")


def _first_number(env: Mapping[str, str], names: Sequence[str]) -> int | None:
    return next((int(env[name]) for name in names if env.get(name, "").isdigit()), None)


def open_world(
    config: BenchConfig,
    environment: Mapping[str, str] | None = None,
    backends: Sequence[str] = ("gloo", "nccl"),
) -> World:
    """Joins the other ranks as the launcher's environment says.

    Args:
        config: of the run.
        environment: os.environ where it is None.
        backends: what the scheme's exchange can run on; `auto` takes nccl on GPUs where it may.

    Raises:
        BenchError: the launcher started another number of ranks than the run is for, or GPUs are missing.
    """
    env = os.environ if environment is None else environment
    if config.backend == "mpi":
        from perfscope.runners.mpi import MpiPeers

        peers: Peers = MpiPeers(config.timeout_s)
        local_rank = _first_number(env, _LOCAL_RANKS) or 0
        _require_size(config, peers.size)
        local_size = _first_number(env, _LOCAL_SIZES) or 1
        return World(peers, local_rank, choose_device(config, local_rank, local_size))
    local_rank = int(env.get("LOCAL_RANK", "0"))
    _require_size(config, int(env.get("WORLD_SIZE", "1")))
    device = choose_device(config, local_rank, int(env.get("LOCAL_WORLD_SIZE", "1")))
    alone = "WORLD_SIZE" not in env
    if alone and config.scheme == "serial":
        return World(Alone(), local_rank, device)
    backend = config.backend
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" and "nccl" in backends else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # one rank is started without a launcher; libraries such as DDP need a group all the same
    of_one: dict[str, Any] = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if alone else {}
    dist.init_process_group(backend, timeout=timedelta(seconds=config.timeout_s), **of_one)
    return World(TorchPeers(backend), local_rank, device)


def check_devices(config: BenchConfig, num_here: int) -> None:
    """What can be said of GPUs before `num_here` ranks are started on this machine.

    Raises:
        BenchError: the run asks for GPUs, or for what only they have, and there are too few.
    """
    num = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if config.device == "cuda" and num < num_here:
        raise BenchError(_too_few(num_here, num))
    if config.backend == "nccl" and (config.device == "cpu" or num < num_here):
        there = "--device cpu uses none" if config.device == "cpu" else f"there are {num}"
        raise BenchError(
            f"--backend nccl needs {num_here} of this machine's GPUs, one per rank, and {there}; "
            f"use --backend gloo"
        )


def _too_few(needed: int, num: int) -> str:
    if num:
        return f"--device cuda: {needed} ranks on this host, but {num} GPUs; start fewer"
    missing = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no GPU here"
    return f"--device cuda: {missing}; use --device cpu, or a machine and a torch with CUDA"


def choose_device(config: BenchConfig, local_rank: int, local_size: int) -> torch.device:
    """The rank's device; GPU `local_rank` where there is one for each of the host's `local_size` ranks.

    Raises:
        BenchError: GPUs were asked for and there are too few.
    """
    if config.device == "cpu":
        return torch.device("cpu")
    num = torch.cuda.device_count() if torch.cuda.is_available() else 0
    needed = max(local_size, local_rank + 1)
    if needed <= num:
        return torch.device("cuda", local_rank)
    if config.device == "cuda":
        raise BenchError(_too_few(needed, num))
    return torch.device("cpu")


def _require_size(config: BenchConfig, num_started: int) -> None:
    if num_started != config.num_ranks:
        raise BenchError(
            f"the launcher started {num_started} ranks, but the run is for {config.num_ranks}; "
            f"start as many, or change --ranks or --mesh"
        )
