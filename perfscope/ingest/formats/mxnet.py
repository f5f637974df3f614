"""`N.mxnet.json`, the trace of MXNet's profiler: Chrome's JSON, operator types without layers.

What is particular about it: - An operator is a `B` and an `E` record, one after the other, on the thread
that completed it, and once more as an asynchronous `b` and `e`, which is passed over. Times are
microseconds of the Unix epoch. - `pid` is the device, `tid` a hash. A second file of the same process
begins its list with a comma and does not name the devices again. - The probe's marks are tasks of the
domain "perfscope": steps, which thread trains, and the bytes that a step sent and fetched. A message to the
servers is one record per parameter that says neither which nor how large, so that the records of a step
become one row, from the first one's start to the last one's end.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perfscope.errors import TraceError
from perfscope.ingest.collectives import Collective, canonical
from perfscope.ingest.formats.trace import FrameworkTrace
from perfscope.ingest.inflate import read_whole
from perfscope.rundir import layout

_MARKS = "perfscope"  # domain of the probe's tasks
_THREAD, _COMM = "perfscope.thread:", "perfscope.comm:"  # as probes/mxnet/trace.py writes them
_OPERATOR, _CUSTOM = "operator", "Custom Operator"  # categories
_MAX_GPUS = 32  # as MXNet numbers devices: CPUs, then so many GPUs, then pinned and shared memory
_STORE_LANE, _FIRST_LANE = 1 << 40, (1 << 40) + 1  # no thread has such a number
_STORE = "KVStore"  # operators of the distributed store begin with it
_HOROVOD = "horovod_"
_OBJECT = re.compile(rb"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
_UPDATE = re.compile(r"(?:^|_)update(?:_|$)|^signum?_|^signsgd")
# Work of the engine's own: it computes nothing of the model.
_ENGINE = ("Delete", "WaitForVar", "ResourceParallel", "ResourceTemp", "KVStoreWait", "SetupExec")
_BACKWARD = "_backward"
# Makes or fills arrays, for either pass.
_HELPERS = ("SetValueOp", "_zeros", "_ones", "zeros_like", "ones_like", "_full", "_copyto", "Copy")
_NS = 1_000
_MOST_US = 1 << 52  # of a time: more is none, and no column holds its nanoseconds
_MOST_RANKS = 1_000_000
_NUMBER = re.compile(r"[0-9]{1,18}")


class _Record(msgspec.Struct):
    name: str = ""
    cat: str = ""
    ph: str = ""
    ts: Annotated[int, msgspec.Meta(ge=-_MOST_US, le=_MOST_US)] = 0
    pid: int = 0
    tid: int | None = None
    args: dict[str, object] = msgspec.field(default_factory=dict)


class _Span(NamedTuple):
    start: int  # ns
    dur: int
    name: str
    category: str
    device: int  # pid
    thread: int  # tid


class _Marks(Struct):
    """What the probe says in the trace."""

    steps: list[tuple[int, int, int]] = []
    main: tuple[int, int] | None = None  # (hash, thread id)
    num_cpus: int | None = None
    traffic: list[tuple[int, Collective]] = []  # (when, what)
    inputs: list[tuple[int, int]] = []  # waits for a batch


def read_mxnet(path: Path) -> FrameworkTrace:
    """The file as a trace; times are its own.

    Raises:
        TraceError: it cannot be read, or holds no record at all.
    """
    records, num_bad = _records(path)
    devices = _named_devices(records) or _devices_of_first_window(path)
    spans, marks, num_open = _paired(records)
    trace = FrameworkTrace(num_read=len(records) + num_bad, num_dropped=num_bad + num_open)
    trace.steps = sorted(marks.steps, key=lambda step_row: step_row[1])
    _Writer(trace, marks, devices).write(spans)
    if num_bad:
        trace.notes.append(f"{num_bad:,} records of the file could not be read")
    return trace


def _named_devices(records: list[_Record]) -> dict[int, str]:
    return {record.pid: str(record.args.get("name", "")) for record in records if record.ph == "M"}


def _devices_of_first_window(path: Path) -> dict[int, str]:
    """MXNet names its devices in a process's first file only; their numbers depend on how it was built."""
    for suffix in (layout.MXNET, f"{layout.MXNET}.gz"):
        first = path.with_name(f"0{suffix}")
        if first != path and first.is_file():
            try:
                return _named_devices(_records(first)[0])
            except TraceError:
                return {}
    return {}


def _records(path: Path) -> tuple[list[_Record], int]:
    """All records, and how many could not be decoded."""
    data = read_whole(path)
    begin = data.find(b'"traceEvents"')
    begin = data.find(b"[", begin) + 1 if begin >= 0 else 0
    if not begin:
        raise TraceError(f"{path}: is no trace of MXNet's profiler")
    decoder = msgspec.json.Decoder(_Record)
    records, num_bad, end = [], 0, begin
    for match in _OBJECT.finditer(data, begin):
        end = match.end()
        try:
            records.append(decoder.decode(match[0]))
        except (ValueError, RecursionError):  # nested too deep, or text that is no UTF-8
            num_bad += 1
    if not records:
        raise TraceError(f"{path}: holds no records")
    if data.rfind(b"]") < end:
        num_bad += 1  # cut off in the middle of a record
    return records, num_bad


def _paired(records: list[_Record]) -> tuple[list[_Span], _Marks, int]:
    """Spans, the probe's marks, and the number of records without a counterpart."""
    begun: dict[tuple[object, ...], list[_Record]] = defaultdict(list)
    spans: list[_Span] = []
    marks = _Marks()
    num_open = 0
    for record in records:
        is_mark = record.ph in "be" and record.cat.split(",")[0] == _MARKS
        if not (is_mark or record.ph in ("B", "E")):
            continue
        key = (record.ph.lower() in "be" and is_mark, record.name, record.pid, record.tid)
        if record.ph in "Bb":
            begun[key].append(record)
        elif begun[key]:
            first = begun[key].pop()
            start, dur = first.ts * _NS, max(0, record.ts - first.ts) * _NS
            if is_mark:
                _mark(marks, record, start, start + dur)
            else:
                spans.append(_Span(start, dur, record.name, record.cat, record.pid, record.tid or 0))
        else:
            num_open += 1
    return spans, marks, num_open + sum(len(left) for left in begun.values())


def _mark(marks: _Marks, record: _Record, start: int, end: int) -> None:
    if record.name.startswith(layout.MARK_STEP):
        step = record.name[len(layout.MARK_STEP) :]
        if _NUMBER.fullmatch(step) and int(step) < 1 << 31:
            marks.steps.append((int(step), start, end))
    elif record.name.startswith(_THREAD):
        thread, _, cpus = record.name[len(_THREAD) :].partition(":")
        if _NUMBER.fullmatch(thread):
            marks.main = (record.tid or 0, int(thread))
        marks.num_cpus = int(cpus) if _NUMBER.fullmatch(cpus) else None
    elif record.name == layout.MARK_INPUT:
        marks.inputs.append((start, end))
    elif record.name.startswith(_COMM):
        traffic = _traffic(record.name[len(_COMM) :])
        if traffic is not None:
            marks.traffic.append((start, traffic))


def _traffic(text: str) -> Collective | None:
    """`collective:group:size:in_bytes:out_bytes:dtype:calls`; `elements` holds the number of calls."""
    parts = text.split(":")
    if len(parts) != 7 or not all(map(_NUMBER.fullmatch, (*parts[2:5], parts[6]))):
        return None
    if int(parts[2]) > _MOST_RANKS:
        return None
    return Collective(
        name=canonical(parts[0]) or parts[0],
        group=parts[1],
        group_size=int(parts[2]),
        in_bytes=int(parts[3]) or None,
        out_bytes=int(parts[4]) or None,
        dtype=parts[5] or None,
        elements=int(parts[6]),
    )


class _Writer:
    """Puts spans into the trace."""

    def __init__(self, trace: FrameworkTrace, marks: _Marks, devices: dict[int, str]) -> None:
        self._trace = trace
        self._marks = marks
        self._devices = devices
        self._lanes: dict[tuple[int, int], int] = {}
        self._main: int | None = None
        if marks.main is not None:
            self._main = trace.lane(marks.main[1], "main", "main thread")
        self._store_lane: int | None = None

    def write(self, spans: list[_Span]) -> None:
        last_backwards = self._last_backwards(spans)
        messages: dict[str, list[_Span]] = defaultdict(list)
        busy: list[tuple[int, int]] = []
        for span in spans:
            if span.name.startswith((_STORE + "Dist", _HOROVOD)):
                messages[_message(span.name)].append(span)
            elif not span.name.startswith(layout.MARK_STEP):
                kind, phase = classify(span.name, span.category)
                if kind == "compute" and phase == "other":
                    phase = _phase_at(span, last_backwards)
                self._trace.add(self._lane_of(span), span.start, span.dur, kind, span.name, phase=phase)
                if kind == "compute":
                    busy.append((span.start, span.start + span.dur))
        for name, sent in messages.items():
            self._add_messages(name, sent)
        if self._main is not None:
            for start, end in uncovered(self._marks.inputs, busy):
                self._trace.add(self._main, start, end - start, "input", "next batch")

    def _last_backwards(self, spans: list[_Span]) -> list[tuple[int, int, int]]:
        """(step's start, its end, when its last operator of the backward pass began), where there is one."""
        passes = [span.start for span in spans if span.name.startswith(_BACKWARD)]
        passes_found = []
        for _, start, end in self._trace.spans_of_steps() if self._trace.steps else ():
            inside = [when for when in passes if start <= when < end]
            if inside:
                passes_found.append((start, end, max(inside)))
        return passes_found

    def _lane_of(self, span: _Span) -> int:
        main = self._marks.main
        if main is not None and span.thread == main[0] and self._main is not None:
            return self._main
        device = self._gpu(span) if span.category == _OPERATOR else -1
        key = (device, span.thread)
        if key not in self._lanes:
            number = _FIRST_LANE + len(self._lanes)
            if device >= 0:
                self._lanes[key] = self._trace.lane(number, "stream", f"GPU {device}", device)
            else:
                label = f"engine thread {len(self._lanes) + 1}"
                self._lanes[key] = self._trace.lane(number, "executor", label)
        return self._lanes[key]

    def _gpu(self, span: _Span) -> int:
        """Index of the GPU that ran the operator; -1: the CPU."""
        name = self._devices.get(span.device)
        if name is not None:
            kind, _, number = name.partition("/")
            return (
                int(number) if kind == "gpu" and _NUMBER.fullmatch(number) and int(number) < _MAX_GPUS else -1
            )
        cpus = self._marks.num_cpus
        return span.device - cpus if cpus is not None and cpus <= span.device < cpus + _MAX_GPUS else -1

    def _add_messages(self, family: str, sent: list[_Span]) -> None:
        """One row for each step and kind of traffic, where the probe recorded the amount; else one each."""
        if self._store_lane is None:
            self._store_lane = self._trace.lane(_STORE_LANE, "backend", "communication")
        left = sent
        for _, start, end in self._trace.spans_of_steps() if self._trace.steps else ():
            traffic = [what for when, what in self._marks.traffic if start <= when < end]
            traffic = [what for what in traffic if (what.group == "kvstore") == (family == _STORE)]
            traffic = [what for what in traffic if family in (_STORE, what.name)]
            inside = [span for span in left if start <= span.start < end]
            if not traffic or not inside:
                continue
            left = [span for span in left if not start <= span.start < end]
            begin, stop = min(span.start for span in inside), max(span.start + span.dur for span in inside)
            for what in traffic:
                name = f"{inside[0].name} ×{what.elements}"
                self._note_group(what)
                self._trace.add(
                    self._store_lane,
                    begin,
                    stop - begin,
                    "comm",
                    name,
                    collective=replace(what, elements=None),
                )
        for span in left:
            name = "all_reduce" if family == _STORE else family
            self._trace.add(
                self._store_lane, span.start, span.dur, "comm", span.name, collective=Collective(name=name)
            )

    def _note_group(self, what: Collective) -> None:
        if what.group_size and not any(group["name"] == what.group for group in self._trace.groups):
            backend = "ps-lite" if what.group == "kvstore" else "horovod"
            ranks = list(range(what.group_size))
            self._trace.groups.append({"name": what.group, "ranks": ranks, "backend": backend})
            self._trace.world_size = what.group_size


def uncovered(spans: list[tuple[int, int]], by: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What of `spans` lies under none of `by`; (start, end).

    The engine goes on while the main thread waits for a batch, often for the engine itself: only what is left
    was waiting for data.
    """
    parts: list[tuple[int, int]] = []
    for start, end in spans:
        at = start
        for begin, stop in sorted(span for span in by if span[1] > start and span[0] < end):
            if begin > at:
                parts.append((at, begin))
            at = max(at, stop)
        if at < end:
            parts.append((at, end))
    return parts


def _message(name: str) -> str:
    """ "KVStore", or the collective of Horovod's operator."""
    if name.startswith(_HOROVOD):
        operation = name[len(_HOROVOD) :]
        return canonical(operation) or operation
    return _STORE


def classify(name: str, category: str) -> tuple[str, str]:
    """(kind, phase) of a record, words of rundir.schema; phase "other" where its time must tell."""
    if category not in (_OPERATOR, _CUSTOM) or name.startswith(_ENGINE):
        return "host", "other"
    if name.startswith((_BACKWARD, "_grad_add")):
        return "compute", "backward"
    if _UPDATE.search(name):
        return "compute", "optimizer"
    if name.startswith("Copy"):
        return "copy", "other"
    if name.startswith(_STORE):
        return "comm", "other"
    return "compute", "other"


def _phase_at(span: _Span, last_backwards: list[tuple[int, int, int]]) -> str:
    """Forward is what runs under a name of its own before the last backward operator of the step begins.

    Not before the first: the engine runs what is ready, and the gradient of a mean waits for nothing.
    """
    if not span.name.startswith(_HELPERS):
        for start, end, last in last_backwards:
            if start <= span.start < end:
                return "forward" if span.start < last else "other"
    return "other"
