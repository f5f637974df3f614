"""How bench runs end when they are killed, fall silent, or are interrupted; whom a rank's error blames."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

pytest.importorskip("torch")

from perfscope.rundir import layout
from perfscope.runners.cluster.network import require_rights, require_tools
from perfscope.runners.config import BenchError
from perfscope.runners.rank import EXIT_FAILED, _explain
from perfscope.runners.starting.endings import EXIT_LOST_PEER
from perfscope.runners.transport import PeerLostError
from tests.integration.run_support import user_environment

pytestmark = pytest.mark.torch

PATIENCE_S = 120.0
MARK = "PERFSCOPE_TEST_MARK"
SMALL = ["--batch", "8", "--input", "3x16x16", "--steps", "1000000"]
RECORDING = ["--ceilings", "off", "--sample-interval", "off", "--no-trace"]
WAYS = {
    "one process": ["serial"],
    "torchrun": ["dp.packed", "--ranks", "2"],
    "cluster": ["dp.packed", "--cluster", "2x1"],
}

# What torch 2.13 says, taken from ranks whose peer was killed, stopped, or never came.
_GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"
LOST = [
    f"{_GLOO}pair.cc:537] Read error [127.0.0.1]:32447: Connection reset by peer. This is typically caused",
    f"{_GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:1233. This is typically caused by a remote",
    f"{_GLOO}unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete",
    f"{_GLOO}unbound_buffer.cc:129] Timed out waiting 3000ms for send operation to complete",
    "Timed out after 4 seconds waiting for clients. 1/2 clients joined.",
    "The client socket has timed out after 3000ms while trying to connect to (127.0.0.1, 18761).",
    "wait timeout after 3000ms, keys: /default_pg/0//5//cpu//0/1",
    "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
]
OWN = [
    "Invalid scalar type",
    "ProcessGroupGloo::allreduce: unsupported layout",
    "Unsupported data type for gloo: Float8",
    "Cannot use ReduceOp.AVG with Gloo",
    "Distributed package doesn't have NCCL built in",
    "The server socket has failed to listen on any local network address. port: 29500, EADDRINUSE",
    "timeout must be positive",
]


@pytest.mark.parametrize("text", LOST)
def test_what_torch_says_of_a_lost_peer_is_understood(text: str) -> None:
    assert _explain("0", RuntimeError(text)) == EXIT_LOST_PEER


def test_a_transport_that_lost_its_peer_needs_no_phrase() -> None:
    assert _explain("0", PeerLostError("sending to rank 1: anything")) == EXIT_LOST_PEER


@pytest.mark.parametrize("text", OWN)
def test_an_error_of_its_own_blames_nobody(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Though it names gloo, a socket or a timeout."""
    assert _explain("0", RuntimeError(text)) == EXIT_FAILED
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"perfscope bench: rank 0: RuntimeError: {text}")


def alive(mark: str) -> list[int]:
    """Processes whose environment has the mark, and which have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(folder.name)] if state not in "ZX" else []
    return found


def has_steps(run_dir: Path) -> bool:
    file = run_dir / layout.RANKS / "0" / layout.STEPS_JSONL
    return file.exists() and file.read_bytes().count(b"\n") >= 3


@contextmanager
def benched(way: str, run_dir: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`bench run` that trains, in a process group of its own; and the mark of all its processes."""
    if way == "cluster":
        try:
            require_tools()
            require_rights()
        except BenchError as error:
            pytest.skip(str(error))
    mark, told = uuid4().hex, run_dir.with_suffix(".err")
    words = ["-m", "perfscope", "bench", "run", *WAYS[way], *SMALL, *RECORDING, *more, "-o", str(run_dir)]
    with told.open("w") as errors:
        one = subprocess.Popen(
            [sys.executable, *words],
            env={**user_environment(), MARK: mark},
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not has_steps(run_dir):
            assert one.poll() is None and time.monotonic() < deadline, told.read_text()
            time.sleep(0.05)
        yield one, mark
    finally:
        for pid in alive(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        one.wait(timeout=PATIENCE_S)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_outlives_a_bench_run_that_is_killed(way: str, tmp_path: Path) -> None:
    with benched(way, tmp_path / "run") as (one, mark):
        assert len(alive(mark)) >= 2
        one.kill()
        one.wait(timeout=PATIENCE_S)
        deadline = time.monotonic() + 30
        while alive(mark):
            assert time.monotonic() < deadline, "processes stay behind"
            time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["torchrun", "cluster"])
def test_a_silent_rank_is_named_and_soon_ended(way: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with benched(way, run_dir, "--timeout", "3") as (one, mark):
        manifest = json.loads((run_dir / layout.RANKS / "1" / layout.RANK_JSON).read_text())
        os.kill(manifest["pid"], signal.SIGSTOP)
        begin = time.monotonic()
        assert one.wait(timeout=PATIENCE_S) == EXIT_LOST_PEER
        assert time.monotonic() - begin < 32, "torch's own 30 s were waited for"  # 3 s of silence come first
        assert not alive(mark)
    told = run_dir.with_suffix(".err").read_text()
    assert "perfscope bench: rank 1 did not answer" in told and "signal 9" not in told


@pytest.mark.parametrize("way", ["torchrun", "cluster"])
def test_ctrl_c_leaves_no_rank_and_does_not_speak_of_one(way: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with benched(way, run_dir) as (one, mark):
        os.killpg(one.pid, signal.SIGINT)
        assert one.wait(timeout=PATIENCE_S) == 128 + signal.SIGINT
        assert not alive(mark)
    assert "still running" not in run_dir.with_suffix(".err").read_text()
