"""What is watched of a run. Standard library only: `perfscope run` loads it before the command starts."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.vocabulary.defaults import HANG_AFTER_S


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """What `perfscope run` watches.

    Attributes:
        hang_after_s: the shortest time without a step that is a hang; None: none is looked for.
    """

    hang_after_s: float | None = HANG_AFTER_S
