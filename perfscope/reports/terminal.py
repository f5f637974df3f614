"""Words and widths of a terminal: styling, columns that characters take, wrapping."""

from __future__ import annotations

import textwrap
import unicodedata

from msgspec import Struct

COLOR = {
    "compute": "34",
    "exposed_comm": "31",
    "copy": "35",
    "input_wait": "33",
    "optimizer": "32",
}


class Style(Struct, frozen=True):
    """Terminal styling, or none."""

    on: bool

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.on else text

    def quiet(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.on else text

    def part(self, key: str, text: str) -> str:
        code = COLOR.get(key, "90")
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text else text


def cells(text: str) -> int:
    """Terminal columns `text` takes: wide East Asian characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def fit(text: str, width: int) -> str:
    """`text` in at most `width` columns: a long path keeps its end, which tells it from its neighbors."""
    if cells(text) <= width:
        return text
    kept = text
    while kept and cells(kept) > width - 1:
        kept = kept[1:]
    return f"…{kept}"


def head(text: str, width: int) -> str:
    """`text` in at most `width` columns: a sentence keeps its beginning."""
    if cells(text) <= width or " " not in text:
        return fit(text, width)
    kept = text
    while kept and cells(kept) > width - 1:
        kept = kept[:-1]
    return f"{kept.rstrip()}…"


def pad(text: str, width: int, *, right: bool = False) -> str:
    space = " " * max(width - cells(text), 0)
    return space + text if right else text + space


def wrapped(text: str, width: int, indent: str = "  ", first: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
