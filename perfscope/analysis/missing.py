"""A figure that is not there, and why. Everything analysis yields may carry some."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFigure:
    what: str
    reason: str
