"""One run directory for several launchers: `torchrun --nnodes 2` is started once on every node.

Each `perfscope run` normally has its own directory. When PERFSCOPE_RUN_DIR already names one (on a
file system the nodes share), the first to come makes the run and owns run.json; the others join:
they add their ranks to what is expected, their host to hosts/, and leave the ending to the owner. Tasks of a
Slurm step know more of each other: step_tasks.py.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perfscope.errors import RunDirectoryError, UnreadableFileError
from perfscope.rundir import layout, recording
from perfscope.rundir.documents import read_document
from perfscope.rundir.writer import write_json

_POLLS = 40
_POLL_S = 0.05
_LOCK = "lock"  # in the claim of a Slurm step, which is a folder


def open_shared(directory: Path) -> tuple[Path, bool]:
    """The directory PERFSCOPE_RUN_DIR names, and whether another process owns the run in it.

    Raises:
        RunDirectoryError: it holds a finished run, or something that is no run.
    """
    if not directory.is_absolute():
        raise RunDirectoryError(f"{layout.ENV_RUN_DIR} must be an absolute path, not {directory}")
    claim = directory / layout.OWNER
    manifest = _read(directory)
    if manifest is not None and manifest.get("status") != "running":
        raise RunDirectoryError(
            f"{layout.ENV_RUN_DIR} names {directory}, which holds a finished run; unset it or name another"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Exclusive creation decides between launchers that start at the same moment.
        claim.open("xb").close()
        if manifest is None:  # else its maker has the claim, and we join
            recording.claim(directory)
    except FileExistsError:
        return directory, True
    except RunDirectoryError:
        claim.unlink(missing_ok=True)
        raise
    except OSError as error:
        raise RunDirectoryError(f"cannot write {claim}: {error.strerror}") from error
    if manifest is None and {path.name for path in directory.iterdir()} - {recording.LOCK} != {layout.OWNER}:
        claim.unlink()
        recording.release(directory)
        raise RunDirectoryError(
            f"{layout.ENV_RUN_DIR} names {directory}, which is not empty and holds no run"
        )
    return directory, manifest is not None


def is_for_step(directory: Path) -> bool:
    """Whether the tasks of a Slurm step may share the directory as such: no other command began one."""
    claim = directory / layout.OWNER
    return claim.is_dir() or not (claim.exists() or (directory / layout.RUN_JSON).exists())


@contextmanager
def exclusive(run_dir: Path) -> Iterator[None]:
    """One launcher at a time rewrites run.json. Without a claim file the directory has one launcher only."""
    claim_path = run_dir / layout.OWNER
    try:
        claim = (claim_path / _LOCK).open("ab") if claim_path.is_dir() else claim_path.open("rb")
    except OSError:
        yield
        return
    with claim:
        with suppress(OSError):  # a file system without locks: the window is microseconds
            fcntl.flock(claim, fcntl.LOCK_EX)
        yield


def announce(run_dir: Path, num_ranks: int | None) -> None:
    """Add a joining launcher's ranks to what the run expects.

    The owner may have claimed the directory a moment ago: its run.json is waited for, shortly.
    """
    manifest = _read(run_dir)
    for _ in range(_POLLS):
        if manifest is not None:
            break
        time.sleep(_POLL_S)
        manifest = _read(run_dir)
    if manifest is None:
        return
    with exclusive(run_dir):
        manifest = newest(run_dir, manifest)
        expected = manifest.get("expected_ranks")
        if isinstance(expected, int) and num_ranks is not None:
            write_json(run_dir / layout.RUN_JSON, {**manifest, "expected_ranks": expected + num_ranks})


def newest(run_dir: Path, manifest: dict[str, object]) -> dict[str, object]:
    """run.json as it is now (others may have joined); our own version where it cannot be read."""
    return _read(run_dir) or manifest


def expected_ranks(manifest: dict[str, object], planned: int | None, reported: int | None) -> int | None:
    """Ranks to expect in the whole run: as planned by all launchers, else the world size ranks reported."""
    announced = manifest.get("expected_ranks")
    if isinstance(announced, int):
        return announced
    return planned if planned is not None else reported


def _read(run_dir: Path) -> dict[str, object] | None:
    try:
        return read_document(run_dir / layout.RUN_JSON)
    except (OSError, UnreadableFileError):
        return None
