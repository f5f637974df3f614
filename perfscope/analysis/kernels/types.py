"""The type of a kernel, copy or operator, by its name; tables in vocabulary.kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from perfscope.vocabulary import kernels as tables
from perfscope.vocabulary.kernels import CopyKind, KernelType

_Table = Sequence[tuple[re.Pattern[str], KernelType]]


def _compiled(table: Sequence[tuple[str, KernelType]]) -> _Table:
    return tuple((re.compile(pattern, re.IGNORECASE), kind) for pattern, kind in table)


_GENERATED = _compiled(tables.GENERATED_KERNELS)
_KERNELS = _compiled(tables.KERNELS)
_OPERATORS = tuple((re.compile(pattern), kind) for pattern, kind in tables.OPERATORS)
_COPIES = tuple((re.compile(pattern, re.IGNORECASE), kind) for pattern, kind in tables.COPY_KINDS)
_MATRIX_UNITS = re.compile(tables.MATRIX_UNITS)
_NO_MATRIX_UNITS = re.compile(tables.NO_MATRIX_UNITS)
_LOADS = re.compile(tables.LOADS)
_ALIGNED = tuple((re.compile(pattern), elements) for pattern, elements in tables.ALIGNED)
_CONVERTS_LAYOUT = re.compile(tables.CONVERTS_LAYOUT, re.IGNORECASE)
_ARGUMENTS = re.compile(r"[<(](?!anonymous namespace)")
_SHELLS = re.compile(tables.SHELLS, re.IGNORECASE)


@lru_cache(maxsize=1 << 14)
def type_of_kernel(name: str, operator: str = "") -> KernelType:
    """The type of a compute kernel; that of the operator that launched it where the name does not tell."""
    kernel_type = _first(_GENERATED, name) if "_" in name[:8] else None
    if kernel_type is None:
        base = _ARGUMENTS.split(name, maxsplit=1)[0]
        kernel_type = None if _SHELLS.match(base) else _first(_KERNELS, base)
    if kernel_type is None and "<" in name:
        kernel_type = _first(_KERNELS, name)
    if kernel_type is None or (kernel_type is KernelType.OTHER and not operator):
        return kernel_type or (type_of_operator(operator) if operator else KernelType.OTHER)
    return kernel_type


@lru_cache(maxsize=1 << 13)
def type_of_operator(name: str) -> KernelType:
    """The type of an operator, or of what was compiled from several."""
    return _first(_GENERATED, name) or _first(_OPERATORS, name) or KernelType.OTHER


@lru_cache(maxsize=1 << 10)
def kind_of_copy(name: str) -> CopyKind:
    """Between what a copy moves."""
    return next((kind for pattern, kind in _COPIES if pattern.search(name)), CopyKind.UNKNOWN)


@lru_cache(maxsize=1 << 14)
def uses_matrix_units(name: str, kind: KernelType) -> bool | None:
    """Whether a kernel computes with tensor cores or the like; None where its name does not tell."""
    if kind not in tables.MATRIX:
        return None
    if _MATRIX_UNITS.search(name):
        return True
    return False if _NO_MATRIX_UNITS.search(name) else None


class Loads(NamedTuple):
    """How many elements a kernel loads at a time, and how many it does when its operands are aligned."""

    elements: int
    aligned: int


@lru_cache(maxsize=1 << 12)
def loads_of(name: str) -> Loads | None:
    """Of a kernel that uses matrix units; None where its name does not tell."""
    found = _LOADS.search(name)
    aligned = next((elements for pattern, elements in _ALIGNED if pattern.search(name)), None)
    return None if found is None or aligned is None else Loads(int(found.group(1)), aligned)


@lru_cache(maxsize=1 << 12)
def converts_layout(name: str) -> bool:
    """Whether a kernel only converts between the layouts NCHW and NHWC."""
    return _CONVERTS_LAYOUT.search(name) is not None


def _first(table: _Table, name: str) -> KernelType | None:
    return next((kind for pattern, kind in table if pattern.search(name)), None)
