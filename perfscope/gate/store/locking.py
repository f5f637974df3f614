"""One writer at a time: a lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perfscope.gate.store.errors import BaselineError, shown

TIMEOUT_S = 30.0
_PAUSE_S = 0.02
_LONGEST = 50  # characters of a file's name that enter the names beside it: at most 255 bytes are allowed


def beside(target: Path, suffix: str) -> Path:
    """A hidden neighbor of `target`."""
    return target.with_name(f".{target.name[:_LONGEST]}.{suffix}")


@contextmanager
def locked(target: Path, timeout_s: float = TIMEOUT_S) -> Iterator[None]:
    """No one else is in such a block for `target`, in this process or another.

    The lock is flock(2) on a hidden file beside `target`: what a killed process leaves of it is harmless.

    Raises:
        BaselineError: another process was in it for longer than `timeout_s`, or nothing can be written there.
    """
    lock = beside(target, "lock")
    try:
        handle = _acquire(target, lock, timeout_s)
    except OSError as error:
        raise BaselineError(f"cannot write {shown(target)}: {error.strerror or error}") from error
    try:
        with suppress(OSError):  # only for the message that another process may have to print
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        with suppress(OSError):  # another user's, in a directory where only owners delete
            lock.unlink()
        os.close(handle)


def _acquire(target: Path, lock: Path, timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    while True:
        handle = _open(lock)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The one who had it deletes the file before letting go: a lock on a deleted file locks out no
            # process.
            if _is_still(handle, lock):
                return handle
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                os.close(handle)
                raise
            if time.monotonic() >= deadline:
                holder = _holder(handle)
                os.close(handle)
                raise BaselineError(
                    f"cannot write {shown(target)}: {holder} has held {shown(lock)} for more than "
                    f"{timeout_s:g} s; nothing was changed, try again when it has ended"
                ) from None
            os.close(handle)
            time.sleep(random.uniform(0.5, 1.5) * _PAUSE_S)
            continue
        os.close(handle)


def _open(lock: Path) -> int:
    flags = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(lock, flags | os.O_RDWR, 0o666)
    except PermissionError:
        if not lock.is_file():
            raise
        # What another user's killed process left: locking it takes no right to write it.
        return os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _is_still(handle: int, lock: Path) -> bool:
    try:
        there = lock.lstat()
    except FileNotFoundError:
        return False
    handle_stat = os.fstat(handle)
    return (handle_stat.st_dev, handle_stat.st_ino) == (there.st_dev, there.st_ino)


def _holder(handle: int) -> str:
    text = ""
    with suppress(OSError):
        text = os.pread(handle, 200, 0).decode("utf-8", "replace")
    return text if text and text.isprintable() else "another process"


def posix_lock_holder(path: Path) -> str:
    """ "process 123" that has a lock on `path` by fcntl (as SQLite has), or "another process"."""
    try:
        inode = path.stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if (
                "->" not in fields
                and fields[5].rpartition(":")[2] == str(inode)
                and fields[4] != str(os.getpid())
            ):
                return f"process {fields[4]}"
    except (OSError, IndexError, ValueError):
        return "another process"
    return "another process"
