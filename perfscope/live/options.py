"""What is watched of a run. Standard library only: `perfscope run` loads it before the command starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perfscope.vocabulary.defaults import HANG_AFTER_S, METRICS_EVERY_S


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """What `perfscope run` watches.

    Attributes:
        hang_after_s: the shortest time without a step that is a hang; None: none is looked for.
        live_every_s: between two lines on how the run goes; None: none is printed.
        metrics_file: absolute path of the file of metrics; None: none is written.
        metrics_every_s: between two states of it.
    """

    hang_after_s: float | None = HANG_AFTER_S
    live_every_s: float | None = None
    metrics_file: Path | None = None
    metrics_every_s: float = METRICS_EVERY_S

    @property
    def is_needed(self) -> bool:
        """There is something to watch."""
        wanted = (self.hang_after_s, self.live_every_s, self.metrics_file)
        return any(option is not None for option in wanted)
