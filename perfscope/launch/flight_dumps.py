"""Dumps of torch's flight recorder that ranks left while the command ran, kept with their windows.

torch writes one for each rank when a collective times out. The report says from them which rank has not
entered which collective (analysis/progress.py). A prefix that several jobs share is overwritten by each.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from perfscope.errors import UnreadableFileError
from perfscope.launch.attachment import AttachedRank, read_ranks
from perfscope.rundir import layout
from perfscope.rundir.files import replacing
from perfscope.rundir.opening import open_regular

_PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_MOST_BYTES = 256 << 20


def keep_flight_dumps(run_dir: Path, environment: Mapping[str, str], since_unix_ns: object) -> list[str]:
    """Copies the dumps of this host's ranks to ranks/<rank>/windows/N.flight.pickle.

    Args:
        run_dir: of the run.
        environment: of the command: where torch writes them.
        since_unix_ns: when the command was started; dumps of before are of other jobs. Those of before a
            rank's own start are of an earlier attempt.

    Returns:
        One line for each dump that could not be kept.
    """
    if not isinstance(since_unix_ns, int):
        return []
    host = layout.host_name()
    newest = {rank.rank: rank for rank in read_ranks(run_dir) if rank.record.host == host}  # of each: attempt
    problems = (_keep_of(rank, environment, since_unix_ns) for rank in newest.values())
    return [problem for problem in problems if problem]


def _keep_of(rank: AttachedRank, environment: Mapping[str, str], since_unix_ns: int) -> str:
    """What went wrong; "" = nothing."""
    try:
        started = min((unix for _, unix in rank.record.anchors), default=since_unix_ns)
        source = _dump_of(rank.rank, environment, max(started, since_unix_ns))
        if source is not None:
            _keep(source, rank.directory / layout.WINDOWS)
    except (OSError, UnreadableFileError) as error:
        return f"the flight recorder's dump of rank {rank.rank} was not kept: {error}"
    return ""


def _dump_of(rank: int, environment: Mapping[str, str], since_unix_ns: int) -> Path | None:
    """The newest file of this user that was written since then; None: there is none."""
    written = {}
    for prefix in _prefixes(environment):
        path = Path(f"{prefix}{rank}")
        try:
            status = path.lstat()
        except OSError:
            continue
        if status.st_uid == os.geteuid() and status.st_mtime_ns >= since_unix_ns:
            written[status.st_mtime_ns] = path
    return written[max(written)] if written else None


def _prefixes(environment: Mapping[str, str]) -> Iterator[str]:
    """Of the file names, by version of torch."""
    stated = [environment[name] for name in _PREFIXES if environment.get(name)]
    if stated:
        yield from stated
        return
    yield "/tmp/nccl_trace_rank_"
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '~')}/.cache"
    yield f"{cache}/torch/comm_lib_trace_rank_"


def _keep(source: Path, folder: Path) -> None:
    """Copies it under the next number of a window, unless the rank has a dump."""
    folder.mkdir(exist_ok=True)
    names = [path.name for path in folder.iterdir()]
    if any(name.endswith(layout.FLIGHTS) for name in names):
        return
    numbers = [int(number) for name in names if (number := name.partition(".")[0]).isdecimal()]
    with open_regular(source) as dump:
        if os.fstat(dump.fileno()).st_size > _MOST_BYTES:
            raise UnreadableFileError(source, "it is larger than 256 MiB")
        with replacing(folder / f"{max(numbers, default=-1) + 1}{layout.FLIGHTS[0]}") as file:
            shutil.copyfileobj(dump, file)
