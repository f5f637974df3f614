"""Measures collectives by size, and TCP between hosts. Run as a script: once, or once per rank of a launcher.

    python kernels_collectives.py PLAN     PLAN: JSON, see `main`; rank 0 prints a JSON object a line

Needs torch (gloo, NCCL) or mpi4py and numpy (MPI). Nothing else of perfscope is imported but kernels_tcp.py
beside this file. S, the bytes of a call, is as in perfscope.volumes: all_reduce: the tensor; all_gather: the
whole result; all_to_all: the whole input of one rank.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

SIZES = (256, 4096, 65_536, 1 << 20, 8 << 20)
COLLECTIVES = ("all_reduce", "all_gather", "all_to_all")
_SMALL_BYTES, _BATCH = 65_536, 10  # calls of up to so many bytes are timed in batches: a clock costs, too
_ROUNDS = (3, 20)
_MOST_PAIRS = 28  # of hosts: all of eight
_SIOCGIFADDR = 0x8915
_JOIN_S = 60.0

Operation = Callable[[], Any]


class TorchRanks:
    """The ranks of a torch process group.

    Args:
        backend: gloo or nccl.
        init: env:// or file://...
        rank, size: None = from the environment.
    """

    def __init__(self, backend: str, init: str, rank: int | None, size: int | None, local_rank: int) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        given = {} if rank is None or size is None else {"rank": rank, "world_size": size}
        self.device = f"cuda:{local_rank}" if backend == "nccl" else "cpu"
        if backend == "nccl":
            torch.cuda.set_device(local_rank)
        dist.init_process_group(backend, init_method=init, timeout=timedelta(seconds=_JOIN_S), **given)
        self.torch, self.dist = torch, dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.how = f"torch {torch.__version__}, {backend}"

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks."""
        values: list[Any] = [None] * self.size
        self.dist.all_gather_object(values, value)
        return values

    def agree(self, number: int) -> int:
        """Rank 0's number."""
        tensor = self.torch.tensor([number], device=self.device)
        self.dist.broadcast(tensor, 0)
        return int(tensor.item())

    def barrier(self) -> None:
        self.dist.barrier()
        self.wait()

    def wait(self) -> None:
        """Until the device has done what was asked of it."""
        if self.device != "cpu":
            self.torch.cuda.synchronize()

    def operation(self, collective: str, size: int) -> Operation:
        tensor = self.torch.zeros(max(size // 4, self.size), device=self.device)
        tensor = tensor[: len(tensor) // self.size * self.size]
        if collective == "all_reduce":
            return lambda: self.dist.all_reduce(tensor)
        if collective == "all_gather":
            pieces = list(tensor.chunk(self.size))
            piece = self.torch.zeros_like(pieces[0])
            return lambda: self.dist.all_gather(pieces, piece)
        result = self.torch.empty_like(tensor)
        return lambda: self.dist.all_to_all_single(result, tensor)

    def leave(self) -> None:
        self.barrier()
        self.dist.destroy_process_group()


class MpiRanks:
    """The ranks of MPI's world."""

    def __init__(self) -> None:
        import numpy as np
        from mpi4py import MPI

        self.np, self.world = np, MPI.COMM_WORLD
        self.rank, self.size = self.world.Get_rank(), self.world.Get_size()
        version = MPI.Get_library_version().splitlines()[0].strip("\0 ").split(",")[0]
        self.how = " ".join(version.replace("Version:", "").split())

    def gather(self, value: Any) -> list[Any]:
        return list(self.world.allgather(value))

    def agree(self, number: int) -> int:
        return int(self.world.bcast(number, 0))

    def barrier(self) -> None:
        self.world.Barrier()

    def wait(self) -> None:
        """Calls of MPI have ended when they return."""

    def operation(self, collective: str, size: int) -> Operation:
        count = max(size // 4, self.size) // self.size * self.size
        tensor, result = self.np.zeros(count, "f4"), self.np.zeros(count, "f4")
        if collective == "all_reduce":
            return lambda: self.world.Allreduce(tensor, result)
        if collective == "all_gather":
            piece = self.np.zeros(count // self.size, "f4")
            return lambda: self.world.Allgather(piece, result)
        return lambda: self.world.Alltoall(tensor, result)

    def leave(self) -> None:
        self.world.Barrier()


def main(text: str) -> None:
    """Do what a plan says.

    {"backend": gloo, nccl or mpi, "budget_s": s, "seconds": per size, "local": ranks to start here; null =
    the launcher has started them}.
    """
    plan = json.loads(text)
    deadline = time.monotonic() + plan["budget_s"]
    if plan["backend"] == "mpi":
        measure(MpiRanks(), plan, deadline)
    elif plan["local"]:
        _start_here(plan, deadline)
    else:
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        measure(TorchRanks(plan["backend"], "env://", None, None, local_rank), plan, deadline)


def _start_here(plan: dict[str, Any], deadline: float) -> None:
    """All ranks on this host, as forks of this process: torch is imported once."""
    import torch  # noqa: F401

    with tempfile.TemporaryDirectory(prefix="perfscope-links-") as folder:
        init, size = f"file://{folder}/store", plan["local"]
        rank = 0
        children: list[int] = []
        for other in range(1, size):
            pid = os.fork()
            if pid == 0:
                rank, children = other, []
                break
            children.append(pid)
        try:
            measure(TorchRanks(plan["backend"], init, rank, size, rank), plan, deadline)
        finally:
            if rank:
                os._exit(0)
            for pid in children:
                os.waitpid(pid, 0)


def measure(ranks: TorchRanks | MpiRanks, plan: dict[str, Any], deadline: float) -> None:
    """Who takes part, then every pair of hosts, then every collective by size."""
    hosts = ranks.gather(socket.gethostname())
    speaks = ranks.rank == 0
    if speaks:
        say({"how": ranks.how, "hosts": hosts})
    if len(set(hosts)) > 1 and plan["backend"] == "gloo":
        _pairs(ranks, hosts, plan["seconds"], deadline, speaks)
    # Each collective at every size before the next size: what time is left for is of all of them.
    calls = [(collective, size) for size in SIZES for collective in COLLECTIVES]
    for number, (collective, size) in enumerate(calls):
        seconds = _timed(ranks, collective, size, plan["seconds"], deadline)
        if not seconds:
            if speaks:
                say(_left_out(calls[number:], ranks.size))
            break
        if speaks:
            say({"collective": collective, "bytes": size // ranks.size * ranks.size, "seconds": seconds})
    ranks.leave()


def _left_out(calls: list[tuple[str, int]], num_ranks: int) -> dict[str, Any]:
    """What no time was left for, in one line."""
    names = ", ".join(name for name in COLLECTIVES if any(name == collective for collective, _ in calls))
    least, most = (size // num_ranks * num_ranks for size in (calls[0][1], calls[-1][1]))
    sizes = f"{least} bytes" if least == most else f"{least} to {most} bytes"
    return {"missing": f"{names} of {sizes}", "reason": "no time was left; give a larger --budget"}


def _timed(
    ranks: TorchRanks | MpiRanks, collective: str, size: int, seconds: float, deadline: float
) -> list[float]:
    """s of one call, round by round; [] when no time was left. All ranks make the same calls."""
    call = ranks.operation(collective, size)
    batch = _BATCH if size <= _SMALL_BYTES else 1
    if not ranks.agree(int(time.monotonic() < deadline)):
        return []
    first = _one_round(ranks, call, 1)
    left = min(seconds, deadline - time.monotonic())
    wanted = int(left / max(first * batch, 1e-6))
    rounds = ranks.agree(max(_ROUNDS[0], min(wanted, _ROUNDS[1])))
    return [_one_round(ranks, call, batch) for _ in range(rounds)]


def _one_round(ranks: TorchRanks | MpiRanks, call: Operation, batch: int) -> float:
    ranks.barrier()
    began = time.perf_counter()
    for _ in range(batch):
        call()
    ranks.wait()
    return (time.perf_counter() - began) / batch


# Host to host


def _pairs(
    ranks: TorchRanks | MpiRanks, hosts: list[str], seconds: float, deadline: float, speaks: bool
) -> None:
    """TCP between every two hosts, one pair at a time, by the first rank of each."""
    tcp = _beside("kernels_tcp")
    leaders = {host: hosts.index(host) for host in dict.fromkeys(hosts)}
    with socket.socket() as listener:
        address = _own_address()
        listener.bind((address, 0))
        listener.listen(1)
        ends = ranks.gather(listener.getsockname())
        interfaces = ranks.gather(_interface(address))
        for host, other in list(combinations(leaders, 2))[:_MOST_PAIRS]:
            if not ranks.agree(int(time.monotonic() < deadline)):
                break
            caller, server = leaders[host], leaders[other]
            measured: list[tuple[int, list[float]]] = []
            if ranks.rank == server:
                tcp.serve(listener)
            elif ranks.rank == caller:
                with socket.create_connection(ends[server]) as connection:
                    measured = tcp.ping(connection, seconds, deadline)
            measured = ranks.gather(measured)[caller]
            for size, rounds in measured if speaks else ():
                pair = {"hosts": [host, other], "interfaces": [interfaces[caller], interfaces[server]]}
                say({"collective": "send", "bytes": size, "seconds": rounds, **pair})


def _own_address() -> str:
    """Of the interface that leads to rank 0's host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
        return str(probe.getsockname()[0])


def _interface(address: str) -> str | None:
    """The name of the interface that has an IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def _beside(name: str) -> Any:
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
