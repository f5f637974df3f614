"""How sockets and fast memory are divided into NUMA nodes, by name, and how many copies of a model fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from perfscope.collectors.memory.uncore import MCDRAM_BYTES
from perfscope.errors import UsageError
from perfscope.messages.lists import counted, joined
from perfscope.rundir.host_records import NodeRow, TopologyRecord
from perfscope.units import format_bytes

FAST = {"mcdram": "MCDRAM", "fast": "fast memory"}
_KNIGHTS = re.compile(r"Xeon Phi\b.*\b72\d\d")
_LEAST_HYBRID_BYTES = 3 << 30  # a quarter of MCDRAM is the least that hybrid mode leaves as memory
_COPIES = re.compile(r"(\d{1,6})\s*x\s*(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Copies of a model: how many, bytes of each, and as the user wrote it."""

    number: int
    bytes: int
    text: str


def parse_copies(text: str) -> Copies:
    """``4x500MB``.

    Raises:
        UsageError: it is not written like that, or asks for nothing.
    """
    match = _COPIES.fullmatch(text.strip())
    number = size = 0
    if match is not None:
        step = 1024 if match[4] else 1000
        number, size = int(match[1]), round(float(match[2]) * step ** " KMGT".index(match[3].upper() or " "))
    if not number or not size:
        raise UsageError(f"--fits {text!r}: write COPIESxSIZE, such as 4x500MB or 64x1.2GiB")
    return Copies(number=number, bytes=size, text=text.strip())


def mode_lines(topology: TopologyRecord) -> Iterator[str]:
    """Sub-NUMA clustering and the mode of the fast memory, where sysfs shows them; else nothing."""
    per_package = max((_cpu_nodes(topology, package.package) for package in topology.packages), default=0)
    knights = _is_knights(topology)
    if knights:
        cluster = f"SNC-{per_package}" if per_package > 1 else "quadrant, hemisphere or all-to-all"
        why = "" if per_package > 1 else " (one NUMA node with CPUs; sysfs does not distinguish these)"
        yield f"Cluster mode: {cluster}{why}; memory mode: {_knights_memory(topology)}"
    elif per_package > 1:
        name = "NPS" if "AMD" in topology.cpu_model or "EPYC" in topology.cpu_model else "SNC-"
        yield f"Sub-NUMA clustering: {name}{per_package}, {counted(per_package, 'NUMA node')} per socket"


def fit_lines(topology: TopologyRecord, copies: Copies) -> Iterator[str]:
    """Whether so many copies of a model fit the fast memory, all together and on each of its nodes."""
    nodes = fast_nodes(topology)
    need = copies.number * copies.bytes
    if not nodes:
        yield f"{copies.text}: no answer, because no NUMA node of fast memory is shown here" + (
            " (MCDRAM as a cache is no node: boot in flat mode)" if _is_knights(topology) else ""
        )
        return
    total = sum(node.memory_bytes or 0 for node in nodes)
    by_node = [(node.memory_bytes or 0) // copies.bytes for node in nodes]
    most = sum(by_node)
    kinds = joined(sorted({FAST[node.kind] for node in nodes}), "and")
    names = joined([f"node {node.node}" for node in nodes], "and")
    verdict = "fit" if copies.number <= most else "do not fit"
    yield (
        f"{counted(copies.number, 'copy', 'copies')} of {format_bytes(copies.bytes)} ({format_bytes(need)}) "
        f"{verdict} {format_bytes(total)} of {kinds} ({names}): at most {most}"
        + (f", {joined(sorted({str(each) for each in by_node}), 'or')} per node" if len(nodes) > 1 else "")
    )


def fit_document(topology: TopologyRecord, copies: Copies) -> dict[str, object]:
    """The same for programs; `fits` is None where no fast memory is shown."""
    nodes = fast_nodes(topology)
    most = sum((node.memory_bytes or 0) // copies.bytes for node in nodes)
    return {
        "copies": copies.number,
        "bytes_each": copies.bytes,
        "fast_nodes": [{"node": node.node, "memory_bytes": node.memory_bytes} for node in nodes],
        "most_copies": most if nodes else None,
        "fits": copies.number <= most if nodes else None,
    }


def fast_nodes(topology: TopologyRecord) -> list[NodeRow]:
    """NUMA nodes of fast memory whose size is known."""
    return [node for node in topology.numa_nodes if node.kind in FAST and node.memory_bytes]


def _cpu_nodes(topology: TopologyRecord, package: int | None) -> int:
    return sum(bool(node.cpus) and node.package == package for node in topology.numa_nodes)


def _is_knights(topology: TopologyRecord) -> bool:
    """By its MCDRAM, which is shown in flat mode, or by its name."""
    has_mcdram = any(node.kind == "mcdram" for node in topology.numa_nodes)
    return has_mcdram or _KNIGHTS.search(topology.cpu_model) is not None


def _knights_memory(topology: TopologyRecord) -> str:
    flat_bytes = sum(node.memory_bytes or 0 for node in fast_nodes(topology))
    if not flat_bytes:
        return "cache"
    if _LEAST_HYBRID_BYTES <= flat_bytes < MCDRAM_BYTES:
        return f"hybrid ({format_bytes(flat_bytes)} flat, the rest a cache)"
    return "flat"
