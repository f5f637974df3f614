"""Writes what one rank leaves in the run directory. Plain appends and renames, no threads."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import Any, Dict, List, Optional

from ..rundir import layout, seal
from .ranks import Identity, claim
from .steps import Step

FLUSH_INTERVAL_NS = 200_000_000  # what a SIGKILL may cost: the last 0.2 s of steps
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
        self._documents: Dict[str, Any] = {}  # name of a document beside rank.json -> its seal
        self._pending: List[Step] = []
        self._mend = ""
        self._last_flush = time.monotonic_ns()
        self._written: Dict[str, Optional[seal.Counter]] = {}  # None: another process wrote there before
        self._steps_fd = self._open(layout.STEPS_JSONL)
        self._write(self._steps_fd, layout.STEPS_JSONL, json.dumps({"columns": list(Step._fields)}) + "\n")
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

    def _open(self, name: str) -> int:
        fd = os.open(os.path.join(self.path, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if name not in self._written:
            self._written[name] = None if os.fstat(fd).st_size else seal.Counter()
        return fd

    def _write(self, fd: int, name: str, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        counter = self._written[name]
        while data:  # one write in practice; a short one is a filling disk, the next raises
            num = os.write(fd, data)
            if counter is not None:
                counter.add(data[:num])
            data = data[num:]

    def add_step(self, step: Step, now: int) -> None:
        """Take one step; lines reach the disk in batches, always whole lines in one write."""
        self._pending.append(step)
        self.num_steps += 1
        if now - self._last_flush > FLUSH_INTERVAL_NS:
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
            self._write(self._steps_fd, layout.STEPS_JSONL, self._mend + "\n".join(lines) + "\n")
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
        fd = self._open(name)
        try:
            self._write(fd, name, json.dumps(record) + "\n")
        finally:
            os.close(fd)
        if self.meta["finished"]:
            self.save_meta()  # what is told after the end is sealed as well

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
        """Rewrite rank.json (aside, then renamed) with `fields` merged in; of a finished rank with seals."""
        self.meta.update(fields, num_steps=self.num_steps)
        if self.meta["finished"]:
            self.meta[seal.FILES] = {**self._documents, **self._seals()}
        self.write_json(layout.RANK_JSON, self.meta)

    def _seals(self) -> Dict[str, Any]:
        return {name: one.seal() for name, one in self._written.items() if one is not None}

    def write_json(self, name: str, value: Any) -> None:
        text = self.replace_json(os.path.join(self.path, name), value)
        if name != layout.RANK_JSON:
            self._documents[name] = seal.seal_of(text.encode())

    @staticmethod
    def replace_json(path: str, value: Any) -> str:
        """Write an object with its checksum, aside and renamed; returns what the file holds."""
        aside = "%s.%d.tmp" % (path, os.getpid())
        text = seal.sealed(json.dumps(value))  # ASCII
        with open(aside, "w", encoding="ascii", newline="") as file:
            file.write(text)
        os.replace(aside, path)
        return text
