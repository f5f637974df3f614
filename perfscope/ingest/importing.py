"""Traces from anywhere into a run directory."""

from __future__ import annotations

import os
import re
import shutil
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from perfscope import __version__
from perfscope.errors import RunDirectoryError, TraceError
from perfscope.ingest.inflate import most_bytes
from perfscope.ingest.run import Progress, ingest_run
from perfscope.ingest.summary import IngestSummary
from perfscope.rundir import layout, seal
from perfscope.rundir.inventory import INVENTORY, take_inventory
from perfscope.rundir.recording import release
from perfscope.rundir.redact import redact_labels, redact_text
from perfscope.rundir.writer import create_run_dir, write_json

_ENDINGS = (".json", ".json.gz")
_PEEK_BYTES = 1 << 20
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*(\d{1,7})\b')
_NAMED_RANK = re.compile(r"(?:rank|worker)[-_.= ]?(\d{1,7})", re.IGNORECASE)
# `trace_3.json`; not the pid and the time of `host_2552.1790857026000.pt.trace.json`.
_BARE_RANK = re.compile(r"(?:^|[^0-9])(\d{1,3})(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTrace:
    """Where one trace went."""

    path: Path  # as given
    rank: int
    rank_source: str  # distributedInfo, file name, order
    stored: str  # relative to the run directory


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """A finished import."""

    run_dir: Path
    traces: tuple[ImportedTrace, ...]  # those that became part of the run
    summaries: tuple[IngestSummary, ...]  # one per trace, same order
    rejected: tuple[tuple[Path, str], ...]  # files of no use, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What no trace tells about a run.

    Attributes:
        name: None means that of the one trace, or of the folder that holds several.
        labels: free key-value pairs kept in run.json.
        samples_per_step: over all ranks; None means nobody knows.
    """

    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    samples_per_step: int | None = None


_NO_FACTS = RunFacts()


def import_traces(
    paths: Sequence[Path],
    run_dir: Path | None,
    *,
    facts: RunFacts = _NO_FACTS,
    force: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> ImportResult:
    """Make a run out of traces: copy, ingest, describe.

    Args:
        paths: trace files, or directories whose *.json and *.json.gz are taken in natural order.
        run_dir: as `create_run_dir`'s `path`.
        facts: what the caller knows of the run.
        force: replace a run that is already there.
        jobs, progress: as for `ingest_run`.

    Raises:
        TraceError: two files claim one rank, or no file is of any use.
        RunDirectoryError: the run directory cannot be made or written.
    """
    files = trace_files(paths)
    reasons = {path: _why_unreadable(path) for path in files}
    rejected = [(path, reason) for path, reason in reasons.items() if reason]
    readable = [path for path, reason in reasons.items() if not reason]
    if not readable:
        raise TraceError(_no_use(rejected))
    ranks = assign_ranks(readable)
    name = facts.name or _name_of(paths[0], len(files))
    directory = create_run_dir(run_dir, name=name, force=force)
    traces = [
        _store(path, rank, source, directory) for path, (rank, source) in zip(readable, ranks, strict=True)
    ]
    manifest = _manifest(name, facts, traces)
    write_json(directory / layout.RUN_JSON, manifest)
    for trace in traces:
        write_json(_rank_dir(directory, trace.rank) / layout.RANK_JSON, _rank_json(trace.rank, None))
    by_rank = {summary.rank: summary for summary in ingest_run(directory, jobs=jobs, progress=progress)}
    used = []
    for trace in traces:
        summary = by_rank[trace.rank]
        if summary.events_kept:
            used.append(trace)
        else:
            reason = "; ".join(note for note in summary.notes) or "holds no event a timeline can use"
            rejected.append((trace.path, reason))
            _forget(directory, trace.rank)
    if not used:
        _remove(directory)
        raise TraceError(_no_use(rejected))
    summaries = tuple(by_rank[trace.rank] for trace in used)
    for trace, summary in zip(used, summaries, strict=True):
        write_json(_rank_dir(directory, trace.rank) / layout.RANK_JSON, _rank_json(trace.rank, summary))
    manifest = _manifest(name, facts, used)
    _describe(manifest, summaries, rejected)
    manifest |= {seal.SEALS: seal.SEALS_VERSION, INVENTORY: take_inventory(directory, is_still=True)}
    write_json(directory / layout.RUN_JSON, manifest)
    return ImportResult(run_dir=directory, traces=tuple(used), summaries=summaries, rejected=tuple(rejected))


# Which files, which ranks


def trace_files(paths: Iterable[Path]) -> list[Path]:
    """Files as given; for a directory the traces in it, `rank2` before `rank10`.

    Raises:
        TraceError: a path is not there, or a directory holds no trace.
    """
    files = []
    for path in paths:
        if path.is_dir():
            found = sorted(
                (p for p in path.iterdir() if p.name.endswith(_ENDINGS) and p.is_file()), key=_natural
            )
            if not found:
                raise TraceError(f"{path}: holds no *.json or *.json.gz")
            files += found
        elif path.exists():
            files.append(path)
        else:
            raise TraceError(f"{path}: not there")
    return files


def _natural(path: Path) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", path.name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def assign_ranks(files: Sequence[Path]) -> list[tuple[int, str]]:
    """(rank, where it comes from) of each file: distributedInfo, else the file's name, else the order.

    Raises:
        TraceError: two files claim the same rank.
    """
    claims = [_claim(path) for path in files]
    owner: dict[int, int] = {}
    for index, claim in enumerate(claims):
        if claim is None:
            continue
        other = owner.setdefault(claim[0], index)
        if other != index:
            raise TraceError(
                f"{files[other]} and {files[index]} both claim rank {claim[0]} "
                f"(from {claims[other][1]} and {claim[1]}): import one of them"  # type: ignore[index]
            )
    free = (rank for rank in range(len(files) + max(owner, default=0) + 1) if rank not in owner)
    return [claim if claim is not None else (next(free), "order") for claim in claims]


def _claim(path: Path) -> tuple[int, str] | None:
    rank = _recorded_rank(path)
    if rank is not None:
        return rank, "distributedInfo"
    named = _NAMED_RANK.search(path.name) or _BARE_RANK.search(path.name)
    return (int(named[1]), "file name") if named else None


def _recorded_rank(path: Path) -> int | None:
    """`distributedInfo.rank`: before the events as a rule, else behind them."""
    with path.open("rb") as file:
        head = file.read(_PEEK_BYTES)
        if not head.startswith(b"\x1f\x8b"):
            file.seek(max(0, path.stat().st_size - _PEEK_BYTES))
            return _rank_in(head) if _rank_in(head) is not None else _rank_in(file.read())
        inflater = zlib.decompressobj(31)
        most = most_bytes(path.stat().st_size) // _PEEK_BYTES  # pieces
        with suppress(zlib.error):
            text = inflater.decompress(head, _PEEK_BYTES)
            found = _rank_in(text)
            while found is None and not inflater.eof and (most := most - 1) >= 0:
                more = inflater.decompress(inflater.unconsumed_tail or file.read(_PEEK_BYTES), _PEEK_BYTES)
                if not more:
                    break
                text = text[-4096:] + more
                found = _rank_in(text)
            return found
    return None


def _rank_in(text: bytes) -> int | None:
    found = _RANK.search(text)
    return int(found[1]) if found else None


def _why_unreadable(path: Path) -> str | None:
    """Why a file cannot be a trace, as far as its first bytes tell; None if it may be one."""
    try:
        if not path.is_file():  # opening a pipe would wait for its writer
            return "not a regular file"
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not head:
        return "the file is empty"
    if head.startswith(b"\x1f\x8b"):
        return None
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    return None if first in (b"{", b"[", b"") else "not JSON: a trace begins with { or ["


# The run directory


def _store(path: Path, rank: int, source: str, directory: Path) -> ImportedTrace:
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    target = _rank_dir(directory, rank) / layout.WINDOWS / ("0.json.gz" if compressed else "0.json")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    except OSError as error:
        raise RunDirectoryError(f"cannot copy {path} to {target}: {error.strerror}") from error
    stored = target.relative_to(directory).as_posix()
    return ImportedTrace(path=path, rank=rank, rank_source=source, stored=stored)


def _rank_dir(directory: Path, rank: int) -> Path:
    return directory / layout.RANKS / str(rank)


def _forget(directory: Path, rank: int) -> None:
    """A file turned out to be of no use: its rank is not part of the run."""
    shutil.rmtree(_rank_dir(directory, rank), ignore_errors=True)
    for folder in (layout.TIMELINE, layout.INGEST):
        for path in (directory / layout.DERIVED / folder).glob(f"rank-{rank:05d}-window-*"):
            path.unlink(missing_ok=True)


def _remove(directory: Path) -> None:
    """Nothing was of use: leave no empty run behind."""
    for name in (layout.RANKS, layout.DERIVED):
        shutil.rmtree(directory / name, ignore_errors=True)
    (directory / layout.RUN_JSON).unlink(missing_ok=True)
    release(directory)
    with suppress(OSError):
        directory.rmdir()


def _rank_json(rank: int, summary: IngestSummary | None) -> dict[str, object]:
    document: dict[str, object] = {
        "schema_version": layout.SCHEMA_VERSION,
        "rank": rank,
        "host": summary.host if summary else None,
        "world_size": summary.world_size if summary else None,
    }
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
        "attached_ranks": len(traces),
        "attach_notes": [],
        "git": None,
        "packages": {},
        "environment": {},
        "options": {"samples_per_step": facts.samples_per_step},
        "scheme": None,
        "world_size": None,
        "sources": [
            {
                "path": trace.path.name,
                "rank": trace.rank,
                "rank_source": trace.rank_source,
                "stored": trace.stored,
            }
            for trace in traces
        ],
        "rejected": [],
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


def _no_use(rejected: Sequence[tuple[Path, str]]) -> str:
    if len(rejected) == 1:
        return f"{rejected[0][0]}: {rejected[0][1]}"
    listed = "; ".join(f"{path}: {reason}" for path, reason in rejected[:4])
    more = f"; and {len(rejected) - 4} more" if len(rejected) > 4 else ""
    return f"none of the {len(rejected)} files is a usable trace ({listed}{more})"


def _name_of(path: Path, num_files: int) -> str:
    """A run's name: that of its one trace without endings and rank, which say nothing of the run; of
    several, that of the folder the first lies in."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 - the user's own name, links kept
    if path.is_dir():
        name = path.name
    elif num_files > 1:
        name = path.parent.name
    else:
        name = re.sub(r"(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?$", "", path.name)
        name = re.sub(r"[-_.]?(?:rank|worker)?[-_.]?\d+$", "", name, flags=re.IGNORECASE) or path.parent.name
    return re.sub(r"[^\w.+-]+", "-", name) or "import"
