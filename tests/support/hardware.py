"""Captured and invented /sys and /proc trees of other machines (tests/data/hardware), for collector tests.

`tree("two-socket-before")` unpacks once per test session; tests that change a tree take a `copy` of it.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from perfscope.collectors.base import Reading
from perfscope.collectors.context import Context, KeptFile, captured_context

DATA = Path(__file__).resolve().parents[1] / "data" / "hardware"
KINDS = ("real", "synthetic")


def names() -> list[str]:
    """Every tree there is, in alphabetic order."""
    return sorted(
        path.name.removesuffix(".tar.xz") for kind in KINDS for path in (DATA / kind).glob("*.tar.xz")
    )


def data_file(name: str) -> Path:
    """A file beside the trees, whichever kind it belongs to: "two-socket-results.json".

    Raises:
        FileNotFoundError: no such file.
    """
    for kind in KINDS:
        path = DATA / kind / name
        if path.is_file():
            return path
    raise FileNotFoundError(f"{name}: not below {DATA}")


def expected(name: str) -> dict[str, Any]:
    """The figures that belong to trees: "two-socket-results.json", "skx-2s-hdr-expected.json"."""
    loaded: dict[str, Any] = json.loads(data_file(name).read_text(encoding="utf-8"))
    return loaded


def tree(name: str) -> Path:
    """The folder that holds the `sys` and `proc` of a machine. Read it only: other tests share it."""
    place = _session_folder() / name
    if not place.is_dir():
        unpack(name, place)
    return place


def copy(name: str, place: Path, *parts: str) -> Path:
    """The same, unpacked anew into `place`, to be changed at will; only what lies below `parts`, if any."""
    unpack(name, place, parts)
    return place


def unpack(name: str, place: Path, parts: Sequence[str] = ()) -> None:
    """Unpack the tree `name` into the new folder `place`; nothing lands outside of it."""
    part = place.with_name(place.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    with tarfile.open(data_file(f"{name}.tar.xz")) as archive:
        wanted = tuple(f"./{one}" for one in parts)
        members = [one for one in archive if one.name.startswith(wanted)] if parts else None
        # The filter came with Python 3.11.4; these archives are our own.
        kept: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(part, members, **kept)
    part.rename(place)


@cache
def _session_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="perfscope-hardware-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def machine(name: str, **changes: object) -> Context:
    """The captured machine `name`, with the processes that were recorded as ranks."""
    root = tree(name)
    manifest = root / "MANIFEST.json"
    pids = tuple(json.loads(manifest.read_text())["pids"]) if manifest.exists() else ()
    return captured_context(root, **{"pids": lambda: pids, **changes})


def by_series(readings: Sequence[Reading]) -> dict[str, float | int | None]:
    """``name{label=value,..}`` -> the raw value times its scale, None where there is none."""
    found: dict[str, float | int | None] = {}
    for reading in readings:
        metric, labels = reading.series.metric, reading.series.labels
        inside = ",".join(f"{name}={labels[name]}" for name in sorted(labels))
        value = reading.value
        found[f"{metric.name}{{{inside}}}"] = None if value is None else value * metric.scale
    return found


@dataclass(frozen=True, kw_only=True)
class FaultyContext(Context):
    """A machine whose files fail when told to, also those that are open: `fail(path, "ENODEV")`."""

    failing: dict[str, int] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)  # every file that was read, in order

    def fail(self, name: str, code: str) -> None:
        self.failing[name] = getattr(errno, code)

    def read(self, name: str) -> str:
        self._look(name)
        return super().read(name)

    def keep(self, name: str) -> KeptFile:
        self._look(name)
        return _FaultyFile(self, name)

    def _look(self, name: str) -> None:
        self.reads.append(name)
        if name in self.failing:
            raise OSError(self.failing[name], os.strerror(self.failing[name]), name)


class _FaultyFile(KeptFile):
    __slots__ = ("_ctx", "_name")

    def __init__(self, ctx: FaultyContext, name: str) -> None:
        ctx._fail_as_captured(name)
        super().__init__(ctx.path(name))
        self._ctx, self._name = ctx, name

    def read(self) -> bytes:
        self._ctx._look(self._name)
        return super().read()


def faulty(ctx: Context) -> FaultyContext:
    """The same machine, able to fail."""
    return FaultyContext(**{one.name: getattr(ctx, one.name) for one in fields(ctx)})


def write(root: Path, files: dict[str, str]) -> None:
    """Make or change files of a tree: {"proc/stat": text}."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
