"""Running mpi4py programs under `perfscope run`, and reading what they left."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EVERY_CALL = Path(__file__).with_name("mpi_every_call.py")
_BESIDE = Path(sys.executable).parent / "mpiexec"  # as the mpich wheel puts it
MPIEXEC = str(_BESIDE) if _BESIDE.exists() else shutil.which("mpiexec") or ""
NEEDS_MPI = pytest.mark.skipif(
    not MPIEXEC or importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py and mpiexec"
)
_NOT_OURS = ("PERFSCOPE_", "PYTHON", "COV_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "OMPI_", "PMI")


def environment(**changes: str) -> dict[str, str]:
    """A user's: no perfscope in it, this Python first on the PATH, root allowed to run Open MPI."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_OURS)}
    kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # More ranks than CPUs: Open MPI 5 and 4.
    allowed |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    allowed |= {"OMPI_MCA_rmaps_base_oversubscribe": "1"}
    return {**kept, **allowed, "OMP_NUM_THREADS": "1", **changes}


@dataclass(frozen=True)
class Recorded:
    """A run that has ended."""

    done: subprocess.CompletedProcess[str]
    place: Path

    def said(self) -> list[str]:
        """What perfscope told the user."""
        return [
            line.removeprefix("perfscope: ")
            for line in self.done.stderr.splitlines()
            if line.startswith("perfscope: ")
        ]

    def ranks(self) -> list[str]:
        return sorted(path.name for path in (self.place / "ranks").glob("*"))

    def rank(self, rank: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.place / "ranks" / str(rank) / "rank.json").read_bytes())
        return found

    def steps(self, rank: int) -> list[dict[str, Any]]:
        lines = (self.place / "ranks" / str(rank) / "steps.jsonl").read_text().splitlines()
        columns = json.loads(lines[0])["columns"]
        return [dict(zip(columns, json.loads(line), strict=True)) for line in lines[1:]]

    def calls(self, rank: int, window: int = 0) -> dict[str, Any]:
        """N.calls.json with its rows as dictionaries."""
        path = self.place / "ranks" / str(rank) / "windows" / f"{window}.calls.json"
        packed = path.with_name(path.name + ".gz")
        text = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
        found: dict[str, Any] = json.loads(text)
        found["rows"] = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
        return found

    def errors(self) -> list[str]:
        found = [path.read_text() for path in self.place.glob("ranks/*/errors.jsonl")]
        boot = self.place / "boot-errors.txt"
        return found + ([boot.read_text()] if boot.exists() else [])

    def report(self) -> dict[str, Any]:
        done = perfscope("report", str(self.place), "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def perfscope(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perfscope", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def mpi(num_ranks: int, *program: str) -> list[str]:
    """The command that runs a Python program on so many ranks."""
    return [MPIEXEC, "-n", str(num_ranks), sys.executable, *program]


def record(
    command: Sequence[str], cwd: Path, *options: str, within: Sequence[str] = (), **changes: str
) -> Recorded:
    """`perfscope run -- command`, to its end; `within`: a command that runs its arguments somewhere else."""
    place = cwd / "run"
    done = subprocess.run(
        [*within, sys.executable, "-m", "perfscope", "run", "-o", str(place), *options, "--", *command],
        cwd=cwd,
        env=environment(**changes),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Recorded(done, place)


def program(folder: Path, text: str) -> str:
    """A script with this text; its path."""
    path = folder / "program.py"
    path.write_text(text)
    return str(path)
