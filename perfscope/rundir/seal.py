"""Checksums by which a reader notices that a file is not the one that was written.

A JSON document carries one as its first key: `{"checksum": "crc32:0a1b2c3d", ...}`, over every byte behind that
value but white space at the end. An append-only file has a seal (bytes, whole lines, crc32) in a document beside
it. Standard library only and Python 3.8: ranks load this.
"""

import re
import zlib
from typing import Any

CHECKSUM = "checksum"
SEALS = "seals"  # key of run.json: which version of seals its files carry; runs without it have none
SEALS_VERSION = 1
FILES = "files"  # key of a document: name of a file beside it -> its seal

_HEAD = re.compile(rb'\s*\{\s*"checksum":\s*"crc32:([0-9a-f]{8})"')


def sealed(text: str) -> str:
    """The text of a JSON object, ASCII or UTF-8 clean, with its checksum as the first key."""
    body = text.lstrip()[1:].rstrip()
    rest = body if body.lstrip() == "}" else "," + body
    return '{"%s": "crc32:%08x"%s\n' % (CHECKSUM, zlib.crc32(rest.encode("utf-8", "backslashreplace")), rest)


def is_intact(data: bytes) -> bool | None:
    """Whether a document is as it was written; None where it carries no checksum."""
    match = _HEAD.match(data)
    if match is None:
        return None
    return zlib.crc32(data[match.end() :].rstrip()) == int(match.group(1), 16)


def seal_of_lines(num_bytes: int, lines: int, crc32: int) -> dict[str, Any]:
    """The seal of an append-only file."""
    return {"bytes": num_bytes, "lines": lines, "crc32": "%08x" % crc32}


def lines_damage(seal: Any, data: bytes) -> str | None:
    """What is wrong with the bytes of an append-only file, by its seal; None: nothing.

    More bytes than were sealed are damage, too: what was written last is sealed with the rest.
    """
    if not isinstance(seal, dict) or not isinstance(seal.get("bytes"), int) or not seal.get("crc32"):
        return "its seal cannot be read"
    if len(data) == seal["bytes"] and "%08x" % zlib.crc32(data) == seal["crc32"]:
        return None
    lines, wanted = data.count(b"\n"), seal.get("lines")
    if lines != wanted:
        return "%d of %s lines are there" % (lines, wanted)
    return "it is not what was written: its checksum does not match"
