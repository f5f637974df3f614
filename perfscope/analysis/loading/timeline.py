"""Lanes of data loaders in the timeline of traced windows: batches of each worker, waits, batches ready."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.intervals import Int64
from perfscope.analysis.loading.lanes import NOT_KNOWN, LoaderLane, LoaderSpans, WorkerBatches, loader_spans
from perfscope.analysis.loading.results import RankLoading
from perfscope.analysis.source import RunSource
from perfscope.analysis.timeline_extract import LaneExtract, TimelineExtract, WindowExtract
from perfscope.rundir.schema import PHASES

LOADING = "loading"  # a worker makes a batch: kind of span beside those of schema.KINDS
INPUT = "input"
QUEUE_ROLE, WORKER_ROLE, FOLD_ROLE = "loader_queue", "loader_worker", "loader_fold"
MOST_WORKERS = 6  # of a rank that are drawn at first; of more, a few and how many of the others are busy
FEW_WORKERS = 3  # that are drawn of many
MOST_SPANS = 20_000  # in all lanes of loaders together
_OTHER_PHASE = PHASES.index("other")
_AROUND_NS = 1_000_000_000  # a reading of the queue is also drawn where it is so far outside of the window


_NONE = np.empty(0, dtype=np.int64)


def with_loaders(
    extract: TimelineExtract, source: RunSource, clocks: ClockFit | None, loading: Sequence[RankLoading]
) -> TimelineExtract:
    """The timeline with lanes of the data loaders under their ranks.

    Args:
        loading: of the run (RunAnalysis.loading): ranks with loaders, and the worker that a finding is about.
    """
    named = {entry.rank: entry.slow_worker for entry in loading}
    ranks = sorted({lane.rank for window in extract.windows for lane in window.lanes} & set(named))
    if not ranks or (clocks is not None and clocks.of_ranks is not None):
        return extract
    lanes = _Lanes(extract, clocks or ClockFit(reference=""), len(ranks))
    added: dict[int, list[LaneExtract]] = {}
    for rank in ranks:
        record = source.rank_records[rank]
        for loader in loader_spans(source.loading(rank), record.anchors):
            for window in extract.windows:
                of_window = lanes.of(loader, window, rank, record.host, named[rank])
                added.setdefault(window.window, []).extend(of_window)
    return lanes.into(extract, added)


class _Lanes:
    """Makes lanes; the string table grows meanwhile."""

    def __init__(self, extract: TimelineExtract, clocks: ClockFit, num_ranks: int) -> None:
        self.kinds = (*extract.kinds, LOADING)
        self.names = {text: at for at, text in enumerate(extract.strings)}
        self.strings = list(extract.strings)
        self.clocks = clocks
        self.budget = max(50, MOST_SPANS // max(1, num_ranks * len(extract.windows)))
        self.num_left_out = 0

    def of(
        self, loader: LoaderSpans, window: WindowExtract, rank: int, host: str, named: int
    ) -> list[LaneExtract]:
        """Of one loader in one window, if it did anything in it: its queue, then its workers."""
        queue = self._queue(loader, window, rank, host)
        lanes = [self._worker(loader, worker, window, rank, host) for worker in loader.workers]
        if queue is None and not any(len(lane.start_ns) for lane in lanes):
            return []
        named = named if loader.number == 0 else -1
        if len(lanes) > MOST_WORKERS:  # without those that made no batch meanwhile
            lanes = [lane for lane in lanes if len(lane.start_ns) or _worker_of(lane) == named]
        if len(lanes) > MOST_WORKERS:
            lanes = _folded(lanes, named)
        return [*([] if queue is None else [queue]), *lanes]

    def _queue(self, loader: LoaderSpans, window: WindowExtract, rank: int, host: str) -> LaneExtract | None:
        begin = self._at(loader.ask_ns, window, host)
        end = begin + loader.wait_ns
        inside = self._kept(np.flatnonzero((end >= 0) & (begin <= window.dur_ns)), loader.wait_ns)
        if not len(inside):
            return None
        near = (begin >= -_AROUND_NS) & (begin <= window.dur_ns + _AROUND_NS) & (loader.ready >= 0)
        made = np.where(loader.made_ns < 0, NOT_KNOWN, loader.ask_ns - loader.made_ns)[inside]
        facts = LoaderLane(
            top=loader.most_ready, curve_ns=begin[near], curve=loader.ready[near], made_ns=made
        )
        return self._lane(
            (rank, host, QUEUE_ROLE, "loader queue" + _which(loader)),
            (begin[inside], loader.wait_ns[inside]),
            [f"wait for batch {batch}" for batch in loader.batch[inside].tolist()],
            INPUT,
            facts,
        )

    def _worker(
        self, loader: LoaderSpans, worker: WorkerBatches, window: WindowExtract, rank: int, host: str
    ) -> LaneExtract:
        start = self._at(worker.start_ns, window, host)
        inside = np.flatnonzero((start + worker.dur_ns >= 0) & (start <= window.dur_ns))
        inside = self._kept(inside, worker.dur_ns, max(20, self.budget // max(1, loader.num_workers)))
        return self._lane(
            (rank, host, WORKER_ROLE, f"loader worker {worker.worker}{_which(loader)}"),
            (start[inside], worker.dur_ns[inside]),
            [f"batch {batch}" for batch in worker.batch[inside].tolist()],
            LOADING,
            LoaderLane(
                worker=worker.worker,
                curve_ns=_NONE,
                curve=_NONE,
                cpu_ns=worker.cpu_ns[inside],
                queued_ns=worker.queued_ns[inside],
            ),
        )

    def _at(self, times_ns: Int64, window: WindowExtract, host: str) -> Int64:
        return self.clocks.to_reference(host, times_ns) - window.start_ns

    def _kept(self, inside: NDArray[np.intp], dur_ns: Int64, most: int | None = None) -> NDArray[np.intp]:
        """The longest, where there are too many."""
        most = self.budget if most is None else most
        self.num_left_out += max(0, len(inside) - most)
        return inside if len(inside) <= most else np.sort(inside[np.argsort(-dur_ns[inside])[:most]])

    def _lane(
        self,
        identity: tuple[int, str, str, str],
        times: tuple[Int64, Int64],
        names: list[str],
        kind: str,
        facts: LoaderLane,
    ) -> LaneExtract:
        rank, host, role, label = identity
        num = len(names)
        unknown = np.full(num, -1, dtype=np.int64)
        return LaneExtract(
            rank=rank,
            host=host,
            device=-1,
            lane=-1,
            role=role,
            label=label,
            start_ns=times[0],
            dur_ns=times[1],
            name=np.array([self._string(name) for name in names], dtype=np.int32),
            layer=unknown.astype(np.int32),
            kind=np.full(num, self.kinds.index(kind), dtype=np.int8),
            phase=np.full(num, _OTHER_PHASE, dtype=np.int8),
            depth=np.zeros(num, dtype=np.int16),
            step=unknown.astype(np.int32),
            count=np.ones(num, dtype=np.int32),
            flops=unknown,
            bytes=unknown,
            num_recorded=num,
            num_left_out=0,
            loader=facts,
        )

    def _string(self, text: str) -> int:
        if text not in self.names:
            self.names[text] = len(self.strings)
            self.strings.append(text)
        return self.names[text]

    def into(self, extract: TimelineExtract, added: Mapping[int, Sequence[LaneExtract]]) -> TimelineExtract:
        windows = tuple(
            replace(
                window,
                lanes=tuple(
                    sorted((*window.lanes, *added.get(window.window, ())), key=lambda lane: lane.rank)
                ),
            )
            for window in extract.windows
        )
        return replace(
            extract,
            windows=windows,
            strings=tuple(self.strings),
            kinds=self.kinds,
            num_batches_left_out=self.num_left_out,
        )


def _which(loader: LoaderSpans) -> str:
    return f" of loader {loader.number + 1}" if loader.number else ""


def _folded(lanes: Sequence[LaneExtract], named: int) -> list[LaneExtract]:
    """Those of the workers whose batches take longest, and of the one that a finding names, stay; a curve
    says how many of the others make a batch."""
    means = {at: float(lane.dur_ns.sum()) / max(1, len(lane.dur_ns)) for at, lane in enumerate(lanes)}
    slowest = sorted(means, key=lambda at: (_worker_of(lanes[at]) != named, -means[at]))[:FEW_WORKERS]
    folded = [lane for at, lane in enumerate(lanes) if at not in slowest]
    marked = [replace(lane, loader=_with_fold(lane)) for lane in folded]
    return [*(lanes[at] for at in sorted(slowest)), _fold(folded), *marked]


def _worker_of(lane: LaneExtract) -> int:
    return -1 if lane.loader is None else lane.loader.worker


def _with_fold(lane: LaneExtract) -> LoaderLane | None:
    return None if lane.loader is None else replace(lane.loader, is_folded=True)


def _fold(lanes: Sequence[LaneExtract]) -> LaneExtract:
    """How many of the lanes have a span, over time."""
    begins = np.concatenate([lane.start_ns for lane in lanes])
    ends = np.concatenate([lane.start_ns + lane.dur_ns for lane in lanes])
    times = np.concatenate((begins, ends))
    changes = np.concatenate((np.ones(len(begins), np.int64), np.full(len(ends), -1, np.int64)))
    order = np.lexsort((changes, times))
    first = lanes[0]
    empty = {name: getattr(first, name)[:0] for name in _SPAN_COLUMNS}
    curve = LoaderLane(top=len(lanes), curve_ns=times[order], curve=np.cumsum(changes[order]))
    label = f"{len(lanes)} more workers"
    return replace(first, role=FOLD_ROLE, label=label, num_recorded=0, loader=curve, **empty)


_SPAN_COLUMNS = (
    *("start_ns", "dur_ns", "name", "layer", "kind", "phase", "depth", "step", "count", "flops", "bytes"),
)
