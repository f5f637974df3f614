"""A word from a process that cannot write its record. Standard library only: ranks send it.

It goes through a socket without a place in the file system, so that a full disk, another root or another user
does not stop it. A process that has no descriptor left makes a directory in the run directory instead.
"""

from __future__ import annotations

import os
import socket
import zlib
from contextlib import suppress
from typing import List, Optional, Tuple

_PREFIX = "unwritten-"
_MOST_BYTES = 4096


def _address(run_dir: str) -> bytes:
    return b"\0perfscope-%08x" % zlib.crc32(os.fsencode(run_dir))


def send(run_dir: str, error: OSError) -> None:
    """Say to the `perfscope run` of this host why this process leaves no record. Never blocks or raises."""
    word = "%s%d-%d" % (_PREFIX, os.getpid(), error.errno or 0)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            channel.sendto(word.encode() + b" " + os.fsencode(run_dir), _address(run_dir))
    except OSError:  # no descriptor is left, or the one who listens is on another host
        with suppress(OSError):  # there is no further way: the process has written its line to stderr
            os.mkdir(os.path.join(run_dir, word))


class Listener:
    """Receives what processes of this host send about one run directory, from now on."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._channel: Optional[socket.socket] = None
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            channel.setblocking(False)
            channel.bind(_address(run_dir))
            self._channel = channel
        except OSError:  # another `perfscope run` of this host records into the same directory and listens
            channel.close()

    def heard(self) -> List[Tuple[int, int]]:
        """(pid, errno) of each process that could not write, each once; takes the words away."""
        losses = {_parse(word) for word in (*self._received(), *self._left())}
        return sorted(word for word in losses if word is not None)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def _received(self) -> List[str]:
        names: List[str] = []
        with suppress(OSError):  # BlockingIOError: there are no more
            while self._channel is not None:
                word, _, run_dir = self._channel.recv(_MOST_BYTES).partition(b" ")
                if run_dir == os.fsencode(self._run_dir):
                    names.append(word.decode("ascii", "replace"))
        return names

    def _left(self) -> List[str]:
        names: List[str] = []
        with suppress(OSError):  # the run directory is gone
            names = [name for name in os.listdir(self._run_dir) if name.startswith(_PREFIX)]
        for name in names:
            with suppress(OSError):  # not ours to remove, or no directory: it does no harm
                os.rmdir(os.path.join(self._run_dir, name))
        return names


def _parse(word: str) -> Optional[Tuple[int, int]]:
    pid, _, number = word[len(_PREFIX) :].partition("-")
    is_valid = word.startswith(_PREFIX) and pid.isdigit() and number.isdigit()
    return (int(pid), int(number)) if is_valid else None
