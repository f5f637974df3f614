"""Page faults of the median step, and what they cost.

A CPU training allocates and frees its activations in every step. Where the C library gives the memory back to
the kernel each time, every page is mapped and cleared again: the kernel's time is the cost, at most
`DEAREST_NS` per fault, of the thread that trains. A step without it is shorter by the same share as the
thread's time outside the run queue, because waiting for a CPU shrinks along with it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfscope.analysis.fault_results import RankFaults, few_remain
from perfscope.analysis.intervals import Int64
from perfscope.analysis.whole_run.steps import StepParts

PAGE = 4096  # bytes; the smallest of any platform
DEAREST_NS = 4_000  # of one fault: with clearing the page, in a virtual machine
FEWEST_BEFORE = 2  # steps before the first window that a comparison needs, beside the very first ...
FEWEST_AFTER = 4  # ... and untraced ones after it
ALIKE = 0.1  # of the faults per step that may differ before and after windows
STEADY = 2.5  # the most faults of a step before the first window over the fewest
FEW = 64  # faults per step that make no difference


def page_faults(steps: Mapping[int, StepParts]) -> tuple[RankFaults, ...]:
    """Of every rank that recorded them."""
    of_ranks = (_of_rank(rank, parts) for rank, parts in sorted(steps.items()))
    return tuple(faults for faults in of_ranks if faults is not None)


def _of_rank(rank: int, parts: StepParts) -> RankFaults | None:
    chosen = parts.is_usual & (parts.used["minor_faults"] >= 0)
    if not chosen.any():
        return None
    faults = parts.used["minor_faults"]
    is_before, before, after, changed = _around_windows(faults, parts, chosen)
    if changed and few_remain(before, after):
        chosen = is_before
    else:
        chosen = _settled(faults, _ordinary(parts, chosen))
    return RankFaults(
        rank=rank,
        minor_faults=_mean(faults, chosen) or 0.0,
        major_faults=_mean(parts.used["major_faults"], chosen) or 0.0,
        user_ns=_mean(parts.used["user_ns"], chosen) or 0.0,
        system_ns=_mean(parts.used["system_ns"], chosen) or 0.0,
        thread_minor_faults=_mean(parts.used["thread_minor_faults"], chosen),
        thread_system_ns=_mean(parts.used["thread_system_ns"], chosen),
        num_steps=int(chosen.sum()),
        cost_ratio=_cost_ratio(parts, chosen),
        before_windows=before,
        after_windows=after,
        changed_by_windows=changed,
    )


def _mean(values: Int64, chosen: NDArray[np.bool_]) -> float | None:
    valid = values[chosen & (values >= 0)]
    return float(valid.mean()) if len(valid) else None


def _cost_ratio(parts: StepParts, chosen: NDArray[np.bool_]) -> float | None:
    """What faults of the thread that trains cost, over its time outside the run queue."""
    faults, system = (
        _mean(parts.used["thread_minor_faults"], chosen),
        _mean(parts.used["thread_system_ns"], chosen),
    )
    if faults is None or system is None:
        return None
    waited, cpu = (
        _mean(parts.runqueue, chosen) or 0.0,
        system + (_mean(parts.used["thread_user_ns"], chosen) or 0.0),
    )
    duration, untimed = float(parts.durations[chosen].mean()), float(parts.untimed[chosen].mean())
    # It waits for a CPU in what is timed apart, too; and it ran at least as long as the kernel charged to it.
    running = max(untimed * (1 - waited / duration), cpu * untimed / duration) if duration > 0 else 0.0
    return min(1.0, min(system, faults * DEAREST_NS) / running) if running > 0 else None


def _ordinary(parts: StepParts, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Those of the steps in which nothing that is timed apart (a checkpoint) takes a notable part; all where
    there is none.
    """
    ordinary = chosen & (parts.untimed >= (1 - ALIKE) * parts.durations)
    return ordinary if ordinary.any() else chosen


def _settled(faults: Int64, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The later half of the steps where it has fewer faults: memory mapped once is no cost of a step."""
    later = chosen.copy()
    later[np.flatnonzero(chosen)[: chosen.sum() // 2]] = False
    fell = float(faults[later].mean()) < (1 - ALIKE) * float(faults[chosen].mean())
    return later if fell else chosen


def _around_windows(
    faults: Int64, parts: StepParts, chosen: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], float | None, float | None, bool | None]:
    """Which steps come before the first window, the median faults of these and of later ones, whether all of
    the former differ from the latter.

    The very first step is left out, which maps everything for the first time.
    """
    step_index = np.arange(len(faults))
    traced = np.flatnonzero(parts.is_traced)
    is_before = (step_index > 0) & (step_index < (traced[0] if len(traced) else 0)) & (faults >= 0)
    before, after = faults[is_before], faults[chosen & ~is_before]
    if len(before) < FEWEST_BEFORE or len(after) < FEWEST_AFTER:
        return is_before, None, None, None
    medians = float(np.median(before)), float(np.median(after))
    spread = float(np.median(np.abs(after - medians[1])))
    nearest = float(np.min(np.abs(before - medians[1])))
    is_steady = float(before.max()) <= STEADY * float(before.min())  # else the training was warming up
    changed = is_steady and nearest > max(ALIKE * max(medians), FEW, 3 * spread)
    return is_before, *medians, changed
