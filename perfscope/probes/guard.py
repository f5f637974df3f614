"""The boundary between perfscope's faults and the training."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional

MAX_FAULTS = 3


class Guard:
    """Counts what hooks swallow; after `MAX_FAULTS` of one hook, tells it to stop for good.

    Attributes:
        counts: hook name -> number of exceptions swallowed.
    """

    def __init__(self) -> None:
        self.counts: Dict[str, int] = {}
        self._sink: Optional[Callable[[dict], None]] = None
        self._early: List[dict] = []  # faults before there was a place to write them

    def connect(self, sink: Callable[[dict], None]) -> None:
        """From now on give each fault to `sink` as a JSON-able record; earlier ones at once."""
        self._sink = sink
        early, self._early = self._early, []
        for record in early:
            self._note(record)

    def fault(self, where: str, error: BaseException) -> bool:
        """Note one swallowed exception. Never raises.

        Returns:
            True when the hook has now failed often enough to be disabled.
        """
        count = self.counts.get(where, 0) + 1
        self.counts[where] = count
        disabled = count >= MAX_FAULTS
        if count <= MAX_FAULTS:
            record = {
                "where": where,
                "error": "%s: %s" % (type(error).__name__, str(error)[:500]),
                "count": count,
                "disabled": disabled,
            }
            self._note(record)
        return disabled

    def _note(self, record: dict) -> None:
        if self._sink is None:
            self._early.append(record)
            return
        try:
            self._sink(record)
        except Exception as error:  # noqa: BLE001 - the fault of a fault: counted, there is no other place
            where = "note " + type(error).__name__
            self.counts[where] = self.counts.get(where, 0) + 1
