"""Bytes, packets, waits and errors of InfiniBand, Omni-Path, RoCE and iWARP ports.

`fabric` reads traffic, `fabric.errors` what happens rarely. Each read is a command to the adapter's
firmware (tens of microseconds to milliseconds), so both have threads of their own, and `fabric` reads
less often where reading takes long.

Units differ: InfiniBand and RoCE count words of 4 bytes, Omni-Path flits of 8 (the hfi1 driver answers the
IB query with flits, unconverted). Software devices count no bytes: theirs are those of the interface below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from perfscope.collectors.base import (
    FAST_NS,
    SECOND_NS,
    Absent,
    BaseCollector,
    Capability,
    Fact,
    Reading,
    reason_of,
)
from perfscope.collectors.context import Context, KeptFile
from perfscope.collectors.machine.pci import is_software, port_kind, port_netdev, port_rate
from perfscope.collectors.network.fabric_counters import (
    DRIVER_COUNTERS,
    ERROR_WIDTHS,
    ERRORS,
    HW,
    RX_PACKETS,
    TX_PACKETS,
    XMIT_WAIT,
    byte_metric,
    is_extended,
    saturating,
)
from perfscope.rundir.metrics import COUNTER, SATURATED, SATURATING, Metric, Series

_BASE = "/sys/class/infiniband"
_WORD = {"omnipath": 8}  # bytes per unit of port_*_data; 4 elsewhere
_PACE = 4  # at most a fifth of the time is spent in reading
_SLACK = 1.1  # counters are read at slightly other times than they are stamped
_SANITY_NS = 50_000_000


@dataclass(slots=True)
class _Source:
    """One file that gives one series."""

    name: str
    series: Series
    kept: KeptFile | None = None
    last: tuple[int, int] | None = None  # value, time


@dataclass(slots=True)
class _Port:
    """One port and what it has."""

    device: str
    number: str
    kind: str
    sources: list[_Source] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    bytes_per_s: float | None = None  # what the link can carry; None = not known

    @property
    def label(self) -> str:
        return f"{self.device}/{self.number}"


class _PortFiles(BaseCollector):
    """What both collectors share: finding ports, keeping their files, reading one after the other."""

    slow = True

    def __init__(self) -> None:
        super().__init__()
        self._ctx = Context()
        self._ports: list[_Port] = []
        self._odd: set[str] = set()
        self._not_before_ns = 0

    def _fill(self, ctx: Context, port: _Port) -> None:
        raise NotImplementedError

    def probe(self, ctx: Context) -> Capability:
        ports = self._find(ctx)
        sources = [source for port in ports for source in port.sources]
        absent = [item for port in ports for item in port.absent]
        if sources:
            reason = ""
        elif ports:
            reason = "; ".join(f"{item.what}: {item.reason}" for item in absent) or "no port has counters"
        else:
            reason = f"no {_BASE}: no InfiniBand, Omni-Path or RoCE adapter"
        metrics = {source.series.metric.name: source.series.metric for source in sources}
        return self.capability(
            metrics=tuple(metrics.values()),
            source=f"{_BASE}/DEV/ports/P",
            reason=reason,
            absent=tuple(absent),
            detail=", ".join(f"{port.label} ({port.kind})" for port in ports),
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        self._ports = self._find(ctx)
        for port in self._ports:
            for source in list(port.sources):
                self._keep(ctx, port, source)

    def sample(self) -> Sequence[Reading]:
        clock = self._ctx.clock
        began = clock()
        if began < self._not_before_ns:
            return ()
        readings = [
            reading
            for port in self._ports
            for source in list(port.sources)
            if (reading := self._read(port, source)) is not None
        ]
        took = clock() - began
        self._not_before_ns = clock() + _PACE * took if took > SECOND_NS // 100 else 0
        return readings

    def close(self) -> None:
        for port in self._ports:
            for source in port.sources:
                if source.kept is not None:
                    source.kept.close()

    def _find(self, ctx: Context) -> list[_Port]:
        ports = []
        for folder in ctx.glob(f"{_BASE}/*/ports/*"):
            device, number = folder.split("/")[-3], folder.split("/")[-1]
            port = _Port(device, number, port_kind(ctx, device, number))
            self._fill(ctx, port)
            ports.append(port)
        return ports

    def _keep(self, ctx: Context, port: _Port, source: _Source) -> None:
        try:
            source.kept = ctx.keep(source.name)
        except OSError as error:
            self._end(port, source, reason_of(error))

    def _read(self, port: _Port, source: _Source) -> Reading | None:
        clock = self._ctx.clock
        begin = clock()
        text = b""
        try:
            text = source.kept.read() if source.kept is not None else b""
            value = int(text)
        except OSError as error:
            self._end(port, source, reason_of(error))
            return None
        except ValueError:
            self._end(port, source, f"the file says {_quoted(text.decode('utf-8', 'replace'))}")
            return None
        end = clock()
        metric = source.series.metric
        if metric.kind == SATURATING and metric.limit is not None and value > metric.limit:
            metric = self._widen(source)
        self._check_rate(port, source, value, (begin + end) // 2)
        stuck = metric.kind == SATURATING and value == metric.limit
        return Reading(source.series, value, begin, end, SATURATED if stuck else None)

    def _widen(self, source: _Source) -> Metric:
        """A value that the assumed width cannot hold: the counter is wider, so go on as another series."""
        metric = replace(source.series.metric, kind=COUNTER, limit=None)
        source.series = Series(metric, {**source.series.labels, "width": "64"})
        return metric

    def _end(self, port: _Port, source: _Source, reason: str) -> None:
        port.sources.remove(source)
        if source.kept is not None:
            source.kept.close()
        self.stopped(source.series.metric.name, dict(source.series.labels), f"{source.name}: {reason}")

    def _check_rate(self, port: _Port, source: _Source, value: int, now: int) -> None:
        """A link cannot carry more than its rate: more than that means a wrong unit. Said once per port."""
        if port.bytes_per_s is None or source.series.metric.unit != "bytes":
            return
        last, source.last = source.last, (value, now)
        if last is None or now - last[1] < _SANITY_NS or port.label in self._odd:
            return
        rate = (value - last[0]) * source.series.metric.scale / (now - last[1]) * 1e9
        if rate > port.bytes_per_s * _SLACK:
            self._odd.add(port.label)
            text = (
                f"{port.label} counted {rate / 1e9:.1f} GB/s on a link of {port.bytes_per_s / 1e9:.1f} GB/s: "
                "the unit of its counters is not the expected one"
            )
            self._facts.append(Fact("note", {"port": port.label}, {"text": text}))


class FabricTraffic(_PortFiles):
    """Bytes, packets and waits of each port."""

    name = "fabric"
    min_interval_ns = FAST_NS

    def _fill(self, ctx: Context, port: _Port) -> None:
        port_folder = f"{_BASE}/{port.device}/ports/{port.number}"
        rate = port_rate(ctx, port.device, port.number)
        if rate and not is_software(ctx, port.device):
            port.bytes_per_s = rate / 8
        folder = f"{port_folder}/counters"
        if ctx.exists(f"{folder}/port_xmit_data"):
            self._standard(ctx, port, folder)
        elif ctx.exists(f"{port_folder}/hw_counters/tx_bytes"):
            self._own_bytes(port, f"{port_folder}/hw_counters")
        else:
            self._of_interface(ctx, port)

    def _standard(self, ctx: Context, port: _Port, folder: str) -> None:
        reason = _why_not(ctx, f"{folder}/port_xmit_data")
        if reason:
            port.absent.append(Absent(what=f"bytes of {port.label}", reason=reason))
            return
        extended, labels = is_extended(ctx, folder), {"port": port.label}
        word = _WORD.get(port.kind, 4)
        wanted: list[tuple[str, Metric]] = [
            ("port_xmit_data", byte_metric("tx", folder, word, extended)),
            ("port_rcv_data", byte_metric("rx", folder, word, extended)),
            ("port_xmit_packets", TX_PACKETS if extended else saturating(TX_PACKETS, 32)),
            ("port_rcv_packets", RX_PACKETS if extended else saturating(RX_PACKETS, 32)),
            ("port_xmit_wait", XMIT_WAIT),
        ]
        for name, metric in wanted:
            if ctx.exists(f"{folder}/{name}"):
                port.sources.append(_Source(f"{folder}/{name}", Series(metric, labels)))

    def _own_bytes(self, port: _Port, folder: str) -> None:
        """Adapters without the standard counters that count bytes themselves (EFA)."""
        for name, way in (("tx_bytes", "tx"), ("rx_bytes", "rx")):
            series = Series(byte_metric(way, folder, 1, extended=True), {"port": port.label})
            port.sources.append(_Source(f"{folder}/{name}", series))

    def _of_interface(self, ctx: Context, port: _Port) -> None:
        netdev = port_netdev(ctx, port.device, port.number)
        folder = f"/sys/class/net/{netdev}/statistics"
        if port.kind != "rxe" or not netdev or not ctx.exists(folder):
            reason = "no counters folder, and no interface below that counts its bytes"
            port.absent.append(Absent(what=f"bytes of {port.label}", reason=reason))
            return
        labels = {"port": port.label, "of": f"interface {netdev}"}
        for way in ("tx", "rx"):
            metric = byte_metric(way, folder, 1, extended=True, shared=True)
            port.sources.append(_Source(f"{folder}/{way}_bytes", Series(metric, labels)))
        counter_folder = f"{_BASE}/{port.device}/ports/{port.number}/hw_counters"
        for name, packets in (("sent_pkts", TX_PACKETS), ("rcvd_pkts", RX_PACKETS)):
            if ctx.exists(f"{counter_folder}/{name}"):
                metric = replace(packets, source=f"{counter_folder}/{name}")
                port.sources.append(_Source(f"{counter_folder}/{name}", Series(metric, {"port": port.label})))


class FabricErrors(_PortFiles):
    """Error counters of each port, and a named few of the driver's own (there can be thousands)."""

    name = "fabric.errors"
    min_interval_ns = 2 * SECOND_NS

    def _fill(self, ctx: Context, port: _Port) -> None:
        base = f"{_BASE}/{port.device}"
        folder = f"{base}/ports/{port.number}"
        for name, width in ERROR_WIDTHS.items():
            if not _why_not(ctx, f"{folder}/counters/{name}"):
                labels = {"port": port.label, "counter": name}
                series = Series(saturating(ERRORS, width), labels)
                port.sources.append(_Source(f"{folder}/counters/{name}", series))
        seen: set[str] = set()
        for folder_tried in (f"{folder}/hw_counters", f"{base}/hw_counters"):  # some drivers: of the device
            self._driver_counters(ctx, port, folder_tried, seen)

    def _driver_counters(self, ctx: Context, port: _Port, folder: str, seen: set[str]) -> None:
        for path in ctx.glob(f"{folder}/*"):
            counter = path.rpartition("/")[2].partition(",")[0]  # hfi1: "SwLinkUp,32"
            if counter not in DRIVER_COUNTERS or counter in seen:
                continue
            seen.add(counter)
            labels = {"port": port.label, "counter": counter}
            port.sources.append(_Source(path, Series(HW, labels)))


def _why_not(ctx: Context, name: str) -> str:
    """Why a counter has no value; "" = it has one. Adapters without the query answer in words or fail."""
    try:
        text = ctx.read(name).strip()
    except OSError as error:
        return reason_of(error)
    return "" if text.isdigit() else f"the adapter says {_quoted(text)}"


def _quoted(text: str) -> str:
    return f'"{text.strip()[:60]}"'
