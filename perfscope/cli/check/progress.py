"""How far a check is: a bar on a terminal, a line per run elsewhere. On stderr."""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType

from perfscope.cli.check.output import say_plainly
from perfscope.cli.progress_bar import minutes, new_bar
from perfscope.gate.metrics import DECIDES
from perfscope.gate.records import RunFigures
from perfscope.reports.display import visible
from perfscope.units import format_ns


class PlainWatcher:
    """One line per run, and one per pair with its result (see gate.pairs.Watcher).

    Args:
        planned: runs if none is repeated and nothing is settled early.
    """

    def __init__(self, planned: int) -> None:
        self.planned = planned
        self.number = 0
        self._began = time.monotonic()
        self._run_began = self._began
        self.now = ""

    def __enter__(self) -> None:
        """Nothing to draw."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to take away."""

    def starts(self, side: str, pair: int, attempt: int) -> None:
        if attempt:
            self.planned += 1
        self.number += 1
        self.planned = max(self.planned, self.number)  # in doubt, a check goes on
        self._run_began = time.monotonic()
        self.now = f"pair {pair}, {side}{', again' if attempt else ''}"

    def ended(self, run: RunFigures, outcome: str) -> None:
        seconds = time.monotonic() - self._run_began
        step = run.metrics.get(DECIDES)
        step_text = f"p10 step {format_ns(step)}" if step is not None else "no step"
        more = f": {outcome}" if outcome else ""
        reason = f" ({visible(run.clean_reason or run.problem, 200)})" if outcome else ""
        self.say(f"[{self.number}/{self.planned}] {self.now}: {step_text}, {seconds:.0f} s{more}{reason}")
        left = self.planned - self.number
        if self.number == 1 and left:
            each = time.monotonic() - self._began
            self.say(f"perfscope: about {minutes(each * left)} left if all pairs are needed")

    def paired(self, pair: int, ratio: float) -> None:
        self.say(f"pair {pair}: head {ratio - 1:+.1%}")

    def say(self, text: str) -> None:
        say_plainly(text)


class BarWatcher(PlainWatcher):
    """The same lines above a bar that shows what runs and how long the rest may take."""

    def __init__(self, planned: int) -> None:
        super().__init__(planned)
        self._bar = new_bar()
        self._task = self._bar.add_task("", total=planned, left="")

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # the terminal is gone
            self._bar.stop()

    def starts(self, side: str, pair: int, attempt: int) -> None:
        super().starts(side, pair, attempt)
        self._bar.update(self._task, description=self.now, total=self.planned)

    def ended(self, run: RunFigures, outcome: str) -> None:
        super().ended(run, outcome)
        each = (time.monotonic() - self._began) / self.number
        left = f"{minutes(each * (self.planned - self.number))} left"
        self._bar.update(self._task, advance=1, left=left)

    def say(self, text: str) -> None:
        with suppress(OSError):
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
