"""What is said of single windows."""

from __future__ import annotations

from msgspec import Struct


class UnlikeWindow(Struct, frozen=True, kw_only=True):
    """A window that is left out of what traced steps show.

    Attributes:
        window: its id.
        first_step: of its traced steps.
        last_step: likewise.
        ratio: mean traced step / median of the untraced steps beside the window.
        others_ratio: the same of the windows that remain, their median.
        spread_ratio: by how much blocks of untraced steps differ from the steps beside them, 90th percentile.
    """

    window: int
    first_step: int
    last_step: int
    ratio: float
    others_ratio: float
    spread_ratio: float
