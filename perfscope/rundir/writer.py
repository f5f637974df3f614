"""Making a run directory and writing JSON into it so that a reader never sees half a file."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

from perfscope.errors import RunDirectoryError
from perfscope.rundir import layout, seal
from perfscope.rundir.files import replacing
from perfscope.rundir.opening import read_bounded
from perfscope.rundir.recording import LOCK, claim, release

RUNS = "perfscope-runs"
LATEST = "latest"

# All that perfscope itself puts into a run directory: the only names `--force` ever deletes.
_OWN_NAMES = (
    layout.PLAN_JSON,
    layout.SCHEME_JSON,
    layout.NEIGHBORS_JSONL,
    layout.HOSTS,
    layout.RANKS,
    layout.DERIVED,
    layout.BOOT_ERRORS,
    layout.OWNER,
    "report.html",
    "report.pdf",
    layout.RUN_JSON,  # last: while it is there, a second --force can finish what a first one began
)
_MAX_NAME = 64


def create_run_dir(path: Path | None, *, name: str, force: bool, root: Path | None = None) -> Path:
    """Make an empty run directory.

    Args:
        path: where the user wants it (`-o`); None means `perfscope-runs/<UTC>-<name>-<4 hex>/`
            under `root`, with a relative symlink `latest` beside it.
        name: the run's name; only letters, digits, `.`, `_` and `-` of it enter the default path.
        force: empty `path` first if it holds a perfscope run. Only what perfscope wrote is deleted.
        root: the directory of the default place; None means the current directory.

    Returns:
        The absolute path of the directory, which exists and holds no run. It is this process's to record into
        until it ends (`recording.claim`).

    Raises:
        RunDirectoryError: it cannot be made, holds something that must not be overwritten, or another process
            records into it.
    """
    if path is None:
        return _create_default(root or Path.cwd(), name)
    directory = Path(os.path.abspath(path))  # noqa: PTH100 - Path.resolve would follow the user's links
    try:
        directory.mkdir(parents=True, exist_ok=True)
        claim(directory)
        if any(entry.name != LOCK for entry in directory.iterdir()):
            _make_room(directory, force=force)
    except FileExistsError:
        raise RunDirectoryError(f"{directory} is a file; choose another -o") from None
    except OSError as error:
        raise RunDirectoryError(f"cannot make the run directory {directory}: {error.strerror}") from error
    return directory


def default_run_dir_name(name: str) -> str:
    """`<UTC>-<name>-<4 hex>`, for instance `20261103T142501Z-train_cnn-9f3a`; differs at every call."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    clean = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._-")[:_MAX_NAME] or "run"
    return f"{stamp}-{clean}-{os.urandom(2).hex()}"


def holds_run(directory: Path) -> bool:
    """Whether `directory` has a run.json written by perfscope."""
    try:
        manifest = json.loads(read_bounded(directory / layout.RUN_JSON))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and "schema_version" in manifest and "perfscope_version" in manifest


def write_json(path: Path, value: object) -> None:
    """Write `value` as UTF-8 JSON: aside in the same directory, then renamed over `path`.

    An object gets a checksum (rundir/seal.py), in place of one it has. A failure leaves `path` as it was and
    no half file beside it. Characters that UTF-8 cannot hold (lone surrogates) become `?`.

    Raises:
        RunDirectoryError: the file cannot be written (no space, no permission).
        ValueError: `value` holds NaN or an infinity, which JSON has no word for.
    """
    if isinstance(value, dict):
        value = {key: item for key, item in value.items() if key != seal.CHECKSUM}
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1)
    text = text.encode("utf-8", "replace").decode()
    data = (seal.sealed(text, path.name) if isinstance(value, dict) else f"{text}\n").encode()
    try:
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise RunDirectoryError(f"cannot write {path}: {error.strerror}") from error


def _create_default(root: Path, name: str) -> Path:
    runs = Path(os.path.abspath(root)) / RUNS  # noqa: PTH100 - the user's own path, links kept
    try:
        is_new = not runs.exists()
        runs.mkdir(parents=True, exist_ok=True)
        if is_new:
            hide_from_git(runs)
        while True:
            directory = runs / default_run_dir_name(name)
            try:
                directory.mkdir()
                claim(directory)
                break
            except FileExistsError:
                if not runs.is_dir():
                    raise
    except FileExistsError:
        raise RunDirectoryError(f"{runs} is a file; name another place with -o") from None
    except OSError as error:
        raise RunDirectoryError(
            f"cannot make a run directory in {runs}: {error.strerror}; name another place with -o"
        ) from error
    point_latest(runs, directory.name)
    return directory


def hide_from_git(runs: Path) -> None:
    """Runs are large and rarely meant for a repository. Only once: who deletes the file wants them there."""
    with suppress(OSError):
        (runs / ".gitignore").write_text("*\n", encoding="ascii")


def point_latest(runs: Path, target: str) -> None:
    """Let `latest` name the newest run. A convenience: file systems without symlinks go without."""
    latest = runs / LATEST
    if latest.exists() and not latest.is_symlink():
        return  # a file or directory of the user's
    aside = runs / f".{LATEST}.{os.urandom(4).hex()}"
    with suppress(OSError):
        aside.symlink_to(target)
        try:
            aside.replace(latest)
        except OSError:
            aside.unlink()
            raise


def _make_room(directory: Path, *, force: bool) -> None:
    """Delete the run in `directory`, if that is wanted and it is one."""
    try:
        if not force:
            what = "already holds a run" if holds_run(directory) else "is not empty"
            raise RunDirectoryError(
                f"{directory} {what}; choose another -o, or give --force to replace a run"
            )
        if not holds_run(directory):
            raise RunDirectoryError(
                f"{directory} is not empty and holds no perfscope run, so --force does not delete it; "
                "choose another -o"
            )
    except RunDirectoryError:
        release(directory)
        raise
    for name in _OWN_NAMES:
        entry = directory / name
        if entry.is_symlink() or not entry.is_dir():
            entry.unlink(missing_ok=True)
        else:
            shutil.rmtree(entry)
