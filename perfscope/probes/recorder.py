"""Writes what one rank leaves in the run directory. Plain appends and renames, no threads."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import Any, Dict, List, Optional

from ..rundir import layout
from .ranks import Identity, claim
from .steps import Step

FLUSH_INTERVAL_NS = 200_000_000  # what a SIGKILL may cost: the last 0.2 s of steps
MOST_AT_ONCE = 1_000  # steps written together: programs of very short steps need no more memory for it
RETRY_NS = 5_000_000_000  # after a write failed (full disk)
MAX_PENDING = 100_000  # steps kept for a retry

_STEP_LINE = "[" + ",".join(["%s"] * len(Step._fields)) + "]"


class Recorder:
    """One rank's files.

    Args:
        run_dir: absolute path of the run directory (made if this host does not see it).
        identity: who this process is.

    Raises:
        OSError: the run directory cannot be written.
    """

    def __init__(self, run_dir: str, identity: Identity) -> None:
        self.run_dir = run_dir
        self.rank, self.attempt, self.path = claim(os.path.join(run_dir, layout.RANKS), identity)
        self._pending: List[Step] = []
        self._mend = ""
        self._last_flush = time.monotonic_ns()
        self._steps_fd = os.open(
            os.path.join(self.path, layout.STEPS_JSONL), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        self._write(self._steps_fd, json.dumps({"columns": list(Step._fields)}) + "\n")
        self.num_steps = 0
        self.meta: Dict[str, Any] = {
            "schema_version": layout.SCHEMA_VERSION,
            "rank": self.rank,
            "local_rank": identity.local_rank,
            "world_size": identity.world_size,
            "rank_source": identity.source or "order of start",
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "main_tid": threading.main_thread().native_id,
            "python": "%d.%d.%d" % sys.version_info[:3],
            "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            "anchors": [],
            "num_steps": 0,
            "finished": False,
            "notes": [],
        }

    @staticmethod
    def _write(fd: int, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        while data:  # one write in practice; a short one is a filling disk, the next raises
            data = data[os.write(fd, data) :]

    def add_step(self, step: Step, now: int) -> None:
        """Take one step; lines reach the disk in batches, always whole lines in one write."""
        self._pending.append(step)
        self.num_steps += 1
        waiting = now - self._last_flush  # negative after a failed write, until it is tried again
        if waiting > FLUSH_INTERVAL_NS or (len(self._pending) >= MOST_AT_ONCE and waiting > 0):
            self.flush()

    def flush(self) -> None:
        """Write pending steps. On a full disk they are kept, and tried again five seconds later."""
        self._last_flush = time.monotonic_ns()
        pending, self._pending = self._pending, []
        if not pending:
            return
        # Not json.dumps: this runs between training steps, and nine integers need no encoder.
        lines = [(_STEP_LINE % step).replace("None", "null") for step in pending]
        try:
            self._write(self._steps_fd, self._mend + "\n".join(lines) + "\n")
            self._mend = ""
        except OSError as error:
            self._mend = "\n"  # a line may be torn: readers drop it, the next must stand by itself
            self._pending = pending[-MAX_PENDING:]
            self._last_flush += RETRY_NS
            note = "steps could not be written for some time: %s" % error.strerror
            if note not in self.meta["notes"]:
                self.meta["notes"].append(note)

    def append(self, name: str, record: Dict[str, Any]) -> None:
        """Append one JSON line to the rank's file `name`."""
        fd = os.open(os.path.join(self.path, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._write(fd, json.dumps(record) + "\n")
        finally:
            os.close(fd)

    def anchor(self) -> None:
        """Pair the monotonic clock with the wall clock; the narrowest of three readings."""
        best: Optional[List[int]] = None
        width = 0
        for _ in range(3):
            before = time.monotonic_ns()
            wall = time.time_ns()
            after = time.monotonic_ns()
            if best is None or after - before < width:
                best, width = [(before + after) // 2, wall], after - before
        self.meta["anchors"].append(best)

    def save_meta(self, **fields: Any) -> None:
        """Rewrite rank.json (aside, then renamed) with `fields` merged in."""
        self.meta.update(fields, num_steps=self.num_steps)
        self.write_json(layout.RANK_JSON, self.meta)

    def write_json(self, name: str, value: Any) -> None:
        self.replace_json(os.path.join(self.path, name), value)

    @staticmethod
    def replace_json(path: str, value: Any) -> None:
        aside = "%s.%d.tmp" % (path, os.getpid())
        with open(aside, "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump(value, file)
        os.replace(aside, path)
