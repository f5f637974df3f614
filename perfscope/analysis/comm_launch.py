"""When the host asked for a communication call, which is before it began where the backend was still busy.

A device span knows its launch. A backend's span (gloo) does not, but the trace has the `c10d::` operator that
queued it, and a backend takes its queue in order: the k-th operator is the k-th span, within each step.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from perfscope.analysis.intervals import Int64
from perfscope.analysis.spans import Mask, whole_numbers, words

_OPERATOR = "c10d::"
_CLOCK_STEP_NS = 50_000  # spans of two threads may be written down that far out of order


def launch_times(table: pa.Table, is_comm: Mask) -> Int64:
    """Launch of each communication span, ns; -1 where the trace does not say.

    Args:
        table: start_ns, device, step, launch_ns, name of schema.TIMELINE, one rank and window.
        is_comm: shape (n,), the spans.

    Returns:
        Shape (number of spans in `is_comm`,), in the table's order.
    """
    rows = np.flatnonzero(is_comm)
    launch = whole_numbers(table, "launch_ns")[rows]
    on_host = whole_numbers(table, "device")[rows] < 0
    if not on_host.any():
        return launch
    code, names = words(table, "name")
    is_operator = np.array([*(name.startswith(_OPERATOR) for name in names), False])[code] & ~is_comm
    start, step = whole_numbers(table, "start_ns"), whole_numbers(table, "step")
    queued = np.flatnonzero(is_operator)
    for step_number in np.unique(step[rows[on_host]]).tolist():
        asked = np.sort(start[queued[step[queued] == step_number]])
        at = np.flatnonzero(on_host & (step[rows] == step_number))
        at = at[np.argsort(start[rows[at]], kind="stable")]
        began = start[rows[at]]
        if len(asked) == len(began) and (asked <= began + _CLOCK_STEP_NS).all():
            launch[at] = np.minimum(asked, began)
    return launch
