"""Collects every rank's communication calls, one rank and window at a time, as small numpy columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from perfscope.analysis.intervals import Int64, distinct, distinct_pairs
from perfscope.analysis.matching import RankCalls
from perfscope.analysis.spans import COMM, owning_step, spans_of, waited_from, whole_numbers, words
from perfscope.analysis.windows import Windows
from perfscope.vocabulary.communication import DEFAULT_GROUP, UNKNOWN_GROUP

COMM_COLUMNS = (
    *("start_ns", "dur_ns", "device", "step", "launch_step", "kind", "collective", "group", "group_size"),
    *("in_bytes", "out_bytes", "dtype", "peer", "seq", "lane", "launch_ns", "phase"),
)
_NUMBERS = ("start_ns", "dur_ns", "group_size", "in_bytes", "out_bytes", "peer", "seq", "lane")


def is_unknown(group: str) -> bool:
    """Whether the ranks of a process group are not known, because the trace does not name it."""
    return group == UNKNOWN_GROUP or group.startswith(f"{UNKNOWN_GROUP} (")


class GroupKey(NamedTuple):
    """One collective on one process group."""

    collective: str
    group: str
    members: tuple[int, ...]  # () = the trace does not list them


class GroupCalls(Struct, eq=False):
    """All calls of one collective on one group."""

    size: int = 0  # ranks in the group; 0 = unknown
    dtypes: set[str] = set()
    windows: dict[int, list[RankCalls]] = field(default_factory=lambda: defaultdict(list))
    ranks: set[int] = set()

    def merge(self, later: GroupCalls, *, is_unknown: bool) -> None:
        """Takes in the calls of later ranks; `is_unknown`: which ranks the group has."""
        differs = is_unknown and bool(self.ranks) and self.size != later.size  # calls on several groups
        self.size = 0 if differs else max(self.size, later.size)
        self.dtypes |= later.dtypes
        self.ranks |= later.ranks
        for window, calls in later.windows.items():
            self.windows[window] += calls


class CommRecord(Struct, eq=False):
    """Every rank's calls so far."""

    groups: dict[GroupKey, GroupCalls] = field(default_factory=lambda: defaultdict(GroupCalls))
    listed: dict[str, tuple[int, ...]] = {}  # process group -> ranks
    num_nameless: int = 0  # communication spans of which the trace does not say what they are

    def add(self, windows: Windows) -> None:
        """Takes in the communication of windows; the table has COMM_COLUMNS of schema.TIMELINE."""
        table, line = windows.table, windows.line
        for part in windows.parts:
            self.listed.update(part.members)
        spans = spans_of(table)
        is_comm = spans.kind == COMM
        if (is_comm & (spans.device >= 0)).any():
            is_comm &= spans.device >= 0  # the host side of a device collective is the same call again
        window = windows.window_of_row[is_comm]
        (collective, collectives), (group, names), (dtype, dtypes) = (
            words(table, column) for column in ("collective", "group", "dtype")
        )
        collective, group, dtype = collective[is_comm], group[is_comm], dtype[is_comm]
        self.num_nameless += int((collective < 0).sum())
        numbers = {name: whole_numbers(table, name)[is_comm] for name in _NUMBERS}
        launch, shift = whole_numbers(table, "launch_ns")[is_comm], line.shift[window]
        numbers |= {"start_ns": numbers["start_ns"] - shift, "waited": waited_from(spans)[is_comm] - shift}
        numbers |= {"launch": np.where(launch >= 0, launch - shift, launch)}
        numbers |= {"step": windows.own_steps(owning_step(table, is_comm), window)}
        numbers |= {"lane": windows.own_lanes(numbers["lane"])}
        kinds, kind_of = distinct_pairs(collective, group)
        cells, cell_of = distinct_pairs(window, kind_of)
        order = np.lexsort((numbers["start_ns"], numbers["seq"], cell_of))
        numbers = {column: values[order] for column, values in numbers.items()}
        ends = np.cumsum(np.bincount(cell_of, minlength=len(cells))).tolist()
        for (index, kind), begin, end in zip(cells.tolist(), (0, *ends), ends, strict=False):
            which, name = kinds[kind].tolist()
            if which < 0:
                continue
            facts, members = windows.parts[index].facts, windows.parts[index].members
            group_name = names[name] if name >= 0 else DEFAULT_GROUP
            key = GroupKey(collectives[which], group_name, members.get(group_name, ()))
            column = {column: values[begin:end] for column, values in numbers.items()}
            sizes = distinct(column["group_size"]).tolist()
            is_open = is_unknown(group_name) and len(sizes) > 1  # calls on several groups
            size = 0 if is_open else max(*sizes, len(key.members), 0)
            of_dtypes = {dtypes[code] for code in dtype[order[begin:end]].tolist() if code >= 0}
            entry = GroupCalls(size=size, dtypes=of_dtypes, ranks={facts.rank})
            entry.windows[facts.window].append(_calls(facts.rank, key.collective, column, size))
            self.groups[key].merge(entry, is_unknown=is_unknown(group_name))

    def merge(self, later: CommRecord) -> None:
        """Takes in the calls of later ranks."""
        self.listed.update(later.listed)
        self.num_nameless += later.num_nameless
        for key, calls in later.groups.items():
            self.groups[key].merge(calls, is_unknown=is_unknown(key.group))


def _calls(rank: int, collective: str, column: Mapping[str, Int64], group_size: int) -> RankCalls:
    return RankCalls(
        rank=rank,
        # A message may be sent from the call on, but who receives it is there only when it waits for it.
        enter=column["waited" if collective == "recv" else "start_ns"],
        exit=column["start_ns"] + column["dur_ns"],
        step=column["step"],
        seq=column["seq"],
        size=payload(collective, column["in_bytes"], column["out_bytes"], group_size),
        peer=column["peer"],
        launch=column["launch"],
        lane=column["lane"],
    )


def payload(collective: str, in_bytes: Int64, out_bytes: Int64, num_ranks: int) -> Int64:
    """S of METRICS §2 for each call, bytes; -1 where the trace has no size. Shape (calls,)."""
    whole_in = np.where(in_bytes >= 0, in_bytes * max(num_ranks, 1), -1)
    whole_out = np.where(out_bytes >= 0, out_bytes * max(num_ranks, 1), -1)
    # first choice, and its substitute where the trace has only the other side
    choices = {
        "all_reduce": (in_bytes, out_bytes),
        "reduce_scatter": (in_bytes, whole_out),
        "all_to_all": (in_bytes, out_bytes),
        "all_gather": (out_bytes, whole_in),
        "gather": (whole_in, out_bytes),
        "scatter": (whole_out, in_bytes),
    }
    if collective == "barrier":
        return np.full(in_bytes.shape, -1, dtype=np.int64)
    first, second = choices.get(collective, (np.maximum(in_bytes, out_bytes), out_bytes))
    result: Int64 = np.where(first >= 0, first, np.maximum(second, -1))
    return result
