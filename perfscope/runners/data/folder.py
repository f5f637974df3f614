"""A folder with one sub-folder of images per class."""

from __future__ import annotations

import os
from abc import abstractmethod
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

import numpy as np

from perfscope.runners.config import BenchError
from perfscope.runners.data.stored import DecodedStore

SUFFIXES = (".png", ".jpg", ".jpeg")
_MODES = {1: "L", 3: "RGB"}


class EncodedImages(DecodedStore):
    """Images that Pillow decodes.

    An image is scaled until it just covers H x W and cut out at the middle.
    """

    def __init__(self, path: Path, input_shape: tuple[int, int, int]) -> None:
        """Raises BenchError: not 1 or 3 channels wanted, or no Pillow to read images with."""
        if find_spec("PIL") is None:
            raise BenchError('images need Pillow: pip install "perfscope-hpc[torch]"')
        self.name = str(path)
        self.shape = input_shape
        if input_shape[0] not in _MODES:
            raise BenchError(f"images have 1 or 3 channels, not {input_shape[0]}; set the input to 3xHxW")

    @abstractmethod
    def open_image(self, index: int) -> tuple[str, BinaryIO]:
        """(what it is called, its encoded bytes). Raises OSError."""

    def read(self, index: int) -> tuple[np.ndarray, int]:
        """See DecodedStore."""
        from PIL import Image, ImageOps

        channels, height, width = self.shape
        name = f"image {index} of {self.name}"
        try:
            name, stream = self.open_image(index)
            with stream:
                stored = stream.seek(0, os.SEEK_END)
                stream.seek(0)
                image = Image.open(stream)
                fitted = ImageOps.fit(
                    image.convert(_MODES[channels]), (width, height), Image.Resampling.BILINEAR
                )
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            reason = error if str(error).find("BytesIO") < 0 else "cannot identify image file"
            raise BenchError(f"{name} is no image that can be read: {reason}") from error
        pixels = np.asarray(fitted, dtype=np.uint8)
        return np.ascontiguousarray(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)), stored


class ImageFolder(EncodedImages):
    """Images below `path/<class>/`, classes in the order of their names."""

    def __init__(self, path: Path, input_shape: tuple[int, int, int]) -> None:
        """Raises BenchError: no images, or as EncodedImages."""
        super().__init__(path, input_shape)
        self._files: list[Path] = []
        labels: list[int] = []
        classes = [images for child in _listing(path) if child.is_dir() and (images := _images(child))]
        for label, files in enumerate(classes):
            self._files += files
            labels += [label] * len(files)
        self.labels = labels
        if not labels:
            raise BenchError(
                f"{path} holds no images in sub-folders; put .png or .jpg files into one sub-folder per class"
            )

    def open_image(self, index: int) -> tuple[str, BinaryIO]:
        """See EncodedImages."""
        file = self._files[index]
        return str(file), file.open("rb")


def _listing(path: Path) -> list[Path]:
    try:
        return sorted(child for child in path.iterdir() if not child.name.startswith("."))
    except OSError as error:
        raise BenchError(f"{path} cannot be read: {error.strerror}") from error


def _images(folder: Path) -> list[Path]:
    return [path for path in _listing(folder) if path.suffix.lower() in SUFFIXES and path.is_file()]
