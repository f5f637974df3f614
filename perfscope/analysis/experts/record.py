"""The all-to-all calls of each rank's windows that may send tokens to experts and back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from perfscope.analysis.spans import (
    ANNOTATION,
    BACKWARD,
    COMM,
    Mask,
    Spans,
    owning_step,
    whole_numbers,
    words,
)
from perfscope.rundir import layout
from perfscope.vocabulary.communication import DEFAULT_GROUP

_ALL_TO_ALL = "all_to_all"
_INTEGERS = ("int", "long", "short", "uint", "bool")  # numbers of tokens, not tokens
EXPERT_COLUMNS = ("in_rows", "out_rows")  # beside those that describe communication


class Exchange(NamedTuple):
    """One all-to-all of one rank; ns of its own clock.

    Attributes:
        layer: "": the trace has no layer of it.
        rows: that it sent; None: neither the trace nor a mark says it.
        received: rows; None: the trace does not say it.
    """

    step: int
    layer: str
    is_backward: bool
    start_ns: int
    end_ns: int
    sent_bytes: int
    rows: int | None
    received: int | None

    def returns(self, there: Exchange) -> bool | None:
        """Whether this call sends back what the rank got, and gets back what it sent, in `there`.

        None: the rows of one of them are not known.
        """
        rows = (self.rows, self.received, there.received, there.rows)
        return None if None in rows else rows[:2] == rows[2:]

    @property
    def is_uneven(self) -> bool:
        """Whether the rank sends more or fewer rows than it gets: the loads of experts differ."""
        return self.rows is not None and self.received not in (None, self.rows)


def exchanges(table: pa.Table, spans: Spans) -> Mask:
    """All-to-all calls. Shape (n,)."""
    code, names = words(table, "collective")
    if _ALL_TO_ALL not in names:
        return np.zeros(table.num_rows, dtype=bool)
    is_call: Mask = (spans.kind == COMM) & (code == names.index(_ALL_TO_ALL))
    return is_call


class ExpertGroup(NamedTuple):
    """A process group; `members` () and `size` 0: not known."""

    name: str
    members: tuple[int, ...]
    size: int


class ExpertRecord(Struct):
    """Every rank's calls so far, in order: (window, group) -> rank -> calls."""

    calls: dict[tuple[int, ExpertGroup], dict[int, list[Exchange]]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def add(
        self,
        table: pa.Table,
        spans: Spans,
        rank: int,
        window: int,
        members: Mapping[str, tuple[int, ...]],
    ) -> None:
        """Takes in one window.

        Args:
            table: columns of schema.TIMELINE that describe communication, and EXPERT_COLUMNS.
            spans: the same rows.
            rank, window: whose.
            members: process group name -> ranks, where that is known.
        """
        is_call = exchanges(table, spans)
        if not is_call.any():
            return
        if (is_call & (spans.device >= 0)).any():
            is_call &= spans.device >= 0
        (layer, layers), (group, groups), (dtype, dtypes) = (
            words(table, column) for column in ("layer", "group", "dtype")
        )
        step, sizes = owning_step(table), whole_numbers(table, "in_bytes")
        launch, group_size = (whole_numbers(table, column) for column in ("launch_ns", "group_size"))
        sent, received = (whole_numbers(table, column) for column in EXPERT_COLUMNS)
        marks = _Rows(table, spans)
        chosen = np.flatnonzero(is_call & (step >= 0) & ((layer >= 0) | (received >= 0)) & (sizes >= 0))
        for row in chosen[np.argsort(spans.start[chosen], kind="stable")].tolist():
            if dtype[row] >= 0 and dtypes[dtype[row]].lower().startswith(_INTEGERS):
                continue
            name = groups[group[row]] if group[row] >= 0 else DEFAULT_GROUP
            call = Exchange(
                step=int(step[row]),
                layer=layers[layer[row]] if layer[row] >= 0 else "",
                is_backward=bool(spans.phase[row] == BACKWARD),
                start_ns=int(spans.start[row]),
                end_ns=int(spans.end[row]),
                sent_bytes=int(sizes[row]),
                rows=int(sent[row])
                if sent[row] >= 0
                else marks.before(int(launch[row]) if launch[row] >= 0 else int(spans.start[row])),
                received=int(received[row]) if received[row] >= 0 else None,
            )
            ranks = members.get(name, ())
            key = window, ExpertGroup(name, ranks, max(int(group_size[row]), len(ranks), 0))
            self.calls[key].setdefault(rank, []).append(call)

    def merge(self, later: ExpertRecord) -> None:
        """Takes in the calls of later ranks."""
        for key, ranks in later.calls.items():
            self.calls[key].update(ranks)


class _Rows:
    """The probe's marks of how many rows a call sends, each just before its call."""

    def __init__(self, table: pa.Table, spans: Spans) -> None:
        code, names = words(table, "name")
        numbers = {
            index: int(name[len(layout.MARK_ROWS) :])
            for index, name in enumerate(names)
            if name.startswith(layout.MARK_ROWS) and name[len(layout.MARK_ROWS) :].isdecimal()
        }
        rows = np.flatnonzero((spans.kind == ANNOTATION) & np.isin(code, list(numbers)))
        rows = rows[np.argsort(spans.start[rows], kind="stable")]
        self._start = spans.start[rows]
        self._rows = [numbers[int(code[row])] for row in rows]

    def before(self, launch: int) -> int | None:
        """Of the call that was launched then."""
        index = int(np.searchsorted(self._start, launch, side="right")) - 1
        return self._rows[index] if index >= 0 else None
