"""Layer, process group and axis of every single call of communication, for timelines.

They are those of `RunAnalysis.communication`: the same rules, applied to one window at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from perfscope.analysis import breakdown as bd
from perfscope.analysis.communication import LabeledCall, LabeledCalls
from perfscope.analysis.communication_results import row_name
from perfscope.analysis.group_axes import NAMELESS
from perfscope.analysis.layer_windows import add_windows
from perfscope.analysis.layers import LAYER_COLUMNS, ModelFacts, RankLayers
from perfscope.analysis.results import CommGroupResult
from perfscope.analysis.source import RunSource
from perfscope.analysis.spans import COMM, WindowFacts, spans_of, window_facts, words
from perfscope.analysis.windows import Window, one_window
from perfscope.rundir.schema import CALL_COLUMNS
from perfscope.vocabulary.communication import DEFAULT_GROUP, Unattributed

LABEL_COLUMNS = tuple(dict.fromkeys((*bd.DEVICE_COLUMNS, *LAYER_COLUMNS)))
_BETWEEN = "; "
NO_CALLS: LabeledCalls = MappingProxyType({})


class _Label(NamedTuple):
    """One row; None: it does not communicate."""

    layer: str | None = None
    group: str | None = None
    axis: str | None = None
    reason: str | None = None


class CallLabels:
    """Labels the calls of a run's timelines.

    Args:
        source: the run.
        groups: of the run (RunAnalysis.process_groups).
        known: of the run (RunAnalysis.labeled_calls); other windows are attributed again.
    """

    def __init__(
        self, source: RunSource, groups: Iterable[CommGroupResult], labeled_calls: LabeledCalls = NO_CALLS
    ) -> None:
        self._source = source
        self._labeled_calls = labeled_calls
        self._facts = {(f.rank, f.window): f for f in map(window_facts, source.summaries())}
        self._axes: dict[str, dict[str, str]] = defaultdict(dict)  # group -> kind of call -> axis
        for entry in groups:
            self._axes[entry.group].update(dict.fromkeys(entry.collectives, entry.axis))

    def labeled(self, table: pa.Table, rank: int, window: int) -> pa.Table:
        """The table with layer and group of every call, and schema.CALL_COLUMNS.

        A call that serves several layers has all of them, that with the largest part first.

        Args:
            table: LABEL_COLUMNS at least.
            rank, window: whose.
        """
        labels = self._labels(table, self._facts[rank, window]) if table.num_rows else {}
        for name, position in (("layer", 0), ("group", 1)):
            code, texts = words(table, name)
            texts = [*texts]
            numbers = {text: number for number, text in enumerate(texts)}
            code = code.copy()
            for row, label in labels.items():
                text = label[position]
                number = -1 if text is None else numbers.setdefault(text, len(numbers))
                code[row] = number
            column = table.column_names.index(name)
            table = table.set_column(column, name, _dictionary(code, list(numbers)))
        for name, position in zip(CALL_COLUMNS.names, (2, 3), strict=True):
            code, numbers = np.full(table.num_rows, -1, np.int32), {}
            for row, label in labels.items():
                text = label[position]
                code[row] = -1 if text is None else numbers.setdefault(text, len(numbers))
            table = table.append_column(name, _dictionary(code, list(numbers)))
        return table

    def _labels(self, table: pa.Table, facts: WindowFacts) -> dict[int, _Label]:
        """Row -> label, of all communication."""
        spans = spans_of(table)
        rows = np.flatnonzero(spans.kind == COMM)
        if not len(rows):
            return {}
        (group, groups), (kind, kinds) = words(table, "group"), words(table, "collective")
        on_device = bool((spans.device[rows] >= 0).any())
        labels = {}
        for row, of_group, of_kind, device in zip(
            rows.tolist(), group[rows].tolist(), kind[rows].tolist(), spans.device[rows].tolist(), strict=True
        ):
            name = groups[of_group] if of_group >= 0 else DEFAULT_GROUP
            axis = self._axis(name, kinds[of_kind] if of_kind >= 0 else NAMELESS)
            is_copy = on_device and device < 0
            reason = Unattributed.BESIDE_DEVICES if is_copy else Unattributed.OUTSIDE_STEPS
            labels[row] = _Label(None, name, axis, reason.value)
        labeled_calls = self._labeled_calls.get((facts.rank, facts.window))
        by_row: dict[int, list[LabeledCall]] = defaultdict(list)
        for call in sorted(
            self._calls(table, facts) if labeled_calls is None else labeled_calls,
            key=lambda call: -call.share,
        ):
            by_row[call.row].append(call)
        for row, calls in by_row.items():
            labels[row] = _of_calls(labels[row], calls, facts.rank)
        return labels

    def _axis(self, group: str, kind: str) -> str:
        """Of calls that no step has: that of the group's other calls, if they have but one."""
        axes = self._axes.get(group, {})
        of_group = set(axes.values())
        return axes.get(kind) or (next(iter(of_group)) if len(of_group) == 1 else group)

    def _calls(self, table: pa.Table, facts: WindowFacts) -> Sequence[LabeledCall]:
        """What the attribution says of the window's calls."""
        members = {
            **{
                group.name: group.ranks
                for group in self._source.rank_records[facts.rank].groups
                if group.name is not None and group.ranks is not None
            },
            **facts.groups,
        }
        labels: list[LabeledCall] = []
        layers = RankLayers(model=ModelFacts.of(self._source.layers(facts.rank)))
        spans = spans_of(table)
        act, steps = bd.activity(spans, facts), bd.analyzed_steps(spans, facts)
        windows = one_window(Window(facts, table, members))
        add_windows([layers], windows, spans, act, [steps], bd.in_steps(table, facts), [labels])
        return labels


def _of_calls(label: _Label, calls: Sequence[LabeledCall], rank: int) -> _Label:
    label = label._replace(axis=calls[0].cell.group.axis or label.axis)
    names = [row_name(call.cell, rank, label.axis or "") for call in calls]
    layers = [name.name for name in names if name.reason is None]
    if layers:
        boundary = calls[0].cell.boundary
        if boundary is not None:
            layers = [f"{layers[0]}, microbatch {boundary.microbatch}"]
        return label._replace(layer=_BETWEEN.join(layers), reason=None)
    reason = names[0].reason
    return label._replace(reason=reason.value if reason is not None else None)


def _dictionary(code: np.ndarray[tuple[int], np.dtype[np.int32]], texts: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(
        pa.array(code, pa.int32(), mask=code < 0), pa.array(list(texts), pa.string())
    )
