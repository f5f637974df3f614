"""What this host's interfaces have sent and received, from the kernel's own counters."""

from __future__ import annotations

from pathlib import Path


def read_interfaces(text: str | None = None) -> dict[str, dict[str, int]]:
    """Interface -> tx_bytes, tx_packets, rx_bytes, rx_packets of this process's network namespace.

    Args:
        text: of /proc/net/dev; None reads it.
    """
    lines = (Path("/proc/self/net/dev").read_text() if text is None else text).splitlines()[2:]
    interfaces = {}
    for line in lines:
        name, _, numbers = line.partition(":")
        values = numbers.split()
        if len(values) >= 10:
            interfaces[name.strip()] = {
                "rx_bytes": int(values[0]),
                "rx_packets": int(values[1]),
                "tx_bytes": int(values[8]),
                "tx_packets": int(values[9]),
            }
    return interfaces


def grown(before: dict[str, dict[str, int]], after: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """`after` - `before`, of interfaces in both that moved anything."""
    increases = {
        name: {key: value - before[name][key] for key, value in counters.items()}
        for name, counters in after.items()
        if name in before
    }
    return {name: counters for name, counters in increases.items() if any(counters.values())}
