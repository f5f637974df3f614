"""What a store holds: runs under a benchmark's name and a fingerprint, and an entry that sums them up."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from perfscope.errors import UsageError
from perfscope.gate.metrics import DECIDES
from perfscope.gate.records import Fingerprint, RunFigures

LONGEST_NAME = 200  # characters of a benchmark's name


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineEntry:
    """The runs of one benchmark on one kind of machine.

    Attributes:
        first_start_unix_ns, last_start_unix_ns: of the oldest and the newest run; None: no run says when.
        commits: each once, in the order of their first runs; runs without one add none.
        median_step_p10: over the runs, ns; None: no run has it.
    """

    name: str
    fingerprint: Fingerprint
    num_runs: int
    first_start_unix_ns: int | None = None
    last_start_unix_ns: int | None = None
    commits: tuple[str, ...] = ()
    median_step_p10: float | None = None

    @property
    def key(self) -> str:
        """The fingerprint's key, by which `Store.runs` knows this entry."""
        return self.fingerprint.key


class Store(Protocol):
    """A file of figures. Every call looks at the file anew, so what others have written meanwhile is there.

    All methods raise BaselineError for a file that cannot be read, or (put) not be written.
    """

    @property
    def path(self) -> Path:
        """The file as it was named."""

    def entries(self) -> tuple[BaselineEntry, ...]:
        """All entries, by name and key."""

    def find(self, name: str, fingerprint: Fingerprint) -> BaselineEntry | None:
        """The entry of that benchmark with exactly that fingerprint."""

    def nearest(self, name: str) -> tuple[BaselineEntry, ...]:
        """All entries of that benchmark, whatever the fingerprint, the most runs first."""

    def runs(self, name: str, key: str) -> tuple[RunFigures, ...]:
        """The runs of an entry, oldest first; those that do not say when they started come first of all."""

    def put(
        self, name: str, runs: Sequence[RunFigures], *, keep: int | None = None, replace: bool = False
    ) -> BaselineEntry:
        """Add runs of one fingerprint to the entry of `name`, all or none of them.

        A run that is there already (same start, hosts and name) is replaced: adding it again changes nothing.

        Args:
            keep: then only the newest `keep` runs of the entry stay; at least 1.
            replace: the runs take the place of those that the entry had.

        Raises:
            BaselineError: the file cannot be read or written, or a run cannot be stored; it is as it was.
            UsageError: no benchmark may have that name.
            ValueError: no runs, runs of several fingerprints, or `keep` below 1.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """What an entry needs to know of a run."""

    start_unix_ns: int | None
    commit: str
    step_p10: float | None


def summarize(name: str, fingerprint: Fingerprint, runs: Iterable[Digest]) -> BaselineEntry:
    """The entry of `runs`, oldest first."""
    every = list(runs)
    starts = [digest.start_unix_ns for digest in every if digest.start_unix_ns is not None]
    times = [digest.step_p10 for digest in every if digest.step_p10 is not None]
    return BaselineEntry(
        name=name,
        fingerprint=fingerprint,
        num_runs=len(every),
        first_start_unix_ns=min(starts, default=None),
        last_start_unix_ns=max(starts, default=None),
        commits=tuple(dict.fromkeys(digest.commit for digest in every if digest.commit)),
        median_step_p10=statistics.median(times) if times else None,
    )


def digest(run: RunFigures) -> Digest:
    """What an entry needs of a run that is in memory."""
    return Digest(
        start_unix_ns=run.surroundings.start_unix_ns,
        commit=run.surroundings.commit,
        step_p10=run.metrics.get(DECIDES),
    )


def identity(run: RunFigures) -> str:
    """Names a run for good: when and where it started and what it is called.

    Runs that do not say when they started (some imported traces) are distinguished by their figures.
    """
    around = run.surroundings
    parts: list[object] = [around.start_unix_ns, list(around.hosts), run.name]
    if around.start_unix_ns is None:
        parts.append(dict(sorted(run.metrics.items())))
    return json.dumps(parts, separators=(",", ":"))


def in_order(runs: Iterable[RunFigures]) -> list[RunFigures]:
    """Oldest first, each once (of two that are the same run the later given stays)."""
    once = {identity(run): run for run in runs}
    return [once[name] for name in sorted(once, key=lambda name: (age(once[name]), name))]


def age(run: RunFigures) -> int:
    """What runs are ordered by: their start; -1 where it is not known."""
    start = run.surroundings.start_unix_ns
    return -1 if start is None else start


def check_put(runs: Sequence[RunFigures], keep: int | None) -> Fingerprint:
    """The one fingerprint of `runs`. Raises ValueError as `Store.put` says."""
    kinds = {run.fingerprint for run in runs}
    if len(kinds) != 1:
        raise ValueError(f"an entry takes runs of one fingerprint, not of {len(kinds)}")
    if keep is not None and keep < 1:
        raise ValueError(f"keep={keep}: an entry keeps at least one run")
    return kinds.pop()


def check_name(name: str) -> str:
    """`name`, if a benchmark may be called so. Raises UsageError."""
    if not name.strip():
        raise UsageError("a benchmark's name must not be empty; give one with --name")
    if len(name) > LONGEST_NAME:
        raise UsageError(
            f"a benchmark's name has at most {LONGEST_NAME} characters, not {len(name):,}; "
            "give a shorter --name"
        )
    if not is_storable(name):
        raise UsageError(f"a benchmark's name must be text without NUL, not {name!a}; give another --name")
    return name


def is_storable(name: str) -> bool:
    """Whether UTF-8 and SQLite's tools can hold it: neither NUL nor half surrogates."""
    return "\0" not in name and not any("\ud800" <= letter <= "\udfff" for letter in name)
