"""What each process of a run gets so that it finds the others: every framework has its own variables."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "GRPC_VERBOSITY": "ERROR"}  # unless the user wants to hear more


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """One process to start.

    Attributes:
        name: for messages: "rank 1", "server".
        rank: None of what does not train: it is ended once all that do have ended.
        command: its words.
        environment: variables to set besides the common ones.
    """

    name: str
    rank: int | None
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is to be started.

    Attributes:
        python: that has the framework.
        program, config: its first and second word.
        size: processes that train.
        threads: of each.
        devices: of each rank, the GPU that it alone sees, as CUDA_VISIBLE_DEVICES names it; () = CPUs only.
    """

    python: str
    program: str
    config: str
    size: int
    threads: int
    devices: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """Of one process."""
        return (self.python, self.program, self.config)


def tasks_of(meeting: str, start: Start) -> tuple[RankProcess, ...]:
    """The processes of a run: those that train by rank, and what they need beside them."""
    return MEETINGS[meeting](start)


def common_environment(start: Start) -> dict[str, str]:
    """For every process: one machine, so many threads, CPUs only or the GPUs of the ranks."""
    threads = str(start.threads)
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "NPROC": threads,  # XLA's CPU client makes as many threads
        _VISIBLE: ",".join(start.devices),
        "JAX_PLATFORMS": "cuda" if start.devices else "cpu",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }


def devices_of(num_ranks: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The GPU of each rank: the first ones that this process may use, as it would name them.

    Args:
        num_ranks: of the run; at least as many GPUs must be visible.
        environment: of this process.
    """
    visible = environment.get(_VISIBLE, "")
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return tuple((names or [str(index) for index in range(num_ranks)])[:num_ranks])


def free_ports(num: int) -> list[int]:
    """Ports that no process listens on now, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(num)]
        for socket_ in sockets:
            socket_.bind((HOST, 0))
        return [int(socket_.getsockname()[1]) for socket_ in sockets]


def _torch(start: Start) -> tuple[RankProcess, ...]:
    (port,) = free_ports(1)
    return _ranks(start, lambda rank: {"MASTER_ADDR": HOST, "MASTER_PORT": str(port)})


def _tensorflow(start: Start) -> tuple[RankProcess, ...]:
    if start.size == 1:  # TF_CONFIG of one worker would start a server for no one
        return _ranks(start, lambda rank: {})
    workers = [f"{HOST}:{port}" for port in free_ports(start.size)]

    def variables_of(rank: int) -> dict[str, str]:
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        return {"TF_CONFIG": json.dumps(config)}

    return _ranks(start, variables_of)


def _jax(start: Start) -> tuple[RankProcess, ...]:
    (port,) = free_ports(1)
    return _ranks(start, lambda rank: {"JAX_COORDINATOR_ADDRESS": f"{HOST}:{port}"})


def _mxnet(start: Start) -> tuple[RankProcess, ...]:
    if start.size == 1:
        return _ranks(start, lambda rank: {})
    (port,) = free_ports(1)
    shared = {
        "DMLC_PS_ROOT_URI": HOST,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": HOST,
        "DMLC_NUM_WORKER": str(start.size),
        "DMLC_NUM_SERVER": "1",
    }
    helpers = tuple(
        RankProcess(name=role, rank=None, command=start.command, environment={**shared, "DMLC_ROLE": role})
        for role in ("scheduler", "server")
    )
    workers = _ranks(start, lambda rank: {**shared, "DMLC_ROLE": "worker"})
    return (*helpers, *workers)


def _horovod(start: Start) -> tuple[RankProcess, ...]:
    """horovodrun starts the ranks: it also runs the store that they meet at."""
    run = str(Path(start.python).parent / "horovodrun")
    command = (run, "-np", str(start.size), "--gloo", "--network-interfaces", "lo", *start.command)
    return (RankProcess(name="horovodrun", rank=0, command=command),)


def _ranks(start: Start, variables_of: Callable[[int], Mapping[str, str]]) -> tuple[RankProcess, ...]:
    """RANK and WORLD_SIZE go to all: perfscope's probe and our programs read them, whatever the framework."""
    return tuple(
        RankProcess(
            name=f"rank {rank}",
            rank=rank,
            command=start.command,
            environment={
                "RANK": str(rank),
                "WORLD_SIZE": str(start.size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(start.size),
                **({_VISIBLE: start.devices[rank]} if start.devices else {}),
                **variables_of(rank),
            },
        )
        for rank in range(start.size)
    )


MEETINGS: Mapping[str, Callable[[Start], tuple[RankProcess, ...]]] = {
    "torch": _torch,
    "tensorflow": _tensorflow,
    "jax": _jax,
    "mxnet": _mxnet,
    "horovod": _horovod,
}
