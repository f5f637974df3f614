"""All ranks' lines of one window in one table on the reference clock: questions go to whole arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64
from perfscope.analysis.mainline import LINE_COMPUTE, LINE_EXPOSED, NO_LAYER, MainLine
from perfscope.rundir.schema import PHASES

Places = NDArray[np.int64]


class Clocks(Protocol):
    """How the hosts' clocks stand to each other."""

    def to_reference(self, host: str, times_ns: Int64) -> Int64: ...


class LineTable(Struct, frozen=True, kw_only=True, eq=False):
    """One window; columns of shape (segments of all ranks,), rank by rank, in time order."""

    row_of: Mapping[int, int]  # rank -> its row
    bounds: Places  # shape (rows + 1,): where each row's segments begin
    start: Int64
    end: Int64
    part: NDArray[np.int8]
    layer: NDArray[np.int32]
    phase: NDArray[np.int8]
    steps: tuple[tuple[Int64, Int64], ...]  # per row: step numbers, and their starts on the reference clock
    lines: tuple[MainLine, ...]
    keys: Int64  # starts, each row's counted from its first and moved behind those of the row before
    stride: int

    def places(self, ranks: tuple[int, ...], times: Int64) -> Places:
        """The segment that each instant falls into, or the last one before it, or the rank's first.

        Args:
            ranks: all of them have a line.
            times: shape (ranks, n), reference clock.
        """
        return self.cells(np.array([self.row_of[rank] for rank in ranks])[:, None], times)

    def cells(self, row: Places, times: Int64) -> Places:
        """The same of rows. Shapes (n,) and (n,), or as they broadcast."""
        low = self.bounds[row]
        since = np.clip(times - self.start[low], -1, self.stride - 2)
        result: Places = np.searchsorted(self.keys, row * self.stride + since, side="right") - 1
        return np.maximum(result, low)

    def step_start(self, ranks: tuple[int, ...], step: Int64) -> Int64:
        """When each rank's step began; its first traced step where the number is unknown. Like `step`."""
        result = np.empty(step.shape, dtype=np.int64)
        for at, rank in enumerate(ranks):
            numbers, starts = self.steps[self.row_of[rank]]
            index = np.minimum(np.searchsorted(numbers, step[at]), len(numbers) - 1)
            result[at] = np.where(numbers[index] == step[at], starts[index], starts[0])
        return result

    def cumulated(self, mask: NDArray[np.bool_]) -> Int64:
        """Shape (segments + 1,): time of the masked segments before each segment."""
        result = np.zeros(len(self.start) + 1, dtype=np.int64)
        np.subtract(self.end, self.start, out=result[1:], where=mask)
        np.cumsum(result, out=result)
        return result

    def until(self, total: Int64, mask: NDArray[np.bool_], cells: Places, times: Int64) -> Int64:
        """Masked time up to each instant, counted from anywhere: differences within a rank have a meaning."""
        inside = np.clip(times - self.start[cells], 0, self.end[cells] - self.start[cells])
        result: Int64 = total[cells] + np.where(mask[cells], inside, 0)
        return result

    def is_waited_for(self, ranks: tuple[int, ...], leave: Int64) -> NDArray[np.bool_]:
        """Whether the rank's main line was in communication until that instant. Shape like `leave`."""
        before = leave - 1
        cells = self.places(ranks, before)
        result: NDArray[np.bool_] = (self.part[cells] == LINE_EXPOSED) & (self.end[cells] > before)
        return result

    def runs(self, num_layers: int) -> NDArray[np.bool_]:
        """Shape (rows, layers): whether the rank computes that layer at all."""
        result = np.zeros((len(self.row_of), num_layers), dtype=bool)
        in_layer = (self.part == LINE_COMPUTE) & (self.layer != NO_LAYER)
        result[self.rows()[in_layer], self.layer[in_layer]] = True
        return result

    def rows(self) -> Places:
        """Row of each segment."""
        return np.repeat(np.arange(len(self.bounds) - 1, dtype=np.int64), np.diff(self.bounds))

    def last_named(self) -> Places:
        """Per segment: the last one until it that computes in a layer and phase, of any rank; -1 = none."""
        index = np.where(self.is_named(), np.arange(len(self.part)), -1)
        return np.maximum.accumulate(index) if len(index) else index

    def is_named(self) -> NDArray[np.bool_]:
        """Segments that compute in a layer and phase."""
        result: NDArray[np.bool_] = (self.part == LINE_COMPUTE) & (self.layer != NO_LAYER) & (self.phase >= 0)
        return result

    def layer_before(self, ranks: tuple[int, ...], times: Int64, last_named: Places) -> Int64:
        """What began last before each instant: layer x phases + phase; -1 = nothing that has a name.

        Args:
            ranks: all of them have a line.
            times: shape (ranks, n), reference clock.
            last_named: `last_named()`.
        """
        if not len(last_named):
            return np.full(times.shape, -1, dtype=np.int64)
        cells = self.places(ranks, times)
        before = np.where(self.start[cells] < times, cells, cells - 1)
        last_layer = np.where(before >= 0, last_named[np.maximum(before, 0)], -1)
        low = np.array([self._range(rank)[0] for rank in ranks], dtype=np.int64)[:, None]
        at = np.maximum(last_layer, 0)
        code = self.layer[at].astype(np.int64) * len(PHASES) + self.phase[at]
        result: Int64 = np.where(last_layer >= low, code, -1)
        return result

    def _range(self, rank: int) -> tuple[int, int]:
        row = self.row_of[rank]
        return int(self.bounds[row]), int(self.bounds[row + 1])


def line_table(lines: Mapping[int, MainLine], clocks: Clocks) -> LineTable:
    """One window's lines side by side.

    Args:
        lines: rank -> line; those without a segment are left out.
        clocks: of all hosts.
    """
    kept = [lines[rank] for rank in sorted(lines) if len(lines[rank].start)]
    sizes = [len(line.start) for line in kept]
    steps = []
    for line in kept:
        begin = np.array([step.start_ns for step in line.steps], dtype=np.int64)
        number = np.array([step.step for step in line.steps], dtype=np.int64)
        order = np.argsort(number, kind="stable")
        steps.append((number[order], clocks.to_reference(line.host, begin)[order]))
    bounds = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(np.array(sizes, dtype=np.int64))))
    start, end = (np.empty(sum(sizes), dtype=np.int64) for _ in range(2))
    for line, low, high in zip(kept, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        start[low:high] = clocks.to_reference(line.host, line.start)
        end[low:high] = clocks.to_reference(line.host, line.end)
    since = start - np.repeat(start[bounds[:-1]], sizes)
    stride = int(since.max(initial=0)) + 2
    return LineTable(
        row_of={line.rank: row for row, line in enumerate(kept)},
        bounds=bounds,
        start=start,
        keys=since + np.repeat(np.arange(len(kept)), sizes) * stride,
        stride=stride,
        end=end,
        part=np.concatenate([line.part for line in kept]) if kept else np.empty(0, dtype=np.int8),
        layer=np.concatenate([line.layer for line in kept]) if kept else np.empty(0, dtype=np.int32),
        phase=np.concatenate([line.phase for line in kept]) if kept else np.empty(0, dtype=np.int8),
        steps=tuple(steps),
        lines=tuple(kept),
    )
