"""Which directory is used for a rank when several processes claimed it. Light.

`ranks/<rank>` is the first process that claimed a rank, `ranks/<rank>.<k>` the k-th after it: an elastic
restart, or trainings one after the other in one script. Figures of two attempts do not add up, so one is
shown: the one that got furthest.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from perfscope.errors import UnreadableFileError
from perfscope.rundir import layout
from perfscope.rundir.documents import read_document
from perfscope.rundir.opening import MAX_LINES_BYTES, read_bounded

_NAME = re.compile(r"(\d+)(?:\.(\d+))?", re.ASCII)


class Attempt(NamedTuple):
    """One process that recorded as `rank`; `number` 0 is the first."""

    rank: int
    number: int
    path: Path

    def count_steps(self) -> int:
        """Step lines in steps.jsonl, torn ones included; 0 where the file cannot be read."""
        try:
            data = read_bounded(self.path / layout.STEPS_JSONL, MAX_LINES_BYTES)
            return (b"\n" + data).count(b"\n[")
        except (OSError, UnreadableFileError):
            return 0

    def has_manifest(self) -> bool:
        """Whether its rank.json is a JSON object: without one its steps cannot be placed."""
        try:
            read_document(self.path / layout.RANK_JSON)
        except (OSError, UnreadableFileError):
            return False
        return True


def all_attempts(run_dir: Path) -> dict[int, list[Attempt]]:
    """Every attempt of every rank, by rank, each in the order of their numbers.

    Raises:
        OSError: the ranks cannot be listed.
    """
    by_rank: dict[int, list[Attempt]] = defaultdict(list)
    folder = run_dir / layout.RANKS
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match and entry.is_dir():
                attempt = Attempt(rank=int(match[1]), number=int(match[2] or 0), path=folder / entry.name)
                by_rank[attempt.rank].append(attempt)
    return {rank: sorted(by_rank[rank], key=lambda tried: tried.number) for rank in sorted(by_rank)}


def chosen_attempts(run_dir: Path) -> dict[int, Path]:
    """The directory that is shown for each rank, by rank.

    The attempt with the most steps (of several, the last); one without a readable rank.json only where there
    is no other.

    Raises:
        OSError: the ranks cannot be listed.
    """
    return {rank: choose(attempts).path for rank, attempts in all_attempts(run_dir).items()}


def choose(attempts: list[Attempt]) -> Attempt:
    """Of one rank's attempts, the one that is shown."""
    if len(attempts) == 1:
        return attempts[0]
    return max(attempts, key=lambda attempt: (attempt.has_manifest(), attempt.count_steps(), attempt.number))
