"""Trains on a world that is open, and the calls that a ledger should hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from perfscope.runners.config import BenchConfig
from perfscope.runners.planning import plan
from perfscope.runners.traffic import Traffic
from perfscope.runners.train import TrainingOutcome, train
from perfscope.runners.world import World


def train_here(world: World, config: BenchConfig) -> TrainingOutcome:
    """Plans and trains on an open world; see `train`."""
    return train(plan(config), world)


def expected_calls(traffic: Iterable[Traffic], steps: int) -> Counter[tuple[str, str, int, int]]:
    """(collective, axis, number of ranks, bytes) -> calls in so many steps, as a ledger would hold them.

    Calls that a library makes are left out: no ledger sees them.
    """
    found: Counter[tuple[str, str, int, int]] = Counter()
    for one in traffic:
        calls = one.calls_in(steps)
        size = one.group_size or len(one.members)
        if calls and not one.by_library and len(one.members) > 1:
            found[one.collective, one.axis, size, one.bytes] += calls
    return found
