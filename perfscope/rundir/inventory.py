"""Which files a run had when it was closed, in run.json, so that a reader notices what is gone.

    "inventory": {"hosts/a/topology.json": null, "ranks/0/windows/0.json.gz": {"bytes": 8, "tail": ".."}}

Documents and line files carry their own checksums (seal.py): of them the name is enough. A compressed trace
is known by its size and by its last eight bytes, gzip's own checksum and length of what is inside.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from perfscope.errors import UnreadableFileError
from perfscope.rundir import layout
from perfscope.rundir.opening import open_regular

INVENTORY = "inventory"  # key of run.json

_OF_HOSTS = (layout.TOPOLOGY_JSON, layout.CEILINGS_JSON, layout.SAMPLES_JSONL, layout.SAMPLES_SEAL)
_OF_RANKS = (
    *(layout.RANK_JSON, layout.STEPS_JSONL, layout.LAYERS_JSON, layout.BENCH_JSON),
    *(layout.WINDOWS_JSONL, layout.ERRORS_JSONL),
)
_TAIL_BYTES = 8


def take_inventory(run_dir: Path, *, is_still: bool = False) -> dict[str, object]:
    """The files of a run that its figures come from, sorted by path; traces with what they are known by.

    Args:
        is_still: no process writes into the run: traces that are not compressed are whole, too.
    """
    inventory: dict[str, object] = {}
    for folder, names in ((layout.HOSTS, (*_OF_HOSTS, layout.STACKS_JSON)), (layout.RANKS, _OF_RANKS)):
        for folder_path in _folders(run_dir / folder):
            inventory |= {
                f"{folder}/{folder_path.name}/{name}": None
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
