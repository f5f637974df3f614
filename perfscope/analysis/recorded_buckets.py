"""Which gradients an all-reduce carries, from the nodes of the backward pass that a trace recorded.

DistributedDataParallel reduces a bucket in the hook of the last parameter whose gradient it holds. So, on a
thread, the nodes `AccumulateGrad` before an all-reduce accumulated what it carries: the latest of them, as
many as are together as large as it is. A parameter's gradient is accumulated right after the node that
computed it: that node's layer is the parameter's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.buckets import Bucket
from perfscope.analysis.intervals import Int64, distinct
from perfscope.analysis.spans import BACKWARD, Mask, Spans, whole_numbers, words

_ACCUMULATE = "torch::autograd::AccumulateGrad"
_REDUCE = "c10d::allreduce_"
_Gradients = list[tuple[int, int]]  # layer (-1 = not known), bytes


class RecordedBuckets(Struct, frozen=True, eq=False):
    """All-reduces that gradients led to, in order of start.

    Attributes:
        start, end: of the operator, shape (n,).
        gradients: what was accumulated since the one before it on its thread.
        layers: names.
    """

    start: Int64
    end: Int64
    gradients: Sequence[_Gradients]
    layers: Sequence[str]

    def of(self, launch: Int64) -> Int64:
        """Which of the all-reduces led to each call, shape (calls,); -1 = none.

        Args:
            launch: when each call was asked for, ns; -1 = not known.
        """
        if not len(self.start):
            return np.full(launch.shape, -1)
        index = np.searchsorted(self.start, launch, side="right") - 1
        result: Int64 = np.where((index >= 0) & (launch <= self.end[index]), index, -1)
        return result

    def bucket(self, number: int, size: int) -> Bucket | None:
        """Layer -> bytes of an all-reduce of `size` bytes; None: they do not add up, or a layer is open."""
        bucket: Bucket = {}
        left = size
        for layer, num_bytes in reversed(self.gradients[number]):
            if left <= 0 or layer < 0 or num_bytes < 0:
                break
            bucket[self.layers[layer]] = bucket.get(self.layers[layer], 0) + num_bytes
            left -= num_bytes
        return bucket if left == 0 and bucket else None


def recorded_buckets(table: pa.Table, spans: Spans) -> RecordedBuckets:
    """The all-reduces of gradients in one window.

    Args:
        table: name, layer, bytes_written of schema.TIMELINE.
        spans: the same rows.
    """
    (name, names), (layer, layers) = words(table, "name"), words(table, "layer")
    is_gradient, is_reduction = (
        (spans.device < 0)
        & np.array([*(text.removeprefix("struct ") == wanted for text in names), False])[name]
        for wanted in (_ACCUMULATE, _REDUCE)
    )
    if not is_gradient.any() or not is_reduction.any():
        empty: Int64 = np.empty(0, np.int64)
        return RecordedBuckets(empty, empty, (), layers)
    in_layer = (spans.device < 0) & (spans.phase == BACKWARD) & (layer >= 0)
    written = whole_numbers(table, "bytes_written")
    buckets: list[tuple[int, int, _Gradients]] = []
    for lane in distinct(spans.lane[is_reduction]).tolist():
        on_lane = (spans.lane == lane) & (is_gradient | is_reduction | in_layer)
        buckets += _of_thread(np.flatnonzero(on_lane), spans, layer, written, is_gradient, is_reduction)
    buckets.sort(key=lambda bucket: bucket[0])
    start, end = (np.array([bucket[column] for bucket in buckets], np.int64) for column in (0, 1))
    return RecordedBuckets(start, end, [gradients for *_, gradients in buckets], layers)


def _of_thread(
    rows: Int64,
    spans: Spans,
    layer: NDArray[np.int32],
    written: Int64,
    is_gradient: Mask,
    is_reduction: Mask,
) -> list[tuple[int, int, _Gradients]]:
    """(start, end, gradients) of the all-reduces of one thread that follow at least one gradient."""
    rows = rows[np.argsort(spans.start[rows], kind="stable")]
    computed_by, gradients = -1, _Gradients()
    buckets = []
    columns = (layer, written, is_gradient, is_reduction, spans.start, spans.end)
    for of_layer, num_bytes, accumulates, reduces, start, end in zip(
        *(column[rows].tolist() for column in columns), strict=True
    ):
        if accumulates:
            gradients.append((computed_by, num_bytes))
        elif not reduces or of_layer >= 0:  # tensor parallelism reduces in a layer, between the gradients
            computed_by = of_layer
        elif gradients:
            buckets.append((start, end, gradients))
            gradients = []
    return buckets
