"""Which setting learns fastest, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from perfscope.messages.lists import counted
from perfscope.messages.study import times
from perfscope.units import format_ns, format_si, three_digits
from perfscope.vocabulary.comparison import RankBasis

_BASES = {
    RankBasis.TIME: "training time",
    RankBasis.ENERGY: "energy",
    RankBasis.COST: "cost",
    RankBasis.GOODPUT: "goodput (samples/s x statistical efficiency)",
}
_MOST_LISTED = 8


class _Interval(Protocol):
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class _Row(Protocol):
    @property
    def title(self) -> str: ...
    @property
    def value(self) -> float | None: ...
    @property
    def num_runs(self) -> int: ...
    @property
    def num_reached(self) -> int: ...


def basis_words(basis: RankBasis, target: str) -> str:
    """``training time to accuracy=0.9``."""
    return f"{_BASES[basis]} to {target}" if target else _BASES[basis]


def amount(basis: RankBasis, value: float | None) -> str:
    """A row's value with its unit."""
    if value is None:
        return "not reached"
    if basis is RankBasis.TIME:
        return format_ns(round(value))
    if basis is RankBasis.ENERGY:
        return format_si(value, "J")
    return f"{three_digits(value)} samples/s" if basis is RankBasis.GOODPUT else f"{value:.4g}"


def not_known(basis: RankBasis) -> str:
    """Why the runs are ranked by time although something else was asked for."""
    return f"the {_BASES[basis]} to the target is not known of all runs: they are ranked by training time"


def headline(
    rows: Sequence[_Row],
    basis: RankBasis,
    target: str,
    ratio: float | None,
    interval: _Interval | None,
    level: bool | None,
) -> str:
    """Which is first, by how much, and whether that is certain; then the order of all."""
    first, second = rows[0], rows[1]
    by = f"By {basis_words(basis, target)}"
    both = f"{amount(basis, first.value)} against {amount(basis, second.value)}"
    if level is False:
        how = f", {times(ratio)} as good" if ratio is not None else ""
        text = f"{by} {first.title} wins over {second.title}: {both}{how} ({_noise(rows, interval)})."
    elif not any(row.num_reached for row in rows):
        text = f"{by} none wins: no run reached the target."
    else:
        text = f"{by}, cannot tell {first.title} from {second.title}: {both} ({_noise(rows, interval)})."
    if len(rows) > 2:
        order = ", ".join(f"{row.title} {amount(basis, row.value)}" for row in rows[2:_MOST_LISTED])
        text += f" Then {order}."
    missed = [f"{row.title} in {row.num_reached} of {row.num_runs}" for row in rows if _missed(row)]
    return f"{text} Reached by {', by '.join(missed)} runs." if missed else text


def _missed(row: _Row) -> bool:
    return row.num_reached < row.num_runs


def _noise(rows: Sequence[_Row], interval: _Interval | None) -> str:
    runs = min(rows[0].num_runs, rows[1].num_runs)
    of_each = f"{counted(runs, 'run')} of each" if runs == 1 else f"{runs} runs or more of each"
    if interval is None:
        return f"{of_each}, no interval"
    return f"95 % interval of the ratio {interval.low:.2f} to {interval.high:.2f}, {of_each}"


def action(first: str, second: str, level: bool | None, *, num_runs: int) -> str:
    """What to choose, or what would tell."""
    if level is False:
        return f"Use {first}."
    if num_runs < 2:
        return f"Train {first} and {second} with --seeds 5 before choosing."
    return f"Use {first} or {second}, or train both with more seeds: these do not tell them apart."
