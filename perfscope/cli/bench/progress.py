"""How far a sweep is: a bar on a terminal, a line per run elsewhere. On stderr."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

import click

from perfscope.cli.formatting import number
from perfscope.cli.output import notice
from perfscope.cli.progress_bar import minutes, new_bar
from perfscope.units import MISSING

if TYPE_CHECKING:
    from perfscope.runners.sweep.state import CellState, Run


class PlainProgress:
    """One line when a run starts, and one when it has ended; after the first, how long all may take.

    Args:
        total: runs of the study that are asked for.
        done: of them, finished before; numbers go on from there.
    """

    def __init__(self, total: int, done: int = 0) -> None:
        self._total = total
        self._before = done
        self._number = done
        self._began = time.monotonic()

    def __enter__(self) -> None:
        """Nothing to draw."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to take away."""

    def begins(self, cell: CellState, run: Run, number: int, total: int) -> None:
        """See execution.run_all."""
        self._number = self._before + number
        click.echo(f"[{self._number}/{self._total}] {cell.name} r{run.repeat} ...", err=True)

    def ended(self, cell: CellState, run: Run) -> None:
        """See execution.run_all."""
        click.echo(f"[{self._number}/{self._total}] {outcome(cell, run)}", err=True)
        left = self._total - self._number
        if self._number == self._before + 1 and left:
            each = time.monotonic() - self._began
            notice(
                f"about {minutes(each * (left + 1))} in all, {minutes(each * left)} left, "
                "if every run takes as long"
            )


class RichProgress:
    """A bar with the cell that runs, n of m and what is left; failures are printed above it."""

    def __init__(self, total: int, done: int = 0) -> None:
        self._bar = new_bar()
        self._task = self._bar.add_task("", total=total, completed=done, left="")
        self._began = time.monotonic()
        self._done = 0
        self._total = total - done

    def __enter__(self) -> None:
        """Draws."""
        self._bar.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Takes the bar away."""
        self._bar.stop()

    def begins(self, cell: CellState, run: Run, number: int, total: int) -> None:
        """See execution.run_all."""
        self._bar.update(self._task, description=f"{cell.name} r{run.repeat}")

    def ended(self, cell: CellState, run: Run) -> None:
        """See execution.run_all."""
        self._done += 1
        left = (time.monotonic() - self._began) / self._done * (self._total - self._done)
        self._bar.update(self._task, advance=1, left=f"{minutes(left)} left")
        self._bar.console.print(outcome(cell, run), markup=False, highlight=False, soft_wrap=True)


def outcome(cell: CellState, run: Run) -> str:
    """`dp.ddp-alexnet-b16 r1: 22.9 samples/s (12 s)`, or why not."""
    name = f"{cell.name} r{run.repeat}"
    took = MISSING if run.seconds is None else f"{run.seconds:.0f} s"
    if run.status != "done":
        return f"{name}: failed after {took}: {run.error}"
    speed = (run.figures or {}).get("samples_per_s")
    return f"{name}: {number(speed)} samples/s ({took})"
