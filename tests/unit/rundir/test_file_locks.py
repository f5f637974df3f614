"""Locks between real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from perfscope.rundir.file_locks import try_lock

TRY = (
    "import sys; from perfscope.rundir.file_locks import try_lock; print(try_lock(open(sys.argv[1], 'r+b')))"
)


def tried_elsewhere(path: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", TRY, path], capture_output=True, text=True, check=True
    ).stdout


def test_a_file_is_locked_for_one_process_until_it_closes_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("wb") as file:
        assert try_lock(file) and try_lock(file.fileno())
        assert tried_elsewhere(path) == "False\n"
    assert tried_elsewhere(path) == "True\n"
