"""Real ranks for tests: gloo on loopback, one function on each, several cases in one start."""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

TIMEOUT_S = 240.0
_HERE = Path(__file__).resolve().parents[2]


def run_ranks(num_ranks: int, target: str, **arguments: Any) -> list[Any]:
    """Starts ranks, calls `target` ("module:function") as function(world, **arguments) on each.

    Returns:
        What each rank returned, by rank.

    Raises:
        AssertionError: a rank failed or did not end; with the first failing rank's stack trace.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        place = Path(folder)
        (place / "task").write_bytes(pickle.dumps((target, arguments)))
        processes: list[subprocess.Popen[bytes]] = []
        for rank in range(num_ranks):
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    [str(_HERE), *filter(None, [os.environ.get("PYTHONPATH", "")])]
                ),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(num_ranks),
                "MASTER_ADDR": "127.0.0.1",
                "OMP_NUM_THREADS": "1",
            }
            processes.append(_start(rank, place, environment, processes))
            stack.callback(processes[-1].kill)
        with suppress(subprocess.TimeoutExpired):
            for process in processes:
                process.wait(timeout=TIMEOUT_S)
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


def _start(
    rank: int, place: Path, environment: dict[str, str], before: list[subprocess.Popen[bytes]]
) -> subprocess.Popen[bytes]:
    port = place / "port"
    if not before:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port.write_text(str(probe.getsockname()[1]))
    environment["MASTER_PORT"] = port.read_text()
    return subprocess.Popen(
        [sys.executable, "-m", "tests.runners.ranks", str(rank), str(place)], env=environment
    )


def _rank(rank: int, place: Path) -> None:
    from perfscope.runners.config import BenchConfig
    from perfscope.runners.world import open_world

    target, arguments = pickle.loads((place / "task").read_bytes())
    result: tuple[bool, Any]
    try:
        module, _, name = target.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        world = open_world(
            BenchConfig(scheme="serial", num_ranks=int(os.environ["WORLD_SIZE"]), device="cpu")
        )
        result = (True, function(world, **arguments))
        world.peers.close()
    except BaseException:  # noqa: BLE001 - told to the test
        result = (False, f"rank {rank}: {traceback.format_exc()}")
    aside = place / f"aside{rank}"
    aside.write_bytes(pickle.dumps(result))
    aside.rename(place / f"result{rank}")


if __name__ == "__main__":
    _rank(int(sys.argv[1]), Path(sys.argv[2]))
