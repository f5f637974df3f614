"""Forward work that runs again in the backward pass: activation checkpointing.

The mark of a layer's forward call inside a backward node is such a call, whatever asked for it
(`torch.utils.checkpoint`, checkpoint wrappers, a library's own). Its time is a part of computation. Work that
is computed again but is in no layer is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfscope.analysis import intervals as iv
from perfscope.analysis.breakdown import Activity, bounds_of
from perfscope.analysis.layer_windows import is_own_mark
from perfscope.analysis.spans import ANNOTATION, BACKWARD, COMPUTE, Spans, StepSpan, whole_numbers, words
from perfscope.analysis.windows import Windows


def recomputed_ns(
    windows: Windows, spans: Spans, act: Activity, steps: Sequence[Sequence[StepSpan]]
) -> list[int | None]:
    """Computation of each window's steps inside forward calls that the backward pass makes, ns.

    On a device: of the kernels that these calls launch.

    Args:
        windows: `layers.LAYER_COLUMNS` and `launch_ns`.
        spans: the same rows.
        act: what they were spent on.
        steps: analyzed steps of each window.

    Returns:
        None: the trace marks no layer's call.
    """
    table, line = windows.table, windows.line
    code, names = words(table, "layer")
    marks = (spans.device < 0) & (spans.kind == ANNOTATION) & (code >= 0)
    marks &= is_own_mark(table, code, names)
    again, compute = spans.union(marks & (spans.phase == BACKWARD)), act.compute
    on_device = (spans.device >= 0) & (spans.kind == COMPUTE)
    if len(again) and on_device.any():
        launch = whole_numbers(table, "launch_ns")
        index = np.searchsorted(again[:, 0], launch, side="right") - 1
        launched = (launch >= 0) & (index >= 0) & (launch < again[np.maximum(index, 0), 1])
        compute = spans.union(on_device & launched)
    elif len(again):
        compute = iv.intersect(compute, again)
    lengths = line.lengths(iv.intersect(compute, bounds_of(steps)) if len(again) else again)
    marked = windows.with_any(marks).tolist()
    return [length if is_marked else None for length, is_marked in zip(lengths, marked, strict=True)]
