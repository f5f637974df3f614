"""Records trainings on one GPU with a planted cause each, with what they cost without it.

    python -m tests.gpu.record_runs OUT [--causes item,copy] [--deadline 400]

For each cause of train_planted.py: `perfscope run`, then the plain training with the cause and without it,
so that the findings of the recorded run and the gains that they predict can be compared with what removing
the cause really gains. OUT gets a folder per cause and truth.json. What does not fit before the deadline, in
seconds from the start, is left out and named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.gpu.train_planted import CAUSES

PROGRAM = Path(__file__).with_name("train_planted.py")


def plain(arguments: list[str], launcher: list[str] | None = None) -> dict[str, Any]:
    """What the training prints of itself."""
    command = [*(launcher or []), sys.executable, str(PROGRAM), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"cause"')]
    if done.returncode or not lines:
        return {"error": (done.stderr or done.stdout)[-2000:], "returncode": done.returncode}
    values: dict[str, Any] = json.loads(lines[-1])
    return values


def recorded(out: Path, cause: str, steps: int) -> dict[str, Any]:
    run, length = out / cause, ["--steps", str(steps)]
    profiler = [sys.executable, "-m", "perfscope", "run", "--force", "-o", str(run), "--"]
    return {
        "recorded": plain(["--cause", cause, *length], profiler),
        "with": plain(["--cause", cause, *length]),
        "without": plain(["--cause", cause, "--without", *length]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--causes", default=",".join(CAUSES))
    parser.add_argument("--deadline", type=float, default=400.0)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began, truth = time.monotonic(), {}
    for cause in options.causes.split(","):
        if time.monotonic() - began > options.deadline:
            truth[cause] = {"left_out": "no time"}
        else:
            truth[cause] = recorded(options.out, cause, options.steps)
        print(f"{time.monotonic() - began:6.1f} s {cause}: {json.dumps(truth[cause])[:600]}", flush=True)
        (options.out / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


if __name__ == "__main__":
    main()
