"""Events into rows: picks what a timeline needs, turns words into numbers, drops the rest early."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from perfscope.ingest import classify
from perfscope.ingest.allocations import Allocations
from perfscope.ingest.classify import COMM_CLASSES, NVTX_CATEGORY, DeviceClass, HostClass
from perfscope.ingest.collectives import Collective, from_args
from perfscope.ingest.cost_model import Cost, cost, known
from perfscope.ingest.events import NO_ARGS, Args, Event
from perfscope.ingest.frames import is_row
from perfscope.ingest.groups import is_call
from perfscope.ingest.spill import DEVICE, HOST, LAUNCH, Rows, Spill
from perfscope.ingest.string_table import Lanes, Words
from perfscope.ingest.timestamps import parse_us, to_ns
from perfscope.ingest.undecided import DecidedLane, DeviceNumbers, Undecided

FLUSH_ROWS = 1 << 14
HOST_ROWS, LAUNCH_ROWS, DEVICE_ROWS = range(3)
_USES_NOTHING, _USES_SHAPES, _USES_COLLECTIVE = range(3)
_NUM_HOST_CODES = 32
_LONG = np.iinfo(np.int64)


def _host_use(code: int, text: str) -> int:
    if code in COMM_CLASSES:
        return _USES_COLLECTIVE
    has_cost = code == HostClass.OPERATOR or text == classify.ACCUMULATE
    return _USES_SHAPES if has_cost and known(text) else _USES_NOTHING


def _device_use(code: int, text: str) -> int:
    return _USES_COLLECTIVE if code == DeviceClass.COMM else _USES_NOTHING


class Listing(Struct):
    """In which order a file lists spans of one sort: until when it surely holds them all, if it ends early.

    Attributes:
        earliest: start so far.
        reached: the latest start so far.
        disorder: how much earlier than that a later one started at most, ns.
    """

    earliest: int = _LONG.max
    reached: int = -1
    disorder: int = 0

    def add(self, starts: npt.NDArray[np.int64]) -> None:
        """The next spans of the file, in its order."""
        if len(starts):
            self.earliest = min(self.earliest, int(starts.min()))
            reached = np.maximum.accumulate(np.append(self.reached, starts))
            self.disorder = max(self.disorder, int((reached[1:] - starts).max()))
            self.reached = int(reached[-1])

    @property
    def whole_until(self) -> int:
        """What is lost started later, if the rest of the file is listed as it was so far."""
        return self.reached - self.disorder if self.reached >= 0 else _LONG.max


class FileFacts(Struct):
    """What is known of a file once all its events were met."""

    first_ns: int = _LONG.max
    last_ns: int = _LONG.min
    host_codes: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros((0, _NUM_HOST_CODES), np.int64)
    )
    device_codes: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros((0, len(DeviceClass)), np.int64)
    )
    steps: list[tuple[int, int, int, int]] = []  # start, end, word, lane
    calls: list[Rows] = []  # host rows that `groups` needs
    num_device: int = 0  # kernels, copies and sets
    num_launches: int = 0
    num_profiler_ranges: int = 0  # with counters of a device
    last_listed_ns: int = _LONG.min  # start of the last span in the order of the file
    device_listing: Listing = field(default_factory=Listing)
    launch_listing: Listing = field(default_factory=Listing)
    launches: list[npt.NDArray[np.int64]] = []  # (n, 3): start, correlation id, whether it launches kernels
    device_ids: list[npt.NDArray[np.int64]] = []  # correlation ids of device work
    dropped: int = 0  # events with no usable time
    seen: int = 0  # events that became a row, or were dropped; B and E are one


class KernelConfig(Struct, frozen=True):
    """How a kernel was launched, as the trace says; None: it does not."""

    grid: str | None  # 32x2x1
    block: str | None
    registers: int  # per thread; -1 unknown
    occupancy: int  # achieved, estimated by the profiler, percent; -1 unknown


class EventCollector:
    """Turns lists of events into rows of a `Spill`.

    Attributes:
        facts: complete after `close`.
        costs, collectives: what the rows' `detail` columns point to.
        configs: what the `config` column of device rows points to.
        allocations: complete after `close`, too.
    """

    def __init__(self, spill: Spill, *, flush_rows: int = FLUSH_ROWS) -> None:
        self.facts = FileFacts()
        self.allocations = Allocations()
        self.host_words = Words(classify.host_class, _host_use)
        self.device_words = Words(classify.device_class, _device_use)
        self.lanes = Lanes()
        self.costs: list[Cost] = []
        self.collectives: list[Collective] = []
        self.configs: list[KernelConfig] = []
        self._spill = spill
        self._flush_rows = flush_rows
        self._launching = _Answers(classify.launches)
        self._traced = _Answers(classify.is_traced_call)
        self._launches_kernels = _Answers(classify.launches_kernels)
        self._runtime = _Answers(classify.is_runtime)
        self._on_device = _Answers(classify.is_device)
        self._undecided = Undecided()
        self._device_numbers = DeviceNumbers()
        self._are_calls: list[bool] = []  # per host word
        self._cost_numbers: dict[tuple[int, bytes], int] = {}
        self._collective_numbers: dict[Collective, int] = {}
        self._config_numbers: dict[tuple[int, bytes, bytes, bytes], int] = {}
        self._open: dict[tuple[int | str, int | str], list[Event | tuple[Any, ...]]] = defaultdict(list)
        self._host: dict[str, list[Any]] = defaultdict(list)
        self._launches: dict[str, list[Any]] = defaultdict(list)
        self._device: dict[str, list[Any]] = defaultdict(list)

    def add(self, events: list[Event]) -> None:
        """Take one list of the reader. All `Raw` fields are copied before this returns."""
        buckets: dict[str, list[Event]] = defaultdict(list)
        last = next((event for event in reversed(events) if event.ph == "X" and event.cat != "Trace"), None)
        if last is not None:
            self.facts.last_listed_ns = to_ns(bytes(last.ts).decode("ascii", "replace")) or _LONG.min
        for event in events:
            buckets[event.cat].append(event)
        for category, group in buckets.items():
            if category in classify.IGNORED_CATEGORIES and category != classify.FRAME_CATEGORY:
                self._ignore(category, group)
                continue
            spans = [event for event in group if event.ph == "X"]
            if len(spans) < len(group):
                self._pair([event for event in group if event.ph in ("B", "E")])
                self._undecided.label([event for event in group if event.ph == "M"])
            if spans:
                self._route(category, spans)
        if len(self._host["name"]) >= self._flush_rows:
            self._flush_host()
        if len(self._launches["correlation"]) >= self._flush_rows:
            self._flush_launches()
        if len(self._device["name"]) >= self._flush_rows:
            self._flush_device()

    def _ignore(self, category: str, group: list[Event]) -> None:
        """What makes no row of the timeline."""
        if category == classify.INSTANTS:
            self.allocations.add(group)
        self.facts.num_profiler_ranges += len(group) * (category == classify.PROFILER_RANGES)

    def close(self) -> None:
        """Everything is in: write what is still held, count what stayed open."""
        self.facts.dropped += sum(len(stack) for stack in self._open.values())
        self._flush_launches()
        if self._undecided:
            launches = np.concatenate([np.zeros((0, 3), np.int64), *self.facts.launches])[:, 1]
            for lane in self._undecided.decided(launches, self._device_numbers):
                self._take(lane)
        self.facts.dropped += self._undecided.dropped
        self._flush_host()
        self._flush_device()

    def _take(self, lane: DecidedLane) -> None:
        """Spans of an unknown category, now that it is known what they are of."""
        times = [[b"%d.%03d" % divmod(ns, 1000) for ns in column] for column in lane.times.T.tolist()]
        on_device = lane.device is not None
        for at in range(0, len(lane.names), self._flush_rows):
            part = slice(at, at + self._flush_rows)
            args = [
                Args(device=lane.device, correlation=number) if lane.device is not None else NO_ARGS
                for number in lane.correlations[part].tolist()
            ]
            spans = [
                Event(
                    "X", lane.category, name, lane.owner, lane.lane, msgspec.Raw(start), msgspec.Raw(dur), arg
                )
                for name, start, dur, arg in zip(
                    lane.names[part], times[0][part], times[1][part], args, strict=True
                )
            ]
            (self._add_device if on_device else self._add_host)(lane.category, spans)
            (self._flush_device if on_device else self._flush_host)()

    def _route(self, category: str, spans: list[Event]) -> None:
        if category in classify.OPERATOR_CATEGORIES or category in classify.ANNOTATION_CATEGORIES:
            self._undecided.host_owners.add(spans[0].pid)
            self._add_host(category, spans)
        elif self._runtime[category]:
            launching, traced = self._launching, self._traced
            self._add_launches(category, [event for event in spans if launching[event.name]])
            if calls := [event for event in spans if traced[event.name]]:
                self._add_host(category, calls)
        elif self._on_device[category] or category in classify.DEVICE_ANNOTATIONS:
            self._undecided.device_owners.update(event.pid for event in spans)
            self._add_device(category, spans)
        elif category == classify.FRAME_CATEGORY:
            if frames := [event for event in spans if is_row(event.name, event.dur)]:
                self._add_host(category, frames)
        else:
            on_device = [event for event in spans if event.args.device >= 0 and event.args.stream >= 0]
            if on_device:
                self._add_device(category, on_device)
                spans = [event for event in spans if event.args.device < 0 or event.args.stream < 0]
            owners = self._undecided.host_owners
            if held := [event for event in spans if category != NVTX_CATEGORY and event.pid not in owners]:
                self._undecided.add(category, held)
            if spans := [event for event in spans if category == NVTX_CATEGORY or event.pid in owners]:
                self._add_host(category, spans)

    def _add_host(self, category: str, spans: list[Event]) -> None:
        columns = self._host
        names = self.host_words.numbers(category, [event.name for event in spans])
        args = [event.args for event in spans]
        uses, detail = self.host_words.uses, self._detail
        columns["name"] += names
        columns["ts"].append(b"\n".join([event.ts for event in spans]))
        columns["dur"].append(b"\n".join([event.dur for event in spans]))
        columns["pid"] += [event.pid for event in spans]
        columns["tid"] += [event.tid for event in spans]
        columns["sequence"] += [arg.sequence for arg in args]
        columns["forward_thread"] += [arg.forward_thread for arg in args]
        columns["detail"] += [
            detail(self.host_words, name, arg) if uses[name] else -1
            for name, arg in zip(names, args, strict=True)
        ]

    def _add_launches(self, category: str, spans: list[Event]) -> None:
        columns = self._launches
        if spans:
            columns["name"] += self.host_words.numbers(category, [event.name for event in spans])
            columns["ts"].append(b"\n".join([event.ts for event in spans]))
            columns["dur"].append(b"\n".join([event.dur for event in spans]))
            columns["pid"] += [event.pid for event in spans]
            columns["tid"] += [event.tid for event in spans]
            columns["correlation"] += [event.args.correlation for event in spans]

    def _add_device(self, category: str, spans: list[Event]) -> None:
        columns = self._device
        names = self.device_words.numbers(category, [event.name for event in spans])
        args = [event.args for event in spans]
        uses, detail = self.device_words.uses, self._detail
        number = self._device_numbers.of
        columns["name"] += names
        columns["ts"].append(b"\n".join([event.ts for event in spans]))
        columns["dur"].append(b"\n".join([event.dur for event in spans]))
        columns["device"] += [
            event.args.device if event.args.device >= 0 else number(event.pid) for event in spans
        ]
        columns["stream"] += [event.args.stream if event.args.stream >= 0 else event.tid for event in spans]
        columns["correlation"] += [arg.correlation for arg in args]
        is_kernel = classify.is_kernel(category)
        columns["bytes"] += [-1] * len(args) if is_kernel else [_bytes(arg) for arg in args]
        columns["config"] += [self._config(arg) for arg in args] if is_kernel else [-1] * len(args)
        columns["detail"] += [
            detail(self.device_words, name, arg) if uses[name] else -1
            for name, arg in zip(names, args, strict=True)
        ]

    def _detail(self, strings: Words, name: int, args: Args) -> int:
        """Number of the cost or collective an event's arguments describe."""
        if strings.uses[name] == _USES_COLLECTIVE:
            collective = from_args(strings.texts[name], args)
            number = self._collective_numbers.setdefault(collective, len(self.collectives))
            if number == len(self.collectives):
                self.collectives.append(collective)
            return number
        key = (name, b"\n".join((args.dims, args.types, args.concrete)))
        cached = self._cost_numbers.get(key)
        if cached is None:
            cached = self._cost_numbers[key] = self._new_cost(strings.texts[name], args)
        return cached

    def _config(self, args: Args) -> int:
        """Number of the launch configuration that a kernel's arguments describe."""
        key = (args.registers, bytes(args.grid), bytes(args.block), bytes(args.occupancy))
        number = self._config_numbers.get(key)
        if number is None:
            number = self._config_numbers[key] = len(self.configs)
            self.configs.append(
                KernelConfig(
                    _dimensions(args.grid),
                    _dimensions(args.block),
                    max(args.registers, -1),
                    _percent(args.occupancy),
                )
            )
        return number

    def _new_cost(self, name: str, args: Args) -> int:
        try:
            shapes, kinds = msgspec.json.decode(args.dims), msgspec.json.decode(args.types)
            values = msgspec.json.decode(args.concrete) if bytes(args.concrete) else []
        except (ValueError, RecursionError):
            return -1  # recorded without shapes
        new_cost = cost(name, shapes, kinds, values)
        if new_cost is None:
            return -1
        self.costs.append(new_cost)
        return len(self.costs) - 1

    def _pair(self, events: list[Event]) -> None:
        """Begin and end events of other writers: a stack per thread."""
        for event in events:
            stack = self._open[event.pid, event.tid]
            at = to_ns(bytes(event.ts).decode("ascii", "replace"))
            if event.ph == "B":
                stack.append((event.name, event.cat, at, bytes(event.ts)))
                continue
            if not stack:
                self.facts.dropped += 1
                continue
            name, category, begin, text = stack.pop()  # type: ignore[misc]
            if at is None or begin is None:
                self.facts.dropped += 2
                continue
            ns = at - begin
            span = Event("X", category, name, event.pid, event.tid, msgspec.Raw(text), args=NO_ARGS)
            span.dur = msgspec.Raw(b"%d.%03d" % divmod(ns, 1000) if ns >= 0 else b"-1")
            self._add_host(category, [span])

    def _flush_host(self) -> None:
        columns = self._host
        if not columns["name"]:
            return
        rows = np.empty(len(columns["name"]), HOST)
        for column in ("sequence", "name", "forward_thread", "detail"):
            rows[column] = _clipped(columns[column], HOST[column])
        rows["lane"] = self.lanes.numbers(False, columns["pid"], columns["tid"])
        rows = self._timed(rows, columns)
        columns.clear()
        codes = np.array(self.host_words.codes)[rows["name"]]
        of_framework = (codes != HostClass.RUNTIME) & (codes != HostClass.FRAME)
        self._extend(rows[of_framework])
        self.facts.host_codes = self._counted(
            self.facts.host_codes, rows["lane"][of_framework], codes[of_framework]
        )
        for row in rows[np.isin(codes, _STEPS)]:
            start = int(row["start"])
            self.facts.steps.append((start, start + int(row["dur"]), int(row["name"]), int(row["lane"])))
        self._keep_calls(rows)
        self._spill.add(HOST_ROWS, rows)

    def _keep_calls(self, rows: Rows) -> None:
        strings, num_known = self.host_words, len(self._are_calls)
        self._are_calls += [
            is_call(*word) for word in zip(strings.codes[num_known:], strings.texts[num_known:], strict=True)
        ]
        chosen = np.array(self._are_calls, np.bool_)[rows["name"]]
        if chosen.any():
            self.facts.calls.append(rows[chosen])

    def _counted(
        self, before: npt.NDArray[np.int64], lanes: npt.NDArray[Any], codes: npt.NDArray[Any]
    ) -> npt.NDArray[np.int64]:
        """Rows per lane and class, shape (lanes, classes), those of `before` among them."""
        num_codes = before.shape[1]
        counts = np.bincount(lanes * num_codes + codes, minlength=len(self.lanes.keys) * num_codes)
        table = counts.reshape(-1, num_codes)
        table[: len(before)] += before
        return table

    def _flush_launches(self) -> None:
        columns = self._launches
        if not columns["correlation"]:
            return
        rows = np.empty(len(columns["correlation"]), LAUNCH)
        for column in ("correlation", "name"):
            rows[column] = _clipped(columns[column], LAUNCH[column])
        rows["lane"] = self.lanes.numbers(False, columns["pid"], columns["tid"])
        rows["start"], ok = parse_us(columns["ts"])
        dur, dur_ok = parse_us(columns["dur"])
        rows["dur"] = np.where(dur_ok, np.maximum(dur, 0), 0)
        ok &= rows["correlation"] > 0
        rows = rows[ok]
        columns.clear()
        self.facts.num_launches += len(rows)
        self.facts.launch_listing.add(rows["start"])
        texts, is_kernel = self.host_words.texts, self._launches_kernels
        of_kernels = [is_kernel[texts[name]] for name in rows["name"].tolist()]
        self.facts.launches.append(np.stack((rows["start"], rows["correlation"], of_kernels), axis=1))
        self._spill.add(LAUNCH_ROWS, rows)

    def _flush_device(self) -> None:
        columns = self._device
        if not columns["name"]:
            return
        rows = np.empty(len(columns["name"]), DEVICE)
        for column in ("correlation", "bytes", "name", "detail", "config"):
            rows[column] = _clipped(columns[column], DEVICE[column])
        rows["lane"] = self.lanes.numbers(True, columns["device"], columns["stream"])
        rows = self._timed(rows, columns)
        columns.clear()
        self._extend(rows)
        codes = np.array(self.device_words.codes)[rows["name"]]
        self.facts.num_device += int(np.count_nonzero(codes != DeviceClass.ANNOTATION))
        self.facts.device_codes = self._counted(self.facts.device_codes, rows["lane"], codes)
        work = rows[codes != DeviceClass.ANNOTATION]
        if len(work):
            self.facts.device_listing.add(work["start"])
            self.facts.device_ids.append(work["correlation"].copy())
        self._spill.add(DEVICE_ROWS, rows)

    def _timed(self, rows: Rows, columns: dict[str, list[Any]]) -> Rows:
        """Fill in start and dur; rows without a usable time are dropped."""
        rows["start"], ok = parse_us(columns["ts"])
        rows["dur"], dur_ok = parse_us(columns["dur"])
        ok &= dur_ok & (rows["dur"] >= 0) & (rows["start"] >= 0) & (rows["dur"] <= _LONG.max // 4)
        if not ok.all():
            self.facts.dropped += int(np.count_nonzero(~ok))
            rows = rows[ok]
        return rows

    def _extend(self, rows: Rows) -> None:
        """What the file covers: not the profiler's own calls of the runtime, before and after."""
        if len(rows):
            self.facts.first_ns = min(self.facts.first_ns, int(rows["start"].min()))
            self.facts.last_ns = max(self.facts.last_ns, int((rows["start"] + rows["dur"]).max()))


_STEPS = (HostClass.STEP, HostClass.PROFILER_STEP, HostClass.INFERENCE_STEP)


class _Answers(dict[str, bool]):
    """What a question about the name of a runtime call was answered."""

    def __init__(self, question: Callable[[str], bool]) -> None:
        super().__init__()
        self._question = question

    def __missing__(self, name: str) -> bool:
        answer = self[name] = self._question(name)
        return answer


def _dimensions(text: msgspec.Raw) -> str | None:
    """``[32, 2, 1]`` as 32x2x1; None where it is no list of three sizes."""
    sizes = bytes(text).strip(b"[] ").split(b",")
    return b"x".join(size.strip() for size in sizes).decode() if _is_shape(sizes) else None


def _is_shape(sizes: list[bytes]) -> bool:
    return len(sizes) == 3 and all(size.strip().isdigit() for size in sizes)


def _percent(text: msgspec.Raw) -> int:
    try:
        value = round(float(bytes(text)))
    except (ValueError, OverflowError):
        return -1
    return value if 0 <= value <= 100 else -1


def _bytes(args: Args) -> int:
    text = bytes(args.num_bytes).strip(b'"')
    return int(text) if text.isdigit() else -1


def _clipped(values: list[int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Integers as a column; one that does not fit (nonsense in a damaged file) becomes -1."""
    try:
        return np.array(values, dtype)
    except OverflowError:
        limits = np.iinfo(dtype)
        return np.array([v if limits.min <= v <= limits.max else -1 for v in values], dtype)
