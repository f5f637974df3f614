"""The baseline: a JSON file that is meant to be committed.

A JSON array with a line for each element: first what the file is, then every run with its benchmark's name,
by name, fingerprint's key and start. Lines begin with their comma, so adding or taking away runs changes no
other line, and of two branches that both added runs all lines may be kept (`merge=union` in .gitattributes).
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perfscope.gate.records import Fingerprint, RunFigures
from perfscope.gate.store.entries import BaselineEntry, check_name, check_put, digest, in_order, summarize
from perfscope.gate.store.errors import BaselineError, shown
from perfscope.gate.store.locking import TIMEOUT_S, beside, locked
from perfscope.gate.store.shareable import decode_run, encode_run, shareable

KIND = "perfscope-baseline"
SCHEMA_VERSION = 1
_CONFLICT = re.compile(rb"^(<{7}|>{7}|={7}|\|{7})(\s|$)", re.MULTILINE)
_SQLITE = b"SQLite format 3\0"
Groups = dict[tuple[str, Fingerprint], list[RunFigures]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first element of the file."""

    kind: str
    schema_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRecord:
    """Every further element."""

    benchmark: str
    run: msgspec.Raw


class JsonStore:
    """A baseline file; see `entries.Store`.

    Args:
        path: the file; a link is followed and stays.
        create: a file that is missing or empty is one without runs.
        timeout_s: how long another writer is waited for.

    Raises:
        BaselineError: there is no baseline that can be read.
    """

    def __init__(self, path: Path, *, create: bool = False, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path
        self._create = create
        self._timeout_s = timeout_s
        self._read()

    @property
    def path(self) -> Path:
        return self._path

    def entries(self) -> tuple[BaselineEntry, ...]:
        groups = self._read()
        return tuple(_entry(*group, groups) for group in _sorted(groups))

    def find(self, name: str, fingerprint: Fingerprint) -> BaselineEntry | None:
        groups = self._read()
        return _entry(name, fingerprint, groups) if (name, fingerprint) in groups else None

    def nearest(self, name: str) -> tuple[BaselineEntry, ...]:
        matching = (entry for entry in self.entries() if entry.name == name)
        return tuple(sorted(matching, key=lambda entry: -entry.num_runs))

    def runs(self, name: str, key: str) -> tuple[RunFigures, ...]:
        for (stored_name, fingerprint), runs in self._read().items():
            if stored_name == name and fingerprint.key == key:
                return tuple(runs)
        return ()

    def put(
        self, name: str, runs: Sequence[RunFigures], *, keep: int | None = None, replace: bool = False
    ) -> BaselineEntry:
        check_name(name)
        new = [shareable(run) for run in runs]
        fingerprint = check_put(new, keep)
        target = _target(self._path)
        with locked(target, self._timeout_s):
            groups = self._read()
            before = [] if replace else groups.get((name, fingerprint), [])
            kept = in_order([*before, *new])
            groups[name, fingerprint] = kept if keep is None else kept[-keep:]
            _write(target, self._path, render(groups))
        return _entry(name, fingerprint, groups)

    def _read(self) -> Groups:
        content = read_regular(self._path)
        if not content and self._create:
            return {}
        if content is None:
            raise BaselineError(missing(self._path))
        return parse(content, self._path)


def missing(path: Path) -> str:
    """What to say where there is no file."""
    return (
        f"there is no baseline {shown(path)}; make it with `perfscope baseline update {shown(path)} RUN...`"
    )


def _target(path: Path) -> Path:
    """The file itself, where `path` is a link."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a circle of links, before Python 3.13
        raise BaselineError(f"cannot write {shown(path)}: {shown(str(error))}") from error


def read_regular(path: Path, longest: int = -1) -> bytes | None:
    """Content of a regular file (at most its first `longest` bytes); None where there is none.

    Raises:
        BaselineError: it is something else, or cannot be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
            what = "a directory" if path.is_dir() else "no regular file"
            raise BaselineError(f"{shown(path)} is {what}; name a baseline file")
        with path.open("rb") as file:
            return file.read(longest)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BaselineError(f"cannot read {shown(path)}: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in it
        raise BaselineError(f"{shown(path)} is no path of a file: {error}") from error


def parse(content: bytes, path: Path) -> Groups:
    """The runs in a baseline's content, by benchmark and fingerprint, each oldest first.

    Raises:
        BaselineError: it is no baseline, is damaged, has conflict markers, or is of a newer schema.
    """
    name = shown(path)
    if not content.strip():
        raise BaselineError(f"{name} is empty; restore it, or make it with `perfscope baseline update`")
    if content.startswith(_SQLITE):
        raise BaselineError(f"{name} is an SQLite file; give it a name that ends in .sqlite or .db")
    try:
        elements = msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"), type=list[msgspec.Raw])
        header = msgspec.json.decode(elements[0], type=Header) if elements else None
    except msgspec.ValidationError:
        header = None
    except (ValueError, RecursionError) as error:
        if _CONFLICT.search(content):
            raise BaselineError(
                f"{name} has merge conflict markers: resolve them (the runs' lines of both sides may stay), "
                "or delete it and make it anew with `perfscope baseline update`"
            ) from error
        raise BaselineError(_damaged(name, error)) from error
    if header is None or header.kind != KIND:
        raise BaselineError(
            f"{name} is JSON, but no baseline of `perfscope baseline update`; name another file"
        )
    if header.schema_version > SCHEMA_VERSION:
        raise BaselineError(
            f"{name} was written by a newer perfscope (schema {header.schema_version}, this one knows "
            f"{SCHEMA_VERSION}); update perfscope"
        )
    groups: dict[tuple[str, Fingerprint], list[RunFigures]] = {}
    try:
        for element in elements[1:]:
            record = msgspec.json.decode(element, type=JsonRecord)
            run = decode_run(bytes(record.run))
            groups.setdefault((record.benchmark, run.fingerprint), []).append(run)
    except (ValueError, RecursionError) as error:
        raise BaselineError(_damaged(name, error)) from error
    return {group: in_order(runs) for group, runs in groups.items()}


def _damaged(name: str, error: Exception) -> str:
    return (
        f"{name} is damaged ({shown(str(error))}): restore it (from git?), or delete it and make it anew "
        "with `perfscope baseline update`"
    )


def render(groups: Mapping[tuple[str, Fingerprint], Sequence[RunFigures]]) -> bytes:
    """The file's content; equal groups give equal bytes. Raises BaselineError: a run cannot be stored."""
    lines = [f'[{{"kind":"{KIND}","schema_version":{SCHEMA_VERSION}}}']
    for name, fingerprint in _sorted(groups):
        start = f',{{"benchmark":{json.dumps(name)},"run":'
        lines += [f"{start}{encode_run(run)}}}" for run in groups[name, fingerprint]]
    return ("\n".join([*lines, "]"]) + "\n").encode("ascii")


def _sorted(groups: Mapping[tuple[str, Fingerprint], object]) -> list[tuple[str, Fingerprint]]:
    return sorted(groups, key=lambda group: (group[0], group[1].key))


def _entry(name: str, fingerprint: Fingerprint, groups: Groups) -> BaselineEntry:
    return summarize(name, fingerprint, map(digest, groups[name, fingerprint]))


def _write(target: Path, path: Path, content: bytes) -> None:
    """Aside, to the disk, and renamed; under the lock, so that no other process uses the name aside.

    Raises:
        BaselineError: it cannot be written; the file is as it was.
    """
    aside = beside(target, "aside")
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        if mode is not None and target.read_bytes() == content:
            return
        aside.unlink(missing_ok=True)  # a killed process left it
        try:
            with aside.open("xb") as file:
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target)
        except BaseException:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise
        _sync_directory(target.parent)
    except OSError as error:
        raise BaselineError(
            f"cannot write {shown(path)}: {error.strerror or error}; nothing was changed"
        ) from error


def _sync_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network file systems refuse it for directories; the rename stands
            os.fsync(handle)
    finally:
        os.close(handle)
