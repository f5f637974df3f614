"""The recorded inputs of one operator call, as the cost model reads them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

Shape = tuple[int, ...]

_SIZES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "long": 8, "int": 4,
    "short int": 2, "short": 2, "signed char": 1, "unsigned char": 1, "char": 1, "bool": 1,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip
_DEFAULT_SIZE = 4


class OperatorInputs:
    """The recorded inputs of one operator call.

    Args:
        dims: `Input Dims`: per input a shape, or a list of shapes for a tensor list, [] if no tensor.
        types: `Input type`, same length.
        concrete: `Concrete Inputs`, same length or empty: scalars and lists as text.
    """

    def __init__(self, dims: Sequence[Any], types: Sequence[Any], concrete: Sequence[Any]) -> None:
        self._dims = dims
        self._types = types
        self._concrete = concrete
        self.size = next((_SIZES[t] for t in types if t in _SIZES), _DEFAULT_SIZE)

    def __len__(self) -> int:
        return len(self._dims)

    def is_tensor(self, index: int) -> bool:
        """Whether input `index` is a tensor (a 0-dimensional one included)."""
        return index < len(self._types) and self._types[index] in _SIZES

    def shape(self, index: int) -> Shape:
        """Shape of tensor `index`.

        Raises:
            ValueError: it is no tensor with a recorded shape.
        """
        if not self.is_tensor(index):
            raise ValueError(f"input {index} is no tensor")
        return tuple(int(extent) for extent in self._dims[index])

    def elements(self, index: int) -> int:
        return prod(self.shape(index))

    def num_bytes(self, index: int) -> int:
        """Bytes of a tensor or of all tensors of a list; 0 for anything else."""
        if self.is_tensor(index):
            return self.elements(index) * _SIZES[self._types[index]]
        return self.list_elements(index) * self.size

    def list_shapes(self, index: int) -> list[Shape]:
        """Shapes of the tensors of a tensor list; [] if input `index` is none."""
        if index >= len(self._types) or self._types[index] not in ("TensorList", "OptionalTensorList"):
            return []
        return [tuple(int(extent) for extent in shape) for shape in self._dims[index]]

    def list_elements(self, index: int) -> int:
        """Elements of all tensors of a tensor list; 0 if input `index` is none."""
        return sum(map(prod, self.list_shapes(index)))

    def read(self) -> int:
        """Bytes of every input."""
        return sum(self.num_bytes(index) for index in range(len(self)))

    def ints(self, index: int, length: int | None = None) -> list[int]:
        """A list of integers such as a stride; one number is repeated to `length`.

        Raises:
            ValueError: the trace has no concrete value there.
        """
        text = str(self._concrete[index]).strip() if index < len(self._concrete) else ""
        values = [int(part) for part in text.strip("[]").split(",") if part.strip()]
        if not text or (not values and length):
            raise ValueError(f"input {index} has no recorded value")
        return values * length if length and len(values) == 1 else values

    def flag(self, index: int) -> bool:
        """A boolean.

        Raises:
            ValueError: the trace has no concrete value there.
        """
        text = str(self._concrete[index]).strip() if index < len(self._concrete) else ""
        if text not in ("True", "False"):
            raise ValueError(f"input {index} is no recorded boolean")
        return text == "True"

    def flags(self, index: int) -> list[bool]:
        text = str(self._concrete[index]) if index < len(self._concrete) else ""
        return [part.strip() == "True" for part in text.strip("[] ").split(",")]
