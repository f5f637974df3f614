"""Words for what went wrong with a file of the kernel."""

from __future__ import annotations

from perfscope.collectors.base import reason_of


def words_of(error: Exception) -> str:
    """The system's words for a read that failed; of contents that cannot be parsed, just that."""
    return reason_of(error) if isinstance(error, OSError) else "not in the kernel's format"
