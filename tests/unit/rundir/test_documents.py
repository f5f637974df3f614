"""Opening and reading single files of a run directory that are not what they should be."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from perfscope.errors import UnreadableFileError
from perfscope.rundir.documents import MAX_DEPTH, read_document
from perfscope.rundir.opening import open_regular, read_bounded
from perfscope.rundir.seal import damage, is_intact, seal_of
from perfscope.rundir.writer import write_json


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "a named pipe"),
        (Path.mkdir, "a directory"),
        (_socket, "No such device or address"),
        (lambda path: path.symlink_to("/dev/zero"), "a symbolic link"),
        (lambda path: path.write_bytes(b"\xff\xfe{}"), "not a JSON object"),
        (lambda path: path.write_bytes(b"[]"), "not a JSON object"),
        (lambda path: path.write_bytes(b'{"a":' * 100_000), "not a JSON object"),
        (lambda path: path.write_bytes(b'{"a":' * 150 + b"1" + b"}" * 150), f"more than {MAX_DEPTH} deep"),
        (lambda path: path.write_bytes(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "too deeply"),
    ],
)
def test_what_is_no_document_is_one_typed_error(
    tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    path = tmp_path / "x.json"
    make(path)
    with pytest.raises(UnreadableFileError) as caught:
        read_document(path)
    assert words in caught.value.reason
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "x")


def test_a_file_larger_than_the_bound_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x" * 100)
    assert read_bounded(path, 100) == b"x" * 100
    with pytest.raises(UnreadableFileError, match="100 bytes, more than the 99"):
        read_bounded(path, 99)


@pytest.mark.parametrize("value", [{}, {"a": 1}, {"ü": ["\U0001f600", None, 1.5e300], "b": {"checksum": 3}}])
def test_every_flipped_bit_of_a_sealed_document_is_noticed_or_changes_nothing(
    tmp_path: Path, value: dict[str, object]
) -> None:
    path = tmp_path / "x.json"
    write_json(path, value)
    data = path.read_bytes()
    assert is_intact(data, "x.json")
    assert not is_intact(data, "y.json"), "another document in its place"
    assert read_document(path) == value
    for at in range(len(data)):
        for bit in range(8):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            try:
                found = read_document(path)
            except UnreadableFileError:
                continue
            # Only the name of the checksum's key may change unnoticed; that the checksum is gone is for the
            # reader of the run to notice.
            assert {k: v for k, v in found.items() if not str(v).startswith("crc32:")} == value


def test_a_document_written_again_has_one_checksum(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    raw = json.loads(path.read_bytes())
    write_json(path, {**raw, "a": 2})
    assert path.read_bytes().count(b"checksum") == 1
    assert read_document(path) == {"a": 2}


def test_the_seal_of_lines_says_what_is_missing() -> None:
    data = b"[1]\n[2]\n[3]\n"
    seal = seal_of(data)
    assert damage(seal, data) is None
    assert damage(seal, b"[1]\n[2]\n") == "2 of 3 lines are there"
    assert damage(seal, data + b"[3]\n") == "4 of 3 lines are there"
    assert "checksum" in str(damage(seal, b"[1]\n[2]\n[4]\n"))
    assert damage(None, data) is not None
