"""Measured links for a terminal: the NUMA matrix, then latency and bandwidth of every kind of call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone

from perfscope import units
from perfscope.analysis.predict.measured_links import FittedSeries, fitted_series
from perfscope.messages.links import WHERE
from perfscope.messages.lists import counted, joined
from perfscope.reports.text import cells, pad
from perfscope.rundir.host_records import LinksRecord, NumaCell
from perfscope.rundir.typed import read_as
from perfscope.vocabulary.links import LinkClass, Transport

TRANSPORTS: dict[str, str] = {
    Transport.TCP: "TCP",
    Transport.GLOO: "gloo",
    Transport.MPI: "MPI",
    Transport.NCCL: "NCCL",
    Transport.RDMA: "RDMA",
    Transport.COPY: "copy",
}
_FOOT = (
    "Time of a call = latency x messages + bytes moved / bandwidth, fitted as perfscope predict does. "
    "Reached: bytes over time of the largest size. Off by: the fit's median error."
)


def link_lines(documents: Sequence[Mapping[str, object]]) -> Iterator[tuple[str, str]]:
    """(line, its indent when it is wrapped) of every measurement."""
    for document in documents:
        record = read_as(LinksRecord, document)
        yield from ((line, "") for line in _matrix(record.numa))
        series = fitted_series(record)
        if series:
            yield from ((line, "") for line in _table(series))
            yield _FOOT, "  "
        yield from ((f"– {gap.what}: {gap.reason}", "    ") for gap in record.missing)
        yield _taken(record), "  "


def _matrix(cells_: Sequence[NumaCell]) -> Iterator[str]:
    """Two tables: rows are the nodes of the CPUs, columns the nodes of the memory."""
    bandwidths = [cell for cell in cells_ if cell.bytes_per_s]
    if bandwidths:
        threads = sorted({cell.threads for cell in bandwidths if cell.threads})
        num_threads = joined([counted(number, "thread") for number in threads], "or")
        yield f"NUMA bandwidth by STREAM triad, {num_threads} per node"
        yield from _grid(
            cells_, lambda cell: units.format_rate(cell.bytes_per_s) if cell.bytes_per_s else "–"
        )
    if any(cell.latency_s for cell in cells_):
        yield "NUMA latency of one load that misses the caches"
        yield from _grid(
            cells_, lambda cell: units.format_ns(cell.latency_s * 1e9) if cell.latency_s else "–"
        )


def _grid(rows: Sequence[NumaCell], text: Callable[[NumaCell], str]) -> Iterator[str]:
    sources = sorted({cell.cpu_node for cell in rows})
    targets = sorted({cell.memory_node for cell in rows})
    by_pair = {(cell.cpu_node, cell.memory_node): text(cell) for cell in rows}
    heads = [f"memory {target}" for target in targets]
    width = max(map(cells, [*heads, *by_pair.values()]))
    first = max(cells(f"CPUs of {source}") for source in sources)
    yield "  " + "  ".join([" " * first, *(pad(head, width, right=True) for head in heads)])
    for source in sources:
        values = [pad(by_pair.get((source, target), "–"), width, right=True) for target in targets]
        yield "  " + "  ".join([pad(f"CPUs of {source}", first), *values])


def _table(series: Sequence[FittedSeries]) -> Iterator[str]:
    rows = [("", "latency", "bandwidth", "reached", "off by")]
    rows += [
        (
            _name(entry),
            units.format_ns(entry.alpha_s * 1e9),
            units.format_rate(entry.bytes_per_s) if entry.bytes_per_s else "–",
            f"{units.format_rate(entry.largest_bytes_per_s)} at {units.format_bytes(entry.largest_bytes)}",
            units.format_ratio(entry.residual_ratio, 0),
        )
        for entry in series
    ]
    widths = [max(cells(row[column]) for row in rows) for column in range(5)]
    for name, *figures in rows:
        columns = [pad(figure, width, right=True) for figure, width in zip(figures, widths[1:], strict=True)]
        yield "  ".join([pad(name, widths[0]), *columns])


def _name(entry: FittedSeries) -> str:
    if entry.transport == Transport.COPY:
        return entry.what
    transport = TRANSPORTS.get(entry.transport, entry.transport)
    if entry.transport == Transport.RDMA:
        return f"{transport}, {entry.what}"
    if entry.collective == "send":
        between = len(entry.hosts) > 1
        return f"{transport}, {' to '.join(entry.hosts)}" if between else f"{transport}, inside the host"
    where = "" if entry.link_class == LinkClass.LOOPBACK else f" {WHERE.get(entry.link_class, '')}"
    return f"{transport} {entry.collective}, {counted(entry.num_ranks, 'rank')}{where.rstrip()}"


def _taken(record: LinksRecord) -> str:
    hosts = joined(record.hosts, "and") if len(record.hosts) < 5 else counted(len(record.hosts), "host")
    where = f"{hosts}, of the emulated cluster {record.emulated}" if record.emulated else hosts
    how = f"; {record.how}" if record.how else ""
    if not record.cached or record.measured_unix_ns is None:
        return f"Measured now on {where}{how}"
    at = datetime.fromtimestamp(record.measured_unix_ns // 10**9, tz=timezone.utc)
    return f"Measured on {where} on {at:%Y-%m-%d at %H:%M} UTC and kept; --links measures afresh{how}"
