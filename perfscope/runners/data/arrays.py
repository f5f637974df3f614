"""Samples in an .npz file: arrays `images` and `labels`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile
from zlib import error as ZlibError

import numpy as np
import torch
from numpy.lib.npyio import NpzFile

from perfscope.runners.config import BenchError
from perfscope.runners.data.scale import scaled_bytes
from perfscope.runners.data.stored import SampleStore

_ARCHIVE, _ARRAY = b"PK", b"\x93NUMPY"  # first bytes
_HOW = "numpy.savez(file, images=..., labels=...)"


class ArrayStore(SampleStore):
    """`images`: (N, H, W), (N, H, W, C) or (N, C, H, W), uint8 or floating; `labels`: (N,), integers from 0.

    uint8 is scaled as decoded images are; floating values are shifted and scaled to mean 0 and deviation 1
    over all.
    """

    def __init__(
        self, path: Path, images: np.ndarray, labels: np.ndarray, input_shape: tuple[int, int, int]
    ) -> None:
        """`path` is for messages. Raises BenchError: images of another size than the run's input, or labels
        that are none."""
        self.name = str(path)
        _check_labels(path, labels, len(images))
        self.labels = labels.tolist()
        self._images = _as_channels_first(path, images, input_shape)
        self._shift, self._scale = 0.0, 1.0
        if self._images.dtype != np.uint8:
            self._shift = float(self._images.mean(dtype=np.float64))
            self._scale = float(self._images.std(dtype=np.float64)) or 1.0
            if not np.isfinite(self._shift + self._scale):
                raise BenchError(f"{path}: images hold values that are not finite")

    def samples(self, indices: Sequence[int]) -> torch.Tensor:
        """See SampleStore."""
        chosen = self._images[np.asarray(indices, dtype=np.int64)]
        if chosen.dtype == np.uint8:
            return scaled_bytes(chosen)
        scaled = (chosen.astype(np.float64) - self._shift) / self._scale
        return torch.from_numpy(np.ascontiguousarray(scaled, dtype=np.float32))


class ArrayFile(ArrayStore):
    """Both arrays from an .npz file, which is held in memory."""

    def __init__(self, path: Path, input_shape: tuple[int, int, int]) -> None:
        """Raises BenchError: no such arrays in the file, or as ArrayStore."""
        super().__init__(path, *_load(path), input_shape)


def _load(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with path.open("rb") as stream:  # opened here, as numpy leaves it open where it is no archive
            start = stream.read(len(_ARRAY))
            if start == _ARRAY:
                raise BenchError(f"{path} holds one array; save two: {_HOW}")
            if not start.startswith(_ARCHIVE):  # numpy would take it for a pickle, and say how to load that
                raise BenchError(f"{path} is no .npz file; make one with {_HOW}")
            stream.seek(0)
            file: NpzFile = np.load(stream, allow_pickle=False)
            missing = [name for name in ("images", "labels") if name not in file.files]
            if missing:
                arrays_text = ", ".join(file.files) or "nothing"
                raise BenchError(f"{path} has no array {missing[0]!r} (it holds {arrays_text})")
            return file["images"], file["labels"]
    except (OSError, ValueError, EOFError, BadZipFile, ZlibError) as error:
        reason = "it holds objects, not numbers" if "allow_pickle" in str(error) else error
        raise BenchError(f"{path} is no .npz file that can be read: {reason}") from error


def _check_labels(path: Path, labels: np.ndarray, num: int) -> None:
    if labels.shape != (num,):
        raise BenchError(f"{path}: labels have the shape {labels.shape}, but there are {num} images")
    if not np.issubdtype(labels.dtype, np.integer):
        raise BenchError(f"{path}: labels are {labels.dtype}, not integers")
    if num == 0:
        raise BenchError(f"{path} holds no samples")
    if labels.min() < 0:
        raise BenchError(f"{path}: labels count from 0, but one is {labels.min()}")


def _as_channels_first(path: Path, images: np.ndarray, wanted: tuple[int, int, int]) -> np.ndarray:
    if images.dtype != np.uint8 and not np.issubdtype(images.dtype, np.floating):
        raise BenchError(f"{path}: images are {images.dtype}, not uint8 or floating")
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim == 4 and images.shape[1:] == wanted:
        return images
    if images.ndim == 4 and (*images.shape[3:], *images.shape[1:3]) == wanted:
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    image_size, asked = ("x".join(map(str, shape)) for shape in (images.shape[1:], wanted))
    raise BenchError(
        f"{path}: images are {image_size}, but the input of the run is {asked} (CxHxW); make them agree"
    )
