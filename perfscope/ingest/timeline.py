"""Slices of rows into slices of the timeline table: nesting, phases, layers, launches, costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.ingest.classify import FIRST_SCOPE, DeviceClass, HostClass
from perfscope.ingest.collect import EventCollector
from perfscope.ingest.device_steps import DeviceSteps
from perfscope.ingest.launches import Launches
from perfscope.ingest.launching_operators import NO_OPERATOR, LaunchingOperators
from perfscope.ingest.queued_calls import Call
from perfscope.ingest.scopes import NO_LAYER, SCOPES, Scopes, complete_wrappers
from perfscope.ingest.spill import DEVICE, Rows
from perfscope.ingest.steps import OUTSIDE, Steps
from perfscope.rundir.schema import KINDS

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
COMPUTE, COMM, COPY, INPUT, OPTIMIZER, HOST, ANNOTATION, RUNTIME, PYTHON, WAIT = range(len(KINDS))
# A device clock mapped onto the host's may put a kernel a little before its own launch.
_CLOCK_SLACK_NS = 2_000_000
ABSENT = int(np.iinfo(np.int64).max)
_SUBCLASS = "PythonSubclass"  # around what a subclass of torch.Tensor makes of an operator
_NO_ROW_CODES = (HostClass.WRAPPER, HostClass.COMM_PARAMETERS, HostClass.GROUP, HostClass.SOURCE)


class TimelineTable(Struct):
    """Finished rows, as arrays of one length. -1 is null unless said otherwise."""

    lane: Small  # number in `Lanes`
    start: Ints
    dur: Ints
    step: Small
    depth: Small
    kind: Small
    phase: Small
    layer: Small
    word: Small  # number of the text: host words, then device words, then layers
    correlation: Ints
    launch: Ints  # ABSENT: the launch is not in the file
    launch_dur: Ints  # 0 where the launch is not in the file
    launch_call: Small  # word of the call
    operator: Small  # word of the operator that launched it
    launch_step: Small
    cost: Small
    moved: Ints  # bytes of a copy
    config: Small  # how a kernel was launched
    collective: Small  # of kind COMM only

    def __len__(self) -> int:
        return len(self.start)


class TimelineBuilder:
    """Turns the merged slices of a `Spill` into tables, carrying over what is still open.

    Args:
        collector: closed; its tables of words, lanes and facts are complete.
        scopes: fresh.
        main: number of the main thread's lane.
        use_modules: layers come from nn.Module frames.
        lacks_device: the host only launches work, although the file has none of the device's.
        queued_by: span of a CPU backend -> the operator that queued it, whose layer and phase it gets.
    """

    def __init__(
        self,
        collector: EventCollector,
        scopes: Scopes,
        steps: Steps,
        *,
        main: int | None,
        use_modules: bool,
        lacks_device: bool,
        queued_by: Mapping[Call, Call],
    ) -> None:
        facts = collector.facts
        self._queued_by = queued_by
        self._queueing = frozenset(queued_by.values())
        self._queued_in: dict[Call, tuple[int, int]] = {}  # operator -> its phase and layer
        self._scopes = scopes
        self._costs = collector.costs
        self._main = main
        self._steps = steps
        self._host_codes = np.array(collector.host_words.codes, np.int64)
        self._device_codes = np.array(collector.device_words.codes, np.int64)
        self._is_dispatch = np.array([text == _SUBCLASS for text in collector.host_words.texts], np.bool_)
        self._launches = Launches()
        self._launching = LaunchingOperators()
        self._device_carry = np.zeros(0, DEVICE)
        self._open_ends: dict[int, Ints] = {}
        self._operator_ends: dict[tuple[int, bool], int] = {}
        self._kinds = _kinds_of_codes(
            facts.num_device > 0 or lacks_device, bool(facts.host_codes[:, HostClass.COMM].any())
        )
        self._is_scope = np.array([code in SCOPES for code in HostClass])
        self._has_row = np.array([code not in _NO_ROW_CODES for code in HostClass])
        self._has_row[HostClass.MODULE] = use_modules
        self._has_row[HostClass.WRAPPER] = facts.num_device > 0  # what the host is in while a device idles
        self.num_cut = 0  # device rows launched before the first step, or before the file begins
        self._can_be_cut = facts.num_launches > 0
        self._first_device_word = len(self._host_codes)
        self._first_layer_word = self._first_device_word + len(self._device_codes)
        self.device_rows = np.zeros(len(collector.lanes.keys), np.int64)  # per lane
        self.comm_rows = np.zeros(len(collector.lanes.keys), np.int64)  # per lane, of these
        self.device_steps = DeviceSteps(steps)
        self.unknown_rows = np.zeros(len(self._device_codes), np.int64)  # per device word

    def tables(self, until: int, host: Rows, launches: Rows, device: Rows) -> list[TimelineTable]:
        """The table rows of one slice: host threads, then devices, each by start within its lane."""
        host_table, operators, contexts = self._host_slice(until, host, launches)
        self._launches.add(launches, self._steps.of(launches["start"]), operators, contexts)
        if len(self._device_carry):
            device = np.concatenate([self._device_carry, device])
        if until != ABSENT:
            until -= _CLOCK_SLACK_NS
        ready = int(np.searchsorted(device["start"], until, side="right"))
        self._device_carry = device[ready:]
        return [host_table, self._device_slice(device[:ready], until)]

    # Host threads

    def _host_slice(self, until: int, rows: Rows, launches: Rows) -> tuple[TimelineTable, Ints, Small]:
        codes = self._host_codes[rows["name"]] if len(rows) else np.zeros(0, np.int64)
        context = np.zeros((len(rows), 3), np.int32)
        launch_context = np.zeros((len(launches), 3), np.int32)
        operators = np.full(len(launches), NO_OPERATOR, np.int64)
        kept = np.zeros(len(rows), np.bool_)
        costed = np.zeros(len(rows), np.bool_)
        depth = np.zeros(len(rows), np.int32)
        communicates = np.zeros(len(rows), np.bool_)
        # The main thread first: there the names of modules are learned that other threads run again.
        lanes = _present(rows["lane"], launches["lane"])
        for lane in sorted(lanes, key=lambda lane: lane != self._main):
            here = np.flatnonzero(rows["lane"] == lane)
            calls = np.flatnonzero(launches["lane"] == lane)
            mine, mine_codes = rows[here], codes[here]
            context[here], launch_context[calls] = self._contexts(
                lane, mine, mine_codes, launches["start"][calls], until
            )
            operators[calls] = self._launching.at(lane, mine, mine_codes, launches["start"][calls], until)
            communicates[here] = _that_communicate(mine, mine_codes)
            kept[here], costed[here] = self._outermost(lane, mine, mine_codes, communicates[here])
            chosen = here[kept[here] & (mine_codes != HostClass.FRAME)]  # frames enclose all others
            depth[chosen] = self._depth(lane, rows["start"][chosen], rows["dur"][chosen], until)
        context[:, 1] = self._scopes.resolve(context[:, 1])
        launch_context[:, 1] = self._scopes.resolve(launch_context[:, 1])
        self._scopes.end_slice()
        kinds = np.where(communicates, np.int32(HOST), self._kinds[codes])[kept]
        launch = self._take_queued(rows, codes, context)
        table = self._host_table(
            rows[kept], codes[kept], kinds, context[kept], costed[kept], depth[kept], launch[kept]
        )
        return table, operators, launch_context

    def _take_queued(self, rows: Rows, codes: Ints, context: Small) -> Ints:
        """Gives spans of a CPU backend the phase and layer of the operators that queued them.

        Returns:
            When each row was queued, shape (n,); ABSENT where it was not, or where that is not known.
        """
        launch = np.full(len(rows), ABSENT)
        if not self._queued_by:
            return launch
        for row, call in _calls_of(rows, codes == HostClass.COLLECTIVE_OP):
            if call in self._queueing:
                self._queued_in[call] = (int(context[row, 0]), int(context[row, 1]))
        for row, call in _calls_of(rows, codes == HostClass.COMM):
            operator = self._queued_by.get(call)
            if operator is not None and operator in self._queued_in:
                context[row, :2] = self._queued_in[operator]
                launch[row] = min(operator[1], call[1])
        return launch

    def _contexts(self, lane: int, rows: Rows, codes: Ints, calls: Ints, until: int) -> tuple[Small, Small]:
        """(phase, layer, collective) inside each row and at each launch of one thread."""
        rows, bare = complete_wrappers(rows, codes)
        is_scope = self._is_scope[codes] | bare
        changes, inside = self._scopes.walk(lane, rows[is_scope], until)
        # One look-up for all moments: rows first, then launches.
        contexts = changes.at(np.concatenate([rows["start"], calls]))
        context = contexts[: len(rows)]
        context[is_scope] = inside
        forward = ~is_scope & (rows["sequence"] >= 0) & (rows["forward_thread"] <= 0)
        forward &= context[:, 1] >= NO_LAYER
        if forward.any():
            self._scopes.remember(lane, context[forward, 0], rows["sequence"][forward], context[forward, 1])
        return context, contexts[len(rows) :]

    def _outermost(
        self, lane: int, rows: Rows, codes: Ints, communicates: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which rows are kept, and which of them carry a cost.

        Of operators that do not communicate the outermost is kept, and inside it the outermost with a known
        cost. An operator on a tensor subclass has the shapes of the global tensor: the operators that the
        subclass runs (DTensor: on this rank's part) carry the cost. What torch.func transforms hides the
        dimensions that are mapped over, and its innermost operators carry the cost.
        """
        starts, ends = rows["start"], rows["start"] + rows["dur"]
        operator = (codes == HostClass.OPERATOR) & ~communicates
        is_costed = operator & (rows["detail"] >= 0) & ~_are_around(rows, self._is_dispatch[rows["name"]])
        nested = starts < self._enclosing_end(lane, False, operator, ends)
        nested_known = starts < self._enclosing_end(lane, True, is_costed, ends)
        costed = self._innermost_of_transforms(rows, is_costed, is_costed & ~nested_known)
        kept = self._has_row[codes] & ((codes >= FIRST_SCOPE) | ~nested | costed)
        return kept, costed | ((codes == HostClass.NODE) & (rows["detail"] >= 0))

    def _innermost_of_transforms(
        self, rows: Rows, is_costed: npt.NDArray[np.bool_], costed: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """`costed`, moved to the innermost known operators where these do more than the outermost says.

        Under torch.func each transform runs an operator again by its name: the outermost has the shapes of
        one slice, the innermost those of all.
        """
        starts, ends = rows["start"], rows["start"] + rows["dur"]
        again = np.zeros(len(rows), np.bool_)
        again[1:] = (
            (rows["name"][1:] == rows["name"][:-1])
            & (starts[1:] < ends[:-1])
            & is_costed[1:]
            & is_costed[:-1]
        )
        if not again.any():
            return costed
        flops = np.array([cost.flops for cost in self._costs])
        outer = np.flatnonzero(costed)
        inside = np.flatnonzero(is_costed)
        region = np.searchsorted(outer, inside, side="right") - 1
        within = (region >= 0) & (starts[inside] < ends[outer][region])
        following = np.append(starts[inside][1:], np.iinfo(np.int64).max)
        is_leaf = within & (following >= ends[inside])
        work = np.bincount(region[is_leaf], flops[rows["detail"][inside[is_leaf]]], len(outer))
        transformed = np.bincount(region[within & again[inside]], minlength=len(outer)) > 0
        moved = transformed & (work > flops[rows["detail"][outer]])
        costed = costed.copy()
        costed[outer[moved]] = False
        costed[inside[is_leaf & moved[region]]] = True
        return costed

    def _enclosing_end(self, lane: int, is_costed: bool, chosen: npt.NDArray[np.bool_], ends: Ints) -> Ints:
        """For each row the latest end of the chosen rows that started before it."""
        latest = np.empty(len(ends) + 1, np.int64)
        latest[0] = self._operator_ends.get((lane, is_costed), -ABSENT)
        latest[1:] = np.where(chosen, ends, -ABSENT)
        np.maximum.accumulate(latest, out=latest)
        self._operator_ends[lane, is_costed] = int(latest[-1])
        return latest[:-1]

    def _depth(self, lane: int, starts: Ints, durs: Ints, until: int) -> Ints:
        """Number of spans of the lane that are open when each starts; rows in order of start."""
        before = self._open_ends.get(lane, np.zeros(0, np.int64))
        ends = np.concatenate([before, starts + np.maximum(durs, 1)])
        ends.sort()
        closed = np.searchsorted(ends, starts, side="right")
        self._open_ends[lane] = ends[np.searchsorted(ends, until, side="right") :]
        return len(before) + np.arange(len(starts)) - closed

    def _host_table(
        self,
        rows: Rows,
        codes: Ints,
        kinds: Small,
        context: Small,
        costed: npt.NDArray[np.bool_],
        depth: Small,
        launch: Ints,
    ) -> TimelineTable:
        nothing, none = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int32)
        return TimelineTable(
            lane=rows["lane"],
            start=rows["start"],
            dur=rows["dur"],
            step=self._steps.of(rows["start"]),
            depth=depth,
            kind=kinds,
            phase=context[:, 0],
            layer=context[:, 1],
            word=np.where(codes == HostClass.MODULE, self._first_layer_word + context[:, 1], rows["name"]),
            correlation=nothing,
            launch=launch,
            launch_dur=np.zeros(len(rows), np.int64),
            launch_call=none,
            operator=none,
            launch_step=np.full(len(rows), OUTSIDE, np.int32),
            cost=np.where(costed, rows["detail"], np.int32(-1)),
            moved=nothing,
            config=none,
            collective=np.where(kinds == COMM, context[:, 2], np.int32(-1)),
        )

    # Devices

    def _device_slice(self, rows: Rows, until: int) -> TimelineTable:
        codes = self._device_codes[rows["name"]] if len(rows) else np.zeros(0, np.int64)
        launches = self._launches.find(rows["correlation"])
        is_work = codes != DeviceClass.ANNOTATION
        launched = launches.is_known & is_work
        launch = np.where(launched, launches.start, ABSENT)
        if self._can_be_cut:
            early = ~launched | (launch < self._steps.first_ns)
            self.num_cut += int(np.count_nonzero(early & is_work))
        self._count_device(rows, codes)
        kinds = _DEVICE_KINDS[codes]
        self.device_steps.add(
            rows["start"][launched],
            (rows["start"] + rows["dur"])[launched],
            kinds[launched],
            launches.start[launched],
            launches.end[launched],
        )
        depth = np.zeros(len(rows), np.int32)
        for lane in _present(rows["lane"]):
            here = np.flatnonzero(rows["lane"] == lane)
            depth[here] = self._depth(lane, rows["start"][here], rows["dur"][here], until)
        collective = np.full(len(rows), -1, np.int32)
        for row in np.flatnonzero(kinds == COMM).tolist():
            collective[row] = self._scopes.merge(int(rows["detail"][row]), int(launches.collective[row]))
        return TimelineTable(
            lane=rows["lane"],
            start=rows["start"],
            dur=rows["dur"],
            step=self._steps.of(rows["start"]),
            depth=depth,
            kind=kinds,
            phase=launches.phase.astype(np.int32),
            layer=launches.layer.astype(np.int32),
            word=rows["name"] + np.int32(self._first_device_word),
            correlation=np.where(is_work & (rows["correlation"] > 0), rows["correlation"], -1),
            launch=launch,
            launch_dur=np.where(launched, launches.end - launches.start, 0),
            launch_call=np.where(launched, launches.call, -1).astype(np.int32),
            operator=np.where(launched, launches.operator, -1).astype(np.int32),
            launch_step=np.where(launched, launches.step, OUTSIDE).astype(np.int32),
            cost=np.full(len(rows), -1, np.int32),
            moved=np.where(kinds == COPY, rows["bytes"], -1),
            config=rows["config"],
            collective=collective,
        )

    def _count_device(self, rows: Rows, codes: Ints) -> None:
        self.device_rows += np.bincount(rows["lane"], minlength=len(self.device_rows))
        self.comm_rows += np.bincount(rows["lane"][codes == DeviceClass.COMM], minlength=len(self.comm_rows))
        unknown = rows["name"][codes == DeviceClass.UNKNOWN]
        self.unknown_rows += np.bincount(unknown, minlength=len(self.unknown_rows))


_DEVICE_KINDS = np.empty(len(DeviceClass), np.int32)
for _device_class, _kind in (
    (DeviceClass.COMPUTE, COMPUTE),
    (DeviceClass.COMM, COMM),
    (DeviceClass.COPY, COPY),
    (DeviceClass.ANNOTATION, ANNOTATION),
    (DeviceClass.UNKNOWN, COMPUTE),
):
    _DEVICE_KINDS[_device_class] = _kind


def _that_communicate(rows: Rows, codes: Ints) -> npt.NDArray[np.bool_]:
    """Regions and operators of one thread that call a collective, or wait for one.

    Their own time is waiting, the operators inside compute. Operators on a DTensor do so whose input is not
    there yet, or that reduce over the mesh.
    """
    calls = np.isin(codes, (HostClass.COLLECTIVE_OP, HostClass.FUNCTIONAL))
    return np.isin(codes, (HostClass.REGION, HostClass.OPERATOR)) & _are_around(rows, calls)


def _are_around(rows: Rows, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Rows of one thread inside which a chosen row starts.

    Looked up within one slice: a row is not distinguished from others if the chosen one is in the next slice.
    """
    inside = rows["start"][chosen]
    begin = np.searchsorted(inside, rows["start"], side="left")
    end = np.searchsorted(inside, rows["start"] + rows["dur"], side="left")
    result: npt.NDArray[np.bool_] = (end > begin) & ~chosen
    return result


def _calls_of(rows: Rows, chosen: npt.NDArray[np.bool_]) -> Iterator[tuple[int, Call]]:
    """Index, lane and start of the chosen rows."""
    at = np.flatnonzero(chosen)
    columns = (at.tolist(), rows["lane"][at].tolist(), rows["start"][at].tolist())
    yield from ((row, (lane, start)) for row, lane, start in zip(*columns, strict=True))


def _present(*lanes: npt.NDArray[Any]) -> list[int]:
    """The lane numbers that occur, in order."""
    present: list[int] = np.flatnonzero(np.bincount(np.concatenate(lanes))).tolist()
    return present


def _kinds_of_codes(has_device: bool, has_backend: bool) -> Small:
    """Kind of each host class. On a host that feeds a device, operators only launch: kind host."""
    kinds = np.full(len(HostClass), ANNOTATION, np.int32)
    kinds[[HostClass.OPERATOR, HostClass.REGION]] = HOST if has_device else COMPUTE
    kinds[
        [HostClass.NODE, HostClass.LAUNCH_NOTE, HostClass.OTHER, HostClass.WRAPPER, HostClass.COMM_PARAMETERS]
    ] = HOST
    kinds[HostClass.FUNCTIONAL] = HOST
    kinds[[HostClass.OPTIMIZER, HostClass.ZERO_GRAD]] = OPTIMIZER
    kinds[HostClass.INPUT] = INPUT
    kinds[HostClass.RUNTIME] = RUNTIME
    kinds[HostClass.FRAME] = PYTHON
    kinds[HostClass.WAIT] = WAIT
    kinds[HostClass.COMM] = COMM
    kinds[HostClass.COLLECTIVE_OP] = HOST if has_device or has_backend else COMM
    return kinds
