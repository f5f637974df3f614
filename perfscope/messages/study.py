"""How the study speaks of its figures."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.messages.lists import counted, listed
from perfscope.units import format_ratio

PART_TITLES = {
    "compute": "compute",
    "exposed_comm": "exposed communication",
    "copy": "copies",
    "input_wait": "waiting for input",
    "optimizer": "optimizer",
    "idle": "idle time",
}
_NAMED = 6
_LISTED = 3  # so many are named, though they are all


def on_part(part: str) -> str:
    """A part of PARTS as "spends 3 ms on ..." goes on."""
    return "the optimizer" if part == "optimizer" else PART_TITLES[part]


def named(labels: Sequence[str]) -> str:
    """ "a, b and c"; of many the first few and how many more."""
    return listed(labels, _NAMED) or "none"


def crowd(labels: Sequence[str], num_runs: int) -> str:
    """As `named`; "all 12 runs" where these are all, and too many to list."""
    if len(labels) == num_runs and num_runs > _LISTED:
        return f"all {num_runs:,} runs"
    return named(labels)


def ranks(num: int | None) -> str:
    """ "1 rank", "4 ranks"."""
    return "an unknown number of ranks" if num is None else counted(num, "rank")


def times(ratio: float) -> str:
    """A ratio of speeds: "1.32 times", "16.6 times"."""
    return f"{ratio:.2f} times" if ratio < 10 else f"{ratio:.1f} times"


def faster_than(ratio: float) -> str:
    """How much faster, `ratio` >= 1: "12 % faster than", "3.20 times as fast as"."""
    if ratio >= 2:
        return f"{times(ratio)} as fast as"
    return f"{format_ratio(ratio - 1, 0 if ratio >= 1.1 else 1)} faster than"


def slower_than(ratio: float) -> str:
    """How much slower, `ratio` <= 1: "12 % slower than", "at 31 % of the speed of"."""
    if ratio < 0.01:
        return f"{1 / ratio:,.0f} times slower than"
    if ratio < 0.5:
        return f"at {percent(ratio)} of the speed of"
    return f"{format_ratio(1 - ratio, 0 if ratio <= 0.9 else 1)} slower than"


def percent(value: float) -> str:
    """A share without decimals."""
    return format_ratio(value, 0)
