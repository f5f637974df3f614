"""A bench run's own figures: speed, losses, bytes, exposed communication. Nothing else computes them.

Counted steps: a rank's steps without its first WARM_UP_STEPS, and without those that a traced window touches
(a profiler slows the step it watches and the one it is written in) if at least MIN_UNTRACED others remain.

Typical step of a rank: the median of its counted steps. A scheme that communicates every k-th step only has
steps of several kinds, and a median would see one: there it is the mean, over the k places of a step in the
period, of the median of the counted steps at that place (where a place has none: the mean of all counted).
Where a median does not stand for the steps (`uneven.uneven_mean`), their mean takes its place.

samples/s: the batch B over the typical step of the slowest rank. Asynchronous workers step by themselves,
each with its own share b of the batch: there it is the sum over the workers of b / own typical step. A server
of theirs (a rank that never knows a loss) is no worker.
step p10, median: over the counted steps of the slowest rank (of the slowest worker).
Losses: by step the mean over the ranks that know theirs; the first and the last are means over up to
KEPT_LOSSES steps, at most half of the run. Held-out loss: of the trained model, as rank 0 evaluates it.
Bytes: see bench_bytes. Exposed communication: of the traced steps' breakdown (METRICS §1), mean over ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.bench_bytes import CallCount as CallCount
from perfscope.analysis.bench_bytes import LinkBytes as LinkBytes
from perfscope.analysis.bench_bytes import call_counts, link_bytes, recorded_bytes
from perfscope.analysis.intervals import Int64
from perfscope.analysis.learning import LearningResult, learning_result
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.uneven import uneven_mean
from perfscope.messages import bench as why
from perfscope.rundir.scheme_records import BenchRecord, SchemeRecord
from perfscope.vocabulary.axes import LAYOUT, OLD_MEANINGS, OLD_NAMES
from perfscope.vocabulary.caches import CacheLevel
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure

WARM_UP_STEPS = 2
MIN_UNTRACED = 3
KEPT_LOSSES = 3
NONE_TRACED, LEFT_OUT, COUNTED = "none", "left out", "counted"


class Traced(Struct, frozen=True, kw_only=True):
    """What the traced windows of a run say.

    Attributes:
        spans_ns: rank -> (start, end) of its traced steps, on the clock of bench.json's step_ends_ns.
        bytes: collective -> S per traced step, over all callers; those of unknown size are not in it. None:
            nothing was traced.
        exposed_comm_ns: of the mean traced step, mean over ranks; None: nothing was traced.
        exposed_comm_ratio: its share of the mean traced step.
        reason: why nothing was traced.
    """

    spans_ns: Mapping[int, Sequence[tuple[int, int]]] = {}
    bytes: Mapping[str, float] | None = None
    exposed_comm_ns: float | None = None
    exposed_comm_ratio: float | None = None
    reason: str = why.NO_WINDOW


class CacheLevelUse(Struct, frozen=True, kw_only=True):
    """Samples that all ranks took from a level of the caches of decoded samples."""

    level: CacheLevel
    samples: int
    share: float  # of all samples taken; of a cache, its hit rate among all requests
    bytes: int  # decoded; from storage, of the files
    capacity_bytes: int | None  # of one rank's process or of its host; None: storage


class BenchResult(Struct, frozen=True, kw_only=True):
    """What a bench run was and did. Figures: see the module."""

    scheme: str  # with modifiers
    model: str  # name of the model
    mesh: str  # axes and their sizes
    num_ranks: int
    batch: int  # global batch size
    effective_batch: int  # samples per update of the weights
    num_steps: int
    samples_per_s: float | None  # of all ranks
    step_p10_ns: int | None  # of the slowest rank's counted steps
    step_median_ns: int | None  # median step time
    num_counted_steps: int  # of the slowest rank
    traced_steps: str  # NONE_TRACED, LEFT_OUT of the counted steps, or COUNTED (too few others)
    first_loss: float | None  # training loss of the first step
    last_loss: float | None  # training loss of the last step
    held_out_loss: float | None  # loss on samples not trained on
    peak_rss_bytes: int | None  # largest of the ranks
    exposed_comm_ns: float | None  # per step, mean over ranks
    exposed_comm_ratio: float | None  # exposed communication / step
    links: tuple[LinkBytes, ...]  # bytes by class of link
    unexpected_bytes: float  # S per step of calls that no formula foresaw; on no link
    calls: tuple[CallCount, ...]  # calls by collective and axis
    num_ranks_recorded: int  # ranks whose record exists
    details: Mapping[str, Any]  # the scheme's own, of the first rank that has any
    missing: Mapping[str, str]  # field (`recorded` for the links') -> why it is None
    caches: tuple[CacheLevelUse, ...] = ()  # empty: samples are not decoded one by one
    learning: LearningResult | None = None  # None: nothing was measured between its steps


def bench_result(
    scheme: SchemeRecord | None, records: Mapping[int, BenchRecord], traced: Traced | None = None
) -> tuple[BenchResult | None, tuple[Missing, ...]]:
    """Figures of a bench run, and what of them is missing; (None, ()) where the run is none.

    Args:
        scheme: run.json's `scheme`.
        records: bench.json by rank; ranks that died have none.
        traced: what the traced windows say; None: nothing.
    """
    if scheme is None:
        return None, ()
    if scheme.lacking:  # edited, or by another version
        reason = why.entries_lacking(scheme.lacking)
        return None, (missing_figure(Figure.SCHEME, Cause.UNREADABLE, reason=reason),)
    bench = _figures(scheme, records, traced or Traced())
    missing = []
    lost = bench.num_ranks - bench.num_ranks_recorded
    if lost:
        total = bench.num_ranks
        missing.append(missing_figure(Figure.RANK_RECORDS, Cause.RANKS_DIED, count=lost, total=total))
    if _is_unseen(scheme, traced or Traced()):
        missing.append(missing_figure(Figure.EXPOSED_COMM, Cause.MPI_NOT_TRACED, reason=why.NO_MPI_IN_TRACES))
    return bench, tuple(missing)


def _is_unseen(scheme: SchemeRecord, traced: Traced) -> bool:
    """Whether the ranks communicate where no trace shows it."""
    return scheme.backend == "mpi" and scheme.num_ranks > 1 and not traced.bytes


class _Pace(Struct, frozen=True, kw_only=True, eq=False):
    """A rank's counted steps: shape (counted,), ns; and its typical step."""

    counted: Int64
    typical_ns: float
    traced_steps: str


def _figures(scheme: SchemeRecord, records: Mapping[int, BenchRecord], traced: Traced) -> BenchResult:
    cycle = _cycle(scheme)
    paces = {
        rank: _pace(bench, traced.spans_ns.get(rank, ()), cycle)
        for rank, bench in _workers(scheme, records).items()
    }
    slowest = max(paces.values(), key=lambda pace: pace.typical_ns, default=None)
    counted = slowest.counted if slowest else np.empty(0, dtype=np.int64)
    num_steps = max((_durations(record).size for record in records.values()), default=0)
    first, last = _losses(records)
    recorded = recorded_bytes(scheme, records, num_steps, traced.bytes)
    unseen = _is_unseen(scheme, traced)
    values: dict[str, Any] = {
        "samples_per_s": _samples_per_s(scheme, paces),
        "step_p10_ns": round(float(np.percentile(counted, 10))) if counted.size else None,
        "step_median_ns": round(float(np.median(counted))) if counted.size else None,
        "first_loss": first,
        "last_loss": last,
        "held_out_loss": records.get(0, BenchRecord()).held_out_loss,
        "peak_rss_bytes": max(
            (bench_record.peak_rss_bytes for bench_record in records.values() if bench_record.peak_rss_bytes),
            default=None,
        ),
        "exposed_comm_ns": None if unseen else traced.exposed_comm_ns,
        "exposed_comm_ratio": None if unseen else traced.exposed_comm_ratio,
    }
    reasons = {
        **dict.fromkeys(("samples_per_s", "step_p10_ns", "step_median_ns"), why.NO_STEP),
        **dict.fromkeys(("first_loss", "last_loss"), why.NO_LOSS),
        "held_out_loss": why.NO_HELD_OUT_LOSS,
        "peak_rss_bytes": why.NO_RECORD,
        **dict.fromkeys(
            ("exposed_comm_ns", "exposed_comm_ratio"), why.NO_MPI_IN_TRACES if unseen else traced.reason
        ),
    }
    missing = {name: reasons[name] for name, value in values.items() if value is None}
    missing |= {"recorded": recorded.reason} if recorded.links is None else {}
    links = link_bytes(scheme, records, num_steps, recorded)
    return BenchResult(
        scheme=scheme.full_name,
        model=scheme.model,
        mesh=_mesh(scheme),
        num_ranks=scheme.num_ranks,
        batch=scheme.batch,
        effective_batch=scheme.effective_batch,
        num_steps=num_steps,
        **values,
        num_counted_steps=int(counted.size),
        traced_steps=slowest.traced_steps if slowest else NONE_TRACED,
        links=links,
        unexpected_bytes=recorded.unexpected,
        calls=call_counts(scheme, records, num_steps),
        num_ranks_recorded=len(records),
        details=next((record.details for record in records.values() if record.details), {}),
        missing=missing,
        caches=_caches(records),
        learning=learning_result(
            scheme, records, None if recorded.links is None else links, values["samples_per_s"]
        ),
    )


def _caches(records: Mapping[int, BenchRecord]) -> tuple[CacheLevelUse, ...]:
    uses = [use for record in records.values() for use in record.cache]
    total = sum(use.samples for use in uses)
    levels = []
    for level in CacheLevel:
        of_level = [use for use in uses if use.level == level]
        if of_level and total:
            samples = sum(use.samples for use in of_level)
            levels.append(
                CacheLevelUse(
                    level=level,
                    samples=samples,
                    share=samples / total,
                    bytes=sum(use.bytes for use in of_level),
                    capacity_bytes=max(
                        (use.capacity_bytes for use in of_level if use.capacity_bytes is not None),
                        default=None,
                    ),
                )
            )
    return tuple(levels)


def _mesh(scheme: SchemeRecord) -> str:
    """`2 dp × 2 tp`; records of before axes had names mean the same."""
    meanings = OLD_MEANINGS.get(scheme.name, {})
    sizes: dict[str, int] = {}
    for name, size in (scheme.mesh or {}).items():
        axis = OLD_NAMES.get(name)
        sizes[meanings.get(axis, axis) if axis else name] = size
    return " × ".join(f"{sizes[axis]} {axis}" for axis in LAYOUT if sizes.get(axis, 1) > 1)


def _cycle(scheme: SchemeRecord) -> int:
    """After how many steps the scheme's communication repeats."""
    return math.lcm(*(row.every for rows in scheme.calls_of_rank.values() for row in rows))


def _ends(record: BenchRecord) -> Int64:
    return np.asarray(record.step_ends_ns, dtype=np.int64)


def _durations(record: BenchRecord) -> Int64:
    """Times of a rank's steps, ns; none for a rank that only serves."""
    points = np.asarray(record.trained_ns, dtype=np.int64)
    return points[1:] - points[:-1]


def _pace(record: BenchRecord, traced_ns: Sequence[tuple[int, int]], cycle: int) -> _Pace:
    """Of a rank with at least one step."""
    durations, ends = _durations(record), _ends(record)
    mask: NDArray[np.bool_] = np.ones(durations.size, dtype=bool)
    mask[: min(WARM_UP_STEPS, durations.size - 1)] = False
    touched = np.zeros(durations.size, dtype=bool)
    for start, end in traced_ns:
        touched |= (ends[:-1] < end) & (ends[1:] > start)
    traced = NONE_TRACED
    if (mask & touched).any():
        enough = int((mask & ~touched).sum()) >= MIN_UNTRACED
        traced = LEFT_OUT if enough else COUNTED
        mask = mask & ~touched if enough else mask
    return _Pace(counted=durations[mask], typical_ns=_typical(durations, mask, cycle), traced_steps=traced)


def _typical(durations: Int64, counted: NDArray[np.bool_], cycle: int) -> float:
    """The rank's typical step, ns."""
    position = np.flatnonzero(counted) % cycle
    values = durations[counted]
    kinds = [values[position == slot] for slot in range(min(cycle, values.size + 1))]
    if any(not kind.size for kind in kinds):
        return float(values.mean())
    return float(np.mean([uneven_mean(kind) or np.median(kind) for kind in kinds]))


def _workers(scheme: SchemeRecord, records: Mapping[int, BenchRecord]) -> dict[int, BenchRecord]:
    """Ranks whose steps tell the speed."""
    with_steps = {rank: bench for rank, bench in records.items() if _durations(bench).size}
    if not scheme.is_asynchronous:
        return with_steps
    learning = {
        rank: record for rank, record in with_steps.items() if any(loss is not None for loss in record.losses)
    }
    return learning or with_steps  # none has a loss where all are no numbers


def _samples_per_s(scheme: SchemeRecord, paces: Mapping[int, _Pace]) -> float | None:
    steps = [pace.typical_ns for pace in paces.values()]
    if not steps or min(steps) <= 0:
        return None
    batch = scheme.batch
    if not scheme.is_asynchronous:
        return batch * 1e9 / max(steps)
    share = scheme.group_batch or batch / len(steps)
    return math.fsum(share * 1e9 / step for step in steps)


def _losses(records: Mapping[int, BenchRecord]) -> tuple[float | None, float | None]:
    """Training loss of the run's beginning and end."""
    rows = [bench.losses for _, bench in sorted(records.items())]
    by_step = []
    for step in range(max(map(len, rows), default=0)):
        losses = [loss for row in rows if step < len(row) and (loss := row[step]) is not None]
        if losses:
            by_step.append(math.fsum(losses) / len(losses))
    if not by_step:
        return None, None
    num = max(1, min(KEPT_LOSSES, len(by_step) // 2))
    return math.fsum(by_step[:num]) / num, math.fsum(by_step[-num:]) / num
