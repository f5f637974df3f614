"""Images in tar shards, as WebDataset writes them."""

from __future__ import annotations

import os
import tarfile
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from perfscope.runners.config import BenchError
from perfscope.runners.data.folder import SUFFIXES, EncodedImages

_CLASS = ".cls"
_MOST_CLASS_BYTES = 32


class _Member(NamedTuple):
    shard: Path
    name: str
    offset: int
    size: int


class TarShards(EncodedImages):
    """`KEY.jpg` (or .jpeg, .png) and its class in `KEY.cls`, in uncompressed tar files.

    Without .cls files the class is the folder of an image inside of the shards, in the order of their names.
    Shards are indexed once by their headers; an image is read from its place.
    """

    def __init__(self, path: Path, input_shape: tuple[int, int, int]) -> None:
        """`path`: a shard, or a folder of them. Raises BenchError: no images with classes in it."""
        super().__init__(path, input_shape)
        images: dict[str, _Member] = {}
        classes: dict[str, int] = {}
        for shard in sorted(path.glob("*.tar")) if path.is_dir() else [path]:
            _index(shard, images, classes)
        if not images:
            raise BenchError(f"{path}: the shards hold no .png or .jpg files")
        keys = list(images)
        self._members = [images[key] for key in keys]
        if classes:
            self.labels = [_class_of(key, images[key], classes) for key in keys]
        else:
            folders = [str(PurePosixPath(member.name).parent) for member in self._members]
            numbers = {folder: number for number, folder in enumerate(sorted(set(folders)))}
            if len(numbers) == 1:
                raise BenchError(f"{path}: images have no class; put its number into a .cls file beside each")
            self.labels = [numbers[folder] for folder in folders]

    def open_image(self, index: int) -> tuple[str, BinaryIO]:
        """See EncodedImages."""
        member = self._members[index]
        with member.shard.open("rb", buffering=0) as stream:
            content = os.pread(stream.fileno(), member.size, member.offset)
        return f"{member.name} in {member.shard}", BytesIO(content)


def _index(shard: Path, images: dict[str, _Member], classes: dict[str, int]) -> None:
    """Adds what a shard holds, by shard and key."""
    try:
        with tarfile.open(shard, "r:") as archive:
            for entry in archive:
                stem, dot, ending = entry.name.rpartition(".")
                key = f"{shard}:{stem}"
                if not entry.isfile() or not dot:
                    continue
                if f".{ending.lower()}" in SUFFIXES:
                    images[key] = _Member(shard, entry.name, entry.offset_data, entry.size)
                elif f".{ending}" == _CLASS:
                    file = archive.extractfile(entry)
                    classes[key] = _number(shard, entry.name, file.read(_MOST_CLASS_BYTES) if file else b"")
    except (OSError, tarfile.TarError) as error:
        raise BenchError(f"{shard} is no uncompressed tar file that can be read: {error}") from error


def _number(shard: Path, name: str, content: bytes) -> int:
    text = content.strip()
    if not text.isdigit():
        raise BenchError(f"{name} in {shard} holds no class (a number from 0): {content[:20]!r}")
    return int(text)


def _class_of(key: str, member: _Member, classes: dict[str, int]) -> int:
    if key not in classes:
        raise BenchError(
            f"{member.name} in {member.shard} has no class; put its number into a .cls file beside it"
        )
    return classes[key]
