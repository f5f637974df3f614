"""What the report's interactive timeline draws: every window's spans, cut to what a browser can carry.

Columns, not objects: one set of equally long arrays per (rank, lane), one string table for all. Nothing is
left out silently: `LaneExtract.num_recorded` against the sum of `count`, and `TimelineExtract.num_left_out`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from perfscope.analysis.call_labels import LABEL_COLUMNS, NO_CALLS, CallLabels
from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.clocks.unnamed import on_one_clock
from perfscope.analysis.communication import LabeledCalls
from perfscope.analysis.intervals import Int64, distinct
from perfscope.analysis.loading.lanes import LoaderLane
from perfscope.analysis.pipeline.results import Pipeline
from perfscope.analysis.rank_groupings import RankGrouping, rank_groupings
from perfscope.analysis.results import CommGroupResult
from perfscope.analysis.source import RunSource
from perfscope.analysis.spans import (
    COMM,
    HOST,
    StepSpan,
    WindowFacts,
    known_words,
    whole_numbers,
    window_facts,
    words,
)
from perfscope.analysis.timeline_ranks import MAX_RANKS, drawn_ranks
from perfscope.analysis.timeline_thin import Rows, fill, thin
from perfscope.errors import RunDirectoryError
from perfscope.rundir.schema import KINDS, PHASES

COLUMNS = tuple(dict.fromkeys((*LABEL_COLUMNS, "depth")))
MERGED = "several short spans"  # the name of a span that stands for several
_ROLES = ("main", "autograd", "executor", "backend", "worker", "stream")
_OTHER_PHASE = PHASES.index("other")


class LaneExtract(Struct, frozen=True, kw_only=True, eq=False):
    """One row of the timeline: a host thread or a device stream of one rank. Columns are sorted by start."""

    rank: int
    host: str
    device: int  # GPU index; -1 = a host thread
    lane: int  # thread or stream id
    role: str  # main, backend, autograd, worker, stream
    label: str  # what a person should read: "main thread", "stream 7 (NCCL)"
    start_ns: NDArray[np.int64]  # since WindowExtract.start_ns
    dur_ns: NDArray[np.int64]
    name: NDArray[np.int32]  # index into TimelineExtract.strings
    layer: NDArray[np.int32]  # index into TimelineExtract.strings; -1 = none
    kind: NDArray[np.int8]  # index into TimelineExtract.kinds
    phase: NDArray[np.int8]  # index into TimelineExtract.phases
    depth: NDArray[np.int16]  # nesting row, from 0
    step: NDArray[np.int32]  # -1 = outside every step
    count: NDArray[np.int32]  # spans this one stands for: 1 = as recorded, more = neighbors merged
    flops: NDArray[np.int64]  # modeled from shapes; -1 = unknown
    bytes: NDArray[np.int64]  # read + written (comm: bytes moved in), -1 = unknown
    num_recorded: int  # spans this lane has in the run's table
    num_left_out: int  # of those, neither drawn nor merged into a drawn one
    # Of communication, as `layer`; None: not asked for.
    axis: NDArray[np.int32] | None = None
    group: NDArray[np.int32] | None = None
    reason: NDArray[np.int32] | None = None  # a code: why it has no layer
    loader: LoaderLane | None = None  # of data loaders: what it has besides spans


class StepMark(Struct, frozen=True, kw_only=True, eq=False):
    """Where one rank's step is in the window."""

    rank: int
    step: int
    start_ns: int  # since WindowExtract.start_ns
    dur_ns: int


class WindowExtract(Struct, frozen=True, kw_only=True, eq=False):
    """One traced window over all ranks, lanes sorted by (rank, host threads first, role, lane)."""

    window: int
    start_ns: int  # trace clock (Unix epoch unless the trace says otherwise)
    dur_ns: int
    steps: tuple[StepMark, ...]
    lanes: tuple[LaneExtract, ...]
    ranks_left_out: tuple[int, ...]  # ranks whose timeline was not read because there are too many to draw


class TimelineExtract(Struct, frozen=True, kw_only=True, eq=False):
    """All windows; `strings` holds names and layers once."""

    windows: tuple[WindowExtract, ...]
    strings: tuple[str, ...]
    kinds: tuple[str, ...] = KINDS
    phases: tuple[str, ...] = PHASES
    span_budget: int
    num_recorded: int  # spans in the run's tables (of the ranks read)
    num_drawn: int  # rows in all lanes together
    num_left_out: int  # recorded spans that neither are drawn nor follow a merged one
    resolution_ns: int  # neighbors closer and shorter than this were merged; 0 = every span as recorded
    groupings: tuple[RankGrouping, ...] = ()  # of the ranks
    num_batches_left_out: int = 0  # of data loaders, too many to draw
    named: tuple[int, ...] = ()  # drawn ranks of most interest, the most important first


def extract_timeline(
    source: RunSource,
    *,
    span_budget: int = 60_000,
    max_ranks: int = MAX_RANKS,
    named: Sequence[int] = (),
    clocks: ClockFit | None = None,
    groups: Iterable[CommGroupResult] = (),
    calls: LabeledCalls = NO_CALLS,
    pipeline: Pipeline | None = None,
) -> TimelineExtract:
    """Reads every window's timeline, thinned to `span_budget` spans in all.

    Args:
        source: the run, ingested.
        span_budget: most rows in all lanes together; three quarters of it where ranks are left out.
        max_ranks: most ranks to draw; of more, those `named` and evenly spaced ones are taken.
        named: ranks to draw before others, the most important first (timeline_ranks.named_ranks).
        clocks: puts every host's times on the reference's clock (RunAnalysis.clocks); None: as recorded.
        groups: of the run (RunAnalysis.process_groups).
        calls: of the run (RunAnalysis.labeled_calls); what is not there is found out again.
        pipeline: of the run (RunAnalysis.pipeline): its stages are groups of ranks.
    """
    if clocks is not None and clocks.of_ranks is not None:
        source = on_one_clock(source, clocks.of_ranks)
    facts = [window_facts(summary) for summary in source.summaries()]
    kept = {(summary.rank, summary.window): summary.events_kept for summary in source.summaries()}
    facts = [fact for fact in facts if fact.rank in source.ranks]
    drawn = drawn_ranks(sorted({fact.rank for fact in facts}), named, max_ranks)
    facts = [fact for fact in facts if fact.rank in drawn]
    left_out = tuple(rank for rank in source.ranks if rank not in drawn)
    if len(drawn) >= max_ranks and left_out:
        span_budget = span_budget * 3 // 4  # a page of many ranks is full of their rows
    counts = [kept[fact.rank, fact.window] for fact in facts]
    shares = fill([span_budget if count is None else count for count in counts], span_budget)
    build = _Build(names={MERGED: 0}, labels=CallLabels(source, groups, calls))
    by_window: dict[int, list[tuple[WindowFacts, int]]] = defaultdict(list)
    for fact, share in zip(facts, shares, strict=True):
        by_window[fact.window].append((fact, share))
    clocks = clocks or ClockFit(reference="")
    windows = tuple(
        build.window(source, window, members, clocks, left_out)
        for window, members in sorted(by_window.items())
    )
    lanes = [lane for window in windows for lane in window.lanes]
    return TimelineExtract(
        windows=windows,
        strings=tuple(build.names),
        span_budget=span_budget,
        num_recorded=sum(lane.num_recorded for lane in lanes),
        num_drawn=sum(len(lane.start_ns) for lane in lanes),
        num_left_out=sum(lane.num_left_out for lane in lanes),
        resolution_ns=build.resolution,
        groupings=rank_groupings(source, pipeline),
        named=tuple(rank for rank in named if rank in drawn),
    )


class _Build(Struct):
    """The string table grows while lanes are read."""

    names: dict[str, int]
    labels: CallLabels
    resolution: int = 0

    def window(
        self,
        source: RunSource,
        window: int,
        members: Sequence[tuple[WindowFacts, int]],
        clocks: ClockFit,
        left_out: tuple[int, ...],
    ) -> WindowExtract:
        parts: list[tuple[WindowFacts, str, Rows, dict[tuple[int, int], int]]] = []
        marks: list[tuple[int, StepSpan]] = []
        for facts, share in members:
            host = source.rank_records[facts.rank].host or facts.host
            try:
                table = source.timeline(facts.rank, facts.window, COLUMNS)
            except RunDirectoryError:
                continue  # analyze_run names it among what is missing
            table = self.labels.labeled(table, facts.rank, facts.window)
            rows = _aligned(self._rows(table), host, clocks)
            recorded = _lane_counts(rows)
            marks += [(facts.rank, step) for step in _aligned_steps(facts, host, clocks)]
            kept, threshold = thin(rows, share, self.names[MERGED])
            self.resolution = max(self.resolution, threshold)
            parts.append((facts, host, kept, recorded))
        begins = [int(rows.start.min()) for _, _, rows, _ in parts if len(rows.start)]
        ends = [int(rows.end.max()) for _, _, rows, _ in parts if len(rows.start)]
        origin = min([*begins, *(step.start_ns for _, step in marks)], default=0)
        end = max([*ends, *(step.end_ns for _, step in marks)], default=origin)
        return WindowExtract(
            window=window,
            start_ns=origin,
            dur_ns=end - origin,
            steps=tuple(
                StepMark(
                    rank=rank,
                    step=step.step,
                    start_ns=step.start_ns - origin,
                    dur_ns=step.end_ns - step.start_ns,
                )
                for rank, step in marks
            ),
            lanes=tuple(
                lane
                for facts, host, rows, recorded in parts
                for lane in _lanes(facts, host, rows, recorded, origin)
            ),
            ranks_left_out=left_out,
        )

    def _rows(self, table: pa.Table) -> Rows:
        start = whole_numbers(table, "start_ns")
        kind = known_words(table, "kind", KINDS).astype(np.int64)
        phase = known_words(table, "phase", PHASES).astype(np.int64)
        read, written = whole_numbers(table, "bytes_read"), whole_numbers(table, "bytes_written")
        moved = np.where((read >= 0) | (written >= 0), np.maximum(read, 0) + np.maximum(written, 0), -1)
        return Rows(
            start=start,
            end=start + whole_numbers(table, "dur_ns"),
            device=whole_numbers(table, "device"),
            lane=whole_numbers(table, "lane"),
            depth=whole_numbers(table, "depth", null=0),
            kind=np.where(kind < 0, HOST, kind),
            phase=np.where(phase < 0, _OTHER_PHASE, phase),
            step=whole_numbers(table, "step"),
            name=self._strings(table, "name"),
            layer=self._strings(table, "layer"),
            axis=self._strings(table, "axis"),
            group=np.where(kind == COMM, self._strings(table, "group"), -1),
            reason=self._strings(table, "unattributed"),
            flops=whole_numbers(table, "flops"),
            bytes=np.where(kind == COMM, whole_numbers(table, "in_bytes"), moved),
            count=np.ones(len(start), dtype=np.int64),
        )

    def _strings(self, table: pa.Table, column: str) -> Int64:
        """Indices into the string table; -1 = null."""
        code, texts = words(table, column)
        used = distinct(code[code >= 0]).tolist()
        lookup = np.full(len(texts) + 1, -1, dtype=np.int64)
        for index in used:
            lookup[index] = self.names.setdefault(texts[index], len(self.names))
        result: Int64 = lookup[code]
        return result


def _aligned(rows: Rows, host: str, clocks: ClockFit) -> Rows:
    """The rows on the reference's clock."""
    return replace(rows, start=clocks.to_reference(host, rows.start), end=clocks.to_reference(host, rows.end))


def _aligned_steps(facts: WindowFacts, host: str, clocks: ClockFit) -> list[StepSpan]:
    starts = clocks.to_reference(host, np.array([step.start_ns for step in facts.steps], dtype=np.int64))
    ends = clocks.to_reference(host, np.array([step.end_ns for step in facts.steps], dtype=np.int64))
    return [
        StepSpan(step=step.step, start_ns=start, end_ns=end)
        for step, start, end in zip(facts.steps, starts.tolist(), ends.tolist(), strict=True)
    ]


def _lane_counts(rows: Rows) -> dict[tuple[int, int], int]:
    lanes, counts = np.unique(np.stack((rows.device, rows.lane)), axis=1, return_counts=True)
    return {
        (device, lane): count
        for device, lane, count in zip(lanes[0].tolist(), lanes[1].tolist(), counts.tolist(), strict=True)
    }


def _lanes(
    facts: WindowFacts, host: str, rows: Rows, recorded: Mapping[tuple[int, int], int], origin: int
) -> list[LaneExtract]:
    """The lanes of one rank, host threads first."""
    lanes = []
    for (device, lane), num_recorded in recorded.items():
        role, label = facts.roles.get((device, lane), ("stream" if device >= 0 else "worker", ""))
        at = np.flatnonzero((rows.device == device) & (rows.lane == lane))
        at = at[np.lexsort((rows.depth[at], rows.start[at]))]
        lane_rows = rows.take(at)
        lanes.append(
            LaneExtract(
                rank=facts.rank,
                host=host,
                device=device,
                lane=lane,
                role=role,
                label=label or (f"stream {lane}" if device >= 0 else f"thread {lane}"),
                start_ns=lane_rows.start - origin,
                dur_ns=lane_rows.end - lane_rows.start,
                name=lane_rows.name.astype(np.int32),
                layer=lane_rows.layer.astype(np.int32),
                axis=lane_rows.axis.astype(np.int32),
                group=lane_rows.group.astype(np.int32),
                reason=lane_rows.reason.astype(np.int32),
                kind=lane_rows.kind.astype(np.int8),
                phase=lane_rows.phase.astype(np.int8),
                depth=lane_rows.depth.astype(np.int16),
                step=lane_rows.step.astype(np.int32),
                count=lane_rows.count.astype(np.int32),
                flops=lane_rows.flops,
                bytes=lane_rows.bytes,
                num_recorded=num_recorded,
                num_left_out=num_recorded - int(lane_rows.count.sum()),
            )
        )
    rank_of = {role: position for position, role in enumerate(_ROLES)}
    return sorted(
        lanes,
        key=lambda extract: (extract.device >= 0, extract.device, rank_of.get(extract.role, 9), extract.lane),
    )
