"""Who records into a run directory: one `perfscope run`, `import` or `collect` at a time makes a run in it.

`.owner.lock` is held by flock(2) for as long as the process that makes the run lives, however it ends. It
names that process, for the message of another one that wants the directory. Where a file system has no locks,
the file itself is the claim, and the process it names is looked for.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from perfscope.errors import RunDirectoryError
from perfscope.rundir import layout
from perfscope.rundir.sampler_call import pid_namespace

LOCK = ".owner.lock"
_BUSY = (errno.EAGAIN, errno.EACCES)
_SAMPLER_ENDS_S = 3.0  # it looks for ranks ten times a second; a busy machine takes longer
_LONGEST = 4096  # bytes of the file that are read
_held: dict[
    tuple[int, int, int], tuple[int, Path]
] = {}  # (pid, device, inode of the directory): handle, file


def claim(directory: Path) -> None:
    """Make this process the one that records into `directory`, until it ends or calls `release`.

    Raises:
        RunDirectoryError: another process does, and the message says which; or ranks of an earlier run
            still record.
        OSError: nothing can be written there.
    """
    key = _key(directory)
    if key in _held:
        return
    handle = _locked(directory)
    document = {
        "pid": os.getpid(),
        "host": layout.host_name(),
        "started": _start_of(os.getpid()),
        "namespace": pid_namespace(),
        "since_unix_ns": time.time_ns(),
    }
    writer = os.open(directory / LOCK, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(writer, json.dumps(document).encode())
    finally:
        os.close(writer)
    _held[key] = (handle, directory / LOCK)
    try:
        _refuse_sampled(directory)
    except RunDirectoryError:
        release(directory)
        raise


def release(directory: Path) -> None:
    """Give up the claim, if this process has it."""
    with suppress(OSError):  # the directory is gone, and the claim with it
        handle = _held.pop(_key(directory), None)
        if handle is not None:
            _let_go(*handle)


def _let_go(handle: int, lock: Path) -> None:
    with suppress(OSError):  # moved or deleted meanwhile, or on a file system that is read-only by now
        if _is_same(handle, lock):
            lock.unlink()
    os.close(handle)


@atexit.register
def _release_all() -> None:
    for key, (handle, lock) in list(_held.items()):
        if key[0] == os.getpid():  # a forked child has no say
            _let_go(handle, lock)
    _held.clear()


def _key(directory: Path) -> tuple[int, int, int]:
    status = directory.stat()
    return os.getpid(), status.st_dev, status.st_ino


def _locked(directory: Path) -> int:
    """A handle of the lock file: locked, or on a file system without locks made by us."""
    lock = directory / LOCK
    while True:
        handle, is_new = _open(lock)
        if _is_to_be_written(handle):
            os.close(handle)
            handle = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if is_new and error.errno not in _BUSY:
                return handle
            holder = _holder(handle)
            os.close(handle)
            if error.errno in _BUSY or not holder or _lives(holder):
                raise RunDirectoryError(_refusal(directory, holder)) from None
            lock.unlink(missing_ok=True)  # no locks here, and the process that made the file has ended
            continue
        with suppress(OSError):  # its holder deletes it before letting go: then another one is there, or none
            if _is_same(handle, lock):
                return handle
        os.close(handle)


def _is_to_be_written(handle: int) -> bool:
    """Whether the lock needs a file open for writing, as on NFS (flock(2)); else it may be held now."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EBADF
    return False


def _open(lock: Path) -> tuple[int, bool]:
    """A handle for reading, and whether the file was made by this call.

    A file system on which a file is open for writing could not be made read-only meanwhile.
    """
    flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(lock, flags | os.O_EXCL, 0o644), True
    except FileExistsError:
        return os.open(lock, flags, 0o644), False


def _is_same(handle: int, lock: Path) -> bool:
    handle_stat, there = os.fstat(handle), lock.lstat()
    return (handle_stat.st_dev, handle_stat.st_ino) == (there.st_dev, there.st_ino)


def _holder(handle: int) -> Mapping[str, object]:
    with suppress(OSError, ValueError, RecursionError):  # being written at this moment, or not ours
        holder = json.loads(os.pread(handle, _LONGEST, 0))
        if isinstance(holder, dict):
            return holder
    return {}


def _lives(holder: Mapping[str, object]) -> bool:
    """Whether the process may still run. On another host or in another namespace it cannot be looked for."""
    pid = holder.get("pid")
    if type(pid) is not int:
        return False
    if holder.get("host") != layout.host_name() or holder.get("namespace") != pid_namespace():
        return True
    return holder.get("started") == _start_of(pid) is not None


def _start_of(pid: int) -> int | None:
    """When a process started, in ticks since the host did; None: there is none. Numbers are used again."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _refusal(directory: Path, holder: Mapping[str, object]) -> str:
    pid, host, since = (holder.get(name) for name in ("pid", "host", "since_unix_ns"))
    process = f"process {pid} on {host}" if type(pid) is int else "another process"
    when = ""
    if type(since) is int and 0 <= since < 1 << 62:
        when = time.strftime(" since %Y-%m-%d %H:%M:%S UTC", time.gmtime(since // 1_000_000_000))
    return (
        f"{process} has been recording into {directory}{when}: wait until it has ended, or choose another -o "
        f"(if it no longer runs, delete {directory / LOCK})"
    )


def _refuse_sampled(directory: Path) -> None:
    """Ranks may outlive their `perfscope run`; the sampler of their host ends soon after the last of them."""
    deadline = time.monotonic() + _SAMPLER_ENDS_S
    for lock in sorted((directory / layout.HOSTS).glob(f"*/{layout.SAMPLER_LOCK}")):
        while is_held(lock):
            if time.monotonic() > deadline:
                raise RunDirectoryError(
                    f"ranks on {lock.parent.name} still record into {directory}: wait until they have ended, "
                    "or choose another -o"
                )
            time.sleep(0.05)


def is_held(lock: Path) -> bool:
    """Whether a sampler records beside its lock file; False where that is not known: no file, or no locks."""
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False  # a link or not ours to read: no sampler of this user's
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _BUSY
    finally:
        os.close(handle)
    return False
