"""What a job printed: its last lines for the user, and which task srun says failed first."""

from __future__ import annotations

import re
from pathlib import Path

from perfscope.rundir.redact import redact_text

_MOST_BYTES = 1 << 18
# Slurm's own word between two attempts of a job, which share the file.
_ATTEMPT = re.compile(r"^slurmstepd\S*: .*\*\*\* JOB \d+ .*$", re.MULTILINE)
_FAILED = re.compile(r"^srun: error: (\S+): (tasks? [0-9,-]+): (.+)$", re.MULTILINE)
_BY_SRUN = ("Terminated", "Killed")  # tasks that srun ended because another failed


def last_text(log: Path) -> str:
    """The end of the file; "" where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - _MOST_BYTES, 0))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def first_failure(log: Path) -> str:
    """`task 3 on node2: Exited with exit code 3`, of the job's last attempt; "" = srun says of none."""
    lines = _FAILED.findall(_ATTEMPT.split(last_text(log))[-1])
    for node, tasks, how in lines:
        if not how.startswith(_BY_SRUN):
            return redact_text(f"{tasks} on {node}: {how}")
    return ""
