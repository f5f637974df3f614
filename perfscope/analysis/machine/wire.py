"""What the links carried (bytes_wire) against the collectives' formulas (bytes_algorithmic), METRICS §2.

A ring passes each call's share along its edges, rank to rank in order; edges between ranks of one host run
over its loopback or GPU links, the others over its network ports. Bytes are counted on the sending side only.

A window lasts milliseconds and readings are 100 ms apart, so the robust comparison is over the whole run
(window -1): bytes of a traced step x steps between the first and the last reading. A single window is
compared where the readings around it reach over at most twice its length, with the steps they reach over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analysis.comm_record import is_unknown
from perfscope.analysis.intervals import Int64, distinct
from perfscope.analysis.machine.counters import Float64, Rates, counted_between
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.results import WireBytes
from perfscope.analysis.results import CollectiveCall
from perfscope.messages import machine as texts
from perfscope.rundir.metrics import SATURATED
from perfscope.vocabulary.communication import DEFAULT_GROUP
from perfscope.vocabulary.gpu import LINK_TX, PCIE_TX
from perfscope.vocabulary.links import LinkClass
from perfscope.volumes import edges

WHOLE_RUN = -1
_WIDEST = 2.0  # readings around a window may reach over this many times its length
METRICS = frozenset({"net_tx_bytes", "fabric_tx_bytes", LINK_TX.name, PCIE_TX.name})
_SEEN = 0.5  # a link that carried less than this part of the formula's bytes did not carry the collective


class TracedWindow(Struct, frozen=True, kw_only=True):
    """One traced window with its number of steps, on Unix time as each host's own clock has it."""

    window: int
    start_ns: int  # over all hosts
    end_ns: int
    num_steps: int
    of_host: Mapping[str, tuple[int, int]]  # host -> (start, end)

    def on(self, host: str) -> tuple[int, int]:
        """(start, end) by that host's clock; over all hosts where its ranks traced nothing."""
        return self.of_host.get(host, (self.start_ns, self.end_ns))


class RankHosts(Struct, frozen=True, kw_only=True):
    """Where the ranks are."""

    host_of: Mapping[int, str]
    groups: Mapping[str, tuple[int, ...]]  # process group -> ranks in order
    on_gpu: bool

    def members(self, group: str) -> tuple[int, ...]:
        """Ranks of a group; all ranks where the run lists no groups, none where it lists others only."""
        ranks = self.groups.get(group)
        if ranks is None and group == DEFAULT_GROUP and len(self.groups) == 1:
            ranks = next(iter(self.groups.values()))
        if ranks is None and is_unknown(group):
            return ()  # one of several groups, and the trace does not say which
        return ranks or tuple(sorted(self.host_of))


_Share = dict[tuple[str, bool], float]  # (sending host, stays on the host) -> bytes


def algorithmic(collective: str, members: Sequence[int], host_of: Mapping[int, str]) -> _Share:
    """What each host sends per byte of S, by whether it stays on it; empty where no formula applies.

    A send is left out: the record of a call does not name its ends.

    Args:
        collective: which kind.
        members: ranks of the group, in order.
        host_of: rank -> host.
    """
    share: _Share = defaultdict(float)
    if collective in ("send", "recv"):
        return share
    for source, target, each in edges(collective, members):
        here, there = host_of.get(source, ""), host_of.get(target, "")
        share[here, here == there] += each
    return share


def wire(
    hosts: Sequence[Host], calls: Sequence[CollectiveCall], windows: Sequence[TracedWindow], job: RankHosts
) -> tuple[WireBytes, ...]:
    """The whole run first, then each traced window; one entry per link class."""
    sampled = [host for host in hosts if host.has_samples and len(_edges(host)) > 1]
    per_step, by_window = _per_step(calls, windows, job) if sampled else ({}, {})
    if not per_step:
        return ()
    rows = []
    for local in (True, False):
        senders = [host for host in sampled if per_step.get((host.name, local))]
        if not senders:
            continue
        expected = {name for name, stays in per_step if stays is local and per_step[name, stays] > 0}
        lost = sorted(expected - {host.name for host in senders})
        chosen = {host.name: _carriers(host, local, per_step[host.name, local], job) for host in senders}
        rows.append(_whole_run(senders, chosen, {h.name: per_step[h.name, local] for h in senders}, lost))
        for window in windows:
            by_host = {host.name: by_window[window.window].get((host.name, local), 0.0) for host in senders}
            if any(by_host.values()):
                rows.append(_one_window(window, senders, chosen, by_host))
    return tuple(sorted(rows, key=lambda row: (row.window, row.link_class)))


def _per_step(
    calls: Sequence[CollectiveCall], windows: Sequence[TracedWindow], job: RankHosts
) -> tuple[_Share, dict[int, _Share]]:
    """Bytes per step over all windows, and per step of each window."""
    bounds = {window.window: window for window in windows if window.num_steps > 0}
    by_window: dict[int, _Share] = {number: defaultdict(float) for number in bounds}
    shares: dict[tuple[str, str], _Share] = {}
    for call in calls:
        window, kind = bounds.get(call.window), (call.collective, call.group)
        if window is None or call.bytes is None or not window.start_ns <= call.start_ns <= window.end_ns:
            continue
        if kind not in shares:
            shares[kind] = algorithmic(call.collective, job.members(call.group), job.host_of)
        for key, amount in shares[kind].items():
            by_window[call.window][key] += amount * call.bytes
    steps = sum(window.num_steps for window in bounds.values())
    total: _Share = defaultdict(float)
    for number, share in by_window.items():
        for key, amount in share.items():
            total[key] += amount / steps
            share[key] = amount / bounds[number].num_steps
    return dict(total), by_window


class _Carriers(Struct, frozen=True, kw_only=True):
    """The counters of sent bytes of one link class on one host."""

    link_class: LinkClass
    links: tuple[str, ...]
    counters: tuple[Rates, ...]

    @property
    def is_saturated(self) -> bool:
        return any(counted.worst_quality == SATURATED for counted in self.counters)

    def sent(self, start_ns: int, end_ns: int) -> float:
        return sum(counted_between(counted, start_ns, end_ns)[0] for counted in self.counters)


def _carriers(host: Host, local: bool, per_step: float, job: RankHosts) -> _Carriers:
    """The links that carry a host's collectives: those that sent at least half of the formula's bytes.

    Ranks of one host that sit in network namespaces of their own reach each other over interfaces, not over
    loopback; and a fabric's RDMA bytes may be on the port or on its network interface.
    """
    choices = [LinkClass.GPU_LINK, LinkClass.PCIE] if local and job.on_gpu else []
    choices += [LinkClass.LOOPBACK, LinkClass.ETHERNET] if local else [LinkClass.FABRIC, LinkClass.ETHERNET]
    carriers = [carrier for name in choices if (carrier := _of_class(host, name)).counters]
    first_last = _edges(host)
    start, end = int(first_last[0]), int(first_last[-1])
    wanted = per_step * float(np.diff(_steps_before(host, np.array([start, end], dtype=np.int64)))[0])
    for carrier in carriers:
        if carrier.is_saturated or carrier.sent(start, end) >= _SEEN * wanted:
            return carrier
    return max(
        carriers,
        key=lambda carrier: carrier.sent(start, end),
        default=_Carriers(link_class=choices[0], links=(), counters=()),
    )


def _of_class(host: Host, link_class: LinkClass) -> _Carriers:
    metric, label = {
        LinkClass.GPU_LINK: (LINK_TX.name, "gpu"),
        LinkClass.PCIE: (PCIE_TX.name, "gpu"),
        LinkClass.FABRIC: ("fabric_tx_bytes", "port"),
    }.get(link_class, ("net_tx_bytes", "interface"))
    counters = []
    for series, counted in host.counters(metric):
        name = series.labels.get(label, "?")
        if label == "interface" and (name == "lo") != (link_class is LinkClass.LOOPBACK):
            continue
        if counted.total or counted.num_saturated:
            counters.append((f"GPU {name}" if label == "gpu" else name, counted))
    names = tuple(dict.fromkeys(name for name, _ in counters))
    return _Carriers(link_class=link_class, links=names, counters=tuple(counted for _, counted in counters))


def _edges(host: Host) -> Int64:
    """When the host's links were read, within the steps; monotonic."""
    if host.steps_ns is None:
        return np.empty(0, dtype=np.int64)
    for metric in ("net_tx_bytes", "fabric_tx_bytes", LINK_TX.name, PCIE_TX.name):
        for _, counted in host.counters(metric):
            edges = np.concatenate((counted.start_ns, counted.end_ns[-1:]))
            inside = edges[(edges >= host.steps_ns[0]) & (edges <= host.steps_ns[1])]
            if len(inside) > 1:
                return distinct(inside)
    return np.empty(0, dtype=np.int64)


def _steps_before(host: Host, points: Int64) -> Float64:
    """How many steps lie before each point, by the host's rank with the most steps; parts of a step count."""
    rank = max(host.ranks, key=lambda host_rank: len(host_rank.starts))
    bounds = np.append(rank.starts, rank.ends[-1:])
    base = int(bounds[0])
    result: Float64 = np.interp(
        (points - base).astype(np.float64),
        (bounds - base).astype(np.float64),
        np.arange(len(bounds), dtype=np.float64),
    )
    return result


def _whole_run(
    hosts: Sequence[Host], chosen: Mapping[str, _Carriers], per_step: Mapping[str, float], lost: Sequence[str]
) -> WireBytes:
    formula = sent = 0.0
    steps = []
    spans = []
    for host in hosts:
        edges = _edges(host)
        ends = edges[[0, -1]]
        num = float(np.diff(_steps_before(host, ends))[0])
        formula += num * per_step[host.name]
        sent += chosen[host.name].sent(int(ends[0]), int(ends[1]))
        steps.append(num)
        spans.append((host.unix(int(ends[0])), int(ends[1] - ends[0])))
    start, length = min(spans)[0], max(length for _, length in spans)
    fewest = min(steps)
    reason = texts.whole_run(fewest, lost[:4])
    return _row(
        WHOLE_RUN, start, length, length, formula, sent, [chosen[host.name] for host in hosts], reason
    )


def _one_window(
    window: TracedWindow,
    hosts: Sequence[Host],
    chosen: Mapping[str, _Carriers],
    per_step: Mapping[str, float],
) -> WireBytes:
    length = window.end_ns - window.start_ns
    carriers = [chosen[host.name] for host in hosts]
    formula = sent = 0.0
    widest = 0
    for host in hosts:
        start, end = (_monotonic(host, time) for time in window.on(host.name))
        edges = _edges(host)
        first = int(np.searchsorted(edges, start, side="right")) - 1
        last = int(np.searchsorted(edges, end, side="left"))
        if first < 0 or last >= len(edges):
            return _unread(window, per_step, carriers, texts.NO_SAMPLE_AROUND)
        around = edges[[first, last]]
        widest = max(widest, int(around[1] - around[0]))
        formula += per_step[host.name] * float(np.diff(_steps_before(host, around))[0])
        sent += chosen[host.name].sent(int(around[0]), int(around[1]))
    if widest > _WIDEST * length:
        return _unread(window, per_step, carriers, texts.readings_too_far(widest, length))
    steps = formula / sum(per_step.values())
    reason = texts.between_readings(steps)
    return _row(window.window, window.start_ns, length, widest, formula, sent, carriers, reason)


def _unread(
    window: TracedWindow, per_step: Mapping[str, float], carriers: Sequence[_Carriers], reason: str
) -> WireBytes:
    formula = sum(per_step.values()) * window.num_steps
    length = window.end_ns - window.start_ns
    return _row(window.window, window.start_ns, length, 0, formula, None, carriers, reason)


def _row(
    number: int,
    start_ns: int,
    dur_ns: int,
    covered_ns: int,
    formula: float,
    sent: float | None,
    carriers: Sequence[_Carriers],
    reason: str,
) -> WireBytes:
    if any(carrier.is_saturated for carrier in carriers):
        sent, reason = None, texts.COUNTER_SATURATED
    elif not any(carrier.counters for carrier in carriers):
        sent, reason = None, texts.NO_LINK_COUNTER
    return WireBytes(
        window=number,
        start_ns=start_ns,
        dur_ns=dur_ns,
        algorithmic_bytes=round(formula),
        wire_bytes=None if sent is None else round(sent),
        link_class=carriers[0].link_class,
        links=tuple(dict.fromkeys(link for carrier in carriers for link in carrier.links)),
        covered_ns=covered_ns,
        reason=reason,
    )


def _monotonic(host: Host, unix_ns: int) -> int:
    """A Unix time on the host's monotonic clock."""
    guess = unix_ns
    for _ in range(2):  # the offset hardly changes between two anchors
        guess = unix_ns - (host.unix(guess) - guess)
    return guess
