"""Memory in use over the run: of each rank, and how near hosts, control groups, devices came to a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from perfscope.analysis.intervals import BLOCKS, block_medians, is_steady
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.lines import SampledLine, gauge_line, track
from perfscope.analysis.machine.results import CounterTrack, MemoryLimit, RankMemory
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.rundir.samples import SampleSeries
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.gpu import MEMORY_TOTAL, MEMORY_USED
from perfscope.vocabulary.memory import (
    HOST_AVAILABLE,
    HOST_MEMORY,
    HOST_TOTAL,
    JOB_LIMIT,
    JOB_USED,
    RANK_MEMORY,
    RANK_RESIDENT,
    RANK_SHARED,
    LimitOf,
)

MOST_RANKS = 8  # of one host that are drawn, those that held most
_FEWEST_READINGS = 6  # all pairs of them rise by chance in 1 of 720 runs
_MORE_BYTES, _MORE = 32 * 2**20, 0.1  # by which memory must grow, and of what it was
_LATER = 0.3  # of the growth that must be in the second half
TOTAL, _LIMIT = "total", "limit"  # what a line of memory is at most


def rank_memory(host: Host) -> list[RankMemory]:
    """Of the host's ranks whose memory was read, in order."""
    ranks = host.rank_of_pid()
    found = []
    for series in host.samples.find(RANK_RESIDENT):
        rank = ranks.get(series.labels.get("pid", ""))
        if rank is None or not len(series.values):
            continue
        line = gauge_line(series)
        at = int(np.argmax(line.values))
        found.append(
            RankMemory(
                rank=rank,
                host=host.name,
                peak_bytes=int(line.values[at]),
                peak_at_ns=host.unix(int(line.t_ns[at])),
                shared_bytes=_near(host, series, int(line.t_ns[at])),
                first_bytes=_of_steps(host, line, 0),
                last_bytes=_of_steps(host, line, -1),
                num_samples=len(line.values),
                growth_bytes_per_s=_growth(host, line),
            )
        )
    return sorted(found, key=lambda memory: memory.rank)


def _near(host: Host, series: SampleSeries, at_ns: int) -> int | None:
    """The shared part of the same process, read with its resident memory."""
    for shared in host.samples.find(RANK_SHARED, pid=series.labels["pid"]):
        if len(shared.values):
            line = gauge_line(shared)
            return int(line.values[int(np.argmin(np.abs(line.t_ns - at_ns)))])
    return None


def _growth(host: Host, line: SampledLine) -> float | None:
    """Slope of the readings while steps ran, but for the first tenth, in which caches fill; None: they do not
    grow steadily, or no more in their second half.
    """
    if host.steps_ns is None:
        return None
    start, end = host.steps_ns
    inside = (line.t_ns >= start + (end - start) // 10) & (line.t_ns <= end)
    readings, seconds = line.values[inside], line.t_ns[inside] / 1e9
    if len(readings) < _FEWEST_READINGS:
        return None
    medians = block_medians(readings.astype(np.int64), min(BLOCKS, len(readings)))
    first, middle, last = (int(medians[at]) for at in (0, len(medians) // 2, -1))
    is_enough = last - first >= max(_MORE_BYTES, _MORE * first)
    if not is_enough or last - middle < _LATER * (last - first) or not is_steady(medians):
        return None
    return float(np.polyfit(seconds - seconds[0], readings.astype(np.float64), 1)[0])


def _of_steps(host: Host, line: SampledLine, position: int) -> int | None:
    """The first or the last reading while steps ran; None: none was."""
    if host.steps_ns is None:
        return None
    start, end = host.steps_ns
    inside = line.values[(line.t_ns >= start) & (line.t_ns <= end)]
    return int(inside[position]) if len(inside) else None


def memory_limits(host: Host) -> list[MemoryLimit]:
    """The host, the job's control groups that are limited, and the devices, with the most that was in use."""
    return [*_host_limit(host), *_group_limits(host), *_device_limits(host)]


def _limit(host: Host, of: LimitOf, name: str, line: SampledLine, most: float) -> MemoryLimit:
    at = int(np.argmax(line.values))
    peak, limit = int(line.values[at]), int(most)
    return MemoryLimit(
        host=host.name,
        of=of,
        name=name,
        limit_bytes=limit,
        peak_bytes=peak,
        peak_at_ns=host.unix(int(line.t_ns[at])),
        headroom_bytes=limit - peak,
        headroom_ratio=(limit - peak) / limit,
    )


def _host_limit(host: Host) -> Iterator[MemoryLimit]:
    used = _host_used(host)
    if used is not None:
        line, total = used
        yield _limit(host, LimitOf.HOST, "", line, total)


def _host_used(host: Host) -> tuple[SampledLine, float] | None:
    """What the host's memory is not available for; and its size."""
    total = host.last(HOST_TOTAL)
    for series in host.samples.find(HOST_AVAILABLE):
        if total and len(series.values):
            return _less(gauge_line(series), total), total
    return None


def _less(free: SampledLine, total: float) -> SampledLine:
    return SampledLine(t_ns=free.t_ns, values=total - free.values, weight=free.weight, quality=free.quality)


def _group_limits(host: Host) -> Iterator[MemoryLimit]:
    for series in host.samples.find(JOB_USED):
        name = series.labels.get("group", "")
        most = host.last(JOB_LIMIT, group=name)
        if most and len(series.values):
            yield _limit(host, LimitOf.CONTROL_GROUP, name, gauge_line(series), most)


def _device_limits(host: Host) -> Iterator[MemoryLimit]:
    for series in host.samples.find(MEMORY_USED.name):
        gpu = series.labels.get("gpu", "?")
        most = host.last(MEMORY_TOTAL.name, gpu=gpu)
        if most and len(series.values):
            yield _limit(host, LimitOf.DEVICE, gpu, gauge_line(series), most)


def occupancy_tracks(host: Host) -> Iterator[CounterTrack]:
    """Lines of ranks, the host and limited control groups. Devices have theirs with the other readings."""
    ranks = host.rank_of_pid()
    of_ranks = [
        (ranks[series.labels["pid"]], gauge_line(series))
        for series in host.samples.find(RANK_RESIDENT)
        if series.labels.get("pid") in ranks and len(series.values)
    ]
    most = sorted(of_ranks, key=lambda entry: (-entry[1].values.max(), entry[0]))[:MOST_RANKS]
    for rank, line in sorted(most, key=lambda entry: entry[0]):
        key = f"{RANK_RESIDENT}{{rank={rank}}}"
        yield track(host, RANK_MEMORY, f"rank {rank} resident memory", "bytes", line, key=key)
    used = _host_used(host)
    if used is not None:
        line, total = used
        title = "host memory in use"
        yield track(
            host, HOST_MEMORY, title, "bytes", line, key=HOST_AVAILABLE, peak=total, peak_source=TOTAL
        )
    for series in host.samples.find(JOB_USED):
        if len(series.values):
            name = series.labels.get("group", "")
            key, most_bytes = f"{JOB_USED}{{group={name}}}", host.last(JOB_LIMIT, group=name)
            title, source = f"control group {name}", _LIMIT if most_bytes else ""
            line = gauge_line(series)
            yield track(host, HOST_MEMORY, title, "bytes", line, key=key, peak=most_bytes, peak_source=source)


def missing_memory(hosts: Sequence[Host], read: Sequence[RankMemory]) -> list[Missing]:
    """Ranks of sampled hosts whose memory was not read, in one entry."""
    known = {memory.rank for memory in read}
    ranks = sorted(rank.rank for host in hosts for rank in host.ranks if rank.rank not in known)
    if not ranks:
        return []
    return [missing_figure(Figure.RANK_MEMORY, Cause.MEMORY_NOT_READ, ranks=ranks)]
