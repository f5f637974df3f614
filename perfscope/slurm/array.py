"""Many commands as one array job: each task runs one, and what is not finished can be submitted again.

Whether a command has ended is in a file beside its run, written by the task itself as the last thing it
does; a task that Slurm ended writes none. So nothing depends on what Slurm still remembers.

    <path>.out      stdout of the command
    <path>.log      stderr
    <path>.ended    {"key", "exit_code", "seconds", "task"}
    arrays.json     the arrays that were submitted, beside the runs
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from perfscope import __version__
from perfscope.rundir.shell import quote
from perfscope.rundir.writer import write_json
from perfscope.slurm.quoting import quote_all
from perfscope.slurm.request import JobRequest
from perfscope.slurm.script import environment, header

ARRAYS_JSON = "arrays.json"
TOO_LATE = 124  # exit code of timeout(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayCommand:
    """One command of an array.

    Attributes:
        path: what its files begin with, relative to where the array was submitted.
        key: changes with anything that makes an earlier result worthless.
        command: its words.
        timeout_s: it may take so long.
    """

    path: str
    key: str
    command: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended: see the table above."""

    key: str
    exit_code: int
    seconds: float
    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """An array that was submitted.

    Attributes:
        job: its id.
        keys: by the paths of its pieces, their keys; in the order of their indices.
    """

    job: str
    keys: Mapping[str, str]


def array_script(job: JobRequest, pieces: Sequence[ArrayCommand], at_once: int | None) -> str:
    """The batch script of an array.

    Args:
        job: header and environment; its command, framework and run mean nothing here.
        pieces: task k runs pieces[k].
        at_once: so many tasks run at the same time at most; None = as the cluster allows.
    """
    limit = f"%{at_once}" if at_once else ""
    top = header(replace(job, array=f"0-{len(pieces) - 1}{limit}"))
    return "\n".join(
        [
            "#!/bin/bash",
            *top,
            f"# By `perfscope bench sweep --slurm`, perfscope {__version__}: one run per task.",
            "set -euo pipefail",
            "",
            *environment(job),
            "unset PERFSCOPE_RUN_DIR",
            "",
            "case $SLURM_ARRAY_TASK_ID in",
            *(line for index, piece in enumerate(pieces) for line in _case(index, piece)),
            "esac",
            "",
            'mkdir -p "$(dirname "$path")"',
            "status=0",
            'timeout --signal=INT --kill-after=60 "$limit" "${command[@]}" \\',
            '  < /dev/null > "$path.out" 2> "$path.log" || status=$?',
            "# The last thing that is done: where it is missing, Slurm ended the task before.",
            'printf \'{"key": "%s", "exit_code": %d, "seconds": %d, "task": "%s"}\\n\' \\',
            '  "$key" "$status" "$SECONDS" "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" > "$path.ended.part"',
            'mv "$path.ended.part" "$path.ended"',
            'exit "$status"',
            "",
        ]
    )


def forget(folder: Path, paths: Iterable[str]) -> None:
    """Takes away what earlier tasks have left at these paths below `folder`."""
    for path in paths:
        for ending in ("ended", "out"):
            with suppress(FileNotFoundError):
                (folder / f"{path}.{ending}").unlink()


def read_ended(path: Path, key: str) -> Ended | None:
    """How the piece at `path` ended; None while it has not, or under other settings."""
    try:
        document = json.loads(path.with_name(f"{path.name}.ended").read_bytes())
        ended = Ended(
            key=str(document["key"]),
            exit_code=int(document["exit_code"]),
            seconds=float(document["seconds"]),
            task=str(document["task"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return ended if ended.key == key else None


def load_arrays(folder: Path) -> list[Array]:
    """The arrays that were submitted for a study, the oldest first; none where nothing says so."""
    try:
        document = json.loads((folder / ARRAYS_JSON).read_bytes())
        return [Array(job=str(array["job"]), keys=dict(array["keys"])) for array in document["arrays"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def save_arrays(folder: Path, arrays: Sequence[Array]) -> None:
    """Raises RunDirectoryError where they cannot be written."""
    write_json(folder / ARRAYS_JSON, {"arrays": [asdict(array) for array in arrays]})


def _case(index: int, piece: ArrayCommand) -> list[str]:
    quoted = quote_all(piece.command)
    return [
        f"  {index})",
        f"    path={quote(piece.path)} key={quote(piece.key)} limit={piece.timeout_s:g}",
        f"    command=({quoted})",
        "    ;;",
    ]
