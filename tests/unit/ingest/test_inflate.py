"""Compressed traces that hold far more than their size: bounded in memory and time, one clear line."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from perfscope.errors import TraceError
from perfscope.ingest.inflate import most_bytes, read_whole
from tests.integration.run_support import PERFSCOPE, user_environment

MIB = 1 << 20


def bomb(path: Path, head: bytes, fill: bytes, mebibytes: int) -> Path:
    """`head` and then so many MiB of `fill`, packed as well as gzip can."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    with path.open("wb") as file:
        file.write(packer.compress(head))
        for _ in range(mebibytes):
            file.write(packer.compress(fill * MIB))
        file.write(packer.flush())
    return path


# Kind: beginning, what is repeated, MiB of it.
BOMBS = {
    "spaces": (b"", b" ", 24),
    "spaces in the list": (b'{"traceEvents":[', b" ", 24),
    "one name": (b'{"traceEvents":[{"name":"', b"a", 24),
    "lists in lists": (b'{"traceEvents":[', b"[", 24),
    "objects in objects": (b'{"traceEvents":[{"args":', b"{", 24),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_one_line_and_little_memory(tmp_path: Path, kind: str) -> None:
    path = bomb(tmp_path / "trace.json.gz", *BOMBS[kind])
    done = subprocess.run(
        [*PERFSCOPE, "import", str(path), "-o", "run"],
        cwd=tmp_path,
        env=user_environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (700 * MIB, 700 * MIB)),
    )
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"perfscope: {path}: ")
    assert f"unpacks to more than {most_bytes(path.stat().st_size):,} bytes" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_gibibytes_of_spaces(tmp_path: Path) -> None:
    path = bomb(tmp_path / "trace.json.gz", b'{"traceEvents":[', b" ", 2048)
    code = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=False); "
    code += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run(
        [sys.executable, "-c", code, *PERFSCOPE, "import", str(path), "-o", "run"],
        cwd=tmp_path,
        env=user_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "unpacks to more than" in done.stderr
    assert int(done.stdout) < 300 * 1024  # KiB


def test_a_trace_that_is_read_whole_has_the_same_bound(tmp_path: Path) -> None:
    path = bomb(tmp_path / "0.calls.json.gz", b"", b" ", 64)
    with pytest.raises(TraceError, match="unpacks to more than 8,388,608 bytes"):
        read_whole(path)


def test_members_one_after_the_other_and_damage(tmp_path: Path) -> None:
    def packed(data: bytes) -> bytes:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        return packer.compress(data) + packer.flush()

    path = tmp_path / "0.mxnet.json.gz"
    path.write_bytes(packed(b"one ") + packed(b"two") + b"\0\0")
    assert read_whole(path) == b"one two"
    for broken in (packed(b"one" * 99)[:-9], b"\x1f\x8b nonsense", packed(b"one")[:-4] + b"1234"):
        path.write_bytes(broken)
        with pytest.raises(TraceError, match="cannot be read"):
            read_whole(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace.json")
    done = subprocess.run(
        [*PERFSCOPE, "import", "trace.json", "-o", "run"],
        cwd=tmp_path,
        env=user_environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "perfscope: trace.json: not a regular file\n")
