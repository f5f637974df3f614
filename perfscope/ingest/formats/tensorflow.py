"""`N.tensorflow.xplane.pb`: threads of the host, streams of devices, and what TensorFlow's names tell.

On the host an operator is an event called `scope/of/the/node:OpType`; it is compute where no other operator
runs inside it, so what only starts a function (`StatefulPartitionedCall`, `While`) is not counted twice.
An operator that runs eagerly is the run of its kernel inside `EagerExecute`, which says its type; one that
XLA compiled (`jit_compile=True`) says its `hlo_op`. Both have no scopes, and so neither layer nor phase.
The node's scopes tell the layer (the model's own scope and `_1`, which TensorFlow appends, taken out) and the
phase: `gradient_tape/...` is backward, the optimizer's name the update, the rest of a step forward.

What the trace does not hold comes from the rank's own files beside it: names of layers (layers.json), of
optimizers, and the bytes of each collective of the graph (rank.json). Without them layers are guessed by the
scopes alone, and bytes are left out.

Times: the profile counts from its start, which `Task Environment` gives as Unix time.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field

from perfscope.errors import TraceError, UnreadableFileError
from perfscope.ingest.collectives import Collective, from_kernel_name
from perfscope.ingest.formats.tensorflow_names import Naming, Op
from perfscope.ingest.formats.trace import FrameworkTrace, Ints
from perfscope.ingest.formats.xplane import XEvent, XLine, XPlane, read_xspace
from perfscope.rundir import layout
from perfscope.rundir.documents import read_document
from perfscope.rundir.records import LayersRecord
from perfscope.rundir.schema import KINDS, PHASES
from perfscope.rundir.typed import Record, read_as

_ENVIRONMENT, _STARTED = "Task Environment", "profile_start_time"
_HOST = "/host:CPU"
_DEVICE = re.compile(r"^/device:(?:GPU|TPU):(\d{1,4})$")
_EPOCH = 10**17  # ns; anything below is no Unix time of ours
_LATEST = 2**62  # ns; what is later is damage
_WAITS = ("IteratorGetNextOp::DoCompute", "IteratorGetNextAsOptionalOp::DoCompute")
_PIPELINE = "Iterator::"
_CAPTURED = "InstantiatedCapturedFunction::"
_COLLECTIVE_KERNEL = "CollectiveOpV2Kernel::Run"
_EAGER_KERNELS = ("KernelAndDeviceFunc::Run", "KernelAndDeviceOp::Run")
_EAGER_OP, _IS_FUNCTION, _HLO_OP = "eager_op", "is_func", "hlo_op"  # stats of events
_UNSCOPED = ((_HLO_OP, "were compiled by XLA (jit_compile)"), (_EAGER_OP, "ran eagerly"))
_MARK = re.compile(re.escape(layout.MARK_STEP) + r"(\d{1,9})$")
_COMPUTE, _INPUT, _HOST_KIND = (KINDS.index(name) for name in ("compute", "input", "host"))
_OTHER = PHASES.index("other")
_COLLECTIVES = {
    "CollectiveReduceV2": "all_reduce", "CollectiveReduceV3": "all_reduce", "CollectiveReduce": "all_reduce",
    "CollectiveGatherV2": "all_gather", "CollectiveGather": "all_gather",
    "CollectiveReduceScatterV2": "reduce_scatter", "CollectiveAllToAllV2": "all_to_all",
    "CollectiveAllToAllV3": "all_to_all", "CollectiveBcastSendV2": "broadcast",
    "CollectiveBcastRecvV2": "broadcast", "CollectiveBcastSend": "broadcast",
    "CollectiveBcastRecv": "broadcast", "NcclAllReduce": "all_reduce",
}  # fmt: skip


def read_tensorflow(path: Path) -> FrameworkTrace:
    """The profile as a trace.

    Raises:
        TraceError: it is no whole XPlane profile, or has no host threads.
    """
    planes = read_xspace(path)
    host = next((plane for plane in planes if plane.name == _HOST), None)
    if host is None:
        raise TraceError(f"{path}: holds no threads of the host ({_HOST})")
    facts = _RankFacts.beside(path)
    reader = _Reader(facts, _started(planes, host))
    for line in host.lines:
        reader.names.learn(event.name for event in line.events)
    reader.host(host)
    for plane in planes:
        device = _DEVICE.match(plane.name)
        if device:
            reader.device(plane, int(device[1]))
    reader.finish()
    return reader.trace


class TensorFlowRank(Record, frozen=True):
    """What the probe of TensorFlow adds to rank.json."""

    optimizers: tuple[str, ...] = ()
    collective_ops: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: tuple[dict[str, Any], ...] = ()
    main_tid: int | None = None


class _RankFacts(Struct, frozen=True):
    """What the probe wrote beside the trace; empty for a file that lies by itself."""

    layers: tuple[str, ...] = ()
    root: str | None = None
    optimizers: tuple[str, ...] = ()
    collectives: dict[str, dict[str, Any]] = {}
    groups: tuple[dict[str, Any], ...] = ()
    main_tid: int | None = None

    @classmethod
    def beside(cls, path: Path) -> _RankFacts:
        folder = path.parent.parent
        rank = read_as(TensorFlowRank, _document(folder / layout.RANK_JSON))
        model = read_as(LayersRecord, _document(folder / layout.LAYERS_JSON))
        return cls(
            layers=tuple(row.layer for row in model.layers if row.layer),
            root=model.root,
            optimizers=rank.optimizers,
            collectives=rank.collective_ops,
            groups=rank.groups,
            main_tid=rank.main_tid,
        )


def _document(path: Path) -> dict[str, Any]:
    try:
        return read_document(path)
    except (OSError, UnreadableFileError):
        return {}


def _started(planes: list[XPlane], host: XPlane) -> int:
    """What to add to the lines' times to get Unix time, ns; -1: nothing says."""
    if any(line.timestamp_ns > _EPOCH for line in host.lines):
        return 0
    recorded = next((plane.stats.get(_STARTED) for plane in planes if plane.name == _ENVIRONMENT), None)
    return recorded if isinstance(recorded, int) and recorded > _EPOCH else -1


class _Reader:
    """Fills a trace from planes."""

    def __init__(self, facts: _RankFacts, offset: int) -> None:
        self.trace = FrameworkTrace()
        self.names = Naming(facts.layers, facts.root, facts.optimizers)
        self._facts = facts
        self._offset = max(0, offset)
        if offset < 0:
            self.trace.notes.append("the profile does not say when it began: its times stand by themselves")
        self._main = -1
        self._executor_spans: list[tuple[int, int]] = []
        self._waits: list[tuple[int, int]] = []  # in tf.data, of other threads than the main one
        self._group = next(iter(facts.groups), {})
        self._num_unsized = 0
        self._num_unscoped: Counter[str] = Counter()  # by what tells them; "": of those in a layer
        self._entered: dict[str, list[int]] = {}  # collective -> when its kernel was started, in order

    def _when(self, line: XLine, event: XEvent) -> tuple[int, int] | None:
        """(start, duration) in ns; None, and counted, where a damaged file has no such time."""
        start, dur = self._offset + line.start_ns(event), max(0, event.duration_ps) // 1000
        if 0 <= start < _LATEST and dur < _LATEST:
            return start, dur
        self.trace.num_dropped += 1
        return None

    # -- the host -------------------------------------------------------------------------------------

    def host(self, plane: XPlane) -> None:
        main = _main_line(plane.lines)
        self._note_entries(plane.lines)
        workers = executors = backends = 0
        for line in plane.lines:
            self.trace.num_read += len(line.events)
            if line is main:
                main_tid = self._facts.main_tid
                self._main = self.trace.lane(
                    _short(line.id) if main_tid is None else main_tid, "main", "main thread"
                )
                self._line(line, self._main, is_main=True)
                continue
            if not _is_of_use(line):
                continue
            if _only_communicates(line):
                backends += 1
                lane = self.trace.lane(_short(line.id), "backend", f"communication thread {backends}")
            elif _runs_operators(line):
                executors += 1
                lane = self.trace.lane(_short(line.id), "executor", f"executor thread {executors}")
            else:
                workers += 1
                lane = self.trace.lane(_short(line.id), "worker", f"tf.data thread {workers}")
            self._line(line, lane, is_main=False)

    def _note_entries(self, lines: list[XLine]) -> None:
        """A collective's own event begins when the ranks have agreed on its group; the call began before."""
        for line in lines:
            for event in line.events:
                node = event.stats.get("name")
                if event.name == _COLLECTIVE_KERNEL and isinstance(node, str):
                    self._entered.setdefault(node, []).append(self._offset + line.start_ns(event))
        for starts in self._entered.values():
            starts.sort()

    def _line(self, line: XLine, lane: int, *, is_main: bool) -> None:
        rows: list[tuple[int, int, int, int, str | None, str]] = []
        for event, has_inner, in_pipeline, eager in _nested(line.events):
            when = self._when(line, event)
            if when is None:
                continue
            start, dur = when
            mark = _MARK.match(event.name) if is_main else None
            if mark:
                self.trace.steps.append((int(mark[1]), start, start + dur))
                continue
            op = self.names.op(event.name)
            if op is not None:
                self._num_unscoped[""] += op.layer is not None
            else:
                op = self._unscoped(event, eager)
            if op is not None:
                self._operator(lane, start, dur, op, has_inner or in_pipeline, rows)
            elif event.name in _WAITS or event.name.startswith(_PIPELINE):
                rows.append((start, dur, _INPUT, _OTHER, None, event.name))
                if event.name in _WAITS and not is_main:
                    self._waits.append((start, start + dur))
            elif is_main:
                rows.append((start, dur, _HOST_KIND, _OTHER, None, event.name))
        self._extend(lane, rows)

    def _unscoped(self, event: XEvent, eager: str) -> Op | None:
        """An operator that carries no scopes: XLA's, or one that runs eagerly."""
        op_name = event.stats.get(_HLO_OP)
        if isinstance(op_name, str) and op_name:
            self._num_unscoped[_HLO_OP] += 1
            return self.names.unscoped(op_name)
        if eager and event.name in _EAGER_KERNELS:
            self._num_unscoped[_EAGER_OP] += 1
            return self.names.unscoped(eager)
        return None

    def _operator(
        self,
        lane: int,
        start: int,
        dur: int,
        op: Op,
        encloses: bool,
        rows: list[tuple[int, int, int, int, str | None, str]],
    ) -> None:
        collective = _COLLECTIVES.get(op.type)
        if collective is not None:
            self._collective(lane, start, dur, op, collective)
            return
        kind = _HOST_KIND if encloses or op.is_wrapper else _COMPUTE
        if kind == _COMPUTE:
            self._executor_spans.append((start, start + dur))
        rows.append((start, dur, kind, op.phase, op.layer, op.node or op.type))

    def _collective(self, lane: int, start: int, dur: int, op: Op, name: str) -> None:
        starts = self._entered.get(op.node, [])
        at = bisect_right(starts, start)
        if at and starts[at - 1] >= 0:
            start, dur = starts[at - 1], start + dur - starts[at - 1]
        sizes = self._sizes_of(op.node)
        if sizes is None:
            self._num_unsized += 1
        size = sizes.get("bytes") if sizes else None
        ranks = self._group.get("ranks")
        self.trace.add(
            lane,
            start,
            dur,
            "comm",
            op.node or op.type,
            phase=PHASES[op.phase],
            collective=Collective(
                name=name,
                group=str(self._group["name"]) if self._group.get("name") else None,
                group_size=len(ranks) if isinstance(ranks, list) else None,
                in_bytes=size if isinstance(size, int) else None,
                dtype=str(sizes["dtype"]) if sizes and sizes.get("dtype") else None,
            ),
        )

    def _sizes_of(self, node: str) -> dict[str, Any] | None:
        """What the probe saw being put into the graph under this name; functions put a prefix before it."""
        while node:
            recorded = self._facts.collectives.get(node)
            if isinstance(recorded, dict):
                return recorded
            _, _, node = node.partition("/")
        return None

    def _extend(self, lane: int, rows: list[tuple[int, int, int, int, str | None, str]]) -> None:
        if rows:
            start, dur, kind, phase, layer, name = zip(*rows, strict=True)
            self.trace.extend([lane] * len(rows), start, dur, kind, phase, layer, name)

    # -- devices --------------------------------------------------------------------------------------

    def device(self, plane: XPlane, number: int) -> None:
        for line in plane.lines:
            self.trace.num_read += len(line.events)
            if not line.name.startswith("Stream"):
                continue  # lines that were made of the streams: ops, name scopes, steps
            lane = self.trace.lane(line.id, "stream", f"stream {line.id}", device=number)
            for event in line.events:
                when = self._when(line, event)
                if when is None:
                    continue
                start, dur = when
                op_name = event.stats.get("tf_op") or event.stats.get("name")
                op = self.names.op(str(op_name)) if op_name else None
                kind, collective = _kernel(event.name)
                self.trace.add(
                    lane,
                    start,
                    dur,
                    kind,
                    event.name,
                    phase=PHASES[op.phase] if op else "other",
                    layer=op.layer if op else None,
                    collective=collective,
                )

    # -- at the end -----------------------------------------------------------------------------------

    def finish(self) -> None:
        trace = self.trace
        trace.groups = list(self._facts.groups)
        if self._main >= 0 and self._waits:
            # A train function that takes its own batches: the main thread waits inside its call.
            for start, end in _without(self._waits, self._executor_spans):
                trace.add(self._main, start, end - start, "input", "batch taken by the train function")
        if self._num_unsized:
            trace.notes.append(
                f"bytes of {self._num_unsized} collectives are not known: the profile does not hold them, "
                "and the probe did not see them being traced"
            )
        self._note_unscoped()
        if not trace.steps and self._main < 0:
            trace.notes.append("no step was marked in this profile")

    def _note_unscoped(self) -> None:
        for stat, how in _UNSCOPED:
            number = self._num_unscoped[stat]
            if number > self._num_unscoped[""]:  # a training in a graph runs some small ones eagerly
                self.trace.notes.append(
                    f"{number:,} operators {how}: they are of no layer, and forward and backward cannot be "
                    "distinguished"
                )


def _short(identity: int) -> int:
    """A thread's identity, which TensorFlow makes a number of 64 bits, as one that looks like a thread id."""
    return identity & 0x7FFFFFFF


def _main_line(lines: list[XLine]) -> XLine | None:
    """The thread that trains: it has the marks; without any, the thread with most events of Python."""
    for line in lines:
        if any(_MARK.match(event.name) for event in line.events):
            return line
    named = [line for line in lines if line.name.startswith("python")]
    return max(named or lines, key=lambda line: len(line.events), default=None)


def _is_of_use(line: XLine) -> bool:
    return any(
        _is_operator(event) or event.name.startswith(_PIPELINE) or event.name in _WAITS
        for event in line.events
    )


def _only_communicates(line: XLine) -> bool:
    types = {match[2] for event in line.events if (match := Naming.OP.match(event.name))}
    return bool(types) and types <= _COLLECTIVES.keys()


def _runs_operators(line: XLine) -> bool:
    """Operators of the model, not of a function that tf.data maps over its elements."""
    return any(_is_operator(event) and not inside for event, _, inside, _ in _nested(line.events))


def _is_operator(event: XEvent) -> bool:
    return (":" in event.name and Naming.OP.match(event.name) is not None) or bool(event.stats.get(_HLO_OP))


def _nested(events: list[XEvent]) -> Iterator[tuple[XEvent, bool, bool, str]]:
    """(event, whether an operator runs inside it, whether it lies inside a tf.data iterator, the type of the
    single operator that it runs eagerly or "").
    """
    ordered = sorted(events, key=lambda item: (item.offset_ps, -item.duration_ps))
    encloses = [False] * len(ordered)
    inside = [False] * len(ordered)
    eager = [""] * len(ordered)
    stack: list[tuple[int, int, bool]] = []  # end, position, whether in a pipeline
    for at, event in enumerate(ordered):
        while stack and stack[-1][0] <= event.offset_ps:
            stack.pop()
        in_pipeline = bool(stack) and stack[-1][2]
        inside[at] = in_pipeline
        if stack and _is_operator(event):
            for _, outer, _ in stack:
                encloses[outer] = True
        op_name = event.stats.get(_EAGER_OP)
        if isinstance(op_name, str):
            eager[at] = "" if event.stats.get(_IS_FUNCTION) else op_name
        elif stack:
            eager[at] = eager[stack[-1][1]]
        pipeline = in_pipeline or event.name.startswith((_PIPELINE, _CAPTURED)) or event.name in _WAITS
        stack.append((event.offset_ps + max(1, event.duration_ps), at, pipeline))
    return zip(ordered, encloses, inside, eager, strict=True)


def _kernel(name: str) -> tuple[str, Collective | None]:
    """Kind of a device's event, by its name."""
    if name.startswith(("Memcpy", "MemcpyH2D", "MemcpyD2H", "Memset")):
        return "copy", None
    if name.startswith("nccl"):
        return "comm", Collective(name=from_kernel_name(name))
    return "compute", None


def _without(spans: Iterable[tuple[int, int]], taken: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of `spans`, less what `taken` covers."""
    left, cover = _union(spans), _union(taken)
    intervals: list[tuple[int, int]] = []
    for start, end in left.tolist():
        inner = cover[(cover[:, 1] > start) & (cover[:, 0] < end)].clip(start, end)
        edges = np.concatenate([[start], inner.ravel(), [end]]).reshape(-1, 2)
        intervals += [(begin, stop) for begin, stop in edges.tolist() if stop > begin]
    return intervals


def _union(spans: Iterable[tuple[int, int]]) -> Ints:
    array: Ints = np.array(sorted(spans), np.int64).reshape(-1, 2)
    if not len(array):
        return array
    ends = np.maximum.accumulate(array[:, 1])
    first = np.concatenate([[True], array[1:, 0] > ends[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([array[first, 0], ends[last]], axis=1)
