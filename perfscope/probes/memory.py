"""The most memory this process held."""

from __future__ import annotations

from typing import Optional


def peak_rss() -> Optional[int]:
    """Bytes so far; None where that cannot be read."""
    # VmHWM, not ru_maxrss: the latter outlives exec, so that a small rank of a large launcher shows the
    # launcher's.
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None
