"""From when on to compare a group's members: the last instant at which all of them were at the same place.

That is the exit of an earlier call of all members, if the main line of each of them waited for it: then none
had run ahead. Calls in the background (gradient buckets) do not stop the main line and align nothing. Where
there is no such call, it is the start of the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.clocks.fit import SYNCHRONIZING
from perfscope.analysis.collective_waits import JudgedCalls
from perfscope.analysis.intervals import Int64
from perfscope.analysis.waits.line_table import LineTable

_STEPS_BACK = 8  # earlier calls looked at, should some member not have left them when it entered this one
SEND = "send"  # key of matched messages


class CommonStart(Struct, frozen=True, kw_only=True, eq=False):
    """Per call of one match."""

    at: Int64  # shape (ranks, calls), reference clock
    source: NDArray[np.int64]  # shape (calls,): index of the match it is an exit of; -1 = start of the step


class _Earlier(Struct, frozen=True, kw_only=True, eq=False):
    """Calls that all members of a group took part in, by last entry."""

    last_entry: Int64
    leave: Int64  # shape (members, calls)
    source: NDArray[np.int64]


def common_starts(
    matches: Sequence[JudgedCalls], table: LineTable, usable: Sequence[bool]
) -> dict[int, CommonStart]:
    """Where to compare from, for each usable match of one window.

    Args:
        matches: of one window.
        table: the window's lines.
        usable: which matches have a line for each of their ranks.
    """
    waited = {
        index: table.is_waited_for(match.ranks, match.exit)
        for index, match in enumerate(matches)
        if usable[index]
    }
    by_members: dict[tuple[tuple[int, ...], bool], list[int]] = defaultdict(list)
    for index in waited:
        by_members[matches[index].ranks, matches[index].key.collective == SEND].append(index)
    result = {}
    for (ranks, is_pair), indices in by_members.items():
        earlier = _earlier(ranks, is_pair, matches, waited)
        for index in indices:
            result[index] = _start(matches[index], table, earlier)
    return result


def _earlier(
    ranks: tuple[int, ...],
    is_pair: bool,
    matches: Sequence[JudgedCalls],
    waited: Mapping[int, NDArray[np.bool_]],
) -> _Earlier:
    """Of every group that has all of these ranks; for messages also those between the same two."""
    members, parts = set(ranks), []
    for index, aligned in waited.items():
        match = matches[index]
        row_of = {rank: row for row, rank in enumerate(match.ranks)}
        if not members <= row_of.keys():
            continue
        rows = [row_of[rank] for rank in ranks]
        if match.key.collective in SYNCHRONIZING:
            at = np.flatnonzero(aligned[rows].all(axis=0))
        elif is_pair and match.key.collective == SEND:
            at = np.arange(match.enter.shape[1])
        else:
            continue
        parts.append((match.last_entry[at], match.exit[rows][:, at], np.full(len(at), index)))
    if not parts:
        none = np.empty(0, dtype=np.int64)
        return _Earlier(last_entry=none, leave=np.empty((len(ranks), 0), dtype=np.int64), source=none)
    last_entry = np.concatenate([part[0] for part in parts])
    order = np.argsort(last_entry, kind="stable")
    return _Earlier(
        last_entry=last_entry[order],
        leave=np.concatenate([part[1] for part in parts], axis=1)[:, order],
        source=np.concatenate([part[2] for part in parts])[order],
    )


def _start(match: JudgedCalls, table: LineTable, earlier: _Earlier) -> CommonStart:
    begins = np.minimum(table.step_start(match.ranks, match.step), match.enter)
    source = np.full(match.enter.shape[1], -1, dtype=np.int64)
    index = np.searchsorted(earlier.last_entry, match.last_entry, side="left") - 1
    open_ = index >= 0
    for _ in range(_STEPS_BACK):
        if not open_.any():
            break
        calls = np.flatnonzero(open_)
        left = earlier.leave[:, index[calls]]
        fits = (left <= match.enter[:, calls]).all(axis=0)
        taken = calls[fits]
        begins[:, taken], source[taken] = left[:, fits], earlier.source[index[taken]]
        index[calls] -= 1
        open_[taken] = False
        open_ &= index >= 0
    return CommonStart(at=begins, source=source)
