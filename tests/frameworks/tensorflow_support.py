"""Runs small trainings of TensorFlow and Keras with and without perfscope, and reads what was recorded."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
PERFSCOPE = (sys.executable, "-m", "perfscope")
# examples/train_tensorflow.py and train_keras.py: two convolutions 3->8->16 with 3x3 kernels on 16x16 images,
# pooling to 6x6, a dense layer of 10; biases everywhere.
NUM_PARAMS = (3 * 8 * 9 + 8) + (8 * 16 * 9 + 16) + (6 * 6 * 16 * 10 + 10)
GRADIENT_BYTES = 4 * NUM_PARAMS
LAYERS = ("conv_a", "conv_b", "pool", "head")


@dataclass(frozen=True)
class Recorded:
    """One run: its directory, and what the training wrote to stdout and stderr."""

    run: Path
    stdout: str
    stderr: str

    def meta(self, rank: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "ranks" / str(rank) / "rank.json").read_bytes())
        return found

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        lines = (self.run / "ranks" / str(rank) / "steps.jsonl").read_text().splitlines()
        columns = json.loads(lines[0])["columns"]
        return [dict(zip(columns, json.loads(line), strict=True)) for line in lines[1:]]

    def errors(self) -> list[str]:
        files = [*self.run.glob("ranks/*/errors.jsonl"), *self.run.glob("boot-errors.txt")]
        return [line for file in files for line in file.read_text().splitlines()]

    def report(self) -> dict[str, Any]:
        told = subprocess.run(
            [*PERFSCOPE, "report", str(self.run), "--json"], capture_output=True, timeout=180, check=True
        )
        found: dict[str, Any] = json.loads(told.stdout)
        return found


def environment(**changes: str) -> dict[str, str]:
    """Of a training: nothing of another run or launcher in it, one thread for each pool."""
    unwanted = ("PERFSCOPE_", "TF_CONFIG", "KERAS_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TF_USE_LEGACY")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    threads = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
    return {**kept, **threads, **changes}


def attempt(*command: str, cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """The command alone, whatever becomes of it."""
    return subprocess.run(
        command, cwd=cwd, env=environment(**changes), capture_output=True, text=True, timeout=280, check=False
    )


def train(*command: str, cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """The command alone; it must succeed."""
    ended = attempt(*command, cwd=cwd, **changes)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended


def record(*command: str, cwd: Path, options: Sequence[str] = (), **changes: str) -> Recorded:
    """The command under `perfscope run`."""
    run = cwd / "run"
    ended = train(*PERFSCOPE, "run", "-o", str(run), *options, "--", *command, cwd=cwd, **changes)
    return Recorded(run, ended.stdout, ended.stderr)


def record_code(code: str, cwd: Path, *, options: Sequence[str] = (), **changes: str) -> Recorded:
    """A program of the test's own."""
    script = cwd / "train.py"
    script.write_text(textwrap.dedent(code))
    return record(sys.executable, str(script), cwd=cwd, options=options, **changes)


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def both_workers(folder: Path, *command: str, **variables: Sequence[str]) -> list[str]:
    """A shell command that starts `command` twice, each with its own `variables`, and waits for both."""
    script = folder / "both.sh"
    starts = []
    for worker in range(2):
        values = " ".join(f"{name}='{value[worker]}'" for name, value in variables.items())
        starts.append(f"env {values} {' '.join(command)} & p{worker}=$!")
    script.write_text("\n".join([*starts, "wait $p0; a=$?; wait $p1; b=$?", "exit $((a > b ? a : b))\n"]))
    return ["sh", str(script)]


def tf_configs() -> list[str]:
    """TF_CONFIG of two workers on this machine."""
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    return [
        json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}) for index in range(2)
    ]


def layer_times(report: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Layer -> (forward, backward) ns."""
    return {row["layer"]: (row["forward_ns"], row["backward_ns"]) for row in report["layers"]}
