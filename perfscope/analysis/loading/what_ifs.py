"""Input wait in the mean step, and what-ifs of the loader, which are of the mean step, too.

Where steps take turns in waiting (of two workers, two batches come together), the median step waits for
nothing or for all of it. How fast the training goes is decided by the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis.intervals import median_of
from perfscope.analysis.loading.predictions import NOTABLE
from perfscope.analysis.loading.results import RankLoading
from perfscope.analysis.loading.store import reads_of_thread, store_gains
from perfscope.analysis.machine.thread_states import ThreadStates
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.results import RankResult
from perfscope.analysis.steps import FEWEST_OF_HALF, RankSteps
from perfscope.analysis.whatif.analyze import WhatIfs
from perfscope.analysis.whatif.results import WhatIf
from perfscope.analysis.whole_run.results import WholeRun
from perfscope.messages import loading as texts
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.loading import LoaderChange
from perfscope.vocabulary.run_parts import RunPart

_INPUT_WAIT = "no_input_wait"
UNEVEN = 0.1  # |mean step / median step - 1| from which the mean is stated
HIDDEN = 1.5  # times as long a wait as in traced steps
LEAST_SAVED = 0.01  # of the mean step: smaller predictions are not listed


class MeanInput(Struct, frozen=True, kw_only=True):
    """Means over the untraced steps after the warm-up, of the rank that waits longest.

    Attributes:
        rank: that one.
        removable_ns: of the wait, what the step is longer for: a device may compute meanwhile.
        in_few: the waits are in a few long steps, which are a finding of their own.
        hidden_when_traced: workers set the pace, and the training waits less for them where a profiler
            makes its steps longer.
        spread_ratio: difference between the means of the run's halves / mean; None: too few steps.
    """

    rank: int
    step_ns: float
    wait_ns: float
    removable_ns: float
    median_ns: float
    spread_ratio: float | None
    in_few: bool = False
    hidden_when_traced: bool = False

    @property
    def is_uneven(self) -> bool:
        """Whether the median step, or traced ones, do not stand for the others."""
        if self.in_few or not self.median_ns:
            return False
        return self.hidden_when_traced or abs(self.step_ns / self.median_ns - 1) > UNEVEN

    @property
    def ratio(self) -> float:
        """Share of the mean step that waiting for input costs."""
        return self.removable_ns / self.step_ns


def mean_input(
    steps: Mapping[int, RankSteps],
    ranks: Sequence[RankResult],
    account: WholeRun | None,
    loading: Sequence[RankLoading],
) -> MeanInput | None:
    """None where no rank timed its waiting for input.

    Args:
        steps: by rank.
        ranks: their traced steps.
        account: of the run's time.
        loading: of ranks. Where workers set the pace, the waits are their rate, however few steps have one:
            workers that are equally slow have their batches ready together.
    """
    in_few = account is not None and any(entry.part is RunPart.INPUT for entry in account.long_steps)
    worst = longest_wait(loading)
    sets_pace = worst is not None and worst.sets_pace
    traced_ns = max((result.breakdown_ns.input_wait for result in ranks if result.breakdown_ns), default=None)
    longest = _longest_mean_wait(steps)
    if longest is None:
        return None
    of_rank, wait_ns = steps[longest], steps[longest].mean_input_wait_ns or 0.0
    return MeanInput(
        rank=longest,
        step_ns=float(of_rank.counted.mean()),
        wait_ns=wait_ns,
        removable_ns=_removable(of_rank, wait_ns, _least_ns(ranks)),
        median_ns=median_of(of_rank.counted),
        spread_ratio=_spread(of_rank),
        in_few=in_few and not sets_pace,
        hidden_when_traced=sets_pace and traced_ns is not None and wait_ns > HIDDEN * traced_ns,
    )


def _longest_mean_wait(steps: Mapping[int, RankSteps]) -> int | None:
    """The rank whose mean step waits longest, the first of several; only what may be it is looked at."""
    longest: int | None = None
    most = -1.0
    for rank, of_rank in steps.items():
        wait_ns = of_rank.mean_input_wait_ns
        if wait_ns is not None and wait_ns > most and len(of_rank.counted) and of_rank.counted.mean() > 0:
            longest, most = rank, wait_ns
    return longest


def _least_ns(ranks: Sequence[RankResult]) -> float:
    """What the traced steps take on devices without waiting for input; 0 where none computes.

    A profiler stretches what the host does, not the kernels.
    """
    of_ranks = [
        rank.breakdown_ns.step - rank.breakdown_ns.input_wait
        for rank in ranks
        if rank.breakdown_ns is not None and rank.device_ns is not None
    ]
    return sum(of_ranks) / len(of_ranks) if of_ranks else 0.0


def _removable(steps: RankSteps, wait_ns: float, least_ns: float) -> float:
    return max(0.0, min(wait_ns, float(steps.counted.mean()) - least_ns))


def _spread(steps: RankSteps) -> float | None:
    half = len(steps.counted) // 2
    if half < FEWEST_OF_HALF:
        return None
    first, second = float(steps.counted[:half].mean()), float(steps.counted[half:].mean())
    return abs(first - second) / float(steps.counted.mean())


def with_loading(
    what_ifs: WhatIfs,
    loading: Sequence[RankLoading],
    mean: MeanInput | None,
    states: Mapping[int, ThreadStates] = {},
    sync_ns: Mapping[int, float] = {},
    *,
    is_sampled: bool = True,
) -> tuple[WhatIfs, tuple[Missing, ...]]:
    """With the wait for input of the mean step where steps are uneven, and predictions of other stores.

    Args:
        what_ifs: of the replay of steps.
        loading: loaders with workers.
        mean: None: no rank timed its waiting for input.
        states: by rank, what the training thread was seen in.
        sync_ns: by rank, in syncs of files per mean step.
        is_sampled: whether the run has samplers, which read the states.
    """
    missing: tuple[Missing, ...] = ()
    if mean is None:
        return what_ifs, missing
    listed = list(what_ifs.what_ifs)
    if mean.is_uneven:
        listed = [_of_mean(entry, mean) if entry.id == _INPUT_WAIT else entry for entry in listed]
    worst = longest_wait(loading)
    if worst is not None:
        listed += _predictions(worst, mean)
    elif mean.wait_ns >= NOTABLE * mean.step_ns:
        if mean.rank in states:
            syncs = sync_ns.get(mean.rank, 0.0)
            listed += _of_thread(mean, reads_of_thread(states[mean.rank], mean.step_ns, mean.wait_ns, syncs))
        else:
            cause = Cause.STATE_HARDLY_READ if is_sampled else Cause.SAMPLING_OFF
            missing = (missing_figure(Figure.STORE_WHAT_IFS, cause, ranks=(mean.rank,)),)
    ordered = tuple(sorted(listed, key=lambda entry: -entry.gain_ns))
    return replace(what_ifs, what_ifs=ordered), missing


def longest_wait(loading: Sequence[RankLoading]) -> RankLoading | None:
    """The loader of the rank that waits longest: other ranks wait for it."""
    return max(loading, key=lambda entry: entry.wait_ns, default=None)


def _of_mean(what_if: WhatIf, mean: MeanInput) -> WhatIf:
    gain = round(mean.ratio * mean.step_ns)
    return replace(
        what_if,
        step_ns=round(mean.step_ns) - gain,
        gain_ns=gain,
        gain_ratio=gain / mean.step_ns,
        evidence=texts.mean_wait(mean.wait_ns, mean.step_ns),
        caution="",
        of_mean=True,
    )


def saved_per_step(loading: RankLoading, saved_ns: float) -> float:
    """Of time per batch, ns: per training step."""
    return saved_ns * max(1.0, loading.num_asks / loading.num_steps) if loading.num_steps else saved_ns


def _predictions(loading: RankLoading, mean: MeanInput) -> list[WhatIf]:
    if loading.replayed_ns is None:
        return []
    evidence = texts.rests_on(loading.period_ns, loading.replayed_ns, loading.num_asks)
    gains = [
        (entry.change, entry.factor, saved_per_step(loading, entry.saved_ns)) for entry in loading.predictions
    ]
    return _what_ifs(mean, gains, evidence, loading.rank)


def _of_thread(mean: MeanInput, read_ns: float) -> list[WhatIf]:
    """Of a training thread that loads its own data and waits so long for files in the mean step."""
    return _what_ifs(mean, store_gains(read_ns), texts.seen_in_files(read_ns, mean.wait_ns), mean.rank)


def _what_ifs(
    mean: MeanInput, gains: Sequence[tuple[LoaderChange, float, float]], evidence: str, rank: int
) -> list[WhatIf]:
    """Of (change, factor, ns saved per mean step), those worth a line."""
    made = []
    for change, factor, saved_ns in gains:
        gain = min(round(saved_ns), round(mean.step_ns))
        if gain >= LEAST_SAVED * mean.step_ns:
            made.append(
                WhatIf(
                    id=f"{change.value}:{factor:g}" if change is LoaderChange.FASTER_STORE else change.value,
                    title=texts.change_text(change, factor),
                    step_ns=round(mean.step_ns) - gain,
                    gain_ns=gain,
                    gain_ratio=gain / mean.step_ns,
                    evidence=evidence + (texts.SAME_DATA if change is LoaderChange.NODE_CACHE else ""),
                    rank=rank,
                    of_mean=True,
                )
            )
    return made
