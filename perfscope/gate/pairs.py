"""Interleaved pairs: in what order the two sides run, what is repeated, and when it is enough.

Both sides of a pair run one after the other, in random order, so that whatever drifts on the machine (heat,
caches, neighbours) hits both alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from perfscope.gate.decide import pairs_of, ratio_of, why_unusable
from perfscope.gate.metrics import DECIDES
from perfscope.gate.records import BASE, HEAD, RunFigures
from perfscope.gate.results import LeftOut
from perfscope.gate.settings import Settings
from perfscope.gate.stopping import settled

MOST_IN_A_ROW = 2  # repeats of one run: what disturbs it then will stay for a while
RunSide = Callable[[str, int, int], RunFigures]


class Watcher(Protocol):
    """Is told how the measurement goes."""

    def starts(self, side: str, pair: int, attempt: int) -> None: ...
    def ended(self, run: RunFigures, outcome: str) -> None: ...
    def paired(self, pair: int, ratio: float) -> None: ...


@dataclass(slots=True, kw_only=True)
class Conducted:
    """What a measurement left.

    Attributes:
        stopped: why fewer pairs were made than planned; "" = all were.
        failed: why the measurement cannot go on; "" = it ended well.
    """

    base: list[RunFigures] = field(default_factory=list)
    head: list[RunFigures] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    stopped: str = ""
    failed: str = ""

    def side(self, name: str) -> list[RunFigures]:
        return self.base if name == BASE else self.head


def conduct(run_side: RunSide, settings: Settings, watcher: Watcher, *, seed: int) -> Conducted:
    """Runs pairs until the verdict is settled or all planned ones are made.

    Args:
        run_side: runs one side, (side, pair, attempt) -> its figures, which hold what went wrong, if
            anything.
        seed: of the order within pairs.
    """
    done = Conducted()
    draw = random.Random(seed)
    repeats = settings.repeats
    for pair in range(1, settings.pairs + 1):
        order = [BASE, HEAD]
        draw.shuffle(order)
        for side in order:
            run, used = run_undisturbed(run_side, settings, watcher, done, (side, pair), repeats)
            repeats -= used
            if done.failed:
                return done
            if run is None:
                break  # without its mate a run says nothing
            done.side(side).append(replace(run, side=side, pair=pair))
        ratios = [ratio_of(one) for one in pairs_of(done.base, done.head)]
        if done.base and done.head and done.base[-1].pair == done.head[-1].pair == pair:
            watcher.paired(pair, ratios[-1])
        lost = pair - len(ratios)
        if settings.pairs - lost < settings.fewest:
            done.stopped = (
                f"{lost} of {pair} pairs were disturbed: {settings.fewest} cannot be reached any more"
            )
            return done
        if settings.early_stop:
            done.stopped = settled(
                ratios,
                settings.pairs - lost,
                settings.metrics[DECIDES].threshold,
                settings.alpha,
                settings.fewest,
            )
            if done.stopped:
                return done
    return done


def run_undisturbed(
    run_side: RunSide,
    settings: Settings,
    watcher: Watcher,
    done: Conducted,
    what: tuple[str, int],
    repeats: int,
) -> tuple[RunFigures | None, int]:
    """One side of one pair, repeated while something disturbs it.

    Args:
        done: gets what was left out, and why the measurement failed.
        what: (side, pair).
        repeats: that are left.

    Returns:
        (the run; None where it failed or every attempt was disturbed, repeats used)
    """
    side, pair = what
    allowed = min(repeats, MOST_IN_A_ROW)
    for attempt in range(allowed + 1):
        watcher.starts(side, pair, attempt)
        run = run_side(side, pair, attempt)
        problem = why_unusable(run, settings)
        if problem:
            watcher.ended(run, "failed")
            done.failed = f"Measurement failed: {run.name} ({side}, pair {pair}): {problem}."
            return None, attempt
        if run.clean is not False:
            watcher.ended(run, "")
            return run, attempt
        again = attempt < allowed
        watcher.ended(run, "disturbed, repeated" if again else "disturbed, left out")
        what_then = "repeated" if again else "no repeats left"
        reason = f"disturbed ({what_then}): {run.clean_reason}"
        done.left_out.append(LeftOut(name=run.name, side=side, reason=reason))
    return None, allowed
