"""Real ranks for tests: gloo on loopback, one function on each, several cases in one start.

Every rank is a process of its own, forked from a server that has imported torch: an import takes seconds.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import socket
import tempfile
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from time import monotonic
from typing import Any

TIMEOUT_S = 240.0
_IMPORTED = ("torch._dynamo", "torch.distributed.fsdp", "perfscope.runners.world", "perfscope.runners.train")


def run_ranks(num_ranks: int, target: str, **arguments: Any) -> list[Any]:
    """Starts ranks, calls `target` ("module:function") as function(world, **arguments) on each.

    Returns:
        What each rank returned, by rank.

    Raises:
        AssertionError: a rank failed or did not end; with the first failing rank's stack trace.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        place = Path(folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        processes = []
        for rank in range(num_ranks):
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(num_ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            process = _server().Process(target=_rank, args=(place, target, arguments, environment))
            process.start()
            stack.callback(process.kill)
            processes.append(process)
        end = monotonic() + TIMEOUT_S
        for process in processes:
            process.join(max(0.0, end - monotonic()))
        results: list[Any] = []
        problems: list[Any] = []
        for rank in range(num_ranks):
            file = place / f"result{rank}"
            if not file.exists():
                problems.append(f"rank {rank} did not end")
                continue
            good, value = pickle.loads(file.read_bytes())
            (results if good else problems).append(value)
        assert not problems, "\n".join(sorted(problems, key=len))
        return results


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
    try:
        context.Process(target=int).start()  # the first process starts the server
    finally:
        del os.environ["OMP_NUM_THREADS"]
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before
    return context


def _rank(place: Path, target: str, arguments: dict[str, Any], environment: dict[str, str]) -> None:
    from perfscope.runners.config import BenchConfig
    from perfscope.runners.world import open_world

    os.environ.update(environment)
    rank, num_ranks = environment["RANK"], int(environment["WORLD_SIZE"])
    result: tuple[bool, Any]
    try:
        module, _, name = target.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        world = open_world(BenchConfig(scheme="serial", num_ranks=num_ranks, device="cpu"))
        result = (True, function(world, **arguments))
        world.peers.close()
    except BaseException:  # noqa: BLE001 - reported to the test
        result = (False, f"rank {rank}: {traceback.format_exc()}")
    aside = place / f"aside{rank}"
    aside.write_bytes(pickle.dumps(result))
    aside.rename(place / f"result{rank}")
