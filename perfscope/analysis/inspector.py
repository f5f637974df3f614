"""Every collective of every communicator, from records of NCCL Inspector.

Ranks are matched by communicator, collective and its number there. Kernels of one call end together, so the
rank that came last has the shortest one: its time is the transfer, and what others took longer they waited.
That needs no clocks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.intervals import distinct_pairs
from perfscope.analysis.source import RunSource
from perfscope.analysis.spans import whole_numbers, words
from perfscope.rundir.inspector_records import CommunicatorCalls, InspectorGroup, StatedBandwidth
from perfscope.volumes import bus_factor

_COLUMNS = ("collective", "group", "in_bytes", "dur_ns", "seq")
_ON_DEVICE = "kernel_gpu"
_Key = tuple[str, str]


class _OfRank(Struct):
    rank: int
    seq: NDArray[np.int64]
    dur: NDArray[np.int64]
    size: NDArray[np.int64]


def communicators_of(source: RunSource) -> tuple[CommunicatorCalls, ...]:
    """The longest in sum first: of the run's own records, else those imported into it; () without any."""
    calls: dict[_Key, list[_OfRank]] = defaultdict(list)
    groups: dict[str, InspectorGroup] = {}
    stated: dict[_Key, list[StatedBandwidth]] = defaultdict(list)
    is_timed = True
    for summary in source.summaries():
        record = summary.inspector
        if record is None:
            continue
        groups |= {group.name: group for group in record.groups}
        is_timed &= record.timing_sources in {(_ON_DEVICE,), ("",)}
        for entry in record.stated:
            stated[entry.group, entry.collective].append(entry)
        for key, of_rank in _calls(source, summary.rank, summary.window):
            calls[key].append(of_rank)
    results = [
        _sum_up(key, of_key, groups[key[0]], stated.get(key, ()), is_timed=is_timed)
        for key, of_key in calls.items()
        if key[0] in groups
    ]
    results.sort(key=lambda entry: (-entry.median_ns * entry.num_calls, entry.group, entry.collective))
    return tuple(results) or source.imported_communicators()


def _calls(source: RunSource, rank: int, window: int) -> list[tuple[_Key, _OfRank]]:
    table = source.timeline(rank, window, _COLUMNS)
    collective, collectives = words(table, "collective")
    group, groups = words(table, "group")
    columns = [whole_numbers(table, name) for name in ("seq", "dur_ns", "in_bytes")]
    calls_of_group = []
    for at_name, at_group in distinct_pairs(collective, group)[0].tolist():
        chosen = np.flatnonzero((collective == at_name) & (group == at_group))
        _, first = np.unique(columns[0][chosen], return_index=True)  # a call may be written twice
        of_rank = _OfRank(rank, *(column[chosen[first]] for column in columns))
        calls_of_group.append(((groups[at_group], collectives[at_name]), of_rank))
    return calls_of_group


def _sum_up(
    key: _Key,
    ranks: Sequence[_OfRank],
    group: InspectorGroup,
    stated: Sequence[StatedBandwidth],
    *,
    is_timed: bool,
) -> CommunicatorCalls:
    seq = np.concatenate([entry.seq for entry in ranks])
    durations, sizes = (np.concatenate([getattr(entry, name) for entry in ranks]) for name in ("dur", "size"))
    numbers, first, counts = np.unique(seq, return_index=True, return_counts=True)
    factor = bus_factor(key[1], group.num_ranks)
    has_time = durations > 0
    total = float(durations[has_time].sum())
    algbw = float(sizes[has_time].sum()) * 1e9 / total if total else None
    is_pair = key[1] in {"send", "recv"}
    matched = numbers[counts == group.num_ranks] if not is_pair else numbers[:0]
    transfer, wait, last = _arrivals(ranks, matched) if is_timed and len(matched) else (None, None, ())
    worst = [entry.worst_ratio for entry in stated if entry.num_deviating]
    return CommunicatorCalls(
        group=group.name,
        title=group.title,
        collective=key[1],
        num_ranks=group.num_ranks,
        num_recorded=len({entry.rank for entry in ranks}),
        num_calls=len(numbers),
        num_matched=len(matched),
        bytes=int(sizes[first].sum()),
        median_ns=int(np.median(durations)),
        p95_ns=int(np.percentile(durations, 95)),
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * factor if algbw is not None and factor is not None else None,
        transfer_busbw_bytes_per_s=transfer * factor if transfer is not None and factor is not None else None,
        wait_ns=wait,
        last_counts=last,
        num_compared=sum(entry.num_compared for entry in stated),
        num_deviating=sum(entry.num_deviating for entry in stated),
        worst_ratio=max(worst, key=lambda ratio: abs(ratio - 1), default=1.0),
    )


def _arrivals(
    ranks: Sequence[_OfRank], matched: NDArray[np.int64]
) -> tuple[float | None, int, tuple[tuple[int, int], ...]]:
    """Bytes per second of transfers, mean wait of a rank over all calls in ns, who came last how often."""
    durations = np.stack([entry.dur[np.searchsorted(entry.seq, matched)] for entry in ranks])
    sizes = ranks[0].size[np.searchsorted(ranks[0].seq, matched)]
    shortest = durations.min(axis=0)
    wait = int((durations - shortest).sum(axis=0).mean() / len(ranks) * len(matched))
    moved = float(sizes[shortest > 0].sum()) * 1e9
    total = float(shortest.sum())
    apart = durations.max(axis=0) > shortest  # where all took the same, no rank was last
    last = Counter(ranks[at].rank for at in durations.argmin(axis=0)[apart].tolist())
    ordered = tuple(sorted(last.items(), key=lambda item: (-item[1], item[0])))
    return (moved / total if total and moved else None), wait, ordered
