"""Locks of files between processes: flock(2), which the kernel lets go of however a process ends."""

from __future__ import annotations

import fcntl
from typing import IO


def try_lock(file: int | IO[bytes]) -> bool:
    """Locks an open file for this process alone, without waiting; False: another one holds it.

    Raises:
        OSError: the file system has no locks, or (NFS) the file is not open for writing.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
