"""Calls that a probe times itself, while a window is open: one file per window, `N.calls.json`.

For communication that no profiler shows (MPI from Python, Horovod's threads), beside the framework's own
trace or, where there is none, instead of it. `ingest/formats/calls.py` reads it; `rundir/layout.py` says what
is in it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any, Dict, Iterable, List, Optional, Tuple

from ..rundir import layout, seal
from .files import write_whole

MAX_ROWS = 200_000  # of one window: some 20 MB; what is more is counted, not kept


class CallLog:
    """Rows of the open window. `active` is asked before anything is timed: closed, a call costs a look."""

    def __init__(self) -> None:
        self.active = False
        self._groups: Dict[str, Dict[str, Any]] = {}  # of all windows, by name
        self._start()

    def _start(self) -> None:
        self._rows: List[tuple] = []
        self._lanes: Dict[int, str] = {}
        self._steps: List[Tuple[int, int, int]] = []
        self._num_lost = 0
        self._facts: Dict[str, Any] = {}

    def open(self) -> None:
        self._start()
        self.active = True

    def add(
        self,
        start_ns: int,
        end_ns: int,
        kind: str,
        name: str,
        *,
        phase: str = "other",
        layer: Optional[str] = None,
        collective: Optional[str] = None,
        group: Optional[str] = None,
        group_size: Optional[int] = None,
        in_bytes: Optional[int] = None,
        out_bytes: Optional[int] = None,
        dtype: Optional[str] = None,
        peer: Optional[int] = None,
        lane: Optional[int] = None,
    ) -> None:
        """One span, CLOCK_MONOTONIC ns. `kind`, `phase`: words of rundir.schema; `lane`: a thread id or ours.

        `group_size` and `peer` (global rank of the other end) as in the timeline table.
        """
        if not self.active:
            return
        if len(self._rows) >= MAX_ROWS:
            self._num_lost += 1
            return
        if lane is None:
            lane = threading.get_native_id()
        self._rows.append(
            (
                *(start_ns, end_ns - start_ns, lane, kind, phase, layer, name),
                *(collective, group, group_size, in_bytes, out_bytes, dtype, peer),
            )
        )

    def name_lane(self, lane: int, label: str) -> None:
        """What a lane that is no thread of this process is called ("Horovod")."""
        self._lanes[lane] = label

    def step(self, step: int, start_ns: int, end_ns: int) -> None:
        """A traced step: needed where no trace of a framework has the marks."""
        self._steps.append((step, start_ns, end_ns))

    def tell(self, **facts: Any) -> None:
        """Further keys of the file: `outside`, `notes` (see layout). They are of the open window."""
        self._facts.update(facts)

    def tell_groups(self, rows: Iterable[Dict[str, Any]]) -> None:
        """Communicators, for the files of this and all later windows; a known name's ranks are replaced."""
        for row in rows:
            self._groups[str(row["name"])] = row

    def close(self, path: str, main_tid: int, alone: bool) -> None:
        """End the window and write its calls. Without any nothing is written, unless they are `alone`: no
        trace of a framework is beside them.

        Raises:
            OSError: the file cannot be written.
        """
        self.active = False
        if not self._rows and not alone:
            return
        before = time.monotonic_ns()
        unix = time.time_ns()
        document = dict(
            self._facts,
            version=1,
            groups=list(self._groups.values()),
            monotonic_ns=(before + time.monotonic_ns()) // 2,
            unix_ns=unix,
            main_tid=main_tid,
            lanes={str(lane): label for lane, label in self._lanes.items()},
            columns=list(layout.CALL_COLUMNS),
            rows=self._rows,
            steps=self._steps,
            num_lost=self._num_lost,
        )
        try:
            write_whole(path, seal.sealed(json.dumps(document), os.path.basename(path)).encode("ascii"))
        finally:
            self._start()

    def abandon(self) -> None:
        self.active = False
        self._start()
