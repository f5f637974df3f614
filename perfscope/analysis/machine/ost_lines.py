"""Lines of Lustre's object storage targets (OSTs): rates of each, and how long their answers take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from perfscope.analysis.machine.counters import Rates
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.lines import SampledLine, rate_line, summed, track
from perfscope.analysis.machine.results import CounterTrack

MOST_OSTS = 4  # of a file system that have lines of their own; of more, the sum and the slowest


def ost_tracks(host: Host) -> Iterator[CounterTrack]:
    """Of the targets that the host's client read from or wrote to."""
    for metric, word in (("ost_read_bytes", "read"), ("ost_written_bytes", "written")):
        for system, of_system in sorted(_by_system(host, metric).items()):
            for title, key, line in _rates(system, of_system):
                label = f"{metric}{{ost={key}}}"
                yield track(host, "io", f"{title} {word}", "bytes_per_s", line, key=label)
    yield from _latencies(host)


def _by_system(host: Host, metric: str) -> dict[str, dict[str, Rates]]:
    """File system -> target -> what it counted; of those that counted anything."""
    systems: dict[str, dict[str, Rates]] = defaultdict(dict)
    for series, counted in host.counters(metric):
        ost = series.labels.get("ost", "?")
        if counted.total:
            systems[ost.rpartition("-")[0]][ost] = counted
    return systems


def _rates(system: str, of_system: dict[str, Rates]) -> Iterator[tuple[str, str, SampledLine]]:
    if len(of_system) <= MOST_OSTS:
        for ost, counted in sorted(of_system.items()):
            yield ost, ost, rate_line(counted)
        return
    line = summed(list(of_system.values()))
    if line is not None:
        yield f"{len(of_system)} OSTs of {system}", system, line


def _latencies(host: Host) -> Iterator[CounterTrack]:
    """Mean time of the requests that were answered in each interval."""
    waits = {series.labels.get("ost", "?"): counted for series, counted in host.counters("ost_request_time")}
    for _, requests in sorted(_by_system(host, "ost_requests").items()):
        lines = {
            ost: _latency(waits[ost], counted) for ost, counted in sorted(requests.items()) if ost in waits
        }
        lines = {ost: line for ost, line in lines.items() if len(line.values)}
        slowest = max(lines, key=lambda ost: float(lines[ost].values.mean()), default="")
        for ost, line in lines.items():
            if len(lines) <= MOST_OSTS or ost == slowest:
                note = f", slowest of {len(lines)}" if len(lines) > MOST_OSTS else ""
                title = f"{ost}, time per request{note}"
                yield track(host, "io", title, "ns", line, key=f"ost_request_time{{ost={ost}}}")


def _latency(waits: Rates, requests: Rates) -> SampledLine:
    """Intervals without an answer have no point."""
    _, of_waits, of_requests = np.intersect1d(waits.start_ns, requests.start_ns, return_indices=True)
    has_answer = requests.delta[of_requests] > 0
    of_waits, of_requests = of_waits[has_answer], of_requests[has_answer]
    length = (requests.end_ns - requests.start_ns)[of_requests]
    return SampledLine(
        t_ns=requests.start_ns[of_requests] + length // 2,
        values=waits.delta[of_waits] / requests.delta[of_requests],
        weight=length.astype(np.float64),
        quality=waits.worst_quality,
    )
