"""Nodes of an execution trace of PyTorch, one after the other, and what the inputs of a call are.

A tensor in the file is [id, storage id, offset, elements, bytes of an element, device].
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from perfscope.errors import TraceError
from perfscope.ingest.inflate import read_whole

_NODE_END = re.compile(rb"\}\s*,?\s*(?=\{\s*\"id\")")
_LATER = b'"nodes"'
_TENSOR = 6  # entries of a tensor
_LISTS = ("GenericList[", "Tuple[")
_MOST_DEEP = 8
_LARGEST = 1 << 61


class Sides(Struct, frozen=True):
    """The inputs or outputs of a call."""

    values: list[Any] = []
    shapes: list[Any] = []
    types: list[str] = []


class _Attribute(Struct):
    name: str = ""
    value: Raw = Raw()


class Node(Struct):
    """A call of an operator. `ctrl_deps`: the call that contains it."""

    id: int
    name: str
    ctrl_deps: int
    inputs: Sides = Sides()
    outputs: Sides = Sides()
    attrs: list[_Attribute] = []

    def number(self, name: str) -> int | None:
        """A whole number of its attributes."""
        try:
            value = msgspec.json.decode(bytes(self._raw(name)))
        except (ValueError, RecursionError):
            return None
        return value if type(value) is int and abs(value) < _LARGEST else None

    def text(self, name: str) -> str:
        """A text of its attributes; "" where there is none."""
        try:
            value = msgspec.json.decode(bytes(self._raw(name)))
        except (ValueError, RecursionError):
            return ""
        return value if isinstance(value, str) else ""

    def _raw(self, name: str) -> Raw:
        return next((entry.value for entry in self.attrs if entry.name == name), Raw())


class _Document(Struct):
    schema: str = ""
    pid: int = 0
    nodes: list[Raw] = []


class ExecutionFile:
    """An execution trace: iterate over its nodes.

    Attributes:
        schema, pid: as the file states them.
        num_read: nodes of the file; num_dropped of them cannot be read (complete after the iteration).
        ends_early: the file has no end.

    Raises:
        TraceError: it cannot be read, or is of a version that has no data types of tensors.
    """

    def __init__(self, path: Path) -> None:
        data = read_whole(path, is_part_of_use=True)
        self.ends_early = False
        document = _decoded(data)
        if document is None:
            self.ends_early = True
            document = _begun(data)
        if document is None:
            raise TraceError(
                f"{path}: an execution trace that is cut off or damaged before its first node: copy it again "
                "or record it again and call the observer's unregister_callback() before the program ends"
            )
        self.schema, self.pid = document.schema[:64], document.pid
        self._raws = document.nodes
        self.num_read, self.num_dropped = len(self._raws), 0
        if self._raws and b'"ctrl_deps"' not in bytes(self._raws[0]):
            raise TraceError(
                f"{path}: an execution trace of schema {self.schema or '?'}, which is too old: "
                "record it with PyTorch 2.4 or newer"
            )

    def __iter__(self) -> Iterator[Node]:
        decoder = msgspec.json.Decoder(Node)
        for raw in self._raws:
            try:
                node = decoder.decode(raw)
            except (ValueError, RecursionError):
                self.num_dropped += 1
                continue
            if abs(node.id) < _LARGEST:
                yield node
            else:
                self.num_dropped += 1


def _decoded(data: bytes) -> _Document | None:
    try:
        return msgspec.json.decode(data, type=_Document)
    except (ValueError, RecursionError):
        return None


def _begun(data: bytes) -> _Document | None:
    """A file whose end is lost or damaged: the nodes before."""
    if _LATER not in data:
        return None
    cuts = [match.start() + 1 for match in _NODE_END.finditer(data)]
    low, high = 0, len(cuts)
    best = None
    while low < high:  # a prefix decodes up to the first damage
        middle = (low + high) // 2
        document = _decoded(data[: cuts[middle]] + b"]}")
        if document is None:
            high = middle
        else:
            best, low = document, middle + 1
    return best


def tensors_of(value: Any, kind: str, depth: int = 0) -> Iterator[list[Any]]:
    """The tensors of a value: itself, or those in a list."""
    if "Tensor(" not in kind or depth > _MOST_DEEP or not isinstance(value, list):
        return
    if len(value) == _TENSOR and isinstance(value[5], str) and all(type(part) is int for part in value[:5]):
        yield value
        return
    for part in value:
        yield from tensors_of(part, kind, depth + 1)


def dtype_of(kind: str) -> str:
    """The data type of a tensor type as Kineto writes it: `Tensor(long int)` -> `long int`; "": no tensor."""
    return kind[7:-1] if kind.startswith("Tensor(") and kind.endswith(")") else ""


def kineto_inputs(inputs: Sides) -> tuple[list[Any], list[str], list[str]]:
    """The inputs as Kineto's `Input Dims`, `Input type` and `Concrete Inputs`."""
    dims, types, concrete = [], [], []
    shapes = inputs.shapes if len(inputs.shapes) == len(inputs.types) else [[]] * len(inputs.types)
    values = inputs.values if len(inputs.values) == len(inputs.types) else [None] * len(inputs.types)
    for value, shape, kind in zip(values, shapes, inputs.types, strict=True):
        word = _kineto_type(kind)
        types.append(word)
        dims.append(shape if dtype_of(kind) or word == "TensorList" else [])
        concrete.append(str(value) if word in ("Scalar", "ScalarList") else "")
    return dims, types, concrete


def _kineto_type(kind: str) -> str:
    if dtype_of(kind):
        return dtype_of(kind)
    if kind.startswith(_LISTS):
        return "TensorList" if "Tensor(" in kind else "ScalarList"
    return "" if kind in ("None", "Device", "Object", "String", "Generator") else "Scalar"
