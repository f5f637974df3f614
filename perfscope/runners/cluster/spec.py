"""`2x2@1gbit`: how many emulated hosts, how many ranks on each, and how fast the wire between them is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfscope.messages.lists import counted
from perfscope.runners.config import BenchError

MAX_HOSTS = 200
_SPEC = re.compile(r"(\d{1,4})x(\d{1,4})(?:@([^,]+)(?:,([^,]+))?)?")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:bit|bps|bit/s)", re.I)
_LATENCY = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s)", re.I)
_RATE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_LATENCY_UNITS_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
_EXAMPLE = "write HOSTSxRANKS@RATE, for instance 2x2@1gbit or 4x1@100mbit,1ms"
_SLOWEST, _FASTEST = 10**6, 10**12
_LONGEST_US = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """An emulated cluster.

    Attributes:
        num_hosts: hosts, each a network namespace with a name of its own.
        ranks_per_host: ranks on each; consecutive ranks share a host.
        bits_per_s: rate of each host's link, in each direction; None = not limited.
        latency_us: added to every packet on its way from host to host, microseconds one way; 0 = none.
    """

    num_hosts: int
    ranks_per_host: int
    bits_per_s: int | None = None
    latency_us: float = 0.0

    @property
    def num_ranks(self) -> int:
        """P, ranks on all hosts."""
        return self.num_hosts * self.ranks_per_host

    def __str__(self) -> str:
        text = f"{self.num_hosts}x{self.ranks_per_host}"
        if self.bits_per_s is not None:
            text += f"@{_rate(self.bits_per_s)}"
        if self.latency_us:
            text += f",{_latency(self.latency_us)}"
        return text


def parse_cluster(text: str) -> ClusterSpec:
    """The cluster that `text` describes.

    Raises:
        BenchError: it describes none; the line has an example.
    """
    match = _SPEC.fullmatch(text.strip())
    if not match:
        raise BenchError(f"{text!r} is no cluster: {_EXAMPLE}")
    num_hosts, ranks_per_host = int(match[1]), int(match[2])
    if not 1 <= num_hosts <= MAX_HOSTS:
        raise BenchError(f"a cluster has 1 to {MAX_HOSTS} hosts, not {num_hosts}: {_EXAMPLE}")
    if ranks_per_host < 1:
        raise BenchError(f"each host needs a rank: {_EXAMPLE}")
    return ClusterSpec(
        num_hosts=num_hosts,
        ranks_per_host=ranks_per_host,
        bits_per_s=None if match[3] is None else _bits_per_s(match[3], text),
        latency_us=0.0 if match[4] is None else _latency_us(match[4], text),
    )


def describe(spec: ClusterSpec) -> str:
    """What the emulation is, and what it is not, for the user: two lines."""
    rate = "at full speed" if spec.bits_per_s is None else f"at {_rate_words(spec.bits_per_s)} each way"
    late = f" and {_latency(spec.latency_us)} one way" if spec.latency_us else ""
    hosts, ranks = counted(spec.num_hosts, "host"), counted(spec.ranks_per_host, "rank")
    return (
        f"emulated cluster: {hosts} of {ranks} each, linked {rate}{late} through one lossless switch\n"
        "only communication between hosts is emulated: all ranks compute on this one machine and share its "
        "CPUs, caches and memory, so compare schemes with each other, not with a real cluster"
    )


def _bits_per_s(text: str, spec: str) -> int:
    match = _RATE.fullmatch(text.strip())
    if not match:
        raise BenchError(f"{text!r} in {spec!r} is no rate: {_EXAMPLE}")
    rate = round(float(match[1]) * _RATE_UNITS[match[2].lower()])
    if not _SLOWEST <= rate <= _FASTEST:
        raise BenchError(f"a link's rate is 1mbit to 1000gbit, not {text.strip()}")
    return rate


def _latency_us(text: str, spec: str) -> float:
    match = _LATENCY.fullmatch(text.strip())
    if not match:
        raise BenchError(f"{text!r} in {spec!r} is no latency: {_EXAMPLE}")
    latency = float(match[1]) * _LATENCY_UNITS_US[match[2].lower()]
    if not latency <= _LONGEST_US:
        raise BenchError(f"a latency is at most 10s, not {text.strip()}")
    return latency


def _rate(bits_per_s: int) -> str:
    for unit, factor in (("gbit", 10**9), ("mbit", 10**6), ("kbit", 10**3)):
        if bits_per_s % (factor // 1000) == 0 and bits_per_s >= factor:
            return f"{bits_per_s / factor:g}{unit}"
    return f"{bits_per_s}bit"


def _rate_words(bits_per_s: int) -> str:
    for unit, factor in (("Gbit/s", 10**9), ("Mbit/s", 10**6)):
        if bits_per_s >= factor:
            return f"{bits_per_s / factor:g} {unit}"
    return f"{bits_per_s} bit/s"


def _latency(latency_us: float) -> str:
    return f"{latency_us / 1e3:g}ms" if latency_us >= 1000 else f"{latency_us:g}us"
