"""The type of a kernel, copy or operator, by its name; tables in vocabulary.kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from perfscope.vocabulary import kernels as tables
from perfscope.vocabulary.kernels import CopyKind, KernelType

_Table = Sequence[tuple[str, Any]]  # regular expression, what a name is in which it is found
_ARGUMENTS = r"[<(](?!anonymous namespace)"


@cache
def _pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Compiled when it is first looked for: most traces need a part of the tables."""
    return re.compile(text, flags)


@lru_cache(maxsize=1 << 14)
def type_of_kernel(name: str, operator: str = "") -> KernelType:
    """The type of a compute kernel; that of the operator that launched it where the name does not tell."""
    kernel_type: KernelType | None = None
    if "_" in name[:8]:
        kernel_type = _first_of_any_case(tables.GENERATED_KERNELS, name)
    if kernel_type is None:
        base = _pattern(_ARGUMENTS).split(name, maxsplit=1)[0]
        is_shell = _pattern(tables.SHELLS, re.IGNORECASE).match(base)
        kernel_type = None if is_shell else _first_of_any_case(tables.KERNELS, base)
    if kernel_type is None and "<" in name:
        kernel_type = _first_of_any_case(tables.KERNELS, name)
    if kernel_type is None or (kernel_type is KernelType.OTHER and not operator):
        return kernel_type or (type_of_operator(operator) if operator else KernelType.OTHER)
    return kernel_type


@lru_cache(maxsize=1 << 13)
def type_of_operator(name: str) -> KernelType:
    """The type of an operator, or of what was compiled from several."""
    generated = _first_of_any_case(tables.GENERATED_KERNELS, name)
    return generated or _first(tables.OPERATORS, name) or KernelType.OTHER


@lru_cache(maxsize=1 << 10)
def kind_of_copy(name: str) -> CopyKind:
    """Between what a copy moves."""
    kind: CopyKind | None = _first_of_any_case(tables.COPY_KINDS, name)
    return kind or CopyKind.UNKNOWN


@lru_cache(maxsize=1 << 14)
def uses_matrix_units(name: str, kind: KernelType) -> bool | None:
    """Whether a kernel computes with tensor cores or the like; None where its name does not tell."""
    if kind not in tables.MATRIX:
        return None
    if _pattern(tables.MATRIX_UNITS).search(name):
        return True
    return False if _pattern(tables.NO_MATRIX_UNITS).search(name) else None


class Loads(NamedTuple):
    """How many elements a kernel loads at a time, and how many it does when its operands are aligned."""

    elements: int
    aligned: int


@lru_cache(maxsize=1 << 12)
def loads_of(name: str) -> Loads | None:
    """Of a kernel that uses matrix units; None where its name does not tell."""
    found, aligned = _pattern(tables.LOADS).search(name), _first(tables.ALIGNED, name)
    return None if found is None or aligned is None else Loads(int(found.group(1)), aligned)


@lru_cache(maxsize=1 << 12)
def converts_layout(name: str) -> bool:
    """Whether a kernel only converts between the layouts NCHW and NHWC."""
    return _pattern(tables.CONVERTS_LAYOUT, re.IGNORECASE).search(name) is not None


def _first(table: _Table, name: str) -> Any:
    """None: no expression of the table is found in the name."""
    return next((kind for text, kind in table if _pattern(text).search(name)), None)


@cache
def _in_lower_case(table: _Table) -> _Table:
    """No expression has an escape with a capital letter."""
    return tuple((text.lower(), kind) for text, kind in table)


def _first_of_any_case(table: _Table, name: str) -> Any:
    """As `_first`; a third of the time of re.IGNORECASE, and names of kernels are long."""
    return _first(_in_lower_case(table), name.lower())
