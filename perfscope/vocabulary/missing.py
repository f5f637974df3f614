"""A figure that is missing, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure


@dataclass(frozen=True)
class Missing:
    """What a report lacks. `perfscope.messages.missing` has the English for it.

    Attributes:
        figure: which figure.
        cause: why it is missing.
        ranks: whose figure it is; empty: of the whole run.
        affects: dotted paths into the JSON report of the figures that are not what they would be with it; a
            path stands for everything below it, `ranks.3` for the entry of rank 3, `ranks.*` for those of all
            ranks. Empty: only what is null.
        detail: (name, value) of what else the message states; base units. `what` and `reason` hold words that
            were recorded, or made elsewhere, and replace those of `figure` and `cause`.
    """

    figure: Figure
    cause: Cause
    ranks: tuple[int, ...] = ()
    affects: tuple[str, ...] = ()
    detail: tuple[tuple[str, Any], ...] = ()
