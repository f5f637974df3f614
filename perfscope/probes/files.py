"""Every file that perfscope writes from inside the training, and the one line it may say there.

The training may close, replace and reuse any descriptor, remove the run directory, fill the disk, change its
root or its user, and lower its limits. So nothing here trusts a descriptor or a path that was opened before:
identity (device and inode) is compared first, and what is not perfscope's is neither written nor closed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import sys
import threading
import zlib
from typing import Any, Dict, Optional, Set, Tuple

from ..rundir import seal

HIGH_DESCRIPTOR = 500  # trainings that close ranges of descriptors seldom go so far
MAX_LINES = 2  # of all kinds together that one process says on stderr
_NOT_FOLLOWED = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # the last for a FIFO: it must not be waited for
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EISDIR)

Identity = Tuple[int, int]  # st_dev, st_ino


class Gone(OSError):
    """What perfscope wrote to was removed or replaced. It is not made again: recording ends."""


def _identity(state: os.stat_result) -> Identity:
    return state.st_dev, state.st_ino


class Shield:
    """Context: a write of ours raises OSError, and never a signal at the training.

    SIGXFSZ (RLIMIT_FSIZE) and SIGPIPE are sent to the thread that writes. They are blocked for it, taken away
    when our write raised them, and the mask is put back. One that another process sent meanwhile is sent on.
    """

    SIGNALS: Set[int] = (
        {signal.SIGXFSZ, signal.SIGPIPE} if hasattr(signal, "sigtimedwait") else set()  # not on macOS
    )

    def __enter__(self) -> None:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, self.SIGNALS)
            self._pending = signal.sigpending() & self.SIGNALS
        except BaseException:  # a handler of the training's ran within, and raised
            signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
            raise

    def __exit__(self, *_: object) -> None:
        still_open = []
        try:
            new = (signal.sigpending() & self.SIGNALS) - self._pending if self.SIGNALS else set()
            for number in new:
                taken = signal.sigtimedwait([number], 0)
                if taken is not None and taken.si_pid != os.getpid():
                    still_open.append(number)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
        for number in still_open:
            os.kill(os.getpid(), number)


class AppendFile:
    """A file that this process alone appends whole lines to.

    The descriptor is close-on-exec and lies at `HIGH_DESCRIPTOR` or above where RLIMIT_NOFILE allows, else as
    high as it does. Before each write its device and inode are compared with those of the file that was
    opened. A descriptor that was closed, or is another file's by now, is left alone and the path is opened
    again; it must lead to the same file. A forked child writes nothing.

    A write that fails half-way (full disk, RLIMIT_FSIZE) is taken back by cutting the file to its length
    before; where that fails as well, the next write begins with a newline, so that a torn line spoils no
    other. A check and the write after it are two system calls: a thread that exchanges the descriptor just
    between them is not noticed.

    Args:
        path: of the file; made if it is not there, never through a symbolic link.

    Attributes:
        lines: newlines written to the file by this object: its whole lines, and torn ones (see above).
        bytes: number of bytes written by this object and not taken back.
        crc32: `zlib.crc32` of those bytes, in order.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.lines = self.bytes = self.crc32 = 0
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._busy = self._torn = False
        self._attempt = b""  # being written: not yet counted
        self._gone: Optional[Gone] = None
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _NOT_FOLLOWED, 0o644)
        state = os.fstat(fd)
        self._is, self._size_before = _identity(state), state.st_size
        self._fd = out_of_the_way(fd)

    def write(self, data: bytes) -> None:
        """Append `data`: whole lines.

        Raises:
            Gone: the file was removed or replaced; so says every later call.
            OSError: it could not be written now, none of it is in the file unless `lines` grew.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._gone is not None:
                raise self._gone
            if self._busy:  # a signal handler or a finalizer that steps, within a write
                raise BlockingIOError(errno.EAGAIN, "a write is under way")
            self._busy = True
            try:
                with Shield():
                    self._append(data)
            finally:
                self._busy = False

    def _append(self, data: bytes) -> None:
        self._own()
        self._attempt = left = b"\n" + data if self._torn else data
        try:
            while left:  # one write in practice; a short one is a filling disk, the next raises
                left = left[os.write(self._fd, left) :]
        finally:  # also when a signal handler of the training's has raised
            self._settle()

    def _own(self) -> None:
        """Make `_fd` a descriptor of our file, whatever has become of the one there was."""
        try:
            state = os.fstat(self._fd)
        except OSError:  # closed by the training
            state = None
        if state is None or _identity(state) != self._is:
            self._fd = -1
            state = self._open_again()
        if state.st_nlink == 0:
            self.close()
            raise self._ended("is not there any more")

    def _open_again(self) -> os.stat_result:
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | _NOT_FOLLOWED)
        except OSError as error:
            if error.errno in _GONE:
                raise self._ended("is not there any more") from None
            raise
        state = os.fstat(fd)
        if _identity(state) != self._is:
            os.close(fd)
            raise self._ended("was replaced by another")
        self._fd = out_of_the_way(fd)
        return state

    def _ended(self, how: str) -> Gone:
        self._gone = Gone(errno.ENOENT, how, self.path)
        return self._gone

    def _settle(self) -> None:
        """Count what reached the file of the attempt; take half an attempt back."""
        attempt, end = self._attempt, self._size_before + self.bytes
        try:
            grown = max(0, min(len(attempt), os.fstat(self._fd).st_size - end))
            if 0 < grown < len(attempt):
                self._torn = True
                os.ftruncate(self._fd, end)
                self._torn, grown = False, 0
        except OSError:  # the torn line stays (`_torn`), or the descriptor is lost: the write has raised
            pass
        self._attempt = b""
        written = attempt[:grown]
        if written:
            self._torn = grown < len(attempt)
            self.crc32 = zlib.crc32(written, self.crc32)
            self.bytes += len(written)
            self.lines += written.count(b"\n")

    def seal(self) -> Optional[Dict[str, Any]]:
        """What rank.json says of the file (rundir/seal.py); None where another process wrote to it before."""
        if self._size_before:
            return None
        return {"bytes": self.bytes, "lines": self.lines, "crc32": "%08x" % self.crc32}

    def close(self) -> None:
        """Give the descriptor up; closed if it is still ours. In a forked child: the child's copy."""
        fd, self._fd = self._fd, -1
        try:
            if fd >= 0 and _identity(os.fstat(fd)) == self._is:
                os.close(fd)
        except OSError:  # closed by the training already
            return


def out_of_the_way(fd: int) -> int:
    """The same file as `fd`, which is closed, under a number that the training is unlikely to meet."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    low = 0 <= limit <= HIGH_DESCRIPTOR  # RLIM_INFINITY is negative
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(fd, limit - 8) if low else HIGH_DESCRIPTOR)
    except OSError:  # no number left up there: it stays where it is
        return fd
    os.close(fd)
    return high


class Folder:
    """A directory of perfscope's, whose files are written whole.

    Args:
        path: of a directory that is there.

    Raises:
        OSError: it is not.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._is = _identity(os.stat(path))

    def check(self) -> None:
        """Raise Gone when the path no longer leads to the directory that was there in the beginning."""
        try:
            state = os.stat(self.path)
        except OSError as error:
            if error.errno in _GONE:
                raise Gone(errno.ENOENT, "is not there any more", self.path) from None
            raise
        if _identity(state) != self._is:
            raise Gone(errno.ENOENT, "was replaced by another", self.path)

    def subfolder(self, name: str) -> str:
        """Path of the folder `name` in this one, made if it is not there."""
        self.check()
        path = os.path.join(self.path, name)
        try:
            os.mkdir(path)
        except FileExistsError:
            if os.path.islink(path):
                raise Gone(errno.ENOENT, "was replaced by another", path) from None
        return path

    def replace_json(self, name: str, value: Any) -> bytes:
        """Write an object with its checksum aside and rename it to `name`; returns what the file holds.

        Raises:
            Gone: the directory was removed or replaced.
            OSError: the file cannot be written; the one there was is untouched.
        """
        self.check()
        data = seal.sealed(json.dumps(value), name).encode("ascii")
        write_whole(os.path.join(self.path, name), data)
        return data


def check_descriptors() -> None:
    """Raise OSError unless a few more files can be opened: profilers complain on stderr where they cannot."""
    opened = []
    try:
        for _ in range(4):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401 - one may fail
    finally:
        for descriptor in opened:
            os.close(descriptor)


def check_process_name() -> None:
    """Raise OSError unless the process's name can be read: Kineto complains on stderr where it cannot."""
    if sys.platform == "linux":
        os.close(os.open("/proc/self/comm", os.O_RDONLY | os.O_CLOEXEC))


def check_writable(path: str) -> None:
    """Raise OSError unless others may write a file at `path` now; it is there then, with one byte."""
    check_descriptors()
    with Shield():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | _NOT_FOLLOWED, 0o644)
        try:
            os.write(descriptor, b"{")
        finally:
            os.close(descriptor)


def write_whole(path: str, data: bytes) -> None:
    """The file `path` has these bytes, or is as it was (OSError). Written aside first, through no link."""
    aside = "%s.%d.tmp" % (path, os.getpid())
    with Shield():
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NOT_FOLLOWED, 0o644)
        try:
            try:
                while data:
                    data = data[os.write(fd, data) :]
            finally:
                os.close(fd)
            os.replace(aside, path)
        except BaseException:
            try:
                os.unlink(aside)  # on a full disk it would take the room of the steps
            except OSError:
                pass  # the first error is the one to report
            raise


def _stderr() -> Optional[Identity]:
    try:
        return _identity(os.fstat(2))
    except OSError:
        return None  # closed


_STDERR = _stderr()
_said: Dict[str, int] = {}  # kind -> pid of the process that said it


def say(kind: str, text: str) -> None:
    """One `perfscope:` line on stderr, once per kind and process; never raises.

    Not where descriptor 2 has become another file since: that would be the training's own.
    """
    pid = os.getpid()
    try:
        kinds = [kind_ for kind_, by in _said.items() if by == pid]
        if kind in kinds or len(kinds) >= MAX_LINES or _STDERR is None or _stderr() != _STDERR:
            return
        _said[kind] = pid
        with Shield():
            os.write(2, ("perfscope: %s\n" % " ".join(text.split())).encode("utf-8", "backslashreplace"))
    except OSError:
        return  # there is no channel left
