"""Was a host's wall clock set during the run? Traces are in wall-clock time, which an administrator or NTP
may set.

Ranks pair the monotonic clock with the wall clock at start, around every window and at the end (METRICS §8).
What the wall clock gained on the monotonic one between two pairs is slewing up to 500 ppm; more was a jump.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

from msgspec import Struct

from perfscope.analysis.missing import Missing, missing_figure
from perfscope.rundir.records import RankRecord
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure

_SLEW_PPM = 500  # the fastest that ntpd and chrony (and adjtime) turn a clock
_READING_NS = 1_000_000  # a rank may be put aside between reading one clock and the other


class WallStep(Struct, frozen=True, kw_only=True):
    """A jump of one host's wall clock."""

    host: str
    after_ns: int  # Unix time of the last pair before it
    before_ns: int  # Unix time of the next pair
    step_ns: int  # forward is positive


def wall_steps(records: Mapping[int, RankRecord]) -> tuple[WallStep, ...]:
    """Jumps of the hosts' wall clocks, by host and time.

    A jump is taken for true when every rank of the host whose pairs enclose it sees one: a single rank may
    just have been interrupted between reading the two clocks.

    Args:
        records: rank -> rank.json.
    """
    pairs: dict[str, dict[int, list[tuple[int, int]]]] = defaultdict(dict)
    for rank, record in records.items():
        if len(record.anchors) > 1:
            pairs[record.host][rank] = sorted(record.anchors)
    return tuple(step for host, ranks in sorted(pairs.items()) for step in _of_host(host, ranks))


def step_notes(records: Mapping[int, RankRecord]) -> list[Missing]:
    """What the report says about them.

    Args:
        records: rank -> rank.json.
    """
    return [
        missing_figure(
            Figure.CLOCK_JUMP,
            Cause.CLOCK_SET,
            host=step.host,
            jump_s=step.step_ns / 1e9,
            apart_s=(step.before_ns - step.after_ns - step.step_ns) / 1e9,
        )
        for step in wall_steps(records)
    ]


def _of_host(host: str, ranks: Mapping[int, list[tuple[int, int]]]) -> list[WallStep]:
    jumps = {rank: _jumps(pairs) for rank, pairs in ranks.items()}
    shortest: dict[tuple[int, int], tuple[tuple[int, int], tuple[int, int], int]] = {}
    for of_rank in jumps.values():
        for before, after, size in of_rank:
            if not all(_agrees(before[0], after[0], ranks[rank], jumps[rank]) for rank in ranks):
                continue
            # Ranks see one jump between pairs of their own: reported once, by the closest pair.
            same = next((k for k in shortest if k[0] < after[0] and before[0] < k[1]), None)
            if same is None or after[0] - before[0] < same[1] - same[0]:
                if same is not None:
                    del shortest[same]
                shortest[before[0], after[0]] = (before, after, size)
    return [
        WallStep(host=host, after_ns=before[1], before_ns=after[1], step_ns=size)
        for _, (before, after, size) in sorted(shortest.items())
    ]


_Jump = tuple[tuple[int, int], tuple[int, int], int]


def _jumps(pairs: list[tuple[int, int]]) -> list[_Jump]:
    jumps = []
    for before, after in pairwise(pairs):
        gained = (after[1] - after[0]) - (before[1] - before[0])
        if abs(gained) > _READING_NS + (after[0] - before[0]) * _SLEW_PPM // 1_000_000:
            jumps.append((before, after, gained))
    return jumps


def _agrees(begin: int, end: int, pairs: list[tuple[int, int]], jumps: list[_Jump]) -> bool:
    """Whether a rank saw a jump at that time, too, or was not looking."""
    looking = pairs[0][0] <= begin and end <= pairs[-1][0]
    return not looking or any(before[0] < end and begin < after[0] for before, after, _ in jumps)
