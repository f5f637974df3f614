"""Checksums by which a reader notices that a file is not the one that was written.

A JSON document carries one as its first key: `{"checksum": "crc32:0a1b2c3d", ...}`, over the file's name and
every byte behind that value but white space at the end: one document in the place of another is noticed, too.
An append-only file has a seal (bytes, lines, crc32) in a document beside it: a rank's in rank.json, from when
the rank ends on. Standard library, Python 3.8: ranks load this.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any

CHECKSUM = "checksum"
SEALS = "seals"  # key of run.json: the version of the seals of its files; older runs have none
SEALS_VERSION = 1
FILES = "files"  # key of a document: name of a file beside it -> its seal

_HEAD = re.compile(rb'\s*\{\s*"checksum":\s*"crc32:([0-9a-f]{8})"')


def sealed(text: str, name: str) -> str:
    """The text of a JSON object with its checksum as the first key.

    Args:
        text: what UTF-8 can hold.
        name: of the file, without folders and without the `.gz` that it may get.
    """
    body = text.lstrip()[1:].rstrip()
    remainder = body if body.lstrip() == "}" else "," + body
    return f'{{"{CHECKSUM}": "crc32:{_crc32(name, remainder.encode()):08x}"{remainder}\n'


def checksum_of(data: bytes) -> str | None:
    """The checksum that a document carries, as it is written there; None: it carries none."""
    match = _HEAD.match(data)
    return f"crc32:{match.group(1).decode()}" if match else None


def is_intact(data: bytes, name: str) -> bool | None:
    """Whether the document of this name is as it was written; None where it carries no checksum."""
    match = _HEAD.match(data)
    if match is None:
        return None
    return _crc32(name, data[match.end() :].rstrip()) == int(match.group(1), 16)


def _crc32(name: str, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(name.encode("utf-8", "surrogateescape")))


class Counter:
    """What has been written to a file so far, all of it by the one who counts."""

    def __init__(self) -> None:
        self.bytes = self.lines = self.crc32 = 0

    def add(self, data: bytes) -> None:
        self.bytes += len(data)
        self.lines += data.count(b"\n")
        self.crc32 = zlib.crc32(data, self.crc32)

    def seal(self) -> dict[str, Any]:
        """As it is in a document."""
        return {"bytes": self.bytes, "lines": self.lines, "crc32": f"{self.crc32:08x}"}


def seal_of(data: bytes) -> dict[str, Any]:
    """The seal of a whole file."""
    counter = Counter()
    counter.add(data)
    return counter.seal()


def damage(seal: Any, data: bytes) -> str | None:
    """What is wrong with the bytes of a file, by its seal; None: nothing. More is wrong, too."""
    return difference(seal, seal_of(data))


def difference(seal: Any, actual: Mapping[str, Any]) -> str | None:
    """As `damage`, of a file whose seal has been made while it was read."""
    if not isinstance(seal, dict) or not all(isinstance(seal.get(key), int) for key in ("bytes", "lines")):
        return "its seal cannot be read"
    if actual == {key: seal.get(key) for key in actual}:
        return None
    if actual["lines"] != seal["lines"]:
        return f"{actual['lines']:,} of {seal['lines']:,} lines are there"
    return "not what was written: its checksum does not match"
