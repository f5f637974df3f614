"""Runs small training scripts with the agent in place, without the launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import perfscope

PACKAGE = Path(perfscope.__file__).parent
BOOTSTRAP = PACKAGE / "probes" / "bootstrap"


@dataclass(frozen=True)
class Recorded:
    """What one training left behind."""

    run: Path
    process: subprocess.CompletedProcess[str]

    def rank(self, rank: int = 0) -> Path:
        return self.run / "ranks" / str(rank)

    def meta(self, rank: int = 0) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.rank(rank) / "rank.json").read_text())
        return loaded

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        lines = (self.rank(rank) / "steps.jsonl").read_text().splitlines()
        columns = json.loads(lines[0])["columns"]
        return [dict(zip(columns, json.loads(line), strict=True)) for line in lines[1:]]

    def marks(self, kind: str = "layer", rank: int = 0, window: int = 0) -> list[str]:
        """Names marked in a window's trace, in order of time."""
        trace = json.loads((self.rank(rank) / "windows" / f"{window}.json").read_text())
        prefix = f"perfscope.{kind}:"
        found = [event for event in trace["traceEvents"] if str(event.get("name", "")).startswith(prefix)]
        return [event["name"][len(prefix) :] for event in sorted(found, key=lambda event: float(event["ts"]))]

    def errors(self) -> list[str]:
        files = [*self.run.glob("ranks/*/errors.jsonl"), *self.run.glob("boot-errors.txt")]
        return [line for file in files for line in file.read_text().splitlines()]


Train = Callable[..., Recorded]  # what the fixture `train` gives


def environment(run: Path, **config: Any) -> dict[str, str]:
    return {
        **os.environ,
        "PERFSCOPE_RUN_DIR": str(run),
        "PERFSCOPE_AGENT": str(BOOTSTRAP / "agent.py"),
        "PERFSCOPE_CONFIG": json.dumps({"steps_per_window": 3, **config}),
        "PYTHONPATH": str(BOOTSTRAP / "site"),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Write `code` to a file and train it; `nproc` starts it under torchrun."""

    def run(code: str, *args: str, nproc: int = 0, check: bool = True, **config: Any) -> Recorded:
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(code))
        run_dir = tmp_path / "run"
        run_dir.mkdir(exist_ok=True)
        command = [sys.executable, str(script), *args]
        if nproc:
            command[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"]
        process = subprocess.run(
            command,
            env=environment(run_dir, **config),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if check:
            assert process.returncode == 0, process.stderr
        return Recorded(run_dir, process)

    return run
