"""How far long work is: a line, or a bar with runs done, time taken, what is left and what runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from perfscope.cli.output import notice

if TYPE_CHECKING:
    from rich.progress import Progress


TRACES = "reading traces"
PLAIN_S = 10.0  # between lines where there is no terminal


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Says on stderr how many pieces are done: in a line that goes at the end, or, in a log, now and then.

    Args:
        what: is being done.

    Yields:
        A function to call with (pieces done, pieces).
    """
    is_terminal, is_shown, last = sys.stderr.isatty(), False, time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal is_shown, last
        now = time.monotonic()
        text = f"{what}: {done:,} of {total:,}"
        if is_terminal:
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)
            is_shown = True
        elif done < total and now - last >= PLAIN_S:  # what comes next says that it is done
            notice(text)
            last = now

    try:
        yield show
    finally:
        if is_shown:
            click.echo("\r\x1b[K", nl=False, err=True)


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
