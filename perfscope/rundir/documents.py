"""One reader for every JSON document of a run directory: bounded in size and depth, its checksum compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfscope.errors import UnreadableFileError
from perfscope.rundir import seal
from perfscope.rundir.opening import MAX_DOCUMENT_BYTES, open_regular, read_bounded, reason_of

Document = dict[str, object]

MAX_DEPTH = 100  # containers in each other; what perfscope writes has ten at most
# What decoding bytes of unknown origin may raise besides msgspec's own error.
DECODE_ERRORS = (UnicodeDecodeError, RecursionError, MemoryError, ValueError)


def read_document(path: Path, limit: int = MAX_DOCUMENT_BYTES) -> Document:
    """The JSON object in a file, without its checksum.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        UnreadableFileError: it cannot be read, is no JSON object, or is not what was written.
    """
    return parse_document(read_bounded(path, limit), path)[0]


def parse_document(data: bytes, path: Path) -> tuple[Document, bool]:
    """The JSON object in `data`, and whether it carried a checksum (which is right, then).

    Raises:
        UnreadableFileError: it is no JSON object, nested too deeply, or not what was written.
    """
    import msgspec  # here, because ingest's light half and `perfscope run` load this module

    try:
        document: Document = msgspec.json.decode(data, type=Document)
    except (msgspec.DecodeError, *DECODE_ERRORS) as error:
        raise UnreadableFileError(path, f"not a JSON object: {reason_of(error)}") from None
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and is_too_deep(document):
        raise UnreadableFileError(path, f"nested more than {MAX_DEPTH} deep")
    intact = seal.is_intact(data, path.name.removesuffix(".gz"))
    has_checksum = document.pop(seal.CHECKSUM, None) is not None
    if intact is False or (intact is None and has_checksum):
        raise UnreadableFileError(path, "damaged: its checksum does not match what it holds")
    return document, has_checksum


def seal_of_file(path: Path) -> dict[str, Any]:
    """The seal of a file of any size.

    Raises:
        FileNotFoundError, UnreadableFileError: it cannot be read.
    """
    counter = seal.Counter()
    with open_regular(path) as file:
        while piece := file.read(1 << 20):
            counter.add(piece)
    return counter.seal()


def is_too_deep(value: object) -> bool:
    """Whether containers are nested more than MAX_DEPTH deep."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return False
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    return bool(level)
