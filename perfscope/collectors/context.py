"""The world as a collector sees it, so that a captured tree can replace a machine.

Nothing in this room opens /proc or /sys except through a Context. On a live machine `root` is `/`; in tests
and for `perfscope doctor --root` it is a folder with the files of another machine, and the providers for
system calls and vendors' libraries then say that they are not there.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from perfscope.collectors.library import Libraries, no_library, this_machines
from perfscope.collectors.syscalls import Syscalls, no_syscalls

MANIFEST = "MANIFEST.json"  # of a captured tree: files that could not be read there, and its constants
_LARGEST_FILE = 1 << 20
_CHUNK = 1 << 16
_SHORT = 1 << 10  # bytes of a file that one read gives whole
_SLASH = Path("/")


class Pids(Protocol):
    """The training processes (ranks) that live on this host now."""

    def __call__(self) -> Sequence[int]: ...


def _nobody() -> Sequence[int]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Context:
    """What collectors may ask.

    Attributes:
        root: prefix of every /sys and /proc path.
        clock: monotonic ns.
        pids: the ranks on this host; changes while the run goes on.
        syscalls: perf_event_open, move_pages and their like; says "not here" for a captured tree.
        library: called with a vendor's loader, gives the library's module or raises LibraryAbsent.
        page_size, clock_ticks: sysconf of the machine that `root` shows.
        errors: path below root -> errno name, for files that were there and could not be read.
        out_dir: hosts/<host> of the run, for collectors that leave files; None without a run.
        euid: effective user of the sampler (0 = root).
        options: what the user asked of collectors by name, e.g. {"stacks": True}.
    """

    root: Path = _SLASH
    clock: Callable[[], int] = time.monotonic_ns
    pids: Pids = _nobody
    syscalls: Syscalls = field(default_factory=no_syscalls)
    library: Libraries = no_library
    page_size: int = 4096
    clock_ticks: int = 100
    errors: dict[str, str] = field(default_factory=dict)
    out_dir: Path | None = None
    euid: int = 0
    options: dict[str, object] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether this is the machine we run on."""
        return self.root is _SLASH or self.root == _SLASH

    def path(self, name: str) -> Path:
        """Where the absolute path `name` ("/proc/stat") lies."""
        return self.root / name.lstrip("/")

    def _file(self, name: str) -> str:
        """The same as text: a sampler makes no objects of paths that it reads every second."""
        return name if self.live else f"{self.root}{name}"

    def read(self, name: str) -> str:
        """The text of a file.

        Raises:
            OSError: as the machine would (for a captured tree, as it did there).
        """
        self._fail_as_captured(name)
        # A captured tree may hold anything: opening a named pipe must not wait for a writer.
        descriptor = os.open(self._file(name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        parts: list[bytes] = []
        left = _LARGEST_FILE
        try:
            while left > 0 and (part := os.read(descriptor, min(left, _CHUNK))):
                parts.append(part)
                left -= len(part)
        except BlockingIOError:  # a pipe with a writer who has written nothing
            pass
        finally:
            os.close(descriptor)
        return b"".join(parts).decode("utf-8", "replace")

    def read_or(self, name: str, default: str = "") -> str:
        """The text of a file without surrounding white space; `default` when it cannot be read."""
        try:
            return self.read(name).strip()
        except (OSError, ValueError):
            return default

    def read_int(self, name: str) -> int | None:
        """A file that holds one decimal number; None when it cannot be read or holds something else."""
        text = self.read_or(name)
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else None

    def exists(self, name: str) -> bool:
        try:
            return self.path(name).exists()
        except OSError:
            return False

    def glob(self, pattern: str) -> list[str]:
        """Absolute names below root that match, numbers in numeric order (node2 before node10)."""
        try:
            matches = self.root.glob(pattern.lstrip("/"))
            names = ["/" + path.relative_to(self.root).as_posix() for path in matches]
        except OSError:
            return []
        return sorted(names, key=natural)

    def real(self, name: str) -> str:
        """The path behind links, as an absolute name below root; `name` itself where it leads nowhere."""
        real, root = os.path.realpath(self.path(name)), os.path.realpath(self.root)
        if root == "/":
            return real
        return real[len(root) :] if real.startswith(root + "/") else name

    def keep(self, name: str) -> KeptFile:
        """Open a file to be read again and again.

        Raises:
            OSError: as `read`.
        """
        self._fail_as_captured(name)
        return KeptFile(self._file(name))

    def _fail_as_captured(self, name: str) -> None:
        code = self.errors.get(name.lstrip("/"))
        if code is not None:
            number = getattr(errno, code, errno.EIO)
            raise OSError(number, os.strerror(number), name)


class KeptFile:
    """A /proc or /sys file kept open: pread costs a fifth of open, read, close.

    Raises:
        OSError: cannot be opened.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, path: str | Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def read(self) -> bytes:
        """The file as it is now.

        Raises:
            OSError: the device behind it is gone, or the file was closed.
        """
        # Until nothing comes: the kernel gives files made of records some records at a time, however
        # much is asked for: as many as fit into a page. No record is as long as three quarters of one.
        data = os.pread(self._descriptor, _CHUNK, 0)
        chunk = data if len(data) >= _SHORT else b""
        while chunk:
            chunk = os.pread(self._descriptor, _CHUNK, len(data))
            data += chunk
        return data

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that counts numbers as numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def live_context(**changes: object) -> Context:
    """The machine we run on, with real system calls and libraries. `changes` replace fields."""
    from perfscope.collectors.syscalls import real_syscalls

    fields: dict[str, object] = {
        "syscalls": real_syscalls(),
        "library": this_machines,
        "page_size": os.sysconf("SC_PAGESIZE"),
        "clock_ticks": os.sysconf("SC_CLK_TCK"),
        "euid": os.geteuid(),
        **changes,
    }
    return Context(**fields)  # type: ignore[arg-type]


def captured_context(root: Path, **changes: object) -> Context:
    """A folder with another machine's /sys and /proc; its MANIFEST.json, if any, gives constants and errors.

    Raises:
        NotADirectoryError, FileNotFoundError: `root` is no folder.
    """
    if not root.is_dir():
        raise (NotADirectoryError if root.exists() else FileNotFoundError)(
            errno.ENOENT, "no folder with a machine's /sys and /proc", str(root)
        )
    manifest: dict[str, object] = {}
    try:
        loaded = json.loads((root / MANIFEST).read_text())
        manifest = loaded if isinstance(loaded, dict) else {}
    except (OSError, ValueError):
        manifest = {}
    errors = manifest.get("errors")
    fields: dict[str, object] = {
        "root": root.resolve(),
        "page_size": manifest.get("page_size", 4096),
        "clock_ticks": manifest.get("clk_tck", 100),
        "errors": errors if isinstance(errors, dict) else {},
        **changes,
    }
    return Context(**fields)  # type: ignore[arg-type]
