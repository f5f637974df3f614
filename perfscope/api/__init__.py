"""Reading runs from Python: `perfscope.open`, `perfscope.compare`, `perfscope.load_traces`.

Tables are Arrow. pandas and matplotlib are needed only where a method says so; the extra ``notebook`` has
them. Units are in the names of columns (``_ns``, ``_bytes``, ``_ratio``); a missing figure is null (NA
in pandas), never 0.
"""

from __future__ import annotations

from perfscope.api.run import Run, load_traces, open_run
from perfscope.api.study import Study, compare

__all__ = ["Run", "Study", "compare", "load_traces", "open_run"]
