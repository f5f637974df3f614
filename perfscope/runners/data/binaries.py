"""The published binary files of MNIST (and sets in its format) and of CIFAR-10 and CIFAR-100."""

from __future__ import annotations

import gzip
from pathlib import Path
from zlib import error as ZlibError

import numpy as np

from perfscope.runners.config import BenchError
from perfscope.runners.data.arrays import ArrayStore

_MNIST = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_CIFAR10 = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_CIFAR100 = ("train.bin", "test.bin")
_CIFAR_SHAPE = (3, 32, 32)
_MOST_BYTES = 4 << 30


def open_binaries(folder: Path, input_shape: tuple[int, int, int]) -> ArrayStore | None:
    """The set in a folder, its test files held out; None: there are no such files.

    Raises:
        BenchError: a file is missing or damaged, or images are of another size than the run's input.
    """
    if any(_found(folder, name) for name in _MNIST):
        parts = [(_idx(folder, images), _idx(folder, labels)) for images, labels in (_MNIST[:2], _MNIST[2:])]
    elif (folder / _CIFAR10[0]).is_file():
        parts = [_cifar(folder / name, 1) for name in _CIFAR10]
    elif all((folder / name).is_file() for name in _CIFAR100):
        parts = [_cifar(folder / name, 2) for name in _CIFAR100]
    else:
        return None
    if len({images.shape[1:] for images, _ in parts}) > 1:
        raise BenchError(f"{folder}: images of its files differ in size; they are of one set")
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    store = ArrayStore(folder, images, labels, input_shape)
    store.first_held_out = len(labels) - len(parts[-1][1])
    return store


def _found(folder: Path, name: str) -> Path | None:
    paths = (
        folder / f"{written}{ending}"
        for written in (name, name.replace("-idx", ".idx"))
        for ending in ("", ".gz")
    )
    return next((path for path in paths if path.is_file()), None)


def _idx(folder: Path, name: str) -> np.ndarray:
    """(N,) or (N, H, W), uint8. The format is big-endian: 0, 0, type 8 (uint8), dims, size of each dim."""
    path = _found(folder, name)
    if path is None:
        raise BenchError(f"{folder} has no {name} (or {name}.gz), which is part of the set")
    content = _content(path)
    num_dims = content[3] if len(content) > 3 else 0
    begin = 4 + 4 * num_dims
    is_whole = content[:3] == b"\0\0\x08" and len(content) >= begin
    shape = np.frombuffer(content[4:begin] if is_whole else b"", ">u4").astype(np.int64)
    if not is_whole or len(content) - begin != shape.prod():
        raise BenchError(f"{path} is damaged, or no IDX file of bytes")
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def _cifar(path: Path, num_labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 3, 32, 32) and labels (N,); of two labels the finer one, which comes last."""
    record = num_labels + int(np.prod(_CIFAR_SHAPE))
    if not path.is_file():
        raise BenchError(f"{path.parent} has no {path.name}, which is part of the set")
    content = np.frombuffer(_content(path), np.uint8)
    if not len(content) or len(content) % record:
        raise BenchError(
            f"{path} has {len(content):,} bytes, which are no records of {record:,}; it is damaged"
        )
    rows = content.reshape(-1, record)
    return rows[:, num_labels:].reshape(-1, *_CIFAR_SHAPE), rows[:, num_labels - 1]


def _content(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except (OSError, EOFError, ZlibError) as error:
        raise BenchError(f"{path} cannot be read: {error}") from error
    if len(content) > _MOST_BYTES:
        raise BenchError(f"{path} is larger than {_MOST_BYTES >> 30} GiB, which no file of such a set is")
    return content
