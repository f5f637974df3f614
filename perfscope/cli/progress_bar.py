"""The bar of long work on a terminal: runs done, of how many, time taken, what is left and what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def new_bar() -> Progress:
    """On stderr, gone when it ends. Its tasks have the field `left`, text; descriptions are no markup."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )


def minutes(seconds: float) -> str:
    """`4:05`."""
    total_s = max(0, round(seconds))
    return f"{total_s // 60}:{total_s % 60:02d}"
