"""Text that was turned into numbers of tokens, in binary files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from perfscope.runners.config import BenchError
from perfscope.runners.data.stored import SampleStore

_MAGIC, _HEADER_BYTES = 20240520, 1024  # files of llm.c begin with 256 int32: this, a version, the number
_LOOKED_AT = 1 << 20  # tokens that are compared with the vocabulary before a run
_LARGEST_UINT16 = 1 << 16


class TokenFile(SampleStore):
    """Windows of T + 1 tokens, one behind the other: T inputs and, one further, T targets.

    A file holds uint16 (nanoGPT's train.bin), or uint32 where the vocabulary is larger than 65,536; a header
    of llm.c is passed over. It is mapped, not read: only the windows of a batch come into memory. A folder
    has train.bin and val.bin, of which the second is held out.
    """

    def __init__(self, path: Path, length: int, vocabulary: int) -> None:
        """Raises BenchError: no such file, too short, or tokens beyond the vocabulary at its start."""
        self.name, self._length, self._vocabulary = str(path), length, vocabulary
        files = [path / "train.bin", path / "val.bin"] if path.is_dir() else [path]
        self._texts = [_mapped(file, vocabulary) for file in files]
        self._counts = [(len(text) - 1) // length for text in self._texts]
        for file, text, count in zip(files, self._texts, self._counts, strict=True):
            if count < 1:
                raise BenchError(
                    f"{file} has {len(text):,} tokens; a sequence of {length} needs {length + 1}"
                )
            self._check(text[:_LOOKED_AT])
        if len(files) > 1:
            self.first_held_out = self._counts[0]

    @property
    def num_samples(self) -> int:
        """See SampleStore."""
        return sum(self._counts)

    @property
    def num_classes(self) -> int:
        """See SampleStore: tokens are compared with the vocabulary as they are read."""
        return self._vocabulary

    def samples(self, indices: Sequence[int]) -> torch.Tensor:
        """(len(indices), T), int64."""
        return self._windows(indices, 0)

    def targets(self, indices: Sequence[int]) -> torch.Tensor:
        """(len(indices), T), int64: the next tokens."""
        return self._windows(indices, 1)

    def _windows(self, indices: Sequence[int], shift: int) -> torch.Tensor:
        rows = np.stack([self._window(index, shift) for index in indices])
        self._check(rows)
        return torch.from_numpy(rows.astype(np.int64))

    def _window(self, index: int, shift: int) -> np.ndarray:
        is_second = index >= self._counts[0]
        begin = (index - self._counts[0] * is_second) * self._length + shift
        return self._texts[is_second][begin : begin + self._length]

    def _check(self, tokens: np.ndarray) -> None:
        largest = int(tokens.max())
        if largest >= self._vocabulary:
            raise BenchError(
                f"{self.name} has the token {largest:,}, but the model's vocabulary has "
                f"{self._vocabulary:,}; set --classes to the vocabulary of the text"
            )


def _mapped(file: Path, vocabulary: int) -> np.ndarray:
    """(tokens,), uint16 or uint32, read-only."""
    kind = np.dtype("<u2" if vocabulary <= _LARGEST_UINT16 else "<u4")
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(4)
        skipped = _HEADER_BYTES if int.from_bytes(start, "little") == _MAGIC else 0
        if size <= skipped or (size - skipped) % kind.itemsize:
            raise BenchError(f"{file} has {size:,} bytes, which are no tokens of {kind.itemsize} bytes each")
        return np.memmap(file, kind, "r", offset=skipped)
    except OSError as error:
        raise BenchError(f"{file} cannot be read: {error.strerror}") from error
