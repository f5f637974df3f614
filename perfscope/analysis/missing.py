"""A figure that is not there, and why. Everything analysis yields may carry some."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFigure:
    """What a report lacks.

    Attributes:
        what: the figure or the file, in words.
        reason: why it is not there, in words.
        affects: dotted paths into the JSON report of the figures that are not what they would be with it; a
            path stands for everything below it, `ranks.3` for the entry of rank 3. Empty: only what is null.
    """

    what: str
    reason: str
    affects: tuple[str, ...] = ()
