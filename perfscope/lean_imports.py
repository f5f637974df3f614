"""Keeps out of perfscope's own processes what Arrow imports and they do not use.

Arrow imports pandas, where it is installed, with the first array that it makes, to know whether its
input is a pandas object: 0.3 CPU seconds, as much as all other imports of a report. With Parquet it
loads the file systems of clouds and OpenSSL: 10 ms and 8 MB, while runs are on local ones.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

_UNUSED = frozenset(
    ("pandas", "pyarrow._azurefs", "pyarrow._gcsfs", "pyarrow._hdfs", "pyarrow._s3fs")  # as if not built
)
_FILE_SYSTEMS = "pyarrow._fs"


class _Lean(PathFinder):
    """Finds what is on sys.path, but for that. It does not raise: torch only asks whether pandas is there.

    None in `sys.modules` would hide it from Python, but Cython's import (Arrow's) takes None for the module.
    """

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _UNUSED:
            return None
        spec = super().find_spec(fullname, path, target)
        if fullname == _FILE_SYSTEMS and "ssl" not in sys.modules and spec is not None and spec.loader:
            spec.loader = cast("Loader", _WithoutCertificates(spec.loader))
        return spec


class _WithoutCertificates:
    """Loads Arrow's file systems, which ask `ssl` where certificates of clouds are: nowhere."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        stand_in = ModuleType("ssl")
        nowhere = SimpleNamespace(cafile=None, capath=None)
        stand_in.get_default_verify_paths = lambda: nowhere  # type: ignore[attr-defined]
        sys.modules["ssl"] = stand_in
        try:
            self._loader.exec_module(module)
        finally:
            del sys.modules["ssl"]


def hide_unused() -> None:
    """From now on this process does not find these. For perfscope's own processes, never a user's."""
    sys.meta_path[:] = [_Lean if finder is PathFinder else finder for finder in sys.meta_path]


def lean_process() -> None:
    """Settings of numpy and Arrow for a process that only reads runs. Before they are imported."""
    lean_arrays()
    hide_unused()


def lean_arrays() -> None:
    """The same without hiding anything, which a caller in the same process may need."""
    # Nothing there multiplies matrices; the threads of a BLAS would cost more CPU than parsing a small trace.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Arrow's own allocator keeps memory back; malloc shares it with the rest of the process.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
