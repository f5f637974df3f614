"""Bytes and packets of network interfaces, and TCP's troubles, in every network namespace of the ranks.

`ethernet` reads one file per namespace, /proc/PID/net/dev, as often as the sampler ticks. Bytes include
the layer-2 header. Packets are what the stack handed over: with segmentation offload not those on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.collectors.base import SECOND_NS, BaseCollector, Capability, Reading, reason_of
from perfscope.collectors.context import Context
from perfscope.collectors.network.namespaces import NetNamespaces, own_process
from perfscope.rundir.metrics import COUNTER, Metric, Series

_DEV = "/proc/PID/net/dev"
QUIET_NS = 5 * SECOND_NS  # an interface without any traffic so far is written this often


def _counter(name: str, unit: str, source: str, description: str) -> Metric:
    return Metric(name=name, unit=unit, kind=COUNTER, source=source, description=description)


METRICS = (
    _counter("net_rx_bytes", "bytes", _DEV, "bytes received, with layer-2 headers"),
    _counter("net_tx_bytes", "bytes", _DEV, "bytes sent, with layer-2 headers"),
    _counter("net_rx_packets", "packets", _DEV, "packets received, merged ones counted once"),
    _counter("net_tx_packets", "packets", _DEV, "packets sent, segmented ones counted once"),
    _counter("net_errors", "events", _DEV, "receive and transmit errors"),
    _counter("net_dropped", "events", _DEV, "packets dropped on receipt or before sending"),
)
TCP_RETRANSMITS = _counter(
    "tcp_retransmits", "events", "/proc/PID/net/snmp Tcp RetransSegs", "TCP retransmits"
)
TCP_TIMEOUTS = _counter(
    "tcp_timeouts", "events", "/proc/PID/net/netstat TcpExt TCPTimeouts", "expired TCP retransmission timers"
)


class _Interface:
    """One interface: its series, and its line in the file when it was last read."""

    __slots__ = ("active", "line", "series")

    def __init__(self, name: str, namespace: str, line: bytes) -> None:
        labels = {"interface": name, "netns": namespace}
        self.series = [Series(metric, labels) for metric in METRICS]
        self.line = line
        self.active = False

    def readings(self, begin: int, end: int) -> list[Reading]:
        """Of the line that is kept.

        Raises:
            ValueError, IndexError: the line is not what the kernel writes.
        """
        word = self.line.split()
        rx, tx = int(word[0]), int(word[8])
        received, sent = int(word[1]), int(word[9])
        errors, dropped = int(word[2]) + int(word[10]), int(word[3]) + int(word[11])
        values = (rx, tx, received, sent, errors, dropped)
        return [Reading(series, value, begin, end) for series, value in zip(self.series, values, strict=True)]


class EthernetCounters(BaseCollector):
    """Traffic of every interface.

    Interfaces come and go. One that has not moved a byte since it was first seen is written every 5 s
    only; when it starts, its state of the tick before is written first, so that no rate is smeared.
    """

    name = "ethernet"
    min_interval_ns = SECOND_NS // 5  # counters lose nothing; a read from a cold cache costs 180 µs

    def __init__(self) -> None:
        super().__init__()
        self._ctx = Context()
        self._namespaces: NetNamespaces | None = None
        self._interfaces: dict[tuple[str, bytes], _Interface] = {}
        self._before: dict[str, tuple[int, int]] = {}
        self._quiet_ns = 0

    def probe(self, ctx: Context) -> Capability:
        processes = own_process(ctx)
        text = ctx.read_or(f"/proc/{processes[0]}/net/dev") if processes else ""
        names = [line.partition(":")[0].strip() for line in text.splitlines()[2:]]
        return self.capability(
            metrics=METRICS,
            source=_DEV,
            reason="" if names else "/proc/self/net/dev cannot be read",
            detail=", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else ""),
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        self._namespaces = NetNamespaces(ctx, "dev", self._lost)
        self._namespaces.refresh(ctx.clock())

    def sample(self) -> Sequence[Reading]:
        namespaces = self._namespaces
        if namespaces is None:
            return ()
        clock, now = self._ctx.clock, self._ctx.clock()
        if namespaces.refresh(now):
            self._forget(set(namespaces.files))
        quiet_too = now >= self._quiet_ns
        if quiet_too:
            self._quiet_ns = now + QUIET_NS
        readings: list[Reading] = []
        for namespace, kept in list(namespaces.files.items()):
            begin = clock()
            try:
                data = kept.read()
            except OSError as error:
                namespaces.drop(namespace)
                self._lost(namespace, error)
                continue
            readings += self._parse(namespace, data, (begin, clock()), quiet_too)
        return readings

    def close(self) -> None:
        if self._namespaces is not None:
            self._namespaces.close()

    def _parse(self, namespace: str, data: bytes, times: tuple[int, int], quiet_too: bool) -> list[Reading]:
        before: list[Reading] = []
        now: list[Reading] = []
        seen = set()
        for row in data.split(b"\n")[2:]:
            name, colon, line = row.partition(b":")
            key = (namespace, name)
            if not colon:
                continue
            seen.add(key)
            interface = self._interfaces.get(key)
            try:
                if interface is None:
                    interface = _Interface(name.decode("utf-8", "replace").strip(), namespace, line)
                    fresh = interface.readings(*times)
                    self._interfaces[key] = interface
                    now += fresh
                    continue
                earlier: list[Reading] = []
                if not interface.active and line != interface.line:
                    interface.active = True
                    earlier = interface.readings(*self._before.get(namespace, times))
                if interface.active or quiet_too:
                    interface.line = line
                    now += interface.readings(*times)
                before += earlier
            except (ValueError, IndexError):
                self._gone(key, "its line in the file is not readable")
        self._before[namespace] = times
        if len(seen) < len(self._interfaces):
            self._vanished(namespace, seen)
        return before + now

    def _vanished(self, namespace: str, seen: set[tuple[str, bytes]]) -> None:
        for key in [key for key in self._interfaces if key[0] == namespace and key not in seen]:
            self._gone(key, "the interface is no longer there")

    def _gone(self, key: tuple[str, bytes], reason: str) -> None:
        interface = self._interfaces.pop(key, None)
        name = key[1].decode("utf-8", "replace").strip()
        if interface is not None:
            self.stopped("net_*", {"interface": name, "netns": key[0]}, reason)

    def _lost(self, namespace: str, error: OSError) -> None:
        self.stopped("net_*", {"netns": namespace}, f"{_DEV}: {reason_of(error)}")
        self._forget({name for name, _ in self._interfaces} - {namespace})

    def _forget(self, remaining: set[str]) -> None:
        self._interfaces = {
            key: interface for key, interface in self._interfaces.items() if key[0] in remaining
        }


class TcpCounters(BaseCollector):
    """Retransmissions and timeouts of TCP, per network namespace (all its sockets, not only the ranks')."""

    name = "ethernet.tcp"
    slow = True
    min_interval_ns = 2 * SECOND_NS

    def __init__(self) -> None:
        super().__init__()
        self._ctx = Context()
        self._parts: list[_TcpFile] = []

    def probe(self, ctx: Context) -> Capability:
        processes = own_process(ctx)
        has_snmp = bool(processes) and ctx.exists(f"/proc/{processes[0]}/net/snmp")
        return self.capability(
            metrics=(TCP_RETRANSMITS, TCP_TIMEOUTS),
            source="/proc/PID/net/snmp, /proc/PID/net/netstat",
            reason="" if has_snmp else "/proc/self/net/snmp is not there",
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        self._parts = [
            _TcpFile(self, ctx, "snmp", b"Tcp:", b"RetransSegs", TCP_RETRANSMITS),
            _TcpFile(self, ctx, "netstat", b"TcpExt:", b"TCPTimeouts", TCP_TIMEOUTS),
        ]

    def sample(self) -> Sequence[Reading]:
        return [reading for part in self._parts for reading in part.sample()]

    def close(self) -> None:
        for part in self._parts:
            part.namespaces.close()


class _TcpFile:
    """One field of one of the two files, in every namespace."""

    def __init__(
        self, owner: TcpCounters, ctx: Context, name: str, row: bytes, field: bytes, metric: Metric
    ) -> None:
        self._owner, self._ctx, self._metric = owner, ctx, metric
        self._row, self._field = row, field
        self._series: dict[str, Series] = {}
        self.namespaces = NetNamespaces(ctx, name, self._lost)

    def sample(self) -> list[Reading]:
        clock = self._ctx.clock
        self.namespaces.refresh(clock())
        readings = []
        for namespace, kept in list(self.namespaces.files.items()):
            begin = clock()
            try:
                value = _field(kept.read(), self._row, self._field)
            except (OSError, ValueError) as error:
                self.namespaces.drop(namespace)
                self._lost(namespace, error)
                continue
            if namespace not in self._series:
                self._series[namespace] = Series(self._metric, {"netns": namespace})
            readings.append(Reading(self._series[namespace], value, begin, clock()))
        return readings

    def _lost(self, namespace: str, error: OSError | ValueError) -> None:
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        self._owner.stopped(self._metric.name, {"netns": namespace}, f"{self._metric.source}: {reason}")


def _field(data: bytes, row: bytes, field: bytes) -> int:
    """The files hold pairs of lines: ``Tcp: names`` and ``Tcp: numbers``.

    Raises:
        ValueError: no such row or field.
    """
    lines = [line.split() for line in data.split(b"\n") if line.startswith(row)]
    if len(lines) < 2 or field not in lines[0] or len(lines[1]) != len(lines[0]):
        raise ValueError(f"no {field.decode()}")
    return int(lines[1][lines[0].index(field)])
