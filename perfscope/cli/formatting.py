"""Numbers, counted words and columns, as the bench commands print them."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Sequence

from perfscope.units import MISSING, format_ns, format_ratio

_NARROWEST, _WIDEST = 80, 120  # columns of text that is wrapped


def text_columns() -> int:
    """Of the terminal, as far as text is as wide; of a pipe 80, or COLUMNS."""
    return max(_NARROWEST, min(shutil.get_terminal_size((_NARROWEST, 24)).columns, _WIDEST))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, the first to the left, the others to the right, closer where they fit only so."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    room = text_columns() - sum(widths) - 2
    gap = " " if len(widths) - 1 <= room < 2 * len(widths) - 2 else "  "
    return [
        "  "
        + gap.join(
            cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]


def number(value: float | None) -> str:
    """Three significant digits, or a dash."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def exposed(time_ns: float | None, share: float | None) -> str:
    """`33 % of a traced step of 27.4 ms`, or a dash."""
    if time_ns is None or share is None:
        return MISSING
    if not share or not time_ns:
        return "0 % of a traced step"
    return f"{format_ratio(share, 0)} of a traced step of {format_ns(time_ns / share)}"


def wrapped(lines: Sequence[str]) -> list[str]:
    """Sentences in lines as wide as the terminal at most; tables are narrower by themselves."""
    width = text_columns()
    short: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + (2 if line.lstrip().startswith("- ") else 0))
        short += (
            textwrap.wrap(
                line,
                width,
                subsequent_indent=indent,
                break_on_hyphens=False,
                break_long_words=False,
                drop_whitespace=True,
                replace_whitespace=False,
            )
            if len(line) > width
            else [line]
        )
    return short


def command_lines(command: str, indent: str) -> list[str]:
    """A command in lines that fit the terminal and a shell takes as they are, an option with its value."""
    words = shlex.split(command)
    pairs: list[str] = []
    for word in words:
        if pairs and not word.startswith("-") and pairs[-1].startswith("-") and " " not in pairs[-1]:
            pairs[-1] += f" {shlex.quote(word)}"
        else:
            pairs.append(shlex.quote(word))
    lines = [indent + pairs[0]]
    for pair in pairs[1:]:
        if len(lines[-1]) + 1 + len(pair) + len(" \\") > text_columns():
            lines[-1] += " \\"
            lines.append(f"{indent}  {pair}")
        else:
            lines[-1] += f" {pair}"
    return lines
