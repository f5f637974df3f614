"""Moments as text."""

from __future__ import annotations

import datetime


def utc(unix_ns: int, pattern: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """A moment in UTC; what is no date is said to be none."""
    try:
        moment = datetime.datetime.fromtimestamp(unix_ns // 1_000_000_000, tz=datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{unix_ns} ns after 1970 (not a date)"
    return moment.strftime(pattern)
