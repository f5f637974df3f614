"""Horovod's own timeline, where the training asked for one (HOROVOD_TIMELINE).

It tells what calls cannot: how long a tensor was negotiated (some rank had not handed it over yet) and how
long it was really moved. Rank 0 writes it, and its writer spins on a CPU from `hvd.init` on, so that
perfscope never asks for one itself. Horovod closes the file when it shuts down, which is after the rank's
files are written: what it says of the traced windows is added to them then, as annotations. They count as
nothing.
"""

from __future__ import annotations

import atexit
import json
import os
import re
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ...rundir import layout, seal
from ..files import write_whole
from ..process import Process

NEGOTIATION, TRANSFER = (1 << 40) + 1, (1 << 40) + 2  # lanes; no thread has such a number
_LABELS = {NEGOTIATION: "Horovod: negotiation", TRANSFER: "Horovod: transfer"}
_NEGOTIATE = "NEGOTIATE_"
_MOVES = re.compile(r"^(GLOO|MPI|NCCL|CCL|DDL|MLSL)_|^MEMCPY_")
MAX_BYTES = 256 << 20  # of a timeline that is read
_Span = Tuple[int, int, str, int]  # start ns, end ns (Unix), name, lane


def join_timeline_at_exit(process: Process) -> None:
    """Called before `hvd.init`, whose own exit handler is then the first of the two to run."""
    path = os.environ.get("HOROVOD_TIMELINE", "")
    if path and path != "DYNAMIC":
        atexit.register(_at_exit, process, os.path.abspath(path), os.getpid())


def _at_exit(process: Process, path: str, pid: int) -> None:
    if pid != os.getpid() or process.recorder is None or process.recorder.rank != 0:
        return
    try:
        join_timeline(os.path.join(process.recorder.path, layout.WINDOWS), path)
    except Exception as error:  # noqa: BLE001 - the boundary: the exit code is the training's own
        process.guard.fault("horovod timeline", error)


def join_timeline(folder: str, path: str) -> int:
    """Add what the timeline at `path` says to every `N.calls.json` in `folder`.

    Returns:
        Rows added.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: the timeline is none.
    """
    names = [name for name in os.listdir(folder) if name.endswith(layout.CALLS)]
    if not names or os.path.getsize(path) > MAX_BYTES:
        return 0
    spans = list(spans_of(_events(path)))
    return sum(_join(os.path.join(folder, name), spans) for name in names)


def _events(path: str) -> List[Dict[str, Any]]:
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read().strip()
    if not text.endswith("]"):
        text = text.rstrip(",") + "]"  # not closed: Horovod was killed
    events = json.loads(text)
    if not isinstance(events, list):
        raise ValueError("a timeline is a list of events")
    return [event for event in events if isinstance(event, dict)]


def spans_of(events: List[Dict[str, Any]]) -> Iterator[_Span]:
    """Negotiations and transfers. A tensor is a `pid`; what it goes through is nested."""
    offset: Optional[int] = None
    tensors: Dict[Any, str] = {}
    begun: Dict[Any, List[Tuple[str, int]]] = {}
    for event in events:
        args, pid, phase = event.get("args") or {}, event.get("pid"), event.get("ph")
        if phase == "M":
            if "start_time_since_epoch_in_micros" in args:
                offset = int(args["start_time_since_epoch_in_micros"])
            elif event.get("name") == "process_name":
                tensors[pid] = str(args.get("name", ""))
        elif phase == "B":
            begun.setdefault(pid, []).append((str(event.get("name", "")), int(event["ts"])))
        elif phase == "E" and begun.get(pid):
            name, start = begun[pid].pop()
            lane = NEGOTIATION if name.startswith(_NEGOTIATE) else TRANSFER if _MOVES.match(name) else None
            if lane is not None and offset is not None:
                text = "%s %s" % (name, tensors.get(pid, ""))
                yield (start + offset) * 1000, (int(event["ts"]) + offset) * 1000, text.strip(), lane


def _join(path: str, spans: List[_Span]) -> int:
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    if document.get("columns") != list(layout.CALL_COLUMNS) or not document.get("steps"):
        return 0
    to_monotonic = document["monotonic_ns"] - document["unix_ns"]
    first = min(step[1] for step in document["steps"])
    last = max(step[2] for step in document["steps"])
    num_rows = len(document["rows"])
    for start, end, name, lane in spans:
        begin = start + to_monotonic
        if first <= begin < last:
            row = (begin, end - start, lane, "annotation", "other", None, name)
            document["rows"].append(list(row) + [None] * (len(layout.CALL_COLUMNS) - len(row)))
            document["lanes"][str(lane)] = _LABELS[lane]
    added = len(document["rows"]) - num_rows
    if added:
        document.pop(seal.CHECKSUM, None)
        write_whole(path, seal.sealed(json.dumps(document), os.path.basename(path)).encode("ascii"))
    return added
