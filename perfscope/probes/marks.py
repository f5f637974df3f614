"""What a rank does while it makes no step, said on disk: so that a long evaluation is not taken for a hang.

Written rarely: where steps say that the rank goes on, nothing is.
"""

from __future__ import annotations

import time
from typing import Any, Optional

from ..rundir import layout
from ..vocabulary.run_parts import RunPart

EVERY_NS = 5_000_000_000  # at most: between two marks of work that goes on, and from the last step to one
_PER_HANG = 4  # marks in the time after which silence is a hang
BEGINS, GOES_ON, ENDED = "begins", "goes_on", "ended"


class Marks:
    """Those of one process; nothing is written before `open`."""

    def __init__(self) -> None:
        self._recorder: Optional[Any] = None
        self._told = 0
        self._every = EVERY_NS

    def open(self, recorder: Any, hang_after_s: Optional[float]) -> None:
        """Write with `recorder` (Recorder) from now on; nothing where no hang is looked for (None)."""
        if hang_after_s is not None:
            self._recorder = recorder
            self._every = min(EVERY_NS, int(hang_after_s * 1e9 / _PER_HANG))

    def reset(self) -> None:
        self._recorder, self._told = None, 0

    def goes_on(self, now: int, part: RunPart, *, unseen: bool = False) -> None:
        """Work of `part` was seen at `now`, CLOCK_MONOTONIC; `unseen`: what follows of it may not be.

        Cheap, because it is called for every batch: every few seconds it looks whether to write.
        """
        recorder = self._recorder
        if recorder is None or now - self._told < self._every:
            return
        self._told = now
        if unseen or now - recorder.last_flush_ns >= self._every:
            self._write(BEGINS if unseen else GOES_ON, part)

    def begins(self, part: RunPart) -> None:
        """One long call of `part` begins; `ended` follows."""
        self._write(BEGINS, part)

    def ended(self, part: RunPart) -> None:
        self._write(ENDED, part)

    def _write(self, state: str, part: RunPart) -> None:
        if self._recorder is not None:
            now = time.monotonic_ns()
            self._recorder.append(layout.MARKS_JSONL, {"t_ns": now, "part": part.value, "state": state})
