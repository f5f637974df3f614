"""What windows add to the layers of their ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from perfscope.analysis import intervals as iv
from perfscope.analysis.breakdown import Activity
from perfscope.analysis.communication import LabeledCall
from perfscope.analysis.intervals import one_of
from perfscope.analysis.layers import RankLayers
from perfscope.analysis.spans import (
    ANNOTATION,
    BACKWARD,
    COMPUTE,
    FORWARD,
    Mask,
    Spans,
    StepSpan,
    whole_numbers,
    words,
)
from perfscope.analysis.window_calls import calls_of_windows
from perfscope.analysis.windows import Windows


def add_windows(
    ranks: Sequence[RankLayers],
    windows: Windows,
    spans: Spans,
    act: Activity,
    steps: Sequence[Sequence[StepSpan]],
    in_steps: Mask,
    labels: Sequence[list[LabeledCall] | None],
) -> None:
    """Adds each window to its rank.

    Args:
        ranks: of each window.
        windows: `layers.LAYER_COLUMNS`.
        spans: the same rows.
        act: what they were spent on.
        steps: analyzed steps of each window, on the line.
        in_steps: shape (n,), spans that start in one of them.
        labels: of each window, that take its calls; None: they are not asked for.
    """
    times, work = _Times(windows, spans, in_steps), _Work(windows, spans, in_steps)
    calls = calls_of_windows(windows, spans, act, steps, in_steps)
    for index, (layers, of_window, of_calls) in enumerate(zip(ranks, steps, calls, strict=True)):
        layers.num_steps += len(of_window)
        times.add_to(layers, index)
        work.add_to(layers, index, len(of_window))
        if of_calls is not None:
            layers.comm.labels = labels[index]
            layers.comm.add_window(of_calls, layers.params())


def add_work(layers: RankLayers, windows: Windows, spans: Spans, num_steps: int, in_steps: Mask) -> None:
    """Adds FLOPs and bytes of a window, not its times; as `add_windows`."""
    _Work(windows, spans, in_steps).add_to(layers, 0, num_steps)


class _Times:
    """Times and calls of each window's layers."""

    def __init__(self, windows: Windows, spans: Spans, in_steps: Mask) -> None:
        code, self._names = words(windows.table, "layer")
        num = len(windows.parts) * len(self._names)
        cell, in_layer = windows.window_of_row * len(self._names) + code, in_steps & (code >= 0)
        on_device = (spans.device >= 0) & (spans.kind == COMPUTE)
        side = on_device if on_device.any() else (spans.device < 0) & (spans.kind == COMPUTE)
        timed = in_layer & side & one_of(spans.phase, (FORWARD, BACKWARD))
        group = cell[timed] * 2 + (spans.phase[timed] == BACKWARD)
        lengths = iv.grouped_length(group, spans.start[timed], spans.end[timed], 2 * num)
        called = in_layer & (spans.kind == ANNOTATION) & (spans.device < 0) & (spans.phase == FORWARD)
        called &= is_own_mark(windows.table, code, self._names)
        calls = np.bincount(cell[called], minlength=num)
        first = np.full(num, np.iinfo(np.int64).max)
        np.minimum.at(first, cell[in_layer], spans.start[in_layer])
        there = np.flatnonzero(first < np.iinfo(np.int64).max)
        window = there // max(len(self._names), 1)
        there = there[np.lexsort((first[there], window))]
        self._ends = np.searchsorted(window, np.arange(len(windows.parts) + 1)).tolist()
        self._layer = (there % max(len(self._names), 1)).tolist()
        self._sums = lengths[2 * there].tolist(), lengths[2 * there + 1].tolist(), calls[there].tolist()

    def add_to(self, layers: RankLayers, index: int) -> None:
        """Adds those of a window, in the order in which the layers first ran."""
        begin, end = self._ends[index : index + 2]
        base = len(layers.first_seen)
        columns = (column[begin:end] for column in (self._layer, *self._sums))
        for position, (layer, forward, backward, calls) in enumerate(zip(*columns, strict=True), base):
            name = self._names[layer]
            sums = layers.sums[name]
            sums.forward += forward
            sums.backward += backward
            sums.calls += calls
            layers.first_seen.setdefault(name, position)


class _Work:
    """FLOPs and bytes of each window's layers."""

    def __init__(self, windows: Windows, spans: Spans, in_steps: Mask) -> None:
        table = windows.table
        flops = whole_numbers(table, "flops")
        self._is_shaped = windows.with_any(flops >= 0).tolist()
        read, written = whole_numbers(table, "bytes_read"), whole_numbers(table, "bytes_written")
        code, names = words(table, "layer")
        passes = in_steps & (code >= 0) & one_of(spans.phase, (FORWARD, BACKWARD))
        self._amounts: list[list[tuple[str, str, int, int]]] = [[] for _ in windows.parts]
        for what, values in {
            "flops": flops,
            "bytes": np.where((read >= 0) | (written >= 0), np.maximum(read, 0) + np.maximum(written, 0), -1),
        }.items():
            has = passes & (values >= 0)
            if (has & (spans.device < 0)).any():
                has &= spans.device < 0  # shapes stand on the operator; a kernel may repeat its operator's
            rows = np.flatnonzero(has)
            cells, cell_of = iv.distinct_pairs(windows.window_of_row[rows], code[rows])
            total = np.zeros((len(cells), 2), dtype=np.int64)
            np.add.at(total, (cell_of, (spans.phase[rows] == BACKWARD).astype(np.int64)), values[rows])
            for (index, layer), amounts in zip(cells.tolist(), total.tolist(), strict=True):
                self._amounts[index].append((names[layer], what, *amounts))

    def add_to(self, layers: RankLayers, index: int, num_steps: int) -> None:
        """Adds those of a window."""
        if not self._is_shaped[index]:
            num_steps = 0
        layers.num_shaped_steps += num_steps
        for layer, what, forward, backward in self._amounts[index]:
            sums = layers.sums[layer]
            for phase, amount in (("forward", forward), ("backward", backward)):
                setattr(sums, f"{phase}_{what}", getattr(sums, f"{phase}_{what}") + amount)
            setattr(sums, f"knows_{what}", True)


def is_own_mark(table: pa.Table, code: NDArray[np.int32], names: list[str]) -> Mask:
    """Rows that are a layer's own call, not something the user marked inside it. Shape (n,).

    A mark is called as its layer (`features.3.conv`), a Python frame as the last part of it (`Conv2d_3`).
    """
    name, texts = words(table, "name")
    pairs, pair_of = iv.distinct_pairs(name, code)
    is_mark = [
        text >= 0 and layer >= 0 and (names[layer] == texts[text] or names[layer].endswith("." + texts[text]))
        for text, layer in pairs.tolist()
    ]
    result: Mask = np.array(is_mark, dtype=bool)[pair_of]
    return result
