"""The style sheets, scripts, fonts and templates that reports are made of."""

from __future__ import annotations

from functools import cache
from pathlib import Path

ASSETS = Path(__file__).parent / "assets"


@cache
def asset(name: str) -> str:
    """The text of one of them."""
    return (ASSETS / name).read_text(encoding="utf-8")
