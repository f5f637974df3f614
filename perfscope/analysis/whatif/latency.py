"""What each kind of call costs whatever its size, and what per byte, from the run's own calls."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from msgspec import Struct

from perfscope.analysis.replay.program import Float
from perfscope.analysis.replay.replays import Replays

MIN_RATIO = 2.0  # largest over smallest size from which a line through them says something
NO_LOAD_BYTES = 4096  # a call of no more is all latency


class CallCost(Struct, frozen=True, kw_only=True):
    """transfer = latency_ns + ns_per_byte x size, in the median."""

    latency_ns: float = 0.0
    ns_per_byte: float = 0.0


def call_costs(replays: Replays) -> dict[tuple[str, str], CallCost]:
    """(collective, group) -> cost; kinds of which nothing can be said have no latency.

    The medians of each size make a line; its value at size 0 is the latency. Its slope is not negative: the
    median of the slopes between two sizes, weighted by how far these are apart (weighted Theil-Sen), because
    it is chance how long small calls take where threads wait for a CPU.
    The median and not the quickest: backends in threads have calls a hundred times quicker than they usually
    are, and it is the usual one that is saved. Calls of at most NO_LOAD_BYTES are all latency.
    """
    sizes: dict[tuple[str, str], list[Float]] = defaultdict(list)
    times: dict[tuple[str, str], list[Float]] = defaultdict(list)
    for window in replays.windows:
        program = window.program
        quickest = np.full(program.num_calls, np.inf)
        np.minimum.at(quickest, program.events.call, program.events.transfer)
        for code, name in enumerate(program.names):
            calls = (program.kind == code) & (program.size >= 0)
            sizes[name].append(program.size[calls].astype(np.float64))
            times[name].append(quickest[calls])
    return {name: _cost(np.concatenate(sizes[name]), np.concatenate(times[name])) for name in sizes}


def _cost(size: Float, time: Float) -> CallCost:
    if not len(size):
        return CallCost()
    kinds, kind_of = np.unique(size, return_inverse=True)
    usual = np.array([float(np.median(time[kind_of.ravel() == kind])) for kind in range(len(kinds))])
    middle = float(np.median(time))
    if kinds[-1] <= NO_LOAD_BYTES:
        return CallCost(latency_ns=middle)
    if kinds[-1] < MIN_RATIO * kinds[0]:
        return CallCost(ns_per_byte=middle / float(np.median(size)) if np.median(size) else 0.0)
    first, second = np.triu_indices(len(kinds), 1)
    apart = kinds[second] - kinds[first]
    slope = max(_weighted_median((usual[second] - usual[first]) / apart, apart), 0.0)
    latency = float(np.clip(np.median(usual - slope * kinds), 0.0, middle))
    return CallCost(latency_ns=latency, ns_per_byte=slope)


def _weighted_median(values: Float, weights: Float) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
