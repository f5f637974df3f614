"""A captured machine for `--root`: a folder with its proc and sys, or a tar of one."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

from perfscope.errors import PerfscopeError

MAX_MEMBERS = 500_000
MAX_BYTES = 1 << 30  # a whole /sys and /proc as text is far smaller


class CapturedTreeError(PerfscopeError):
    """What --root names cannot be surveyed."""


def find_tree(path: Path, scratch: Path) -> Path:
    """The folder that holds `proc` or `sys`; a tar is unpacked into `scratch` first.

    Raises:
        CapturedTreeError: neither, cannot be read, or holds no machine.
    """
    try:
        if path.is_dir():
            return _machine_below(path, path)
        if not path.exists():
            raise CapturedTreeError(f"{path}: there is no such folder or file")
        if not path.is_file() or not tarfile.is_tarfile(path):
            raise CapturedTreeError(
                f"{path} is neither a folder nor a tar: --root wants a machine's /proc and /sys, captured"
            )
        _unpack(path, scratch)
    except PermissionError as error:
        raise CapturedTreeError(f"{error.filename or path}: Permission denied") from None
    except (OSError, tarfile.TarError, EOFError) as error:
        raise CapturedTreeError(f"{path} cannot be read: {error}") from None
    return _machine_below(scratch, path)


def _machine_below(folder: Path, named: Path) -> Path:
    """`folder`, or its only folder where everything lies one deeper. Raises CapturedTreeError, OSError."""
    entries: list[Path] = [entry for entry in folder.iterdir() if entry.is_dir()]
    candidates = [folder, *entries] if len(entries) == 1 else [folder]
    for candidate in candidates:
        if (candidate / "proc").is_dir() or (candidate / "sys").is_dir():
            return candidate
    raise CapturedTreeError(f"{named} holds neither proc nor sys: no machine was captured there")


def _unpack(path: Path, folder: Path) -> None:
    """Files, folders and links that stay inside `folder`; everything else of the tar is left out.

    Raises:
        CapturedTreeError: too large, or this Python cannot unpack safely.
    """
    if not hasattr(tarfile, "data_filter"):
        raise CapturedTreeError(f"this Python cannot unpack {path} safely: unpack it and name the folder")
    with tarfile.open(path) as archive:
        archive.extractall(folder, members=_limited(archive, path), filter=_harmless)


def _limited(archive: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    size = 0
    for count, member in enumerate(archive):
        size += member.size
        if count >= MAX_MEMBERS or size > MAX_BYTES:
            raise CapturedTreeError(f"{path} is too large for a captured /proc and /sys")
        yield member


def _harmless(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    try:
        safe = tarfile.data_filter(member, folder)
    except tarfile.FilterError:
        return None
    # Captured as read-only folders (sysfs): they must be writable for what comes into them.
    return safe.replace(mode=0o755 if safe.isdir() else 0o644, deep=False)
