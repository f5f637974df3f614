"""Starts a framework run's processes here: `python -m perfscope.runners.frameworks.start JOB_JSON`.

JOB_JSON: {"meeting", "python", "program", "config", "size", "threads", "devices", "others_ended"}, see
rendezvous.Start.
However this process ends, SIGKILL included, no process of the run stays behind.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfscope.runners.frameworks.processes import Processes
from perfscope.runners.frameworks.rendezvous import QUIET, Start, common_environment, tasks_of
from perfscope.runners.starting.endings import say
from perfscope.runners.starting.guard import run_guarded

_EXIT_IMPOSSIBLE = 2


def main(arguments: Sequence[str]) -> int:
    """Runs the job; the code to exit with: of the first process that failed, else 0."""
    try:
        (text,) = arguments
        job: dict[str, Any] = json.loads(text)
        words = {name: job[name] for name in ("python", "program", "config", "size", "threads")}
        start = Start(**words, devices=tuple(job["devices"]))
        meeting, others_ended = str(job["meeting"]), Path(job["others_ended"])
    except (ValueError, KeyError, TypeError) as error:
        say(f"give one argument, the job as JSON ({type(error).__name__}: {error})")
        return _EXIT_IMPOSSIBLE
    return run_guarded(lambda mask: _run(meeting, start, others_ended, mask))


def _run(meeting: str, start: Start, others_ended: Path, mask: frozenset[int]) -> int:
    environment = {**QUIET, **_kept(os.environ), **common_environment(start)}
    processes = Processes(tasks_of(meeting, start), environment, mask, others_ended)
    parent = os.getppid()
    processes.start()
    return processes.watch(parent)


def _kept(environment: Any) -> dict[str, str]:
    """The user's environment without what would make a process join something else."""
    theirs = ("DMLC_", "HOROVOD_", "JAX_COORDINATOR", "TF_CONFIG", "RANK", "WORLD_SIZE", "LOCAL_")
    return {name: value for name, value in environment.items() if not name.startswith(theirs)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
