"""Which process group a CPU backend's spans are on, where neither they nor their operators name it.

The probe runs calls of torch.distributed inside marks that name the group (`perfscope.group:<name>`). A send
or receive begins inside its mark, on the same thread. A collective is queued and runs later on a thread of
gloo's; each group has threads of its own, so what is to be found is the group of each such thread:

Operators queue, spans start. Of the operators of a kind and size (all_reduce of 1000 elements, say) that are
queued and not yet seen to start, one must be the span's that starts next. Are these all on one group, the
thread is that group's. Are they on several, the thread belongs to one of them; what all its spans have in
common remains. A thread whose spans contradict each other gets no group: nothing is guessed.

Operators without a mark come from C++ (functional collectives, say) and may be on any group. Only an
all-reduce that begins while a parameter's gradient is accumulated is known to be DistributedDataParallel's,
and its group is, where the trace names one group of reducers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.ingest.classify import ACCUMULATE, DeviceClass, HostClass
from perfscope.ingest.collectives import Collective, canonical
from perfscope.ingest.queued_calls import Call, CallEvent, match_queued
from perfscope.ingest.spill import Rows
from perfscope.ingest.string_table import Lanes
from perfscope.rundir import layout
from perfscope.vocabulary.communication import UNKNOWN_GROUP

_CALL_CODES = (
    HostClass.COMM,
    HostClass.COLLECTIVE_OP,
    HostClass.GROUP,
    HostClass.SOURCE,
    HostClass.FUNCTIONAL,
)
_BACKEND = "gloo:"  # the one that is known to give each group its own threads
_SEEN_AS = {"reduce_scatter": "all_reduce"}  # gloo adds up, and each rank takes its part
_ONE_SPAN = frozenset(
    {"allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "allgather_", "_allgather_base_"}
    | {"allgather_coalesced_", "gather_", "scatter_", "alltoall_", "alltoall_base_", "barrier"}
    | {"_reduce_scatter_base_", "allgather_into_tensor_coalesced_", "reduce_scatter_tensor_coalesced_"}
)
_SPAN_PER_RANK = "reduce_scatter_"
_OF_REDUCERS = "c10d::allreduce_"
_ANYBODY = "recv_any_source_"


class CallGroups(Struct):
    """What the calls of a file tell together.

    Attributes:
        of_lane: lane -> group of every backend span on it.
        sources: receive from any source -> sender's rank within the group.
        queued_by: backend span -> the operator that queued it.
    """

    of_lane: dict[int, str] = {}
    sources: dict[Call, int] = {}
    queued_by: dict[Call, Call] = {}


def is_call(code: int, text: str) -> bool:
    """Whether `find_groups` needs host rows of this class and name."""
    return code in _CALL_CODES or (code == HostClass.WRAPPER and text.endswith(ACCUMULATE))


def find_groups(
    calls: Rows,
    codes: npt.NDArray[np.int64],
    texts: Sequence[str],
    collectives: Sequence[Collective],
    sizes: Mapping[str, int | None],
    reducers: Sequence[str] = (),
) -> CallGroups:
    """Groups of backend threads and senders of receives from any source.

    Args:
        calls: HOST rows for which `is_call` holds, in any order.
        codes: class of each row.
        texts: host words.
        collectives: what `detail` points to.
        sizes: group -> number of ranks.
        reducers: groups of DistributedDataParallel's reducers.
    """
    order = np.argsort(calls["start"], kind="stable")
    calls, codes = calls[order], codes[order]
    is_marked = bool(reducers) or bool(np.isin(codes, (HostClass.GROUP, HostClass.SOURCE)).any())
    if not is_marked and not (codes == HostClass.COMM).any():
        return CallGroups()
    calls_of = _Calls(texts, collectives, sizes, reducers[0] if len(reducers) == 1 else None)
    columns = (calls[name].tolist() for name in ("start", "dur", "name", "detail", "lane"))
    for start, dur, name, detail, lane, code in zip(*columns, codes.tolist(), strict=True):
        calls_of.add(code, texts[name], lane, start, start + dur, detail)
    kinds = [part for events in calls_of.events.values() for part in _by_size(events)]
    of_lane = _lanes(kinds) if is_marked else {}
    return CallGroups(of_lane, calls_of.sources, match_queued(kinds, of_lane))


def stream_groups(lanes: Lanes, device_codes: npt.NDArray[np.int64]) -> dict[int, str]:
    """Lane -> process group, of streams that only communicate, in a file that names no group.

    torch gives each NCCL communicator a stream of its own.

    Args:
        lanes: of the file.
        device_codes: shape (lanes, classes of device spans), rows of each.
    """
    work = device_codes[:, [code for code in DeviceClass if code != DeviceClass.ANNOTATION]].sum(axis=1)
    is_own = (work > 0) & (device_codes[:, DeviceClass.COMM] == work)
    return {
        lane: f"{UNKNOWN_GROUP} (stream {lanes.keys[lane][1]})" for lane in np.flatnonzero(is_own).tolist()
    }


class _Thread(Struct):
    """Where a thread's calls have got to."""

    mark: tuple[int, str | None] = (-1, None)  # end and group of the last mark
    operator: tuple[int, str] = (-1, "")  # end and name of the last operator
    accumulating: int = -1  # end of the last accumulation of a gradient
    functional: int = -1  # end of the last functional collective
    any_source: list[int] = []  # receives whose source is not yet known


class _Calls:
    """Sorts calls, in order of start, into what was queued and what was started.

    Attributes:
        events: by kind of collective.
        sources: see `CallGroups`.
    """

    def __init__(
        self,
        texts: Sequence[str],
        collectives: Sequence[Collective],
        sizes: Mapping[str, int | None],
        reducer: str | None,
    ) -> None:
        self.events: dict[str, list[CallEvent]] = defaultdict(list)
        self.sources: dict[Call, int] = {}
        self._collectives = collectives
        self._sizes = sizes
        self._reducer = reducer
        self._threads: dict[int, _Thread] = defaultdict(_Thread)

    def add(self, code: int, text: str, lane: int, start: int, end: int, detail: int) -> None:
        """The next call."""
        thread = self._threads[lane]
        if code == HostClass.GROUP:
            thread.mark = (end, self._collectives[detail].group)
        elif code == HostClass.SOURCE:
            rank_text = text[len(layout.MARK_SOURCE) :]
            if len(thread.any_source) == 1 and rank_text.isdigit():  # of several it could be any
                self.sources[lane, thread.any_source[0]] = int(rank_text)
            thread.any_source.clear()
        elif code == HostClass.FUNCTIONAL:
            thread.functional = end
        elif code == HostClass.WRAPPER:
            thread.accumulating = end
        elif code == HostClass.COLLECTIVE_OP:
            thread.operator = (end, text)
            group = self._group_of(thread, text, start)
            self._queue(text, (lane, start), group, self._collectives[detail].elements)
        elif text.startswith(_BACKEND):
            self._start(thread, text, lane, start, self._collectives[detail].elements)

    def _group_of(self, thread: _Thread, text: str, start: int) -> str | None:
        """Of an operator that starts now."""
        if start < thread.mark[0]:
            return thread.mark[1]
        by_reducer = text == _OF_REDUCERS and start < thread.accumulating and start >= thread.functional
        return self._reducer if by_reducer else None

    def _start(self, thread: _Thread, text: str, lane: int, start: int, elements: int | None) -> None:
        if start >= thread.operator[0]:
            kind = canonical(text) or text
            self.events[kind].append(CallEvent(True, kind, lane, start, None, 1, elements))
        elif thread.operator[1].endswith(_ANYBODY):
            thread.any_source.append(start)

    def _queue(self, text: str, call: Call, group: str | None, elements: int | None) -> None:
        operator = text.rpartition(":")[2]
        kind = canonical(text) or text
        if kind in ("send", "recv") or operator == "monitored_barrier_":
            return  # on the caller's own thread
        number: int | None = None
        if operator in _ONE_SPAN:
            number = 1
        elif operator == _SPAN_PER_RANK and group is not None:
            number = self._sizes.get(group)
        kind = _SEEN_AS.get(kind, kind)
        self.events[kind].append(CallEvent(False, kind, *call, group, number, elements))


def _by_size(events: list[CallEvent]) -> list[list[CallEvent]]:
    """Events of one kind by number of elements, where each has one; else as they are."""
    if any(event.num_spans != 1 or event.elements is None for event in events):
        return [events]
    parts: dict[int | None, list[CallEvent]] = defaultdict(list)
    for event in events:
        parts[event.elements].append(event)
    return list(parts.values())


def _lanes(kinds: Sequence[Sequence[CallEvent]]) -> dict[int, str]:
    """The group of each lane for which all its spans leave exactly one."""
    possible: dict[int, set[str]] = {}
    while True:
        before = {lane: len(groups) for lane, groups in possible.items()}
        for events in kinds:
            _narrow(events, possible)
        if before == {lane: len(groups) for lane, groups in possible.items()}:
            return {lane: next(iter(groups)) for lane, groups in possible.items() if len(groups) == 1}


def _narrow(events: Sequence[CallEvent], possible: dict[int, set[str]]) -> None:
    """Follow one kind of collective: each span leaves its lane the groups that had one queued."""
    waiting: dict[str | None, float] = defaultdict(
        float
    )  # group -> queued, not seen to start; None: without a mark
    doubtful = 0  # started, but of which group is open: `waiting` holds that many too many
    for event in events:
        if not event.is_span:
            waiting[event.group] += inf if event.num_spans is None else event.num_spans
            continue
        lane = event.lane
        open_groups = {group for group, left in waiting.items() if left > 0}
        if not open_groups:
            continue  # its operator is not in the file
        open_known = {group for group in open_groups if group is not None}
        if None not in open_groups:
            possible[lane] = possible.get(lane, open_known) & open_known
        candidates = possible.get(lane, open_known)
        only = next(iter(candidates)) if len(candidates) == 1 else None
        if len(open_groups) == 1:
            waiting[next(iter(open_groups))] -= 1
        elif only is not None and only in open_known and None not in open_groups:
            waiting[only] -= 1
        else:
            doubtful += 1
        if sum(waiting.values()) <= doubtful:
            waiting.clear()
            doubtful = 0
