"""Keeps pandas out of processes that only convert between Arrow and numpy.

Arrow imports pandas, where it is installed, with the first array that it makes, to know whether its
input is a pandas object: 0.3 CPU seconds, as much as all other imports of a report.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class _NoPandas(PathFinder):
    """Finds what is on sys.path, but pandas. It does not raise: torch only asks whether pandas is there.

    None in `sys.modules` would hide it from Python, but Cython's import (Arrow's) takes None for the module.
    """

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname == "pandas" else super().find_spec(fullname, path, target)


def hide_pandas() -> None:
    """From now on this process does not find pandas. For perfscope's own processes, never a user's."""
    sys.meta_path[:] = [_NoPandas if finder is PathFinder else finder for finder in sys.meta_path]


def lean_process() -> None:
    """Settings of numpy and Arrow for a process that only reads runs. Before they are imported."""
    lean_arrays()
    hide_pandas()


def lean_arrays() -> None:
    """The same without hiding pandas, which a caller in the same process may need."""
    # Nothing there multiplies matrices; the threads of a BLAS would cost more CPU than parsing a small trace.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Arrow's own allocator keeps memory back; malloc shares it with the rest of the process.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
