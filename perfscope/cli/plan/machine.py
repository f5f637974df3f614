"""The machine that a plan is for: what a rank computes per second, and its links."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from perfscope.analysis.plan.ceilings import bandwidth_of_rank, flops_of_rank
from perfscope.errors import UsageError
from perfscope.messages.lists import counted
from perfscope.rundir.host_records import CeilingsRecord
from perfscope.units import format_rate, format_si

if TYPE_CHECKING:
    from perfscope.runners.cluster.spec import ClusterSpec
    from perfscope.runners.plans.work import Pace

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGTP]?)(?:FLOPS?|FLOP/s)?", re.I)
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGTP]?)B(?:/s)?", re.I)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", re.I)
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_TCP_PAYLOAD, _TCP_LATENCY_S = 1448 / 1538, 30e-6  # as of the network `1gbit`
_INSIDE = "10us,4GB/s"
_HOST_OPERATOR_S, _DEVICE_OPERATOR_S = 10e-6, 5e-6
Link = tuple[float, float]  # (latency s, s per byte)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What times are predicted with.

    Attributes:
        paces: dtype -> what one rank does in it.
        between, inside: links between hosts and inside one.
        inside_is_given: by --inside.
        about_inside: where `inside` is from, a sentence.
        assumed: sentences that say where the other figures are from.
    """

    paces: Mapping[str, Pace]
    between: Link
    inside: Link
    inside_is_given: bool
    about_inside: str
    assumed: tuple[str, ...]


def parse_size(text: str) -> float:
    """`80GB`, `16GiB` or a number of bytes. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"--device-memory {text!r} is no size; write 80GB, 16GiB or a number of bytes")
    step = 1024.0 if match[3] else 1000.0
    return float(match[1]) * step ** " kmgt".index(match[2].lower() or " ")


def parse_flops(text: str, dtypes: Sequence[str]) -> dict[str, float]:
    """`60T` for all dtypes, or `float32=60T,bfloat16=700T`. Raises UsageError."""
    rates: dict[str, float] = {}
    for word in text.split(","):
        name, separator, value = word.rpartition("=")
        match = _RATE.fullmatch(value.strip())
        names = [name.strip()] if separator else list(dtypes)
        if match is None or float(match[1]) <= 0 or not set(names) <= set(dtypes):
            raise UsageError(
                f"--flops {word.strip()!r} is no rate; write 60T, or float32=60T,bfloat16=700T for each of "
                f"--dtype ({', '.join(dtypes)})"
            )
        rates.update(dict.fromkeys(names, float(match[1]) * _FACTORS[match[2].lower()]))
    if unknown := [name for name in dtypes if name not in rates]:
        raise UsageError(
            f"--flops {text!r} has no rate of {' and '.join(unknown)}; add {unknown[0]}=60T, or leave it out "
            f"of --dtype"
        )
    return rates


def parse_bandwidth(text: str) -> float:
    """`3.3TB/s`. Raises UsageError."""
    match = _BANDWIDTH.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"--memory-bandwidth {text!r} is no bandwidth; write 3.3TB/s or 100GB/s")
    return float(match[1]) * _FACTORS[match[2].lower()]


def machine_of(
    spec: ClusterSpec,
    dtypes: Sequence[str],
    *,
    flops: str | None,
    memory_bandwidth: str | None,
    network: str | None,
    inside: str | None,
    sharing: int,
) -> Machine:
    """The machine as given, and as this host measures where it is not.

    Args:
        spec: hosts, ranks and links.
        dtypes: that are asked about.
        flops, memory_bandwidth: of one rank; None: as measured here.
        network, inside: as --network of predict takes them.
        sharing: ranks that divide this host's measured figures among them.

    Raises:
        UsageError: a figure cannot be read, or none is known.
    """
    between, named = _between(spec, network)
    within = _link(inside or _INSIDE)
    assumed = [named]
    bandwidth = None if memory_bandwidth is None else parse_bandwidth(memory_bandwidth)
    if flops is not None:
        rates, operator = parse_flops(flops, dtypes), _DEVICE_OPERATOR_S
        assumed.append("FLOP/s of a rank as given; each operator takes 5 µs at least")
    else:
        rates, measured_bandwidth, source = _measured(dtypes, sharing)
        bandwidth, operator = bandwidth or measured_bandwidth, _HOST_OPERATOR_S
        assumed.append(f"{source}; each operator takes 10 µs at least")
    if bandwidth is None:
        assumed.append("memory bandwidth is not known: only arithmetic counts (--memory-bandwidth)")
    else:
        assumed.append(f"each operator reads and writes its tensors at {format_rate(bandwidth)}")
    from perfscope.runners.plans.work import Pace

    paces = {
        name: Pace(flops_per_s=rate, bytes_per_s=bandwidth, operator_s=operator)
        for name, rate in rates.items()
    }
    return Machine(
        paces=paces,
        between=between,
        inside=within,
        inside_is_given=inside is not None,
        about_inside=f"links inside a host: {inside or _INSIDE}" + ("" if inside else ", assumed (--inside)"),
        assumed=tuple(assumed),
    )


def _link(text: str) -> Link:
    from perfscope.analysis.predict.networks import parse_network

    cost = parse_network(text).link
    return cost.alpha_s, cost.beta_s_per_byte


def _between(spec: ClusterSpec, network: str | None) -> tuple[Link, str]:
    if network is not None:
        return _link(network), f"links between hosts: {network}"
    if spec.bits_per_s is None:
        if spec.num_hosts > 1:
            raise UsageError(
                f"--cluster {spec} says no rate of the links between hosts; write {spec}@10gbit, or give "
                f"--network edr"
            )
        return _link(_INSIDE), "one host: nothing goes between hosts"
    latency = _TCP_LATENCY_S + spec.latency_us * 1e-6
    source = f"links between hosts: {spec} less the headers of TCP, {latency * 1e6:.0f} µs per message"
    return (latency, 8 / (spec.bits_per_s * _TCP_PAYLOAD)), source


def _measured(dtypes: Sequence[str], sharing: int) -> tuple[dict[str, float], float | None, str]:
    """Of one rank: FLOP/s by dtype, bytes/s, and where they are from."""
    from perfscope.collectors.ceilings.measure import read_or_measure
    from perfscope.collectors.context import live_context
    from perfscope.rundir.layout import host_name

    entries = msgspec.convert(read_or_measure(live_context(), host_name()), CeilingsRecord).entries
    measured = {name: flops_of_rank(entries, name, sharing) for name in dtypes}
    rates = {name: rate for name, rate in measured.items() if rate is not None}
    if unknown := [name for name in dtypes if name not in rates]:
        raise UsageError(
            f"no FLOP/s in {' or '.join(unknown)} were measured on this host; give --flops, such as 60T, or "
            f"leave it out of --dtype"
        )
    source = ", ".join(f"{format_si(rate, 'FLOP/s')} in {name}" for name, rate in rates.items())
    return (
        rates,
        bandwidth_of_rank(entries, sharing),
        f"a rank computes {source}: this host's measured ceilings over {counted(sharing, 'rank')} (--flops)",
    )
