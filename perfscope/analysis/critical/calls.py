"""Each rank's matched calls, in the order in which it left them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.collective_waits import JudgedCalls
from perfscope.analysis.intervals import Int64


class OwnCalls(Struct, frozen=True, kw_only=True, eq=False):
    """One rank's calls in one window; arrays of shape (calls,), sorted by exit, on the reference clock."""

    enter: Int64
    exit: Int64
    launch: Int64  # the entry where the trace does not tell
    last_entry: Int64
    late_rank: Int64
    lane: Int64
    match: Int64  # index into CallIndex.matches
    column: Int64  # of that match
    uncertain: NDArray[np.bool_]

    def latest_exit(self, after: int, until: int, used: set[int], lane: int | None = None) -> int:
        """The last call left in (after, until] and not in `used`, on the lane if one is given; -1: none."""
        index = int(np.searchsorted(self.exit, until, side="right")) - 1
        while index >= 0 and self.exit[index] > after:
            if index not in used and (lane is None or self.lane[index] == lane):
                return index
            index -= 1
        return -1

    def any_within(self, start: int, end: int) -> bool:
        """Whether a call was under way between the two times."""
        later = int(np.searchsorted(self.exit, start, side="right"))
        return bool((self.enter[later:] < end).any())

    def find(self, match: int, column: int) -> int:
        """The place of a call here."""
        return int(np.flatnonzero((self.match == match) & (self.column == column))[0])

    def entered_at(self, enter: int, lane: int) -> int:
        """The call that a device's span is; -1: it was not matched."""
        rows = np.flatnonzero((self.enter == enter) & (self.lane == lane))
        return int(rows[0]) if len(rows) else -1


class CallIndex:
    """All ranks' calls of one window; a rank's are put in order when they are asked for."""

    def __init__(
        self, matches: Sequence[JudgedCalls], window: int, clocks: ClockFit, hosts: Mapping[int, str]
    ) -> None:
        self.matches = [calls for calls in matches if calls.window == window and calls.enter.shape[1]]
        self._clocks, self._hosts = clocks, hosts
        self._rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for index, match in enumerate(self.matches):
            for row, rank in enumerate(match.ranks):
                self._rows[rank].append((index, row))
        self._own: dict[int, OwnCalls] = {}
        self._hosts_of: dict[int, tuple[str, ...]] = {}
        self._late = [np.array(calls.ranks, dtype=np.int64)[calls.late_row] for calls in self.matches]

    def of(self, rank: int) -> OwnCalls:
        """A rank's calls."""
        if rank not in self._own:
            self._own[rank] = self._gather(rank)
        return self._own[rank]

    def hosts_of(self, match: int) -> tuple[str, ...]:
        """The hosts whose ranks take part."""
        if match not in self._hosts_of:
            hosts = {self._hosts.get(rank, "") for rank in self.matches[match].ranks}
            self._hosts_of[match] = tuple(sorted(hosts))
        return self._hosts_of[match]

    def _gather(self, rank: int) -> OwnCalls:
        parts: dict[str, list[NDArray[np.int64]]] = defaultdict(list)
        for index, row in self._rows.get(rank, []):
            match = self.matches[index]
            num = match.enter.shape[1]
            launch = self._clocks.to_reference(self._hosts.get(rank, ""), match.launch[row])
            asked = np.where(match.launch[row] >= 0, np.minimum(launch, match.enter[row]), match.enter[row])
            columns = {
                "enter": match.enter[row],
                "exit": np.maximum(match.exit[row], match.enter[row]),
                "launch": asked,
                "last_entry": match.last_entry,
                "late_rank": self._late[index],
                "lane": match.lane[row],
                "match": np.full(num, index, dtype=np.int64),
                "column": np.arange(num, dtype=np.int64),
                "uncertain": match.uncertain[row].astype(np.int64),
            }
            for name, values in columns.items():
                parts[name].append(values)
        empty = np.empty(0, dtype=np.int64)
        arrays = {name: np.concatenate(parts[name]) if parts[name] else empty for name in _COLUMNS}
        order = np.argsort(arrays["exit"], kind="stable")
        ordered = {name: values[order] for name, values in arrays.items()}
        uncertain = ordered.pop("uncertain").astype(bool)
        return OwnCalls(**ordered, uncertain=uncertain)


_COLUMNS = (
    *("enter", "exit", "launch", "last_entry", "late_rank"),
    *("lane", "match", "column", "uncertain"),
)
