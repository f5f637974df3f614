"""After the command has ended: compressing the traced windows, letting the sampler close its file.

Windows are written raw during training, because compressing there would cost training time.
Nothing here is needed for the run to be readable, so everything may stop at any point.
"""

from __future__ import annotations

import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from perfscope.errors import UnreadableFileError
from perfscope.launch.attachment import AttachedRank, read_json_lines
from perfscope.rundir import layout
from perfscope.rundir.documents import read_document
from perfscope.rundir.recording import is_held

_CHUNK_BYTES = 1 << 20
_LEVEL = 1  # a third of level 6's time for a tenth more bytes
_GZIP = 16 + zlib.MAX_WBITS  # zlib's word for "with a gzip header"; the header then carries no time or name


def compress_windows(
    ranks: Sequence[AttachedRank], *, stop: Callable[[], bool], limit_s: float = 10.0
) -> list[str]:
    """Replace every complete trace windows/N.* by N.*.gz.

    A window is complete when windows.jsonl lists it or its process has ended. Windows that are left
    (`stop()` became true, `limit_s` seconds passed, no space) stay readable as they are.

    Returns:
        One line for each kind of thing that went wrong.
    """
    end = time.monotonic() + limit_s

    def give_up() -> bool:
        return stop() or time.monotonic() > end

    sources = [path for rank in ranks for path in _complete_windows(rank)]
    if not sources:
        return []
    # Threads: zlib releases the interpreter lock. Largest first, so that no thread ends late.
    with ThreadPoolExecutor(max_workers=min(len(sources), os.cpu_count() or 1, 16)) as pool:
        results = list(pool.map(lambda path: _compress(path, give_up), _largest_first(sources)))
    failures = [error for error in results if error]
    if not failures:
        return []
    return [
        f"{len(failures)} of {len(sources)} windows stay uncompressed: {'; '.join(sorted(set(failures)))}"
    ]


def _complete_windows(rank: AttachedRank) -> Iterable[Path]:
    folder = rank.directory / layout.WINDOWS
    paths = sorted(path for ending in ("json", "pb") for path in folder.glob(f"[0-9]*.{ending}"))
    if rank.closed or not paths:
        return paths
    listed = {str(entry.get("window")) for entry in read_json_lines(rank.directory / layout.WINDOWS_JSONL)}
    return [path for path in paths if path.name.partition(".")[0] in listed]


def _largest_first(paths: Sequence[Path]) -> list[Path]:
    def size(path: Path) -> int:
        try:
            return path.stat().st_size
        except OSError:
            return 0

    return sorted(paths, key=size, reverse=True)


def _compress(source: Path, give_up: Callable[[], bool]) -> str | None:
    """Compress one file aside, rename, delete the original. Returns what went wrong, or None."""
    target = source.with_name(f"{source.name}.gz")
    aside = source.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with source.open("rb") as raw, aside.open("xb") as packed:
            packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
            while chunk := raw.read(_CHUNK_BYTES):
                if give_up():
                    raise InterruptedError("no time left")
                packed.write(packer.compress(chunk))
            packed.write(packer.flush())
        aside.replace(target)
        source.unlink(missing_ok=True)
    except OSError as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        return error.strerror or str(error)
    return None


def await_sampler(host_dir: Path, *, limit_s: float = 1.5) -> bool:
    """Wait until this host's sampler has ended; it does so with the last rank, some milliseconds later.

    Removes the pids the ranks left for it. False: it still runs (as ranks do that outlive the command).
    """
    end = time.monotonic() + limit_s
    lock = host_dir / layout.SAMPLER_LOCK
    if not lock.exists():
        return True
    while is_held(lock):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    shutil.rmtree(host_dir / layout.PIDS, ignore_errors=True)
    with suppress(OSError):
        (host_dir / layout.WATCHER).unlink()
    return True


def recorded_scheme(run_dir: Path) -> dict[str, object] | None:
    """What the ranks of a bench run found their scheme and places to be; None for other runs."""
    try:
        return read_document(run_dir / layout.SCHEME_JSON)
    except (OSError, UnreadableFileError):
        return None
