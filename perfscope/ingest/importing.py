"""Traces from anywhere into a run directory."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope import __version__
from perfscope.errors import RunDirectoryError, TraceError
from perfscope.ingest.companions import Companion, TracePart, pair_executions, store_beside
from perfscope.ingest.formats.registry import format_of_file, is_trace_name, trace_patterns, trace_stem
from perfscope.ingest.run import Progress, ingest_run
from perfscope.ingest.summary import IngestSummary
from perfscope.rundir import layout, seal
from perfscope.rundir.inventory import INVENTORY, take_inventory
from perfscope.rundir.recording import release
from perfscope.rundir.redact import redact_labels, redact_text
from perfscope.rundir.writer import create_run_dir, write_json

if TYPE_CHECKING:
    from concurrent.futures import Executor


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTrace:
    """Where one trace went."""

    path: Path  # as given
    format: str  # name of a trace format
    framework: str | None  # None where the format does not tell
    rank: int
    window: int  # of the rank
    rank_source: str  # distributedInfo, file name, order, ...
    process: int | None  # id, where the file may hold several processes
    stored: str  # relative to the run directory


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """A finished import."""

    run_dir: Path
    traces: tuple[ImportedTrace, ...]  # those that became part of the run
    summaries: tuple[IngestSummary, ...]  # one per trace, same order
    rejected: tuple[tuple[Path, str], ...]  # files of no use, and why
    companions: tuple[Companion, ...] = ()  # execution traces beside others


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What no trace tells about a run.

    Attributes:
        name: None means that of the one trace, or of the folder that holds several.
        labels: free key-value pairs kept in run.json.
        samples_per_step: over all ranks; None means not known.
    """

    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    samples_per_step: int | None = None


_NO_FACTS = RunFacts()
_DEEPEST = 3  # levels of folders below the named one, such as a folder per host


def import_traces(
    paths: Sequence[Path],
    run_dir: Path | None,
    *,
    facts: RunFacts = _NO_FACTS,
    force: bool = False,
    for_now: bool = False,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> ImportResult:
    """Make a run out of traces: copy, ingest, describe.

    Args:
        paths: trace files, or directories whose traces (by their names) are taken in natural order.
        run_dir: as `create_run_dir`'s `path`.
        facts: what the caller knows of the run.
        force: replace a run that is already there.
        for_now: the run is removed when it has been read: large files are linked where that is possible.
        progress, executor: as for `ingest_run`.

    Raises:
        TraceError: two files claim one rank, or no file is of any use.
        RunDirectoryError: the run directory cannot be made or written.
    """
    files = trace_files(paths)
    rejected: list[tuple[Path, str]] = []
    parts = _parts(files, rejected)
    if not parts:
        raise TraceError(_no_use(rejected))
    windows, beside = pair_executions(parts, assign_ranks)
    name = facts.name or _name_of(paths[0], files)
    directory = create_run_dir(run_dir, name=name, force=force)
    traces = _store_all(windows, directory, rejected, for_now=for_now)
    companions = store_beside(beside, [(each.path, each.rank, each.window) for each in traces], directory)
    manifest = _manifest(name, facts, traces)
    write_json(directory / layout.RUN_JSON, manifest)
    for trace in traces:
        write_json(_rank_dir(directory, trace.rank) / layout.RANK_JSON, _rank_json(trace, None))
    ingested = ingest_run(directory, progress=progress, executor=executor)
    by_window = {(entry.rank, entry.window): entry for entry in ingested}
    used = _usable(traces, by_window, directory, rejected)
    summaries = tuple(by_window[trace.rank, trace.window] for trace in used)
    if two_jobs := _of_several_jobs(used, summaries):
        _remove(directory)
        raise TraceError(two_jobs)
    for trace, summary in zip(used, summaries, strict=True):
        write_json(_rank_dir(directory, trace.rank) / layout.RANK_JSON, _rank_json(trace, summary))
    manifest = _manifest(name, facts, used)
    manifest["sources"] = [*_sources(used), *_sources_beside(companions)]
    _describe(manifest, summaries, rejected)
    manifest |= {seal.SEALS: seal.SEALS_VERSION, INVENTORY: take_inventory(directory, is_still=True)}
    write_json(directory / layout.RUN_JSON, manifest)
    return ImportResult(
        run_dir=directory,
        traces=tuple(used),
        summaries=summaries,
        rejected=tuple(rejected),
        companions=tuple(companions),
    )


def _usable(
    traces: Sequence[ImportedTrace],
    by_window: Mapping[tuple[int, int], IngestSummary],
    directory: Path,
    rejected: list[tuple[Path, str]],
) -> list[ImportedTrace]:
    """The traces that hold something; the others go to `rejected`. Without any, the run is removed.

    Raises:
        TraceError: there is none.
    """
    used = [trace for trace in traces if by_window[trace.rank, trace.window].events_kept]
    for trace in traces:
        if trace not in used:
            notes = "; ".join(by_window[trace.rank, trace.window].notes)
            rejected.append((trace.path, notes or "holds no event a timeline can use"))
            _forget(directory, trace.rank, trace.window)
    if not used:
        _remove(directory)
        raise TraceError(_no_use(rejected))
    return used


# Which files, which ranks


def trace_files(paths: Iterable[Path]) -> list[Path]:
    """Files as given; for a directory the traces in it, else in folders below it, `rank2` before `rank10`.

    Raises:
        TraceError: a path is not there, or a directory holds no trace.
    """
    files = []
    for path in paths:
        if path.is_dir():
            inside = traces_in(path)
            if not inside:
                raise TraceError(f"{path}: holds no traces ({trace_patterns()}); name the trace files")
            files += inside
        elif path.exists():
            files.append(path)
        else:
            raise TraceError(f"{path}: not there")
    return files


def traces_in(directory: Path) -> list[Path]:
    """Traces of a directory by their names; without any, those in folders below it that are no runs."""
    here = sorted((p for p in directory.iterdir() if is_trace_name(p.name) and p.is_file()), key=_natural)
    if here:
        return here
    below: list[Path] = []
    for folder, names, files in os.walk(directory):
        if layout.RUN_JSON in files or len(Path(folder).relative_to(directory).parts) == _DEEPEST:
            names.clear()
        if layout.RUN_JSON not in files:
            below += [Path(folder, name) for name in files if is_trace_name(name)]
    return sorted((path for path in below if path.is_file()), key=_natural_path)


def _natural_path(path: Path) -> list[list[tuple[int, int, str]]]:
    return [_natural(Path(part)) for part in path.parts]


def _natural(path: Path) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", path.name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def _parts(files: Sequence[Path], rejected: list[tuple[Path, str]]) -> list[TracePart]:
    """The processes in all files; files of no use go to `rejected` with the reason."""
    parts = []
    for path in files:
        try:
            trace_format = format_of_file(path)
            parts += [TracePart(path, trace_format, claim) for claim in trace_format.ranks(path)]
        except TraceError as error:  # noqa: PERF203
            rejected.append((path, str(error).removeprefix(f"{path}: ")))
    return parts


def assign_ranks(parts: Sequence[TracePart]) -> list[int]:
    """The rank of each part: the one it claims, else the next free one in the order of the files.

    What one process wrote is of one rank: its windows.

    Raises:
        TraceError: parts of two processes claim the same rank.
    """
    owner: dict[int, TracePart] = {}
    for part in parts:
        if part.claim.rank is not None:
            other = owner.setdefault(part.claim.rank, part)
            if other is not part and not (part.claim.writer and part.claim == other.claim):
                raise TraceError(
                    f"{other.path} and {part.path} both claim rank {part.claim.rank} "
                    f"(from {other.claim.source} and {part.claim.source}): import one of them"
                )
    free = (rank for rank in count() if rank not in owner)
    of_writer: dict[str, int] = {}
    ranks = []
    for part in parts:
        rank = of_writer.get(part.claim.writer) if part.claim.rank is None else part.claim.rank
        ranks.append(next(free) if rank is None else rank)
        if part.claim.writer:
            of_writer[part.claim.writer] = ranks[-1]
    return ranks


# The run directory


def _store_all(
    parts: Sequence[tuple[TracePart, int]],
    directory: Path,
    rejected: list[tuple[Path, str]],
    *,
    for_now: bool,
) -> list[ImportedTrace]:
    """Copy or link every part into the run; those that cannot be read go to `rejected`."""
    traces = []
    windows: Counter[int] = Counter()  # of each rank so far
    for part, rank in parts:
        window = windows[rank]
        folder = _rank_dir(directory, rank) / layout.WINDOWS
        try:
            folder.mkdir(parents=True, exist_ok=True)
            target = part.format.store(part.path, part.claim, folder, window, for_now=for_now)
        except OSError as error:
            raise RunDirectoryError(f"cannot copy {part.path} to {folder}: {error.strerror}") from error
        except TraceError as error:
            rejected.append((part.path, str(error).removeprefix(f"{part.path}: ")))
            _forget(directory, rank, window)
            continue
        windows[rank] += 1
        traces.append(
            ImportedTrace(
                path=part.path,
                format=part.format.name,
                framework=part.format.framework_of(target),
                rank=rank,
                window=window,
                rank_source=part.claim.source,
                process=part.claim.process,
                stored=target.relative_to(directory).as_posix(),
            )
        )
    return traces


def _rank_dir(directory: Path, rank: int) -> Path:
    return directory / layout.RANKS / str(rank)


def _forget(directory: Path, rank: int, window: int) -> None:
    """A file turned out to be of no use: it is not part of the run, nor its rank if that has no other."""
    windows = _rank_dir(directory, rank) / layout.WINDOWS
    for path in windows.glob(f"{window}.*"):
        path.unlink(missing_ok=True)
    if not any(windows.iterdir()):
        shutil.rmtree(_rank_dir(directory, rank), ignore_errors=True)
    for folder in (layout.TIMELINE, layout.INGEST):
        for path in (directory / layout.DERIVED / folder).glob(f"rank-{rank:05d}-window-{window:03d}.*"):
            path.unlink(missing_ok=True)


def _remove(directory: Path) -> None:
    """Nothing was of use: leave no empty run behind."""
    for name in (layout.RANKS, layout.DERIVED):
        shutil.rmtree(directory / name, ignore_errors=True)
    (directory / layout.RUN_JSON).unlink(missing_ok=True)
    release(directory)
    with suppress(OSError):
        directory.rmdir()


def _rank_json(trace: ImportedTrace, summary: IngestSummary | None) -> dict[str, object]:
    document: dict[str, object] = {
        "schema_version": layout.SCHEMA_VERSION,
        "rank": trace.rank,
        "host": summary.host if summary else None,
        "world_size": summary.world_size if summary else None,
    }
    if trace.framework:
        document["framework"] = {"name": trace.framework, "version": ""}
    if summary:
        document["device"] = summary.device_name or ("cpu" if not summary.has_device else None)
        document["backend"] = summary.backend
        document["finished"] = True
    return document


def _manifest(name: str, facts: RunFacts, traces: Sequence[ImportedTrace]) -> dict[str, object]:
    return {
        "schema_version": layout.SCHEMA_VERSION,
        "perfscope_version": __version__,
        "origin": "import",
        "name": redact_text(name),
        "labels": redact_labels(facts.labels),
        "command": [],
        "cwd": os.fspath(Path.cwd()),
        "launcher": None,
        "host": None,
        "start_unix_ns": time.time_ns(),
        "end_unix_ns": time.time_ns(),
        "status": "finished",
        "exit": {"code": None, "signal": None},
        "expected_ranks": None,
        "attached_ranks": len({trace.rank for trace in traces}),
        "attach_notes": [],
        "git": None,
        "packages": {},
        "environment": {},
        "options": {"samples_per_step": facts.samples_per_step},
        "scheme": None,
        "world_size": None,
        "sources": _sources(traces),
        "rejected": [],
    }


def _sources(traces: Sequence[ImportedTrace]) -> list[dict[str, object]]:
    return [
        _source(trace.path, trace.format, trace.rank, trace.rank_source, trace.stored) for trace in traces
    ]


def _sources_beside(companions: Sequence[Companion]) -> list[dict[str, object]]:
    return [_source(each.path, "execution", each.rank, each.rank_source, each.stored) for each in companions]


def _source(path: Path, kind: str, rank: int, rank_source: str, stored: str) -> dict[str, object]:
    return {
        "path": path.name,
        "format": kind,
        "rank": rank,
        "rank_source": rank_source,
        "stored": stored,
    }


def _describe(
    manifest: dict[str, object], summaries: Sequence[IngestSummary], rejected: Sequence[tuple[Path, str]]
) -> None:
    """Fill in what only the traces could tell."""
    hosts = {summary.host for summary in summaries if summary.host}
    worlds = {summary.world_size for summary in summaries if summary.world_size}
    times = [moment for summary in summaries for _, *span in summary.steps for moment in span]
    manifest["host"] = hosts.pop() if len(hosts) == 1 else None
    manifest["world_size"] = manifest["expected_ranks"] = max(worlds) if worlds else None
    manifest["rejected"] = [{"path": path.name, "reason": reason} for path, reason in rejected]
    if times:
        manifest["start_unix_ns"], manifest["end_unix_ns"] = min(times), max(times)


def _of_several_jobs(traces: Sequence[ImportedTrace], summaries: Sequence[IngestSummary]) -> str:
    """What shows that the traces are not of one job; "" = nothing does."""
    sized = [
        (trace, summary.world_size)
        for trace, summary in zip(traces, summaries, strict=True)
        if summary.world_size
    ]
    for trace, size in sized:
        if size != sized[0][1]:
            return (
                f"traces of different jobs: {sized[0][0].path} is of {sized[0][1]} ranks, {trace.path} of "
                f"{size}: import each job by itself"
            )
    return ""


def _no_use(rejected: Sequence[tuple[Path, str]]) -> str:
    if len(rejected) == 1:
        return f"{rejected[0][0]}: {rejected[0][1]}"
    listed = "; ".join(f"{path}: {reason}" for path, reason in rejected[:4])
    more = f"; and {len(rejected) - 4} more" if len(rejected) > 4 else ""
    return f"none of the {len(rejected)} files is a usable trace ({listed}{more})"


def _name_of(path: Path, files: Sequence[Path]) -> str:
    """A run's name: that of its one trace without endings and rank, which say nothing of the run; of
    several, that of the folder the first is in."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 - the user's own name, links kept
    if path.is_dir():
        name = path.name
    elif len(files) > 1:
        name = path.parent.name
    else:
        name = trace_stem(path.name)
        name = re.sub(r"[-_.]?(?:rank|worker)?[-_.]?\d+$", "", name, flags=re.IGNORECASE) or path.parent.name
    return re.sub(r"[^\w.+-]+", "-", name) or "import"
