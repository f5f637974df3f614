"""What another store, or a cache in each node, would make of waiting for input, from what was recorded.

Workers of a loader are replayed: the time that they are asleep is taken for waiting for the store. A training
thread that reads samples itself was seen in file systems at readings of its state: so much of its wait is
taken for it. A cache in each node has the memory that is free there at the least moment of the run. Each rank
reads its own part of the data, in another order in each pass, so that every node needs all of it; what does
not fit is read from the store again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfscope.analysis.loading.predictions import (
    NOTABLE,
    STORES,
    is_stored,
    prediction_of,
    with_predictions,
)
from perfscope.analysis.loading.results import RankLoading
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.thread_states import ThreadStates
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.host_activity import HostActivity
from perfscope.vocabulary.loading import LoaderChange
from perfscope.vocabulary.memory import HOST_AVAILABLE, JOB_LIMIT, JOB_USED

_FEWEST_READINGS = 3  # in file systems, that count as more than chance


def with_node_cache(
    loading: Sequence[RankLoading], hosts: Sequence[Host], of_rank: Mapping[int, str]
) -> tuple[tuple[RankLoading, ...], tuple[Missing, ...]]:
    """Loaders with the prediction of a cache in each node, and why those that wait for a store have none.

    Args:
        loading: of all ranks with loaders.
        hosts: with their samples.
        of_rank: rank -> host.
    """
    waiting = [entry for entry in loading if entry.wait_ns >= NOTABLE * entry.period_ns and is_stored(entry)]
    free = {host.name: bytes_ for host in hosts if (bytes_ := free_memory(host)) is not None}
    parts = [
        None if entry.bytes_per_sample is None or not entry.pass_samples
        else entry.bytes_per_sample * entry.pass_samples
        for entry in loading
    ]  # fmt: skip
    data_bytes = sum(part or 0.0 for part in parts)
    if None in parts or not data_bytes:
        return tuple(loading), _no_cache(waiting, Cause.PASS_NOT_KNOWN)
    free_of = {entry.rank: free.get(of_rank.get(entry.rank, "")) for entry in waiting}
    unread = [entry for entry in waiting if free_of[entry.rank] is None]
    cached = {
        entry.rank: _cached(entry, min(1.0, free_bytes / data_bytes))
        for entry in waiting
        if (free_bytes := free_of[entry.rank]) is not None
    }
    return (
        tuple(cached.get(entry.rank, entry) for entry in loading),
        _no_cache(unread, Cause.FREE_MEMORY_NOT_READ),
    )


def _cached(loading: RankLoading, held: float) -> RankLoading:
    """`held`: share of the data that a node's cache has; what the page cache had already is a part of it."""
    had = loading.cached_ratio or 0.0
    predicted_ns = loading.period_with(1.0 if had >= held else (1 - held) / (1 - had))
    if predicted_ns is None:
        return loading
    return with_predictions(loading, [prediction_of(loading, LoaderChange.NODE_CACHE, held, predicted_ns)])


def _no_cache(loading: Sequence[RankLoading], cause: Cause) -> tuple[Missing, ...]:
    ranks = [entry.rank for entry in loading]
    return (missing_figure(Figure.NODE_CACHE, cause, ranks=ranks),) if ranks else ()


def free_memory(host: Host) -> float | None:
    """Bytes that a cache could have had all the time: of the host, and of the job's control groups. None: not
    read."""
    free = [
        float(series.values.min()) * series.scale
        for series in host.samples.find(HOST_AVAILABLE)
        if len(series.values)
    ]
    if not free:
        return None
    for series in host.samples.find(JOB_USED):
        limit = host.last(JOB_LIMIT, group=series.labels.get("group", ""))
        if limit is not None and len(series.values):
            free.append(limit - float(series.values.max()) * series.scale)
    return max(0.0, min(free))


def reads_of_thread(states: ThreadStates, step_ns: float, wait_ns: float, sync_ns: float = 0.0) -> float:
    """Time per mean step in which a training thread that loads its own data waits for files, ns.

    Other writes than syncs cannot be distinguished from reads.

    Args:
        states: what it was seen in; fewer than _FEWEST_READINGS in file systems are chance.
        step_ns, wait_ns: mean step, and the wait for input in it.
        sync_ns: in a mean step, syncs of files, which are waits for files, too, and no reads.
    """
    ratio = states.ratios.get(HostActivity.FILES, 0.0)
    if ratio * states.num_readings < _FEWEST_READINGS:
        return 0.0
    return min(max(0.0, ratio * step_ns - sync_ns), wait_ns)


def store_gains(read_ns: float) -> list[tuple[LoaderChange, float, float]]:
    """(change, factor, ns saved per step) of a training thread that waits so long for files."""
    faster = [(change, factor, read_ns * (1 - 1 / factor)) for change, factor in STORES]
    return [*faster, (LoaderChange.CACHED, 1.0, read_ns)]
