"""Which files a run had when it was closed, in run.json, so that a reader notices what is gone.

    "inventory": {"hosts/a/topology.json": null, "ranks/0/windows/0.json.gz": {"bytes": 8, "tail": ".."}}

Line files and the documents that belong to them have checksums elsewhere (seal.py): of them the name is
enough. Other documents ("hosts/a/ceilings.json") are known by their checksum, so that another host's or
rank's is noticed in their place; a compressed trace by its size and by its last eight bytes, gzip's own
checksum and length of what is inside.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.errors import UnreadableFileError
from perfscope.rundir import layout, seal
from perfscope.rundir.opening import open_regular

if TYPE_CHECKING:
    from perfscope.rundir.documents import Document
    from perfscope.rundir.window_records import TraceFile

INVENTORY = "inventory"  # key of run.json

_OF_HOSTS = (layout.TOPOLOGY_JSON, layout.CEILINGS_JSON, layout.SAMPLES_JSONL, layout.SAMPLES_SEAL)
_OF_SOME_HOSTS = (layout.STACKS_JSON, layout.HANGS_JSONL)
_OF_RANKS = (
    *(layout.RANK_JSON, layout.STEPS_JSONL, layout.LAYERS_JSON, layout.BENCH_JSON),
    *(layout.WINDOWS_JSONL, layout.ERRORS_JSONL, layout.MARKS_JSONL),
)
_KNOWN_BY_CHECKSUM = (layout.TOPOLOGY_JSON, layout.CEILINGS_JSON, layout.SAMPLES_SEAL, layout.BENCH_JSON)
_HEAD_BYTES = 256  # the checksum is the first key
_TAIL_BYTES = 8


def take_inventory(run_dir: Path, *, is_still: bool = False) -> dict[str, object]:
    """The files of a run that its figures come from, sorted by path; traces with what they are known by.

    Args:
        is_still: no process writes into the run: traces that are not compressed are whole, too.
    """
    inventory: dict[str, object] = {}
    for folder, names in ((layout.HOSTS, (*_OF_HOSTS, *_OF_SOME_HOSTS)), (layout.RANKS, _OF_RANKS)):
        for folder_path in _folders(run_dir / folder):
            inventory |= {
                f"{folder}/{folder_path.name}/{name}": _mark_of_file(folder_path / name)
                for name in names
                if (folder_path / name).is_file()
            }
            for trace in _traces(folder_path / layout.WINDOWS):
                is_whole = is_still or trace.suffix == ".gz"
                name = f"{folder}/{folder_path.name}/{layout.WINDOWS}/{trace.name}"
                inventory[name] = mark_of(trace) if is_whole else None
    for name in (layout.SCHEME_JSON, layout.NEIGHBORS_JSONL):
        if (run_dir / name).is_file():
            inventory[name] = None
    return dict(sorted(inventory.items()))


def mark_of(trace: Path) -> dict[str, object] | None:
    """What a trace is known by; None of one that cannot be read."""
    try:
        with open_regular(trace) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL_BYTES, 0))
            return {"bytes": size, "tail": (file.read(_TAIL_BYTES) or b"").hex()}
    except (OSError, UnreadableFileError):
        return None


def _mark_of_file(path: Path) -> dict[str, object] | None:
    """What a document or line file is known by; None: nothing here."""
    if path.name not in _KNOWN_BY_CHECKSUM:
        return None
    try:
        with open_regular(path) as file:
            checksum = seal.checksum_of(file.read(_HEAD_BYTES) or b"")
    except (OSError, UnreadableFileError):
        return None
    return None if checksum is None else {seal.CHECKSUM: checksum}


def _folders(folder: Path) -> list[Path]:
    try:
        return [entry for entry in folder.iterdir() if entry.is_dir()]
    except OSError:
        return []


def _traces(folder: Path) -> Iterator[Path]:
    """Whole files alone: what another process still writes has a dot in front."""
    try:
        yield from (path for path in folder.iterdir() if path.name[:1].isdigit() and path.is_file())
    except OSError:
        return


def is_read(name: str, read: Iterable[TraceFile]) -> bool:
    """Whether a trace that is gone was taken into the timeline before: name as in the inventory."""
    window = f"{name.rpartition('/')[0]}/{name.rpartition('/')[2].partition('.')[0]}."
    return any(
        source.path == name
        or (layout.CALLS in name and source.calls is not None and source.path.startswith(window))
        or (layout.COUNTERS in name and source.counters is not None and source.path.startswith(window))
        or (layout.EXECUTION in name and source.execution is not None and source.path.startswith(window))
        for source in read
    )


def by_folder(inventory: Document) -> dict[str, Document]:
    """The files of ranks, by the rank's directory."""
    folders: dict[str, Document] = {}
    for name, mark in inventory.items():
        parts = name.split("/")
        if parts[0] == layout.RANKS and len(parts) > 2:
            folders.setdefault(parts[1], {})[name] = mark
    return folders
