"""A flight-recorder dump: to marks in the timeline, and how far its rank is in each process group.

A dump says when a call was enqueued, but hardly ever when it began and ended, so the timeline has a mark of
no length for each call and no communication time.

Only a bounded part of each entry is looked at: in a hostile file one object may occur at many places.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec

from perfscope.errors import TraceError
from perfscope.ingest.collectives import canonical
from perfscope.ingest.files import WindowFile, source_of
from perfscope.ingest.formats.opcodes import StreamError, plain_data
from perfscope.ingest.formats.trace import FrameworkTrace, write_table
from perfscope.ingest.inflate import read_whole
from perfscope.ingest.summary import IngestSummary
from perfscope.rundir import layout
from perfscope.rundir.flight_records import FlightCall, FlightDump, FlightGroup
from perfscope.vocabulary.steps import StepSource

LAST_CALLS = 64  # of each group, kept with their frames
_MOST_FRAMES, _MOST_TENSORS, _MOST_DIMS, _MOST_TEXT = 64, 8, 8, 300
_MOST_RANKS, _MOST_GROUPS = 1_000_000, 10_000
_WHOLE = 1 << 61
_FIRST_GROUP = "0"
_INT = re.compile(r"-?\d{1,18}")


def ingest_dump(file: WindowFile) -> IngestSummary:
    """Write a dump's marks and say how far the rank is.

    Raises:
        TraceError: it is no such dump.
        OSError: the timeline cannot be written.
    """
    document = _document(file)
    entries = [entry for entry in _list(document.get("entries")) if isinstance(entry, dict)]
    trace = FrameworkTrace(num_read=len(entries))
    lane = trace.lane(0, "main", "calls enqueued")
    calls: list[tuple[FlightCall, bool, bool]] = []  # with: point to point, over
    for entry in entries:
        call = _call(entry)
        if call is None:
            trace.num_dropped += 1
            continue
        calls.append((call, entry.get("is_p2p") is True, _is_over(entry)))
        if call.created_ns is not None:
            trace.add(lane, call.created_ns, 0, "annotation", f"{call.name} #{call.seq}")
    flight = _flight(document, entries, calls)
    if not calls and not flight.groups:
        raise TraceError(f"{file.source}: a flight-recorder dump without calls and process groups")
    write_table(trace.table(file.rank, file.window, []), file.table)
    backends = {call.backend for call, _, _ in calls} - {""}
    return IngestSummary(
        source=source_of(file),
        rank=file.rank,
        window=file.window,
        path=file.relative_source,
        events_read=max(len(entries), 1),
        events_kept=max(len(calls), 1),  # the state of the groups alone is of use, too
        events_cut=0,
        events_dropped=trace.num_dropped,
        events_skipped=0,
        unclassified=(),
        salvaged=trace.num_dropped > 0,
        notes=(),
        lanes=tuple(trace.lanes),
        steps=(),
        step_source=StepSource.WHOLE_FILE,
        groups=tuple(
            {"name": group.name, "pg_desc": group.title, "ranks": list(group.ranks)}
            for group in flight.groups
            if group.ranks is not None
        ),
        world_size=None,
        backend=backends.pop() if len(backends) == 1 else None,
        has_device="nccl" in backends,
        device_name=None,
        host=None,
        flight=flight,
    )


def _document(file: WindowFile) -> dict[Any, Any]:
    data = read_whole(file.source)
    try:
        document = plain_data(data) if file.suffix == layout.FLIGHTS[0] else msgspec.json.decode(data)
    except StreamError as error:
        raise TraceError(f"{file.source}: not read: {error}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise TraceError(f"{file.source}: cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict) or not ({"entries", "pg_status"} & document.keys()):
        raise TraceError(f"{file.source}: is no flight-recorder dump: it has neither entries nor pg_status")
    return document


def _flight(
    document: dict[Any, Any], entries: list[dict[Any, Any]], calls: list[tuple[FlightCall, bool, bool]]
) -> FlightDump:
    titles, names = _names(entries)
    members = _members(document, titles)
    status = _status(document, names)
    of_group: dict[str, list[tuple[FlightCall, bool]]] = defaultdict(list)  # with: over
    pending: dict[str, int] = defaultdict(int)
    for call, is_p2p, is_over in calls:
        if is_p2p:
            pending[call.group] += not is_over
        else:
            of_group[call.group].append((call, is_over))
    groups = []
    for name in islice(dict.fromkeys((*of_group, *pending, *status, *members)), _MOST_GROUPS):
        with_ends = sorted(of_group.get(name, ()), key=lambda pair: pair[0].seq)
        ordered = [call for call, _ in with_ends]
        # Sends and receives have numbers of their own, and PyTorch's status has that of the last of either.
        stated = {} if name in pending else status.get(name, {})
        seqs = [seq for seq in (_number(stated.get("last_enqueued_collective")),) if seq is not None]
        seqs += [ordered[-1].seq] if ordered else []
        groups.append(
            FlightGroup(
                name=name,
                title=titles.get(name, ""),
                ranks=members.get(name),
                enqueued=max(seqs, default=None),
                started=_number(stated.get("last_started_collective")),
                completed=_completed(stated, with_ends),
                calls=tuple(ordered[-LAST_CALLS:]),
                num_p2p=pending[name],
            )
        )
    last = max((call for call, _, _ in calls), key=lambda call: call.created_ns or 0, default=None)
    return FlightDump(
        version=_text(document.get("version")),
        groups=tuple(groups),
        last=last,
        begins_later=min((_number(entry.get("record_id")) or 0 for entry in entries), default=0) > 0,
    )


def _status(document: dict[Any, Any], names: dict[str, str]) -> dict[str, dict[Any, Any]]:
    """Group -> how far the process says it is. By the process's own numbers of groups: without calls in the
    dump only that of the first group is known to be its name as well.
    """
    status = {}
    for key, value in islice(_dict(document.get("pg_status")).items(), _MOST_GROUPS):
        number = _text(key)
        if isinstance(value, dict) and (number in names or number == _FIRST_GROUP):
            status[names.get(number, number)] = value
    return status


def _completed(stated: dict[Any, Any], calls: list[tuple[FlightCall, bool]]) -> int | None:
    """Number of the last completed collective, 0 for none; without a status by the ends of the calls."""
    key = "last_completed_collective"
    if key in stated:
        return _number(stated[key]) or 0
    return max((call.seq for call, is_over in calls if is_over), default=0) if calls else None


def _names(entries: list[dict[Any, Any]]) -> tuple[dict[str, str], dict[str, str]]:
    """Group -> description; number of the group in this process -> group."""
    titles, names = {}, {}
    for entry in entries:
        name, title = _pair(entry.get("process_group"))
        titles[name] = title
        names[_text(entry.get("pg_id"))] = name
    return titles, names


def _members(document: dict[Any, Any], titles: dict[str, str]) -> dict[str, tuple[int, ...]]:
    """Group -> its global ranks, where they are listed; descriptions are added to `titles`."""
    members = {}
    for key, config in islice(_dict(document.get("pg_config")).items(), _MOST_GROUPS):
        name = _text(key)
        if not name or not isinstance(config, dict):
            continue
        titles.setdefault(name, _text(config.get("desc")))
        ranks = config.get("ranks")
        if isinstance(ranks, str):
            listed = [int(number) for number in _INT.findall(ranks[: 8 * _MOST_RANKS])]
        else:
            listed = [rank for rank in _list(ranks, _MOST_RANKS) if _number(rank) is not None]
        if listed:
            members[name] = tuple(sorted({rank for rank in listed if 0 <= rank < _MOST_RANKS}))
    return members


def _call(entry: dict[Any, Any]) -> FlightCall | None:
    """None where it has no number or name."""
    seq = _number(entry.get("collective_seq_id"))
    backend, _, name = _text(entry.get("profiling_name")).rpartition(":")
    if seq is None or not name:
        return None
    created = _number(entry.get("time_created_ns"))
    return FlightCall(
        seq=seq,
        group=_pair(entry.get("process_group"))[0],
        name=canonical(name) or name,
        backend=backend,
        state=_text(entry.get("state")),
        shapes=_shapes(entry),
        frames=_frames(entry.get("frames")),
        created_ns=created if created else None,
    )


def _shapes(entry: dict[Any, Any]) -> tuple[str, ...]:
    sizes, dtypes = _list(entry.get("input_sizes")), _list(entry.get("input_dtypes"))
    shapes = []
    for at, size in enumerate(sizes[:_MOST_TENSORS]):
        dims = [_number(dim) for dim in _list(size, _MOST_DIMS)]
        shape = "x".join("?" if dim is None else str(dim) for dim in dims) or "scalar"
        dtype = _text(dtypes[at]) if at < len(dtypes) else ""
        shapes.append(f"{shape} {dtype}".strip())
    if len(sizes) > _MOST_TENSORS:
        shapes.append(f"{len(sizes) - _MOST_TENSORS:,} more")
    return tuple(shapes)


def _frames(frames: object) -> tuple[str, ...]:
    lines = []
    for frame in _list(frames, _MOST_FRAMES):
        if isinstance(frame, dict):
            line = _number(frame.get("line"))
            location = f"{_text(frame.get('filename'))}:{'?' if line is None else line}"
            lines.append(f"{location} {_text(frame.get('name'))}")
    return tuple(lines)


def _is_over(entry: dict[Any, Any]) -> bool:
    """Gloo leaves the state as it was and only retires the call."""
    return entry.get("state") == "completed" or entry.get("retired") is True


def _pair(group: object) -> tuple[str, str]:
    if isinstance(group, (list, tuple)) and group:
        return _text(group[0]), _text(group[1]) if len(group) > 1 else ""
    return _text(group), ""


def _text(value: object) -> str:
    if isinstance(value, str):
        return value[:_MOST_TEXT].encode("utf-8", "replace").decode()
    number = _number(value)
    return "" if number is None else str(number)


def _number(value: object) -> int | None:
    """A whole number, which JSON dumps have as text; None: none, or -1, which stands for none."""
    if isinstance(value, str) and _INT.fullmatch(value):
        value = int(value)
    return value if type(value) is int and 0 <= value < _WHOLE else None


def _list(value: object, most: int | None = None) -> Sequence[Any]:
    """The value, or its first `most` items."""
    if not isinstance(value, (list, tuple)):
        return []
    return value if most is None else value[:most]


def _dict(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}
