"""Where measured ceilings are kept between runs: one small file per host and state of its hardware."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from perfscope.collectors.ceilings.host import LocalHost
from perfscope.rundir import layout
from perfscope.rundir.file_locks import try_lock
from perfscope.rundir.files import replacing

WAIT_S = 3.0
_POLL_S = 0.05


def default_folder() -> Path:
    """$XDG_CACHE_HOME/perfscope/ceilings, or the same below ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path(os.path.expanduser("~")) / ".cache"  # noqa: PTH111
    return root / "perfscope" / "ceilings"


def keep(path: Path, document: dict[str, Any]) -> None:
    """Write a file of the cache, at once or not at all; a cache that cannot be written is no cache."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps(document).encode())


class Cache:
    """The file of one host. Nothing here raises: a cache that cannot be used is no cache.

    Args:
        folder: made when something is stored.
        host: its name.
        machine: its hardware; figures of another are not found.
        gpus: names.
    """

    def __init__(self, folder: Path, host: str, machine: LocalHost, gpus: list[str]) -> None:
        self.fingerprint = fingerprint(machine, gpus)
        name = re.sub(r"[^A-Za-z0-9._-]", "_", host)[:80]
        self.path = folder / f"{name}-{self.fingerprint}.json"

    def load(self) -> dict[str, Any]:
        """What is kept; {} when there is nothing, or nothing that can be read."""
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return document if _is_sound(document, self.fingerprint) else {}

    def store(self, document: dict[str, Any]) -> None:
        """Keep it, at once or not at all."""
        keep(self.path, {**document, "fingerprint": self.fingerprint})

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Be the only one to measure this host. Gives False if another process still did after WAIT_S.

        Where no lock can be had (no rights, a file system without), everybody is alone.
        """
        descriptor = -1
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self.path.with_suffix(".lock"), flags, 0o644)
            alone = _lock(descriptor)
        except OSError:
            alone = True
        try:
            yield alone
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Raises OSError where the file system has no locks."""
    deadline = time.monotonic() + WAIT_S
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def fingerprint(machine: LocalHost, gpus: list[str]) -> str:
    """Of everything that changes the figures, but for who else is busy."""
    try:
        numpy = version("numpy")
    except PackageNotFoundError:
        numpy = ""
    parts = [
        layout.SCHEMA_VERSION,
        machine.cpu_model,
        machine.cpus,
        machine.cpu_limit,
        machine.memory_bytes,
        [node.number for node in machine.nodes],
        platform.release(),
        gpus,
        numpy,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _is_sound(document: object, expected: str) -> bool:
    if not isinstance(document, dict) or document.get("fingerprint") != expected:
        return False
    entries = document.get("entries")
    if not isinstance(entries, list) or not isinstance(document.get("missing"), list):
        return False
    numbers = [entry.get(key) for entry in entries if isinstance(entry, dict) for key in ("value", "runs")]
    return len(numbers) == 2 * len(entries) and all(isinstance(number, int | float) for number in numbers)
