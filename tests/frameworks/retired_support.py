"""Runs examples of MXNet and Horovod under `perfscope run`, and reads what was recorded."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
PERFSCOPE = (sys.executable, "-m", "perfscope")


@dataclass(frozen=True)
class Recorded:
    """One run: its directory, and what the training printed."""

    run: Path
    output: str

    def rank(self, rank: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "ranks" / str(rank) / "rank.json").read_bytes())
        return found

    def ranks(self) -> list[str]:
        return sorted(path.name for path in (self.run / "ranks").iterdir())

    def steps(self, rank: int) -> list[dict[str, Any]]:
        lines = (self.run / "ranks" / str(rank) / "steps.jsonl").read_text().splitlines()
        columns = json.loads(lines[0])["columns"]
        return [dict(zip(columns, json.loads(line), strict=True)) for line in lines[1:]]

    def calls(self, rank: int) -> list[dict[str, Any]]:
        """Calls that the probe timed itself, of all windows of a rank."""
        found = []
        for path in sorted((self.run / "ranks" / str(rank) / "windows").glob("*.calls.json*")):
            data = path.read_bytes()
            document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
            found += [dict(zip(document["columns"], row, strict=True)) for row in document["rows"]]
        return found

    def errors(self) -> list[str]:
        files = [*self.run.glob("ranks/*/errors.jsonl"), *self.run.glob("boot-errors.txt")]
        return [line for file in files for line in file.read_text().splitlines()]

    def report(self) -> dict[str, Any]:
        told = subprocess.run(
            [*PERFSCOPE, "report", str(self.run), "--json"], capture_output=True, timeout=120, check=True
        )
        found: dict[str, Any] = json.loads(told.stdout)
        return found


def environment(**changes: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(
            ("PERFSCOPE_", "DMLC_", "HOROVOD_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MXNET_")
        )
    }
    kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    return {**kept, "OMP_NUM_THREADS": "1", **changes}


def train(*command: str, cwd: Path, timeout: int = 240, **changes: str) -> str:
    """The command alone, without perfscope; what it printed."""
    ended = subprocess.run(
        command,
        cwd=cwd,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def record(*command: str, cwd: Path, timeout: int = 240, **changes: str) -> Recorded:
    run = cwd / "run"
    output = train(*PERFSCOPE, "run", "-o", str(run), "--", *command, cwd=cwd, timeout=timeout, **changes)
    return Recorded(run, output)


def losses(output: str) -> list[tuple[str, str, str]]:
    """(rank, step or "final", loss) as the examples print them, sorted.

    A launcher may prefix lines, and those of two processes may stand in one.
    """
    return sorted(re.findall(r"rank (\d+) (?:step +(\d+) |final )loss (-?\d+\.\d{6}|nan|-?inf)", output))


def collective(report: dict[str, Any], name: str, group: str) -> dict[str, Any]:
    found = [one for one in report["collectives"] if (one["collective"], one["group"]) == (name, group)]
    assert len(found) == 1, report["collectives"]
    result: dict[str, Any] = found[0]
    return result
