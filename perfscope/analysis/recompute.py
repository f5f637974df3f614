"""Forward work that runs again in the backward pass: activation checkpointing.

The mark of a layer's forward call inside a backward node is such a call, whatever asked for it
(`torch.utils.checkpoint`, checkpoint wrappers, a library's own). Its time is a part of computation. Work that
is computed again but is in no layer is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from perfscope.analysis import intervals as iv
from perfscope.analysis.breakdown import Activity
from perfscope.analysis.layers import is_own_mark
from perfscope.analysis.spans import ANNOTATION, BACKWARD, COMPUTE, Spans, StepSpan, whole_numbers, words


def recomputed_ns(table: pa.Table, spans: Spans, act: Activity, steps: Sequence[StepSpan]) -> int | None:
    """Computation of a window's steps inside forward calls that the backward pass makes, ns.

    On a device: of the kernels that these calls launch.

    Args:
        table: `layers.LAYER_COLUMNS` and `launch_ns`.
        spans: the same rows.
        act: the window's activity.
        steps: analyzed steps of the window.

    Returns:
        None: the trace marks no layer's call.
    """
    code, names = words(table, "layer")
    marks = (spans.device < 0) & (spans.kind == ANNOTATION) & (code >= 0)
    marks &= is_own_mark(table, code, names)
    if not marks.any():
        return None
    again = spans.union(marks & (spans.phase == BACKWARD))
    if not len(again):
        return 0
    bounds = iv.union(
        np.array([step.start_ns for step in steps], dtype=np.int64),
        np.array([step.end_ns for step in steps], dtype=np.int64),
    )
    on_device = (spans.device >= 0) & (spans.kind == COMPUTE)
    if not on_device.any():
        return iv.length(iv.intersect(iv.intersect(act.compute, again), bounds))
    launch = whole_numbers(table, "launch_ns")
    index = np.searchsorted(again[:, 0], launch, side="right") - 1
    launched = (launch >= 0) & (index >= 0) & (launch < again[np.maximum(index, 0), 1])
    return iv.length(iv.intersect(spans.union(on_device & launched), bounds))
