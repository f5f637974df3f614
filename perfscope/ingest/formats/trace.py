"""What a reader of another framework's trace hands over, and how it becomes the timeline table.

These traces are small against Kineto's (a CPU window is some thousand operators), so they are held in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.ingest.collectives import Collective
from perfscope.ingest.summary import Lane
from perfscope.rundir.files import replacing
from perfscope.rundir.schema import KINDS, PHASES, TIMELINE
from perfscope.vocabulary.steps import StepSource

Ints = NDArray[np.int64]
UNKNOWN = -1  # of flops and bytes
_SIGN = 1 << 63


class FrameworkTrace(Struct):
    """One window of one rank. Add spans with `add` or, many at once, `extend`; order does not matter.

    Attributes:
        lanes: threads and streams; a span names one by its index. Roles: "main" (the thread that trains),
            "executor" (threads that run the model's operators for it: their compute is the step's),
            "backend" (of a communication library), "worker" (others), "stream" (with device >= 0).
        steps: (step, start_ns, end_ns) of the probe's marks; [] = the whole file is one step, -1.
        groups: {"name", "ranks": global ranks} of communicators.
        num_read: records of the file; num_dropped of them could not be used.
        notes: one line each of what is lacking, for the report.
    """

    lanes: list[Lane] = []
    steps: list[tuple[int, int, int]] = []
    groups: list[dict[str, Any]] = []
    world_size: int | None = None
    backend: str | None = None
    device_name: str | None = None
    num_read: int = 0
    num_dropped: int = 0
    notes: list[str] = []
    _parts: list[tuple[Ints, ...]] = []
    _layers: list[str | None] = []
    _names: list[str] = []
    _collectives: dict[int, Collective] = {}

    def lane(self, lane: int, role: str, label: str, device: int = -1) -> int:
        """The index of a new lane."""
        lane = (lane + _SIGN) % (2 * _SIGN) - _SIGN  # threads may be hashes of 64 bits
        self.lanes.append(Lane(device=device, lane=lane, role=role, label=label))
        return len(self.lanes) - 1

    def add(
        self,
        lane: int,
        start_ns: int,
        dur_ns: int,
        kind: str,
        name: str,
        *,
        phase: str = "other",
        layer: str | None = None,
        collective: Collective | None = None,
        flops: int = UNKNOWN,
        bytes_read: int = UNKNOWN,
        bytes_written: int = UNKNOWN,
    ) -> None:
        """One span. Times: ns since the Unix epoch. `flops`, bytes: modeled from shapes, as in TIMELINE."""
        if collective is not None:
            self._collectives[len(self._names)] = collective
        self.extend(
            *([lane], [start_ns], [dur_ns], [KINDS.index(kind)], [PHASES.index(phase)], [layer], [name]),
            *([flops], [bytes_read], [bytes_written]),
        )

    def extend(
        self,
        lane: Sequence[int] | Ints,
        start_ns: Sequence[int] | Ints,
        dur_ns: Sequence[int] | Ints,
        kind: Sequence[int] | Ints,
        phase: Sequence[int] | Ints,
        layer: Iterable[str | None],
        name: Iterable[str],
        flops: Sequence[int] | Ints | None = None,
        bytes_read: Sequence[int] | Ints | None = None,
        bytes_written: Sequence[int] | Ints | None = None,
    ) -> None:
        """Many spans; all of one length (n,). `kind`, `phase`: indices into schema.KINDS and PHASES."""
        columns = [np.asarray(column, np.int64) for column in (lane, start_ns, dur_ns, kind, phase)]
        unknown = np.full(len(columns[0]), UNKNOWN, np.int64)
        given = (flops, bytes_read, bytes_written)
        columns += [unknown if column is None else np.asarray(column, np.int64) for column in given]
        self._parts.append(tuple(columns))
        self._layers.extend(layer)
        self._names.extend(name)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def step_source(self) -> StepSource:
        return StepSource.PERFSCOPE if self.steps else StepSource.WHOLE_FILE

    def spans_of_steps(self) -> list[tuple[int, int, int]]:
        """`steps`, each lasting until the next begins; the whole file as one where there are none."""
        if self.steps:
            ordered = sorted(self.steps, key=lambda step_row: step_row[1])
            ends = [step_row[1] for step_row in ordered[1:]] + [ordered[-1][2]]
            return [(step, start, end) for (step, start, _), end in zip(ordered, ends, strict=True)]
        if not self._names:
            return []
        starts = np.concatenate([part[1] for part in self._parts])
        ends_ns = starts + np.concatenate([part[2] for part in self._parts])
        return [(0, int(starts.min()), int(ends_ns.max()) + 1)]

    def union_of(self, lane: int) -> Ints:
        """When spans of this lane were under way, annotations apart: disjoint (start, end), shape (k, 2)."""
        if not self._names:
            return np.empty((0, 2), np.int64)
        lanes, starts, durs, kinds = (np.concatenate([part[at] for part in self._parts]) for at in range(4))
        chosen = (lanes == lane) & (kinds != KINDS.index("annotation"))
        start, end = starts[chosen], (starts + durs)[chosen]
        if not len(start):
            return np.empty((0, 2), np.int64)
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order])
        first = np.concatenate([[True], start[1:] > end[:-1]])
        last = np.concatenate([first[1:], [True]])
        return np.stack([start[first], end[last]], axis=1)

    def table(self, rank: int, window: int, steps: Sequence[tuple[int, int, int]] | None = None) -> pa.Table:
        """schema.TIMELINE, in order of start.

        Args:
            steps: to assign spans to; None: `spans_of_steps`.
        """
        num = len(self._names)
        columns = [
            np.concatenate([part[at] for part in self._parts]) if num else np.empty(0, np.int64)
            for at in range(8)
        ]
        order = np.argsort(columns[1], kind="stable")
        lane, start, dur, kind, phase, *work = (column[order] for column in columns)
        ids = np.array([(lane_row.device, lane_row.lane) for lane_row in self.lanes] or [(-1, 0)], np.int64)[
            lane
        ]
        spans = self.spans_of_steps() if steps is None else list(steps)
        comm = self._comm_columns(order)
        arrays = {
            "rank": pa.array(np.full(num, rank, np.int32)),
            "window": pa.array(np.full(num, window, np.int32)),
            "step": pa.array(steps_of(start, spans)),
            "device": pa.array(ids[:, 0].astype(np.int16)),
            "lane": pa.array(ids[:, 1]),
            "start_ns": pa.array(start),
            "dur_ns": pa.array(dur),
            "depth": pa.array(np.minimum(depths(ids, start, start + dur), 32767).astype(np.int16)),
            "kind": _coded(kind, KINDS),
            "phase": _coded(phase, PHASES),
            "layer": pa.array([self._layers[at] for at in order.tolist()], pa.string()),
            "name": pa.array([self._names[at] for at in order.tolist()], pa.string()),
            **{
                name: pa.array(values, mask=values == UNKNOWN)
                for name, values in zip(_WORK, work, strict=True)
            },
            **comm,
        }
        return pa.table(
            [
                arrays[field.name].cast(field.type) if field.name in arrays else pa.nulls(num, field.type)
                for field in TIMELINE
            ],
            schema=TIMELINE,
        )

    def _comm_columns(self, order: Ints) -> dict[str, pa.Array]:
        columns: dict[str, list[Any]] = {name: [None] * len(order) for name in _COMM}
        counts: dict[tuple[str | None, str | None], int] = defaultdict(int)
        if self._collectives:
            for row, at in enumerate(order.tolist()):
                collective = self._collectives.get(at)
                if collective is None:
                    continue
                collective = collective.completed()
                key = (collective.group, collective.name)
                values = (
                    collective.name,
                    collective.group,
                    collective.group_size,
                    collective.in_bytes,
                    collective.out_bytes,
                    collective.dtype,
                    collective.peer,
                )
                for name, value in zip(_COMM, (*values, counts[key]), strict=True):
                    columns[name][row] = value
                counts[key] += 1
        return {name: pa.array(values, _plain(TIMELINE.field(name).type)) for name, values in columns.items()}


_WORK = ("flops", "bytes_read", "bytes_written")
_COMM = ("collective", "group", "group_size", "in_bytes", "out_bytes", "dtype", "peer", "seq")


def steps_of(start: Ints, spans: Sequence[tuple[int, int, int]]) -> NDArray[np.int32]:
    """The step each moment is in, shape (n,); -1 for none. `spans` in order of start."""
    if not spans:
        return np.full(len(start), -1, np.int32)
    numbers, starts, ends = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    index = np.searchsorted(starts, start, side="right") - 1
    inside = (index >= 0) & (start < ends[index])
    return np.where(inside, numbers[index], -1).astype(np.int32)


def depths(ids: Ints, start: Ints, end: Ints) -> Ints:
    """How many spans of its lane are open when each starts, shape (n,).

    Args:
        ids: (device, lane) of each span, shape (n, 2).
        start, end: shape (n,), in order of start.
    """
    result = np.zeros(len(start), np.int64)
    if not len(start):
        return result
    _, lanes = np.unique(ids, axis=0, return_inverse=True)
    for lane in range(int(lanes.max()) + 1):
        here = np.flatnonzero(lanes.reshape(-1) == lane)
        ends = np.sort(np.maximum(end[here], start[here] + 1))
        result[here] = np.arange(len(here)) - np.searchsorted(ends, start[here], side="right")
    return result


def write_table(table: pa.Table, path: Path) -> None:
    """Parquet aside, then renamed into place.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path) as file:
        pq.write_table(table, file, compression="zstd", compression_level=1, write_statistics=False)


def _coded(codes: Ints, vocabulary: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(vocabulary, pa.string()))


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
