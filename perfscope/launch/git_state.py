"""The git state of the training's code: commit, and whether tracked files differ from it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

_GIT_TIMEOUT_S = 2.0


def read_git_state(directory: Path, environment: Mapping[str, str]) -> dict[str, object] | None:
    """`{"commit", "dirty"}` of the repository around `directory`.

    None without git, outside a repository, or before the first commit. `dirty` looks at tracked files
    only, and is None when git needs too long to tell.
    """
    commit = _git(directory, environment, "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    status = _git(directory, environment, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit.strip(), "dirty": None if status is None else bool(status)}


def _git(directory: Path, environment: Mapping[str, str], *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            # No index refresh is written and no fsmonitor of the repository is started.
            ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments],
            cwd=directory,
            env={**environment, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.decode("utf-8", "replace")
