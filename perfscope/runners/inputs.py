"""What one sample of a training is: an image, tokens, features, clicks or a volume. No torch here."""

from __future__ import annotations

from enum import Enum


class InputKind(str, Enum):
    """The kind of a model's input, with the shape of one sample."""

    IMAGE = "image"  # (channels, height, width), floating point; the target is a class
    TOKENS = "tokens"  # (sequence length,), int64 below the vocabulary's size; targets are the next tokens
    TABLE = "table"  # (features,), floating point; the target is a class
    VOLUME = "volume"  # (channels, depth, height, width), floating point; targets are classes of voxels
    CLICKS = "clicks"  # (features,), floating point, the last ones numbers of categories; clicked or not

    __str__ = str.__str__

    @property
    def num_dims(self) -> int:
        """Dimensions of one sample."""
        return {InputKind.IMAGE: 3, InputKind.VOLUME: 4}.get(self, 1)

    @property
    def spelling(self) -> str:
        """How its shape is written as an option, with an example."""
        return {
            InputKind.IMAGE: "CHANNELSxHEIGHTxWIDTH such as 3x32x32",
            InputKind.VOLUME: "CHANNELSxDEPTHxHEIGHTxWIDTH such as 2x9x9x9",
            InputKind.TOKENS: "a sequence length such as 64",
            InputKind.TABLE: "a number of features such as 64",
            InputKind.CLICKS: "a number of features, dense and categorical, such as 16",
        }[self]


ALL_INPUTS = frozenset(InputKind)
