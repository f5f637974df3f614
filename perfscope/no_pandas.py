"""Keeps pandas out of processes that only convert between Arrow and numpy.

Arrow imports pandas, where it is installed, with the first array that it makes, to know whether its
input is a pandas object: 0.3 CPU seconds, as much as all other imports of a report.
"""

from __future__ import annotations

import sys


class _NoPandas:
    """A finder that has no pandas."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("perfscope's own processes do without pandas", name=name)


def hide_pandas() -> None:
    """From now on this process cannot import pandas. For perfscope's own processes, never a user's."""
    if not any(isinstance(finder, _NoPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NoPandas())
