"""One run out of the directories that the nodes of a job made each for itself (`perfscope collect`).

Where nodes share no file system every node has a directory of the same name with its own ranks, hosts and
run.json (or, below one `perfscope run` on another node, no run.json). The sources are only read. Collecting
again changes nothing; what came later, or is more complete than before, is added.

The collected run keeps every source's run.json in `.owner/parts`, so that run.json can be made anew from all.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from perfscope.errors import RunDirectoryError, UnreadableFileError, UsageError
from perfscope.launch.merged_manifest import (
    PARTS,
    ManifestPart,
    keep_later_facts,
    merge,
    read_parts,
    write_parts,
)
from perfscope.launch.same_run import RankProcess, require_one_run
from perfscope.rundir import layout
from perfscope.rundir.attempts import Attempt, all_attempts
from perfscope.rundir.documents import read_document
from perfscope.rundir.inventory import INVENTORY, take_inventory
from perfscope.rundir.links import refuse_links
from perfscope.rundir.migrations import migrate
from perfscope.rundir.opening import MAX_LINES_BYTES, read_bounded
from perfscope.rundir.recording import LOCK, claim, release
from perfscope.rundir.records import rank_record
from perfscope.rundir.writer import create_run_dir, write_json

_STAGING = "staging"
_OF_THE_HOST_ALONE = frozenset({layout.PIDS, layout.WATCHER, layout.WATCHING, layout.SAMPLER_LOCK})
_ONCE = (layout.SCHEME_JSON, layout.PLAN_JSON)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSource:
    """One directory to collect from.

    Attributes:
        path: absolute.
        parts: run.json of the run in it; none below a wrapper on another host, several in a collected run.
        processes: the processes that left something in ranks/.
    """

    path: Path
    parts: tuple[ManifestPart, ...]
    processes: tuple[RankProcess, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of one source's ranks."""

    path: Path
    ranks: tuple[int, ...]
    num_copied: int
    num_replaced: int
    num_kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What `collect` did.

    Attributes:
        run_dir: the collected run.
        tallies: by source, as they were named.
        attached: ranks in the run that say what they are; one without rank.json was copied half.
        expected: ranks there should be; None = nothing says.
        missing: ranks that no source has, or not yet all of.
        changed: whether anything was written.
        notes: run.json's `attach_notes`.
    """

    run_dir: Path
    tallies: tuple[Tally, ...]
    attached: tuple[int, ...]
    expected: int | None
    missing: tuple[int, ...]
    changed: bool
    notes: tuple[str, ...]


def collect(run_dirs: Sequence[Path], target: Path) -> Collected:
    """Merge the runs in `run_dirs` into `target`.

    Raises:
        UsageError: `target` is one of the directories, or is inside one.
        RunDirectoryError: a place holds no run or a symbolic link, they are not parts of one run, or `target`
            holds another run or cannot be written.
    """
    target = Path(os.path.abspath(target))  # noqa: PTH100 - links in the user's path are kept
    _require_apart(run_dirs, target)
    sources = [_read_source(run_dir) for run_dir in run_dirs]
    present = _present(target)
    if present:
        refuse_links(target)
    held = read_parts(target) if present else ()
    there = _processes(target) if present else ()
    parts = [*held, *(part for source in sources for part in source.parts)]
    require_one_run(
        parts, [(target, there), *((merge_source.path, merge_source.processes) for merge_source in sources)]
    )
    if not present:
        create_run_dir(target, name=target.name, force=False)
    with _one_line(target):
        claim(target)
        try:
            # First of all: a collection that was interrupted is known by it, and can be gone on with.
            (target / layout.OWNER / PARTS).mkdir(parents=True, exist_ok=True)
            return _collect(sources, target, parts)
        finally:
            release(target)


def _collect(sources: Sequence[MergeSource], target: Path, parts: Sequence[ManifestPart]) -> Collected:
    changed = False
    tallies = []
    try:
        for source in sources:
            tally = _copy_ranks(source, target)
            tallies.append(tally)
            changed |= bool(tally.num_copied or tally.num_replaced)
            changed |= _copy_hosts(source.path, target)
            changed |= _copy_rest(source.path, target)
    finally:
        shutil.rmtree(target / layout.OWNER / _STAGING, ignore_errors=True)
    if changed:  # made of what was there before; it can be had again
        shutil.rmtree(target / layout.DERIVED, ignore_errors=True)
    changed |= write_parts(target, parts)
    before = _read_json(target / layout.RUN_JSON)
    manifest = keep_later_facts(merge(target, read_parts(target)), before or {})
    noted = (part.manifest.get(INVENTORY) for part in parts)
    lost_before = {
        path: None for entry in noted if isinstance(entry, dict) for path in entry
    }  # what a source has lost
    manifest |= {INVENTORY: {**lost_before, **take_inventory(target)}}
    if before != manifest:
        write_json(target / layout.RUN_JSON, manifest)
        changed = True
    attached = tuple(sorted({process.rank for process in _processes(target) if process.record is not None}))
    expected = manifest.get("expected_ranks")
    notes = manifest.get("attach_notes")
    wanted = expected if isinstance(expected, int) else 0
    return Collected(
        run_dir=target,
        tallies=tuple(tallies),
        attached=attached,
        expected=expected if isinstance(expected, int) else None,
        missing=tuple(sorted(set(range(wanted)) - set(attached))),
        changed=changed,
        notes=tuple(map(str, notes)) if isinstance(notes, list) else (),
    )


def _require_apart(run_dirs: Sequence[Path], target: Path) -> None:
    to = target.resolve()
    for run_dir in run_dirs:
        source = run_dir.resolve()
        if to == source or source in to.parents or to in source.parents:
            raise UsageError(
                f"-o {target} and the source {run_dir} are in each other; sources stay as they are"
            )


def _read_source(run_dir: Path) -> MergeSource:
    folder = run_dir.resolve()
    if not folder.is_dir():
        raise RunDirectoryError(f"{run_dir} {'is not there' if not folder.exists() else 'is no directory'}")
    refuse_links(folder)
    with _one_line(run_dir):
        processes = _processes(folder)
    parts = read_parts(folder)
    if not parts and (folder / layout.RUN_JSON).exists():
        manifest = _read_json(folder / layout.RUN_JSON)
        if manifest is None:
            raise RunDirectoryError(f"{run_dir / layout.RUN_JSON} is broken or cannot be read")
        ranks = sorted({process.rank for process in processes})
        parts = (
            ManifestPart(manifest=migrate(manifest, str(run_dir)), ranks=tuple(ranks), origin=str(run_dir)),
        )
    if not parts and not processes:
        raise RunDirectoryError(f"{run_dir} is no part of a run: it holds neither run.json nor ranks")
    return MergeSource(path=folder, parts=parts, processes=processes)


def _present(target: Path) -> bool:
    """Whether `target` is a run that was collected before."""
    if not target.exists() or (target.is_dir() and all(entry.name == LOCK for entry in target.iterdir())):
        return False
    if (target / layout.OWNER / PARTS).is_dir():
        return True
    what = "holds a run that was not collected" if (target / layout.RUN_JSON).exists() else "is not empty"
    raise RunDirectoryError(f"{target} {what}; choose another -o")


def _processes(folder: Path) -> tuple[RankProcess, ...]:
    attempts = [attempt for tried in all_attempts(folder).values() for attempt in tried]
    documents = [(attempt, _read_json(attempt.path / layout.RANK_JSON)) for attempt in attempts]
    return tuple(
        RankProcess(attempt=attempt, record=None if document is None else rank_record(document))
        for attempt, document in documents
    )


def _copy_ranks(source: MergeSource, target: Path) -> Tally:
    copied = replaced = kept = 0
    for process in source.processes:
        there = _processes(target)
        same = next((other for other in there if process.is_same(other)), None)
        if same is None:
            _put(process.attempt.path, _free_place(process.attempt, target, there), target)
            copied += 1
        elif _fullness(process) > _fullness(same):
            _put(process.attempt.path, same.attempt.path, target)
            replaced += 1
        else:
            kept += 1
    return Tally(
        path=source.path,
        ranks=tuple(sorted({rank_process.rank for rank_process in source.processes})),
        num_copied=copied,
        num_replaced=replaced,
        num_kept=kept,
    )


def _free_place(attempt: Attempt, target: Path, there: Sequence[RankProcess]) -> Path:
    """Where a process goes that the run does not have: under its own name, or as one more of its rank."""
    wanted = target / layout.RANKS / attempt.path.name
    if not wanted.exists():
        return wanted
    numbers = [process.attempt.number for process in there if process.rank == attempt.rank]
    return target / layout.RANKS / f"{attempt.rank}.{max(numbers, default=0) + 1}"


def _fullness(process: RankProcess) -> tuple[bool, bool, int, int, int, int]:
    """What makes one copy of a process's files better than another; equal copies give equal values."""
    files = [
        path for path in sorted(process.attempt.path.rglob("*")) if path.is_file() and not path.is_symlink()
    ]
    windows = [path.name for path in files if path.parent.name == layout.WINDOWS]
    return (
        process.record is not None,
        process.is_finished,
        process.attempt.count_steps(),
        len({name.removesuffix(".gz") for name in windows}),
        sum(name.endswith(".gz") for name in windows),  # packing makes files smaller
        sum(path.stat().st_size for path in files),
    )


def _put(source: Path, destination: Path, target: Path) -> None:
    """Copy a folder aside and rename it into place: a reader never sees half of it."""
    staging = target / layout.OWNER / _STAGING
    staging.mkdir(parents=True, exist_ok=True)
    destination.parent.mkdir(exist_ok=True)
    new, old = (staging / f"{destination.name}-{secrets.token_hex(4)}" for _ in range(2))
    shutil.copytree(source, new, ignore=_not_plain)
    if destination.exists():
        destination.rename(old)
    new.rename(destination)


def _not_plain(folder: str, names: list[str]) -> set[str]:
    """Links and sockets of a source stay where they are: what they lead to is not the run's."""
    paths = {name: Path(folder, name) for name in names}
    return {
        name for name, path in paths.items() if path.is_symlink() or not (path.is_file() or path.is_dir())
    }


def _copy_hosts(source: Path, target: Path) -> bool:
    changed = False
    for host in sorted((source / layout.HOSTS).glob("*")):
        if not host.is_dir() or host.is_symlink():
            continue
        for path in sorted(host.iterdir()):
            if path.name in _OF_THE_HOST_ALONE or path.name == layout.SAMPLES_SEAL:
                continue
            destination = target / layout.HOSTS / host.name / path.name
            if _copy_if_larger(path, destination):
                changed = True
                if path.name == layout.SAMPLES_JSONL:  # another seal of the same size belongs to it
                    destination.with_name(layout.SAMPLES_SEAL).unlink(missing_ok=True)
                    _copy_if_larger(
                        path.with_name(layout.SAMPLES_SEAL), destination.with_name(layout.SAMPLES_SEAL)
                    )
    return changed


def _copy_rest(source: Path, target: Path) -> bool:
    changed = False
    for name in _ONCE:
        if not (target / name).exists():
            changed |= _copy_if_larger(source / name, target / name)
    for name in (layout.BOOT_ERRORS, layout.NEIGHBORS_JSONL):
        changed |= _add_lines(source / name, target / name)
    return changed


def _copy_if_larger(source: Path, destination: Path) -> bool:
    """Files of a run only grow: the larger copy is the later one."""
    if source.is_symlink() or not source.is_file():
        return False
    if destination.exists() and destination.stat().st_size >= source.stat().st_size:
        return False
    destination.parent.mkdir(parents=True, exist_ok=True)
    aside = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}.part")
    try:
        shutil.copy2(source, aside)
        aside.replace(destination)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
    return True


def _add_lines(source: Path, destination: Path) -> bool:
    """Lines of `source` that `destination` does not have yet, appended."""
    try:
        lines = read_bounded(source, MAX_LINES_BYTES).splitlines()
    except (OSError, UnreadableFileError):
        return False
    have = set(destination.read_bytes().splitlines()) if destination.exists() else set()
    new = [line for line in dict.fromkeys(lines) if line not in have]
    if new:
        with destination.open("ab") as file:
            file.write(b"\n".join(new) + b"\n")
    return bool(new)


def _read_json(path: Path) -> dict[str, object] | None:
    try:
        return read_document(path)
    except (OSError, UnreadableFileError):
        return None


@contextmanager
def _one_line(destination: Path) -> Iterator[None]:
    """What the file system refuses, as one line.

    Raises:
        RunDirectoryError: in the place of OSError and shutil.Error.
    """
    try:
        yield
    except shutil.Error as error:  # a list of (source, target, reason)
        first = error.args[0][0] if error.args and error.args[0] else ("", str(destination), str(error))
        raise RunDirectoryError(f"cannot copy {first[0]}: {first[2]}") from error
    except OSError as error:
        raise RunDirectoryError(f"{error.filename or destination}: {error.strerror or error}") from error
