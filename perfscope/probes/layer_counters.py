"""Counters of the training thread per layer, while a window is open: one file per window, `N.counters.json`.

A reading is taken wherever another layer goes on with the work of the thread: at the marks of the forward
pass, and where the backward pass reaches what a layer's forward pass returned, or was given by operators of
the layer around it. What is counted between two readings belongs to the layer and phase of the first. So the
readings of a step add up to the step, whatever becomes of single ones.

Readings cost microseconds each. Where those of a step take more than MAX_SHARE of it, that step is the only
one that is read, and later windows have no counters. Only the thread that opened the window is counted:
neither intra-operator threads, nor those of communication backends. Without the backward pass's own thread
(GPUs) no layer is known there.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

from ..rundir import layout, seal
from ..vocabulary.causes import Cause
from .files import write_whole
from .perf_events import Closed, Reason, ThreadCounters

MAX_SHARE = 0.01  # of a step's time; above it one step is read, no other
MOST_SHARE = 0.2  # of a window's time so far: that one step is not finished
FREE_NS = 2_000_000  # and as much at any rate: the readings of a hundred layers
MOST_NS = 50_000  # that one reading is taken to cost: what is more, the thread did not run
OUTSIDE = ("other", "")  # phase and layer of what no layer does
_clock = time.monotonic_ns
Context = Tuple[str, str]


class _Mark:
    """A layer's mark in the trace, with a reading on either side."""

    def __init__(self, counters: LayerCounters, mark: Any, layer: str) -> None:
        self._counters, self._mark, self._layer = counters, mark, layer

    def __enter__(self) -> None:
        self._mark.__enter__()
        self._depth = self._counters.enter(self._layer)

    def __exit__(self, *error: Any) -> None:
        self._counters.leave(self._depth)
        self._mark.__exit__(*error)


class LayerCounters:
    """Readings of the open window.

    Args:
        open_counters: opens the counters of the calling thread.

    Attributes:
        active: readings are taken.
    """

    def __init__(self, open_counters: Callable[[], ThreadCounters] = ThreadCounters) -> None:
        self._open_counters = open_counters
        self._is_costly = False
        self._start()

    def _start(self) -> None:
        self.active = False
        self._counters: Optional[ThreadCounters] = None
        self._thread = 0
        self._readings: List[Tuple[int, Context, Any]] = []
        self._steps: List[Tuple[int, int, int]] = []  # number, first reading, last reading
        self._stack: List[Context] = [OUTSIDE]
        self._known: Set[int] = set()  # nodes of the graph whose layer is known, by sequence number
        self._ended: Optional[Reason] = None
        self._opened = self._cost_ns = self._step_start = self._cost_before = 0

    # -- windows ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the calling thread's counters. Nothing is counted before the first step."""
        self._start()
        if self._is_costly:
            return
        self._counters = self._open_counters()
        self._thread = threading.get_ident()
        self._opened = _clock()
        self.active = bool(self._counters.columns)

    def step_begins(self) -> None:
        self._stack, self._step_start = [OUTSIDE], len(self._readings)
        self._known.clear()
        self._cost_before = self._cost_ns
        self._read()

    def step_ended(self, step: int) -> None:
        self._stack = [OUTSIDE]
        self._read()
        if self.active:
            self._steps.append((step, self._step_start, len(self._readings) - 1))
            duration = self._readings[-1][0] - self._readings[self._step_start][0]
            self._is_costly = self._cost_ns - self._cost_before > MAX_SHARE * duration
            self.active = not self._is_costly

    def close(self, path: str) -> None:
        """Give up the counters and write the file.

        Raises:
            OSError: the file cannot be written.
        """
        counters = self._counters
        if counters is None:
            return
        self.active = False
        before, unix = _clock(), time.time_ns()
        document: Dict[str, Any] = {
            "version": 1,
            "monotonic_ns": before,
            "unix_ns": unix,
            "columns": [*layout.COUNTER_COLUMNS, *counters.columns],
            "software_source": counters.software_source,
            "user_only": counters.user_only,
            "refused": {counter.value: _words(reason) for counter, reason in counters.refused.items()},
            "ended": self._ended and _words(self._ended),
            "cost_ns": self._cost_ns,
        }
        try:
            document.update(self._table(counters))
        finally:
            self.abandon()
        write_whole(path, seal.sealed(json.dumps(document), os.path.basename(path)).encode("ascii"))

    def _table(self, counters: ThreadCounters) -> Dict[str, Any]:
        """`steps` and `rows` of the file: of each complete step, what was counted from reading to reading."""
        steps: List[List[int]] = []
        rows: List[List[Any]] = []
        for step, first, last in self._steps:
            begin = len(rows)
            values = [counters.decode(reading) for _, _, reading in self._readings[first : last + 1]]
            for index in range(first, last):
                start, (phase, layer), _ = self._readings[index]
                earlier, later = values[index - first], values[index - first + 1]
                deltas = [after - before for before, after in zip(earlier, later)]  # noqa: B905 - Python 3.8
                rows.append([start, self._readings[index + 1][0] - start, phase, layer, *deltas])
            steps.append([step, begin, len(rows)])
        return {"steps": steps, "rows": rows}

    def abandon(self) -> None:
        """Give up the counters: the window is lost, or this is a forked child with copies of its parent's."""
        counters = self._counters
        self._start()
        if counters is not None:
            counters.close()

    # -- readings -----------------------------------------------------------------------------------

    def marks(self, new_mark: Callable[[str], Any]) -> Callable[[str], Any]:
        """`new_mark`, which gives the context manager of a layer's mark in the trace, with readings."""

        def mark_of(name: str) -> Any:
            mark = new_mark(name)
            return _Mark(self, mark, name.partition(":")[2]) if self._here() else mark

        return mark_of

    def enter(self, layer: str) -> int:
        """A layer's forward call begins (within a backward pass: again). Returns: what `leave` is given."""
        if not self._here():
            return 0
        depth = len(self._stack)
        self._stack.append(("backward" if self._stack[-1][0] == "backward" else "forward", layer))
        self._read()
        return depth

    def leave(self, depth: int) -> None:
        if depth and self._here() and depth < len(self._stack):
            del self._stack[depth:]
            self._read()

    def backward_begins(self) -> int:
        """A backward pass begins, of no layer yet. Returns: what `leave` is given."""
        if not self._here():
            return 0
        depth = len(self._stack)
        self._stack.append(("backward", ""))
        self._read()
        return depth

    def takes(self, value: Any) -> None:
        """A layer is about to be called with `value`: the layer around it has made it, if none did before."""
        if self._here():
            self._watch(value, self._stack[-1][1])

    def gives(self, value: Any) -> None:
        """The innermost layer's forward call returns `value`."""
        if self._here() and self._stack[-1][1]:
            self._watch(value, self._stack[-1][1])

    def _watch(self, value: Any, layer: str) -> None:
        began = _clock()
        for node in _nodes(value):
            number = node._sequence_nr()
            if number not in self._known:
                self._known.add(number)
                node.register_prehook(lambda _, layer=layer: self._reached(layer))
        self._cost_ns += min(_clock() - began, MOST_NS)

    def _reached(self, layer: str) -> None:
        """The backward pass has come to the work of a layer."""
        if self._here() and self._stack[-1][0] == "backward" and self._stack[-1] != ("backward", layer):
            self._stack[-1] = ("backward", layer)
            self._read()

    def _here(self) -> bool:
        return self.active and threading.get_ident() == self._thread

    def _read(self) -> None:
        counters = self._counters
        if not self.active or counters is None:
            return
        began = _clock()
        try:
            reading = counters.read()
        except Closed as error:
            self._end(Reason(Cause.DESCRIPTORS_CLOSED, str(error.strerror)))
            return
        self._readings.append((began, self._stack[-1], reading))
        now = _clock()
        self._cost_ns += min(now - began, MOST_NS)
        if self._cost_ns > max(FREE_NS, MOST_SHARE * (now - self._opened)):
            self._is_costly = True
            self._end(Reason(Cause.TOO_COSTLY, ""))

    def _end(self, reason: Reason) -> None:
        self._ended = reason
        self.active = False


def _words(reason: Reason) -> List[str]:
    return [reason.cause.value, reason.detail]


def _nodes(value: Any) -> List[Any]:
    """The graph nodes that made the CPU tensors in what a layer takes or gives."""
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction():  # modes and subclasses of the training's are not to see this
        nodes = [
            item.grad_fn
            for item in _items(value)
            if isinstance(item, torch.Tensor) and item.requires_grad and item.device.type == "cpu"
        ]
    return [node for node in nodes if hasattr(node, "register_prehook")]  # leaves have none, nor torch < 2.0


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (tuple, list)) else (value,)
