"""The boundary between perfscope's faults and the training."""

from __future__ import annotations

from typing import Callable, Dict, Optional

MAX_FAULTS = 3


class Guard:
    """Counts what hooks swallow; after `MAX_FAULTS` of one hook, tells it to stop for good.

    Attributes:
        counts: hook name -> number of exceptions swallowed.
        sink: called with one JSON-able record per fault, or None before there is a place to write.
    """

    def __init__(self) -> None:
        self.counts: Dict[str, int] = {}
        self.sink: Optional[Callable[[dict], None]] = None

    def fault(self, where: str, error: BaseException) -> bool:
        """Note one swallowed exception.

        Returns:
            True when the hook has now failed often enough to be disabled.
        """
        count = self.counts.get(where, 0) + 1
        self.counts[where] = count
        disabled = count >= MAX_FAULTS
        if self.sink is not None and count <= MAX_FAULTS:
            self.sink(
                {
                    "where": where,
                    "error": "%s: %s" % (type(error).__name__, str(error)[:500]),
                    "count": count,
                    "disabled": disabled,
                }
            )
        return disabled
