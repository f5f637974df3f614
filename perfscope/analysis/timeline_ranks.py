"""Which ranks the report's timeline draws, where there are more than it can."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from msgspec import Struct

from perfscope.analysis.critical.results import shares_by_rank
from perfscope.analysis.results import RankResult, RunAnalysis

MAX_RANKS = 64  # rows a person can still tell apart, and a page can hold
MOST_NAMED = 48  # of them; the others are evenly spaced


def spaced(ranks: Sequence[int], most: int = MAX_RANKS) -> frozenset[int]:
    """At most `most` of the ranks, evenly spaced, the first and the last among them."""
    if len(ranks) <= most:
        return frozenset(ranks)
    picks = np.linspace(0, len(ranks) - 1, most).round().astype(int)
    return frozenset(ranks[pick] for pick in picks.tolist())


def drawn_ranks(ranks: Sequence[int], named: Iterable[int] = (), most: int = MAX_RANKS) -> frozenset[int]:
    """At most `most` of the ranks: up to three quarters of these `named`, then evenly spaced ones.

    Args:
        ranks: that can be drawn, in order.
        named: those of most interest, the most important first; others than `ranks` are left out.
        most: to draw.
    """
    candidates = set(ranks)
    first = frozenset(islice((rank for rank in named if rank in candidates), most * MOST_NAMED // MAX_RANKS))
    # Of `spaced` ranks: the layers of their calls are kept.
    unnamed = sorted(spaced(ranks, most) - first)
    return first | spaced(unnamed, most - len(first))


def named_ranks(analysis: RunAnalysis) -> tuple[int, ...]:
    """Ranks of findings, waits, outliers, the critical path and hangs; the most important first."""
    return tuple(dict.fromkeys(_named(analysis)))


def _named(analysis: RunAnalysis) -> Iterator[int]:
    for finding in analysis.findings:
        if finding.rank is not None:
            yield finding.rank
        yield from _of_facts(finding.facts)
    waits = analysis.waits
    if waits is not None:
        yield from (straggler.rank for straggler in waits.persistent)
    yield from _outliers(analysis.ranks)
    if waits is not None:
        yield from (straggler.rank for straggler in waits.stragglers)
    yield from (int(share.key) for share in shares_by_rank(analysis.critical_paths))
    yield from (rank.rank for hang in analysis.hangs for rank in hang.ranks)


def _of_facts(facts: Struct) -> Iterator[int]:
    """Ranks in a finding's sentences beside the one that it is about."""
    for name in facts.__struct_fields__:
        value = getattr(facts, name)
        if isinstance(value, Struct):
            yield from _of_facts(value)
        elif (name == "rank" or name.endswith("_rank")) and value is not None:
            yield value


def _outliers(ranks: Sequence[RankResult]) -> Iterator[int]:
    """The ranks with the longest and the shortest steps and computation."""
    lengths: tuple[Callable[[RankResult], int | None], ...] = (
        lambda rank: rank.step_ns.median if rank.step_ns else None,
        lambda rank: rank.breakdown_ns.compute if rank.breakdown_ns else None,
    )
    for length_of in lengths:
        by_length = sorted((length, rank.rank) for rank in ranks if (length := length_of(rank)) is not None)
        if by_length:
            yield by_length[-1][1]
            yield by_length[0][1]
