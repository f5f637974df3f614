"""Clicks in a text file, as Criteo publishes them."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from zlib import crc32

import numpy as np
import torch

from perfscope.runners.config import BenchError
from perfscope.runners.data.stored import SampleStore

_PIECE = 1 << 24  # bytes that are looked through at once


class ClickFile(SampleStore):
    """Lines of tab-separated columns: 0 or 1, dense features (whole numbers), categories (hexadecimal).

    A dense feature x becomes log(1 + x), what is missing or below 0 becomes 0 (Naumov et al. 2019, arXiv
    1906.00091). A category becomes its number modulo the rows of its table, a missing one row 0; a word that
    is no hexadecimal number counts as its CRC-32. The file is mapped, and a line is read when it is due.
    """

    def __init__(self, path: Path, num_dense: int, rows: Sequence[int]) -> None:
        """Raises BenchError: not such a file; its first line is read."""
        self.name, self._num_dense, self._rows = str(path), num_dense, tuple(rows)
        try:
            with path.open("rb") as stream:
                self._text = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file
            raise BenchError(
                f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is empty'}"
            ) from error
        self._begins = _line_begins(self._text)
        self._line(0)

    @property
    def num_samples(self) -> int:
        """See SampleStore."""
        return len(self._begins) - 1

    @property
    def num_classes(self) -> int:
        """Clicked or not."""
        return 2

    def samples(self, indices: Sequence[int]) -> torch.Tensor:
        """(len(indices), dense + T), float32; the last T columns are numbers of rows."""
        return torch.tensor([self._features(self._line(index)) for index in indices], dtype=torch.float32)

    def targets(self, indices: Sequence[int]) -> torch.Tensor:
        """(len(indices),), int64."""
        return torch.tensor([int(self._line(index)[0]) for index in indices], dtype=torch.int64)

    def _line(self, index: int) -> list[bytes]:
        columns = self._text[self._begins[index] : self._begins[index + 1]].rstrip(b"\r\n").split(b"\t")
        expected = 1 + self._num_dense + len(self._rows)
        if len(columns) != expected:
            raise BenchError(
                f"{self.name}, line {index + 1} has {len(columns)} columns separated by tabs, not {expected}"
                f": a label, {self._num_dense} dense features and {len(self._rows)} categories; set --input "
                f"to the number of features"
            )
        if columns[0] not in (b"0", b"1"):
            raise BenchError(
                f"{self.name}, line {index + 1} begins with {columns[0][:20]!r}, not with 0 or 1"
            )
        try:
            dense = list(map(float, filter(None, columns[1 : 1 + self._num_dense])))
        except ValueError as error:
            raise BenchError(f"{self.name}, line {index + 1}: {error}") from error
        if not all(map(isfinite, dense)):
            raise BenchError(f"{self.name}, line {index + 1}: a dense feature is not finite")
        return columns

    def _features(self, columns: Sequence[bytes]) -> list[float]:
        dense = [float(np.log1p(max(float(word or 0), 0.0))) for word in columns[1 : 1 + self._num_dense]]
        categories = columns[1 + self._num_dense :]
        return dense + [
            float(_number(word) % rows) for word, rows in zip(categories, self._rows, strict=True)
        ]


def _number(word: bytes) -> int:
    try:
        return int(word or b"0", 16)
    except ValueError:
        return crc32(word)


def _line_begins(text: mmap.mmap) -> np.ndarray:
    """Where each line begins, and the end of the last one."""
    ends = [np.zeros(1, np.int64)]
    for begin in range(0, len(text), _PIECE):
        piece = np.frombuffer(text[begin : begin + _PIECE], np.uint8)
        ends.append(np.flatnonzero(piece == ord("\n")) + begin + 1)
    begins = np.concatenate(ends)
    return begins if begins[-1] == len(text) else np.append(begins, len(text))
