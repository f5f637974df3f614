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
from ..vocabulary.notes import NoteKind
from .files import AppendFile, Folder, Gone, say
from .ranks import Identity, claim
from .steps import Step

FLUSH_INTERVAL_NS = 200_000_000  # what a SIGKILL may cost: the last 0.2 s of steps
MOST_AT_ONCE = 1_000  # steps written together: programs of very short steps need no more memory for it
RETRY_NS = 5_000_000_000  # after a write failed (full disk)
MAX_PENDING = 100_000  # steps kept for a retry

_STEP_LINE = "[" + ",".join(["%s"] * len(Step._fields)) + "]"


class Recorder:
    """One rank's files. Once they are there, no failure to write raises: it is noted, and said at the end.

    Args:
        run_dir: absolute path of the run directory (made if this host does not see it).
        identity: who this process is.

    Raises:
        OSError: the run directory cannot be written.

    Attributes:
        files: name -> AppendFile of every file that lines are appended to.
        last_flush_ns: when steps were written last, CLOCK_MONOTONIC; later while a write has failed.
        ended: the run directory was removed or replaced: nothing is written any more.
    """

    def __init__(self, run_dir: str, identity: Identity) -> None:
        self.run_dir = run_dir
        self.rank, self.attempt, self.path = claim(os.path.join(run_dir, layout.RANKS), identity)
        self._pending: List[Step] = []
        self._num_dropped = 0  # steps that could not be kept for a retry
        self.last_flush_ns = time.monotonic_ns()
        self._folder = Folder(self.path)
        self._run_folder = Folder(run_dir)
        self.files: Dict[str, AppendFile] = {}
        self._documents: Dict[str, Any] = {}  # name of a document beside rank.json -> its seal
        self.ended = False
        self._last_error: Optional[OSError] = None
        self._file(layout.STEPS_JSONL).write(_encoded({"columns": list(Step._fields)}))
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
            "note_kinds": [],
        }

    def _file(self, name: str) -> AppendFile:
        if name not in self.files:
            self.files[name] = AppendFile(os.path.join(self.path, name))
        return self.files[name]

    def note(self, text: str, kind: NoteKind = NoteKind.OTHER) -> None:
        """One line for the reader of this run, once; kept with the rank."""
        if text not in self.meta["notes"]:
            self.meta["notes"].append(text)
            self.meta["note_kinds"].append(kind.value)

    def _failed(self, name: str, error: OSError) -> None:
        self._last_error = error
        self.note("%s could not be written for some time: %s" % (name, error.strerror))

    def add_step(self, step: Step, now: int) -> None:
        """Take one step; lines reach the disk in batches, always whole lines in one write."""
        self._pending.append(step)
        self.num_steps += 1
        waiting = now - self.last_flush_ns  # negative after a failed write, until it is tried again
        if waiting > FLUSH_INTERVAL_NS or (len(self._pending) >= MOST_AT_ONCE and waiting > 0):
            self.flush()

    def flush(self) -> None:
        """Write pending steps. On a full disk they are kept, and tried again five seconds later.

        Raises:
            Gone: the file was removed or replaced: recording ends here. Said on stderr.
        """
        self.last_flush_ns = time.monotonic_ns()
        pending, self._pending = self._pending, []
        if not pending:
            return
        # Not json.dumps: this runs between training steps, and nine integers need no encoder.
        lines = [(_STEP_LINE % step).replace("None", "null") for step in pending]
        file = self._file(layout.STEPS_JSONL)
        before = file.lines
        try:
            file.write(("\n".join(lines) + "\n").encode("ascii"))
        except Gone as error:
            self.ended = True
            self._num_dropped += len(pending)
            self._say(error)
            raise
        except OSError as error:
            self.last_flush_ns += RETRY_NS
            self._failed("steps", error)
        finally:  # also when a signal handler of the training's has raised meanwhile
            if file.lines == before and not self.ended:
                pending += self._pending
                self._pending = pending[-MAX_PENDING:]
                self._num_dropped += len(pending) - len(self._pending)

    def append(self, name: str, record: Dict[str, Any]) -> None:
        """Append one JSON line to the rank's file `name`."""
        self.extend(name, [record])

    def extend(self, name: str, records: List[Dict[str, Any]]) -> None:
        """Append JSON lines to the rank's file `name`, in one write."""
        try:
            self._file(name).write(b"".join(_encoded(record) for record in records))
            if self.meta["finished"]:
                self.save_meta()  # what comes after the end is sealed as well
        except OSError as error:
            self._failed(name, error)

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

    def save_meta(self, **fields: Any) -> bool:
        """Rewrite rank.json (aside, then renamed) with `fields` merged in; False: it could not be written.

        That of a rank which has ended holds the seals of the files beside it (rundir/seal.py).
        """
        self.meta.update(fields, num_steps=self.num_steps)
        if self.meta["finished"]:
            seals = {name: sealed for name, file in self.files.items() if (sealed := file.seal())}
            self.meta[seal.FILES] = {**self._documents, **seals}
        return self.write_json(layout.RANK_JSON, self.meta)

    def write_json(self, name: str, value: Any) -> bool:
        """Replace the rank's file `name`; False: it could not be written."""
        return self._replace(self._folder, name, value)

    def write_plan(self, plan: Dict[str, Any]) -> bool:
        """Announce a window to all ranks; False: it could not be written."""
        return self._replace(self._run_folder, layout.PLAN_JSON, plan)

    def _replace(self, folder: Folder, name: str, value: Any) -> bool:
        try:
            data = folder.replace_json(name, value)
            if folder is self._folder and name != layout.RANK_JSON:
                self._documents[name] = seal.seal_of(data)
            return True
        except OSError as error:
            self._failed(name, error)
            return False

    def windows_folder(self) -> str:
        """Path of the folder of traces, made if it is not there.

        Raises:
            OSError: it cannot be made. Gone: there is no place for it any more.
        """
        return self._folder.subfolder(layout.WINDOWS)

    def finish(self, **fields: Any) -> None:
        """The process ends: write what is left, and say so where that cannot be done."""
        if self.ended:
            return
        try:
            self.flush()
        except Gone:  # said
            return
        self.anchor()
        saved = self.save_meta(finished=True, **fields)
        if not saved or self._pending or self._num_dropped:
            self._say(self._last_error)

    def close(self) -> None:
        """In a forked child: give up the child's copies of the parent's descriptors."""
        for file in self.files.values():
            file.close()

    def _say(self, error: Optional[OSError]) -> None:
        lost = len(self._pending) + self._num_dropped
        steps = (
            "%d of its %d steps are not in it" % (lost, self.num_steps)
            if lost
            else "rank.json is not written"
        )
        reason = "" if error is None else str(error.strerror)
        if isinstance(error, Gone):
            steps, reason = "recording ends", "the run directory " + reason
        say("record", "the record of rank %d is incomplete, %s: %s" % (self.rank, steps, reason))


def _encoded(record: Dict[str, Any]) -> bytes:
    return (json.dumps(record) + "\n").encode("utf-8", "backslashreplace")
