"""No symbolic link inside a run directory is followed: not for writing, not for reading.

The directory itself may be named through links of the user's own (`perfscope-runs/latest`). A link below it
may have come with a run of other people's and lead to any file, so a run that has one is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from perfscope.errors import RunDirectoryError
from perfscope.rundir import layout

# What perfscope reads or writes below. Other files of a run directory are the user's; report.html and other
# results are replaced, never opened.
_READ = (
    layout.RUN_JSON,
    layout.PLAN_JSON,
    layout.SCHEME_JSON,
    layout.NEIGHBORS_JSONL,
    layout.HOSTS,
    layout.RANKS,
    layout.DERIVED,
    layout.BOOT_ERRORS,
    layout.OWNER,
)
_views: set[str] = set()  # directories of links that this process made itself


def refuse_links(run_dir: Path) -> None:
    """Look for links among what perfscope reads and writes in a run directory.

    Args:
        run_dir: is not looked at itself; where it is a link, the user's own is meant.

    Raises:
        RunDirectoryError: there is one.
    """
    root = os.fspath(run_dir)
    if root in _views:
        return
    for name in _READ:
        path = os.path.join(root, name)  # noqa: PTH118 - strings: a run may have very many files
        for link in [path] if os.path.islink(path) else _links(path):  # noqa: PTH114
            raise RunDirectoryError(
                f"{link} is a symbolic link, and links inside a run directory are not followed: "
                "put what it leads to in its place, or delete it"
            )


def view_of(run_dir: Path, view: Path) -> None:
    """Fill the directory `view` with links to the content of `run_dir`, its derived tables apart.

    For a run that cannot be written to. `run_dir` must have passed `refuse_links`; `view` then passes, too.

    Raises:
        OSError: a link cannot be made.
    """
    for name in _READ:
        if name != layout.DERIVED and (run_dir / name).exists():
            (view / name).symlink_to(run_dir / name)
    _views.add(os.fspath(view))


def _links(folder: str) -> Iterator[str]:
    """Every link below `folder`, which is no link itself; none where it is no folder."""
    waiting = [folder]
    while waiting:
        # Not there, no folder; and what cannot be listed cannot be read either: its reader says so.
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    yield entry.path
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
