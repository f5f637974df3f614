"""Numbers, counted words and columns, as the bench commands print them."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.units import MISSING


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return [
        "  "
        + "  ".join(
            cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]


def number(value: float | None) -> str:
    """Three significant digits, or a dash."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def plural(count: int, word: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"
