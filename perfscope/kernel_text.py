"""Text formats of /sys and /proc: lists of CPUs and NUMA nodes, named values."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 1 << 16  # Linux knows 8192 CPUs at most, and 1024 nodes


def parse_cpulist(text: str) -> list[int]:
    """``0-3,8`` -> [0, 1, 2, 3, 8]; an empty line (a memory-only node) -> [].

    Raises:
        ValueError: something else, or CPUs and nodes beyond any kernel's (a damaged capture).
    """
    numbers: list[int] = []
    for part in text.strip().split(","):
        if not part:
            continue
        low, dash, high = part.partition("-")
        first, last = int(low), int(high if dash else low)
        if last > _MOST:
            raise ValueError(f"{part!r} is no CPU or node")
        numbers.extend(range(first, last + 1))
    return numbers


def cpu_set(text: str) -> frozenset[int]:
    """As parse_cpulist, of recorded text; parts that are no CPUs are left out."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (not last or last.isdecimal()) and int(last or first) < _MOST:
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def format_cpulist(cpus: Iterable[int]) -> str:
    """[0, 1, 2, 8] -> ``0-2,8``."""
    parts: list[str] = []
    start = last = None
    for cpu in [*sorted(set(cpus)), None]:
        if last is not None and cpu == last + 1:
            last = cpu
            continue
        if start is not None:
            parts.append(str(start) if start == last else f"{start}-{last}")
        start = last = cpu
    return ",".join(parts)


def parse_pairs(text: str) -> dict[str, int]:
    """Lines ``name value`` or ``name: value kB`` -> {name: value} in the file's unit; others are skipped."""
    pairs: dict[str, int] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[1].isdigit():
            pairs[fields[0].rstrip(":")] = int(fields[1])
    return pairs
