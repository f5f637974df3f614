"""Reading runs from Python: `perfscope.open`, `perfscope.compare`, `perfscope.load_traces`.

Tables are Arrow. pandas and matplotlib are needed only where a method says so; the extra ``notebook`` has
them. Units are in the names of columns (``_ns``, ``_bytes``, ``_ratio``); a missing figure is null (NA
in pandas), never 0.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfscope.api.run import Run, load_traces, open_run
    from perfscope.api.study import Study, compare

__all__ = ["Run", "Study", "compare", "load_traces", "open_run"]
_IN_STUDY = frozenset({"Study", "compare"})


def __getattr__(name: str) -> Any:
    """Commands that use one module of this package do not load the others."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'study' if name in _IN_STUDY else 'run'}"), name)
