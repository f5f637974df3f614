"""Launch delay and queue length per stream.

As Holistic Trace Analysis has them: the delay of a launch is from the end of the runtime's call to the start
on the device; the queue of a stream is what was launched and has not begun.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from perfscope.analysis import intervals as iv
from perfscope.analysis.intervals import Int64, Intervals, distinct_pairs, median_of
from perfscope.analysis.kernels.results import StreamQueue
from perfscope.analysis.spans import Mask, Spans, whole_numbers

STREAM_COLUMNS = ("launch_ns", "launch_dur_ns")


class StreamRecord:
    """Of one rank, window by window."""

    def __init__(self) -> None:
        self._delays: dict[tuple[int, int], list[Int64]] = defaultdict(list)
        self._queues: dict[tuple[int, int], list[Int64]] = defaultdict(list)

    def add_window(self, table: pa.Table, spans: Spans, selected: Mask) -> None:
        """Takes in the launches of the selected device events.

        Args:
            table: STREAM_COLUMNS, beside what `spans` was made of.
            spans: the same rows.
            selected: shape (n,), as for `breakdown.device_breakdown`.
        """
        launch, dur = whole_numbers(table, "launch_ns"), whole_numbers(table, "launch_dur_ns", null=0)
        rows = np.flatnonzero(selected & (launch >= 0))
        pairs, pair_of = distinct_pairs(spans.device[rows], spans.lane[rows])
        for index, (device, stream) in enumerate(pairs.tolist()):
            of_stream = rows[pair_of == index]
            began, asked = spans.start[of_stream], launch[of_stream]
            self._delays[device, stream].append(np.maximum(began - asked - dur[of_stream], 0))
            self._queues[device, stream].append(_lengths(asked, began))

    def results(self) -> tuple[StreamQueue, ...]:
        """By device and stream."""
        queues = []
        for (device, stream), parts in sorted(self._delays.items()):
            delay, queue = np.concatenate(parts), np.concatenate(self._queues[device, stream])
            queues.append(
                StreamQueue(
                    device=device,
                    stream=stream,
                    launches=len(delay),
                    delay_median_ns=round(median_of(delay)),
                    delay_max_ns=int(delay.max()),
                    queue_median=median_of(queue),
                    queue_mean=float(queue.mean()),
                    queue_max=int(queue.max()),
                    empty_ratio=float((queue <= 1).mean()),
                )
            )
        return tuple(queues)


def _lengths(launched: Int64, began: Int64) -> Int64:
    """How many are launched and have not begun, at each launch, itself included. Shape (n,)."""
    moments = np.sort(launched)
    waiting = np.searchsorted(moments, moments, side="right") - np.searchsorted(
        np.sort(np.maximum(began, launched)), moments, side="right"
    )
    lengths: NDArray[np.int64] = np.maximum(waiting, 1)
    return lengths


def queued(table: pa.Table, spans: Spans, selected: Mask) -> Intervals | None:
    """When something whose launching call had returned had not begun on any stream.

    Arguments as for `StreamRecord.add_window`. None where the launches of most device events are not in the
    trace: an empty queue would be seen where none was recorded.
    """
    launch, dur = whole_numbers(table, "launch_ns"), whole_numbers(table, "launch_dur_ns", null=0)
    has_launch = selected & (launch >= 0)
    if 2 * int(has_launch.sum()) < int(selected.sum()):
        return None
    return iv.union((launch + dur)[has_launch], spans.start[has_launch])
