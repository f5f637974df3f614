"""Execution traces given together with Kineto traces: each is put beside that of its rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfscope.errors import RunDirectoryError
from perfscope.ingest.formats.execution import Execution
from perfscope.ingest.formats.format import Format, TraceRank
from perfscope.ingest.formats.kineto import Kineto
from perfscope.rundir import layout


@dataclass(frozen=True, slots=True)
class TracePart:
    """One process of a file: what becomes a rank."""

    path: Path
    format: Format
    claim: TraceRank


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """An execution trace that went beside the Kineto trace of a window."""

    path: Path  # as given
    rank: int
    window: int
    rank_source: str
    stored: str  # relative to the run directory


def pair_executions(
    parts: Sequence[TracePart], assign: Callable[[Sequence[TracePart]], list[int]]
) -> tuple[list[tuple[TracePart, int]], dict[Path, TracePart]]:
    """Windows with their ranks, and execution traces by the path of the Kineto trace that each goes beside.

    An execution trace whose name tells a rank goes to the next window of that rank, any other to the next
    Kineto trace that has none. One for which there is none becomes a window of its own.

    Raises:
        TraceError: as `assign` does.
    """
    executions = [part for part in parts if isinstance(part.format, Execution)]
    others = [part for part in parts if not isinstance(part.format, Execution)]
    recorded = [
        (part, rank)
        for part, rank in zip(others, assign(others), strict=True)
        if isinstance(part.format, Kineto)
    ]
    beside: dict[Path, TracePart] = {}
    alone = []
    for execution in sorted(executions, key=lambda part: part.claim.rank is None):
        wanted = execution.claim.rank
        path = next(
            (
                part.path
                for part, rank in recorded
                if part.path not in beside and (wanted is None or rank == wanted)
            ),
            None,
        )
        if path is None:
            alone.append(execution)
        else:
            beside[path] = execution
    windows = [*others, *alone]
    return list(zip(windows, assign(windows), strict=True)), beside


def store_beside(
    beside: Mapping[Path, TracePart], windows: Sequence[tuple[Path, int, int]], directory: Path
) -> list[Companion]:
    """Copy execution traces beside the windows that they belong to.

    Args:
        beside: of `pair_executions`.
        windows: (trace as given, rank, window) of what was stored.

    Raises:
        RunDirectoryError: one cannot be written.
        TraceError: one cannot be read.
    """
    companions = []
    for path, rank, window in windows:
        part = beside.get(path)
        if part is None:
            continue
        folder = directory / layout.RANKS / str(rank) / layout.WINDOWS
        try:
            target = part.format.store(part.path, part.claim, folder, window)
        except OSError as error:
            raise RunDirectoryError(f"cannot copy {part.path} to {folder}: {error.strerror}") from error
        companions.append(
            Companion(
                path=part.path,
                rank=rank,
                window=window,
                rank_source=part.claim.source,
                stored=target.relative_to(directory).as_posix(),
            )
        )
    return companions
