"""Records of NCCL Inspector: to spans of calls in the timeline, and what the file says of bandwidths.

The spans are annotations, one lane per communicator: the file says nothing of what the rank computes, so a
split of steps would be made up. Without verbose output a call has a duration and no time of its own: it ends,
in the timeline, when its line was written.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from perfscope.errors import TraceError
from perfscope.ingest.collectives import canonical
from perfscope.ingest.files import WindowFile, source_of
from perfscope.ingest.formats.inspector_records import (
    Collective,
    Header,
    InspectorLine,
    PointToPoint,
    decode,
    lines_of,
)
from perfscope.ingest.formats.trace import depths, write_table
from perfscope.ingest.summary import IngestSummary, Lane
from perfscope.rundir.inspector_records import InspectorGroup, InspectorRecord, StatedBandwidth
from perfscope.rundir.schema import KINDS, PHASES, TIMELINE
from perfscope.vocabulary.steps import StepSource
from perfscope.volumes import bus_factor, payload_bytes

_COLUMNS = ("start", "dur", "group", "collective", "size", "bytes", "seq")
_TOLERANCE = 0.001  # bandwidths are printed with six digits after the point
_MOST_GROUPS, _MOST_NAMES = 10_000, 64
_SEQ = 1 << 31  # what the timeline's column holds
_LATEST_US = 1 << 52
_UNTIMED = (
    "the file has no times of calls (NCCL_INSPECTOR_DUMP_VERBOSE=1): a call ends when its line was written"
)


class _Reading:
    """What the lines say together."""

    def __init__(self) -> None:
        self.columns = {name: array("q") for name in _COLUMNS}
        self.groups: dict[str, Header] = {}
        self.places: dict[str, int] = {}  # of groups
        self.names: dict[str, int] = {}
        self.bandwidths: dict[tuple[str, str], list[float]] = {}  # compared, deviating, worst, worst ratio
        self.sources: Counter[str] = Counter()
        self.hosts: set[str] = set()
        self.num_read = self.num_dropped = self.num_untimed = self.left_out = 0

    def add(self, line: bytes) -> None:
        self.num_read += 1
        record = decode(line)
        self.left_out += record.left_out if record is not None else 0
        if record is not None and record.left_out:
            self.num_read -= 1
        elif record is None or not self._add(record):
            self.num_dropped += 1

    def _add(self, record: InspectorLine) -> bool:
        head, call = record.header, record.coll_perf or record.p2p_perf
        if head is None or call is None or not 0 <= head.rank < head.n_ranks <= 1 << 24:
            return False
        written = record.metadata.dump_timestamp_us
        name = canonical(call.name) or call.name[:40].encode("utf-8", "replace").decode()
        if call.sn >= _SEQ or written > _LATEST_US or call.exec_time_us > _LATEST_US or not self._room(name):
            return False
        if head.group not in self.groups and len(self.groups) >= _MOST_GROUPS:
            return False
        self.groups.setdefault(head.group, head)
        duration = round(call.exec_time_us * 1000)
        payload = payload_bytes(name, call.msg_size_bytes, head.n_ranks)
        start = _start(call)
        if start is None:
            self.num_untimed += 1
            start = max(0, written * 1000 - duration)
        number = self.places.setdefault(head.group, len(self.places))
        values = (start, duration, number, self.names[name], head.n_ranks, min(payload, 1 << 61), call.sn)
        for column, value in zip(_COLUMNS, values, strict=True):
            self.columns[column].append(value)
        self._compare(head, name, call, payload)
        self.sources[call.timing_source[:40]] += 1
        self.hosts.add(record.metadata.hostname[:255])
        return True

    def _room(self, name: str) -> bool:
        if name not in self.names and len(self.names) < _MOST_NAMES:
            self.names[name] = len(self.names)
        return name in self.names

    def _compare(self, head: Header, name: str, call: Collective | PointToPoint, payload: int) -> None:
        """The file's two bandwidths with those of its bytes and time."""
        if not (payload and call.exec_time_us):
            return
        algbw = payload / call.exec_time_us / 1000  # GB/s
        factor = bus_factor(name, head.n_ranks)
        pairs = [(call.algobw_gbs, algbw), (call.busbw_gbs, None if factor is None else algbw * factor)]
        ratios = [stated / recomputed for stated, recomputed in pairs if stated and recomputed]
        if not ratios:
            return
        counts = self.bandwidths.setdefault((head.group, name), [0, 0, 0.0, 1.0])
        counts[0] += 1
        worst = max(ratios, key=lambda ratio: abs(ratio - 1))
        # Six digits after the point are few for a slow call.
        if abs(worst - 1) > _TOLERANCE + 1e-6 / min(recomputed for _, recomputed in pairs if recomputed):
            counts[1] += 1
            if abs(worst - 1) > counts[2]:
                counts[2:] = [abs(worst - 1), worst]


def _start(call: Collective | PointToPoint) -> int | None:
    channels = call.event_trace_ts.kernel_events if call.event_trace_ts is not None else []
    starts = [channel.kernel_start_ts for channel in channels if 0 < channel.kernel_start_ts <= _LATEST_US]
    return min(starts) * 1000 if starts else None


def ingest_records(file: WindowFile) -> IngestSummary:
    """Write the calls of a rank and say what its communicators are.

    Raises:
        TraceError: no line can be used.
        OSError: the timeline cannot be written.
    """
    reading, notes, ends_early = _Reading(), [], False
    try:
        for line in lines_of(file.source):
            reading.add(line)
    except TraceError as error:
        ends_early = True
        notes.append(f"the file ends early: {str(error).rpartition(': ')[2]}")
    kept = len(reading.columns["start"])
    if not kept:
        raise TraceError(f"{file.source}: holds no record of NCCL Inspector that can be read")
    if reading.num_untimed:
        notes.append(_UNTIMED)
    if reading.left_out:
        notes.append(
            f"{reading.left_out:,} calls of smaller communicators are left out: the file is of several ranks "
            "of one process and does not say which rank made them"
        )
    lanes = tuple(
        Lane(device=0, lane=at, role="stream", label=f"communicator {group}")
        for at, group in enumerate(reading.groups)
    )
    write_table(_table(reading, file), file.table)
    largest = max(reading.groups.values(), key=lambda head: head.n_ranks)
    return IngestSummary(
        source=source_of(file),
        rank=file.rank,
        window=file.window,
        path=file.relative_source,
        events_read=reading.num_read,
        events_kept=kept,
        events_cut=0,
        events_dropped=reading.num_dropped,
        events_skipped=0,
        unclassified=(),
        salvaged=reading.num_dropped > 0 or ends_early,
        notes=tuple(notes),
        lanes=lanes,
        steps=(),
        step_source=StepSource.WHOLE_FILE,
        groups=(),
        world_size=largest.n_ranks,
        backend="nccl",
        has_device=True,
        device_name=None,
        host=next(iter(reading.hosts)) or None if len(reading.hosts) == 1 else None,
        inspector=_record(reading),
    )


def _record(reading: _Reading) -> InspectorRecord:
    return InspectorRecord(
        groups=tuple(
            InspectorGroup(name=name, title=head.comm_name[:200], rank=head.rank, num_ranks=head.n_ranks)
            for name, head in reading.groups.items()
        ),
        stated=tuple(
            StatedBandwidth(
                *key, num_compared=int(counts[0]), num_deviating=int(counts[1]), worst_ratio=counts[3]
            )
            for key, counts in reading.bandwidths.items()
        ),
        timing_sources=tuple(source for source, _ in reading.sources.most_common(8)),
    )


def _table(reading: _Reading, file: WindowFile) -> pa.Table:
    columns = {name: np.frombuffer(values, np.int64) for name, values in reading.columns.items()}
    order = np.argsort(columns["start"], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    num = len(order)
    group, start, dur = columns["group"], columns["start"], columns["dur"]
    ids = np.stack([np.zeros(num, np.int64), group], axis=1)
    names = _words(columns["collective"], list(reading.names))
    arrays: dict[str, Any] = {
        "rank": np.full(num, file.rank),
        "window": np.full(num, file.window),
        "step": np.full(num, -1),
        "device": ids[:, 0],
        "lane": group,
        "start_ns": start,
        "dur_ns": dur,
        "depth": np.minimum(depths(ids, start, start + dur), 32767),
        "kind": _words(np.full(num, KINDS.index("annotation")), KINDS),
        "phase": _words(np.full(num, PHASES.index("other")), PHASES),
        "name": names,
        "collective": names,
        "group": _words(group, list(reading.groups)),
        "group_size": columns["size"],
        "in_bytes": columns["bytes"],
        "out_bytes": columns["bytes"],
        "seq": columns["seq"],
    }
    return pa.table(
        [
            pa.array(arrays[field.name]).cast(field.type)
            if field.name in arrays
            else pa.nulls(num, field.type)
            for field in TIMELINE
        ],
        schema=TIMELINE,
    )


def _words(codes: Any, vocabulary: Any) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(
        pa.array(codes.astype(np.int32)), pa.array(list(vocabulary), pa.string())
    )
