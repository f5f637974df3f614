"""Phases by name: what the training marks itself (`perfscope.phase`, `record_function`, NVTX), and what the
hooks of frameworks mark. Time is added up for each path of nested names, and cut where steps may be cut.

A phase lasts from `begin` to `end` on the wall clock, whatever the thread does meanwhile. It is nested in the
phase that is open in the same thread and context (`contextvars`: asyncio's tasks do not nest in one another).
"""

from __future__ import annotations

import re
import threading
import time
from contextvars import ContextVar
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..rundir import layout
from ..vocabulary.figures import Figure

MAX_PATHS = 256  # different ones; phases beyond are not recorded
FREE_NAMES = 64  # paths until which names with different numbers are different
MAX_DEPTH = 16
LONGEST_NAME = 200
FLUSH_NS = 200_000_000
LEAST_CUT_NS = 50_000  # boundaries closer together are one
LEAST_SHARE = 256  # a phase that takes less of what lies between two boundaries is written later
MAX_EARLY = 10_000  # lines before the process proves to train; then time is cut no more until it does
CHECK_EVERY = 4096  # phases between two looks at how frequent they are
SHORTEST_NS = 1_000_000_000  # for so many, of 2.5 us each: more would cost the training more than 1 %
_BEGUN, _ENDED = 0, 1
_clock = time.monotonic_ns
_ident = threading.get_ident
_Key = Tuple[int, str, str, bool]  # parent's number, name, source, training thread


class Open:
    """A phase that has begun."""

    __slots__ = ("mark", "number", "parent", "start", "thread")

    def __init__(self, number: int, parent: "Optional[Open]", thread: int) -> None:
        self.number = number
        self.parent = parent
        self.thread = thread
        self.start = 0
        self.mark: Any = None


_current: "ContextVar[Optional[Open]]" = ContextVar("perfscope_phase", default=None)


class Phases:
    """Those of one process.

    Args:
        training_thread: gives the identifier of the thread that trains.
        missing: called for phases that are not recorded: figure, what, reason.
        fault: called with an error of ours; gives whether it has now happened too often to go on.
    """

    def __init__(
        self,
        training_thread: Callable[[], Optional[int]],
        missing: Callable[[Figure, str, str], None],
        fault: Callable[[str, Exception], bool],
    ) -> None:
        self._training_thread = training_thread
        self._missing = missing
        self._fault = fault
        self._is_off = False
        self.reset()

    def reset(self) -> None:
        """Nothing has been marked. A forked child's phases are its own."""
        self._lock = threading.RLock()  # a signal handler or a destructor may begin one within another
        self._numbers: Dict[_Key, int] = {}
        self._described: List[Dict[str, Any]] = []  # a line for each number
        self._depths: List[int] = []
        self._open: Dict[int, Open] = {}  # by identity, in the order of their begins
        self._ns: List[int] = []
        self._counts: List[List[int]] = []  # begun, ended
        self._written: List[Tuple[int, int, int]] = []
        self._num_described = 0
        self._lines: List[Dict[str, Any]] = []
        self._cut_at, self._flushed_at = _clock(), 0
        self._lost: Dict[str, str] = {}  # what is not recorded, and why
        self._supposed: Tuple[int, List[Tuple[int, int, int]]] = (0, [])
        self._muted: Dict[str, None] = {}
        self._recent: Dict[str, int] = {}
        self._num_recent, self._since = 0, 0
        self._ranges = threading.local()  # stacks of `push`
        self._recorder: Optional[Any] = None
        self._new_mark: Optional[Callable[[str], Any]] = None

    def open(self, recorder: Any) -> None:
        """Write with `recorder` (Recorder) from now on."""
        self._recorder = recorder

    # -- marking ----------------------------------------------------------------------------------------

    def begin(self, name: Any, source: str) -> Optional[Open]:
        """A phase begins.

        Args:
            name: its name; anything but text is converted.
            source: who marked it: "perfscope", "record_function", ...

        Returns:
            What `end` takes; None: it is not recorded.
        """
        if self._is_off:
            return None
        try:
            return self._begin(name, source)
        except Exception as error:  # noqa: BLE001 - the boundary: the training goes on
            self._failed(error)
            return None

    def _failed(self, error: Exception) -> None:
        self._is_off = self._fault("phases", error) or self._is_off

    def _begin(self, name: Any, source: str) -> Optional[Open]:
        name = name if type(name) is str else str(name)
        if name in self._muted or (self._num_recent >= CHECK_EVERY and not self._is_rare(name)):
            return None
        thread = _ident()
        parent = _current.get()
        while parent is not None and (self._open.get(id(parent)) is not parent or parent.thread != thread):
            parent = parent.parent
        trains = thread == (self._training_thread() or threading.main_thread().ident)
        with self._lock:
            number = self._number(parent, name[:LONGEST_NAME], source, trains)
            if number is None:
                return None
            self._num_recent += 1
            self._recent[name] = self._recent.get(name, 0) + 1
            phase = Open(number, parent, thread)
            # What is open when the process is killed is known, if it is new, is long, or comes after a while.
            is_long = self._ns[number] >= FLUSH_NS * self._counts[number][_BEGUN]
            self._counts[number][_BEGUN] += 1
            if trains and self._new_mark is not None:
                self._mark(phase)
            self._open[id(phase)] = phase
            _current.set(phase)
            now = phase.start = _clock()
            if self._recorder is not None and (is_long or now - self._flushed_at > FLUSH_NS):
                self._cut(now, at_boundary=False)
        return phase

    def end(self, phase: Optional[Open]) -> None:
        """A phase ends; one that has ended already, or that is None, is nothing."""
        if phase is None:
            return
        try:
            self._end(phase, _clock())
        except Exception as error:  # noqa: BLE001 - the boundary: the training goes on
            self._failed(error)

    def _end(self, phase: Open, now: int) -> None:
        with self._lock:
            if self._open.pop(id(phase), None) is not phase:
                return
            self._ns[phase.number] += now - phase.start
            self._counts[phase.number][_ENDED] += 1
            mark, phase.mark = phase.mark, None
            if mark is not None and phase.thread == _ident():
                mark.__exit__(None, None, None)
            if _current.get() is phase:
                _current.set(phase.parent)

    def push(self, name: Any, source: str) -> None:
        """A range begins that `pop` of the same thread ends."""
        self._stack().append(self.begin(name, source))

    def pop(self) -> None:
        """The range that this thread began last ends; there may be none."""
        begun = self._stack()
        if begun:
            self.end(begun.pop())

    def _stack(self) -> List[Optional[Open]]:
        stacks: Dict[str, List[Optional[Open]]] = self._ranges.__dict__
        return stacks.setdefault("ranges", [])

    def _number(self, parent: Optional[Open], name: str, source: str, trains: bool) -> Optional[int]:
        above = -1 if parent is None else parent.number
        key = (above, name, source, trains)
        number = self._numbers.get(key)
        if number is None and len(self._ns) >= FREE_NAMES:
            key = (above, re.sub(r"\d+", "#", name), source, trains)
            number = self._numbers.get(key)
        if number is not None:
            return number
        depth = 0 if parent is None else self._depths[above] + 1
        if len(self._ns) >= MAX_PATHS or depth >= MAX_DEPTH:
            limits = "more than %d different ones, or nested more than %d deep" % (MAX_PATHS, MAX_DEPTH)
            self._lose("further phases", limits)
            return None
        number = self._numbers[key] = len(self._ns)
        self._depths.append(depth)
        self._described.append(
            {"phase": number, "name": key[1], "source": source, "parent": above, "trains": trains}
        )
        self._ns.append(0)
        self._counts.append([0, 0])
        self._written.append((0, 0, 0))
        return number

    def _is_rare(self, name: str) -> bool:
        """Whether phases are so rare that timing them costs little; else the most frequent ones are not timed
        any more.

        Returns:
            Whether those called `name` are.
        """
        now = _clock()
        with self._lock:
            if self._since and now - self._since < SHORTEST_NS:
                most = max(self._recent, key=lambda each: self._recent[each])
                self._muted[most] = None
                self._lose(
                    "time of phase %s from some moment on" % most,
                    "it was marked too often: timing it would have slowed the training",
                )
            self._recent.clear()
            self._num_recent, self._since = 0, now
        return name not in self._muted

    def _lose(self, what: str, reason: str) -> None:
        self._lost[what] = reason
        self._missing(Figure.PHASES, what, reason)

    # -- windows ----------------------------------------------------------------------------------------

    def window_opens(self, new_mark: Optional[Callable[[str], Any]]) -> None:
        """Phases of the thread that trains are marked in a trace from now on, those under way included."""
        with self._lock:
            self._new_mark = new_mark
            thread = _ident()
            for phase in list(self._open.values()):
                if new_mark is not None and phase.thread == thread:
                    self._mark(phase)

    def window_closes(self) -> None:
        """No phase is marked any more; marks that are open end with the trace."""
        with self._lock:
            self._new_mark = None
            for phase in reversed(list(self._open.values())):
                mark, phase.mark = phase.mark, None
                if mark is not None and phase.thread == _ident():
                    mark.__exit__(None, None, None)

    def _mark(self, phase: Open) -> None:
        assert self._new_mark is not None
        phase.mark = self._new_mark(layout.MARK_PHASE + self._described[phase.number]["name"])
        phase.mark.__enter__()

    # -- what is written --------------------------------------------------------------------------------

    def cut(self, now: int, *, is_final: bool = False) -> None:
        """A step may begin or end here: time before and after it is written apart.

        Args:
            now: CLOCK_MONOTONIC, ns.
            is_final: write all of it; the process ends.
        """
        if not self._ns:
            self._cut_at = now
            return
        if not self._is_off:
            try:
                self._cut(now, at_boundary=not is_final, is_final=is_final)
            except Exception as error:  # noqa: BLE001 - the boundary: the training goes on
                self._failed(error)

    def suppose_end(self, now: int) -> None:
        """The last step may end here: what `finish` is to cut at, if no step follows."""
        if self._ns and not self._is_off:
            with self._lock:
                self._supposed = now, self._read(now)

    def _cut(self, now: int, *, at_boundary: bool, is_final: bool = False) -> None:
        early = self._recorder is None and len(self._lines) >= MAX_EARLY
        with self._lock:
            if not at_boundary:
                if self._supposed[0] > self._cut_at:  # no step may follow
                    self._add_line(*self._supposed, is_final=False)
                self._add_line(now, self._read(now), is_final)
            elif now - self._cut_at >= LEAST_CUT_NS and not early:
                self._add_line(now, self._read(now), is_final)
            if not at_boundary or now - self._flushed_at > FLUSH_NS:
                self._flush(now)

    def _read(self, now: int) -> List[Tuple[int, int, int]]:
        """Time, begun and ended of each phase up to `now`."""
        totals = list(self._ns)
        for phase in self._open.values():
            totals[phase.number] += max(0, now - phase.start)
        return [(ns, counts[_BEGUN], counts[_ENDED]) for ns, counts in zip(totals, self._counts)]  # noqa: B905

    def _add_line(self, now: int, reading: List[Tuple[int, int, int]], is_final: bool) -> None:
        rows = self._rows(reading, now - self._cut_at, is_final)
        if rows:
            self._lines.append({"begin_ns": self._cut_at, "end_ns": now, "phases": rows})
        self._cut_at = now

    def _rows(self, reading: List[Tuple[int, int, int]], length: int, is_final: bool) -> List[List[int]]:
        """[number, ns, begun, ended] of the phases that took a part worth a line since they were written."""
        rows = []
        for number, total in enumerate(reading):
            before = self._written[number]
            ns, begun, ended = (total[at] - before[at] for at in range(3))
            must = is_final or total[1] > total[2] or before[1] > before[2]  # is open, or was
            if ns * LEAST_SHARE >= length > 0 or (must and (ns or begun or ended)):
                rows.append([number, ns, begun, ended])
                self._written[number] = total
        return rows

    def _flush(self, now: int) -> None:
        if self._recorder is None:
            return
        self._flushed_at = now
        described = self._described[self._num_described :]
        lines, self._lines, self._num_described = self._lines, [], len(self._described)
        if described or lines:
            self._recorder.extend(layout.PHASES_JSONL, [*described, *lines])

    def finish(self, now: int) -> None:
        """The process ends: what is open is written as it is."""
        self.cut(now, is_final=True)
        for what, reason in self._lost.items():  # also where that was before there were files
            self._missing(Figure.PHASES, what, reason)
