"""Networks by name, or as "latency,bandwidth": the links a prediction is asked for.

A row holds what one MPI or TCP message between two hosts costs, not what the vendor prints. Each says where
its figures are from; `remembered` ones were not re-read when this was written and should give way to a
measured link before they decide anything.
"""

from __future__ import annotations

import re

from msgspec import Struct

from perfscope.analysis.predict.costs import LinkCost
from perfscope.errors import UsageError
from perfscope.units import parse_ns

READ = "read"
REMEMBERED = "remembered"
DERIVED = "derived"
GIVEN = "given"

# 1448 bytes of payload in the 1538 a full frame takes on the wire (headers, preamble, gap; TCP timestamps).
_TCP_PAYLOAD = 1448 / 1538


class Network(Struct, frozen=True, kw_only=True):
    """One kind of network: name as typed, its link, where its two figures are from (READ, DERIVED, ...)."""

    name: str
    link: LinkCost
    source: str
    latency_from: str
    bandwidth_from: str


def _row(
    name: str, latency_us: float, gbyte_per_s: float, source: str, latency_from: str, bandwidth_from: str
) -> Network:
    link = LinkCost(latency_us * 1e-6, 1e-9 / gbyte_per_s)
    return Network(
        name=name, link=link, source=source, latency_from=latency_from, bandwidth_from=bandwidth_from
    )


def _ethernet(name: str, gbit_per_s: float, latency_us: float, source: str, latency_from: str) -> Network:
    return _row(name, latency_us, gbit_per_s / 8 * _TCP_PAYLOAD, source, latency_from, DERIVED)


def named_networks() -> dict[str, Network]:
    """Every network that has a name; host-to-host, one port, full duplex."""
    you = "You, Buluc, Demmel, SC'17, table 2 (as alpha and beta)"
    tcp = "payload share of TCP in 1500-byte frames; latency: "
    squyres = "J. Squyres, Cisco blog: about 10 us MPI half round trip over kernel TCP on 10 GbE"
    rows = (
        _row("qdr", 1.2, 1 / 0.3, you, REMEMBERED, REMEMBERED),
        _row("fdr", 0.7, 1 / 0.2, you, REMEMBERED, REMEMBERED),
        _row("edr", 1.0, 12.1, "100 Gbit/s port; MPI microbenchmarks, ConnectX-4", REMEMBERED, REMEMBERED),
        _row("hdr", 1.0, 24.5, "200 Gbit/s port; MPI microbenchmarks, ConnectX-6", REMEMBERED, REMEMBERED),
        _row("ndr", 1.0, 48.5, "400 Gbit/s port; MPI microbenchmarks, ConnectX-7", REMEMBERED, REMEMBERED),
        _row("opa", 1.1, 12.3, "100 Gbit/s port; MPI microbenchmarks on Xeon hosts", REMEMBERED, REMEMBERED),
        _row("aries", 1.3, 10.0, "Cray XC series network, MPI between nodes", REMEMBERED, REMEMBERED),
        _ethernet("1gbit", 1, 30.0, tcp + "usual of kernel TCP with interrupt moderation", REMEMBERED),
        _ethernet("10gbit", 10, 10.0, tcp + squyres, READ),
        _ethernet("25gbit", 25, 10.0, tcp + "as 10 GbE, the host's stack decides", DERIVED),
        _ethernet("40gbit", 40, 10.0, tcp + "as 10 GbE, the host's stack decides", DERIVED),
        _ethernet("100gbit", 100, 10.0, tcp + "as 10 GbE, the host's stack decides", DERIVED),
    )
    return {row.name: row for row in rows}


def parse_network(text: str) -> Network:
    """``edr``, or ``2us,100Gbit`` / ``1.5 us, 12.5GB/s``: latency with its unit, then bandwidth.

    b is a bit, B a byte.

    Raises:
        UsageError: neither, in one line that says what would do.
    """
    named = named_networks()
    plain = text.strip().lower()
    if plain in named:
        return named[plain]
    parts = text.split(",")
    if len(parts) != 2:
        raise UsageError(
            f"--network {text!r}: neither a known network ({', '.join(named)}) "
            "nor latency,bandwidth such as 2us,100Gbit"
        )
    return Network(
        name=text.strip(),
        link=LinkCost(_latency_s(parts[0]), 1 / _bytes_per_s(parts[1])),
        source="given on the command line",
        latency_from=GIVEN,
        bandwidth_from=GIVEN,
    )


def _latency_s(text: str) -> float:
    plain = text.strip()
    if not re.search(r"[a-zµ]$", plain):
        raise UsageError(f"--network: the latency {plain!r} has no unit; write it as 2us, 500ns or 0.1ms")
    try:
        return parse_ns(plain) * 1e-9
    except ValueError:
        raise UsageError(f"--network: {plain!r} is not a latency; write it as 2us, 500ns or 0.1ms") from None


def _bytes_per_s(text: str) -> float:
    plain = text.strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)(bits?|bytes?|b|B)(?:ps|/s)?", plain)
    if match is None or (match[3] and not match[2]):
        raise UsageError(
            f"--network: {plain!r} is not a bandwidth; "
            "write it as 100Gbit, 12.5GB/s or 940Mbit (b = bit, B = byte)"
        )
    step = 1024.0 if match[3] else 1000.0
    unit = 1.0 if match[4] in {"B", "byte", "bytes"} else 1 / 8
    rate: float = float(match[1]) * unit * step ** " KMGT".index(match[2].upper() or " ")
    if rate <= 0:
        raise UsageError(f"--network: a bandwidth of {plain} moves nothing; give one above 0")
    return rate
