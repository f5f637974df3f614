"""Interleaved pairs: in what order the two sides run, what is repeated, and when it is enough.

Both sides of a pair run one after the other, in random order, so that whatever drifts on the machine (heat,
caches, neighbors) hits both alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from perfscope.gate.decide import Pair, pairs_of, ratio_of, why_unusable
from perfscope.gate.metrics import DECIDES, worse_by
from perfscope.gate.records import BASE, HEAD, RunFigures
from perfscope.gate.results import ExcludedRun
from perfscope.gate.settings import Settings
from perfscope.gate.stopping import settled
from perfscope.messages.gate import runs as words

MOST_IN_A_ROW = 2  # repeats of one run: what disturbs it then will stay for a while
MOST_LOST = 4  # pairs that were disturbed in spite of repeats, or half of those planned
RunSide = Callable[[str, int, int], RunFigures]


class Watcher(Protocol):
    """Follows the progress of the measurement."""

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
    left_out: list[ExcludedRun] = field(default_factory=list)
    stopped: str = ""
    failed: str = ""

    def side(self, name: str) -> list[RunFigures]:
        return self.base if name == BASE else self.head


def conduct(run_side: RunSide, settings: Settings, watcher: Watcher, *, seed: int) -> Conducted:
    """Runs pairs until the verdict is settled (gate.stopping).

    Args:
        run_side: runs one side, (side, pair, attempt) -> its figures, which hold what went wrong, if
            anything.
        seed: of the order within pairs.
    """
    done = Conducted()
    draw = random.Random(seed)
    repeats = settings.repeats
    for pair in range(1, settings.looks[-1] + 1):
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
        pairs = pairs_of(done.base, done.head)
        if done.base and done.head and done.base[-1].pair == done.head[-1].pair == pair:
            watcher.paired(pair, ratio_of(pairs[-1]))
        done.stopped = _why_enough(pairs, pair, settings)
        if done.stopped:
            if len(pairs) in settings.looks:
                done.stopped = ""  # as planned
            return done
    return done


def judged_ratios(pairs: Sequence[Pair], settings: Settings) -> list[tuple[list[float], float]]:
    """Of every metric that can fail the check: 1 + the share by which each pair is worse, and its threshold.

    A metric that some pair does not know cannot be proven, so it is not waited for.
    """
    judged = []
    for metric in settings.metrics.values():
        if metric.severity != "error":
            continue
        worse = [
            worse_by(metric, first.metrics[metric.id], other.metrics[metric.id], first.metrics[DECIDES])
            for first, other in pairs
            if metric.id in first.metrics and metric.id in other.metrics
        ]
        ratios = [1 + share for share in worse if share is not None and share > -1]
        if len(ratios) == len(pairs):
            judged.append((ratios, metric.threshold))
    return judged


def _why_enough(pairs: Sequence[Pair], tried: int, settings: Settings) -> str:
    """Why no further pair is run, one sentence; "" = one is."""
    lost = tried - len(pairs)
    if lost >= max(MOST_LOST, settings.pairs // 2):
        return words.too_busy(lost, tried)
    fewest = settings.fewest if settings.early_stop else settings.pairs
    return settled(judged_ratios(pairs, settings), settings.looks, settings.alpha, fewest)


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
            done.failed = words.measurement_failed(run.name, side, pair, problem)
            return None, attempt
        if run.clean is not False:
            watcher.ended(run, "")
            return run, attempt
        again = attempt < allowed
        watcher.ended(run, "disturbed, repeated" if again else "disturbed, left out")
        reason = words.disturbed_in_pair(run.clean_reason, is_repeated=again)
        done.left_out.append(ExcludedRun(name=run.name, side=side, reason=reason, disturbed=True))
    return None, allowed
