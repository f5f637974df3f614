"""Starting `perfscope run` as a user would, and reading what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data" / "launch"
TRAIN = str(DATA / "train.py")
PERFSCOPE = (sys.executable, "-m", "perfscope")


def user_environment(**changes: str) -> dict[str, str]:
    """The environment of a user whose PATH has this test's Python and who has no PYTHONPATH."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(
            ("PERFSCOPE_", "PYTHON", "COV_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "OMPI_", "PMI")
        )
    }
    kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    kept["OMP_NUM_THREADS"] = "1"
    kept["PERFSCOPE_VERDICT"] = "0"  # most tests make many runs, and few look at what bounds them
    return {**kept, **changes}


def run(
    *command: str,
    cwd: Path,
    options: Sequence[str] = (),
    environment: dict[str, str] | None = None,
    stdin: bytes = b"",
) -> subprocess.CompletedProcess[bytes]:
    """`perfscope run -o <cwd>/run <options> -- <command>` to its end."""
    return subprocess.run(
        [*PERFSCOPE, "run", "-o", str(cwd / "run"), *options, "--", *command],
        cwd=cwd,
        env=environment or user_environment(),
        input=stdin,
        capture_output=True,
        timeout=120,
        check=False,
    )


def read_manifest(run_dir: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((run_dir / "run.json").read_bytes())
    return manifest


def attached(run_dir: Path) -> list[int]:
    return sorted(int(path.parent.name) for path in run_dir.glob("ranks/*/rank.json"))


def num_steps(run_dir: Path, rank: int) -> int:
    """Steps recorded for a rank, the header not counted."""
    return len((run_dir / "ranks" / str(rank) / "steps.jsonl").read_bytes().splitlines()) - 1


def said(stderr: bytes) -> list[str]:
    """What perfscope said on stderr, without its prefix."""
    lines = stderr.decode().splitlines()
    return [line.removeprefix("perfscope: ") for line in lines if line.startswith("perfscope: ")]
