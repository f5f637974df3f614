"""A trainer that keeps what there is after every run, and ends a check that can come to nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from perfscope.cli.check.measure import Trainer
from perfscope.gate.decide import why_unusable
from perfscope.gate.pairs import Conducted
from perfscope.gate.records import BASE, RunFigures
from perfscope.gate.results import ExcludedRun
from perfscope.gate.settings import Settings


class Pointless(Exception):
    """No further run can change the verdict; the message says why."""


@dataclass(slots=True, kw_only=True)
class WatchedTrainer(Trainer):
    """A Trainer that looks at every run that counts.

    Attributes:
        look: is given the runs that count so far; why the check ends after them, "" = it goes on.
        so_far: these runs, as `conduct` and `one_sided` keep them.
    """

    settings: Settings
    look: Callable[[Conducted], str]
    so_far: Conducted = field(default_factory=Conducted)

    def __call__(self, side: str, pair: int, attempt: int) -> RunFigures:
        """See gate.pairs.RunSide. Raises MeasurementInterrupted, Pointless."""
        if self.so_far.stopped:  # said only now, so that the run before has been shown
            raise Pointless(self.so_far.stopped)
        run = Trainer.__call__(self, side, pair, attempt)  # super() does not know a class with slots
        if why_unusable(run, self.settings):
            return run  # the measurement fails
        if run.clean is False:
            reason = f"disturbed: {run.clean_reason}"
            self.so_far.left_out.append(ExcludedRun(name=run.name, side=side, reason=reason, disturbed=True))
            return run
        is_paired = BASE in self.sides
        self.so_far.side(side).append(replace(run, side=side, pair=pair if is_paired else None))
        self.so_far.stopped = self.look(self.so_far)
        return run
