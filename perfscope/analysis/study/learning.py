"""Which setting learns fastest: by what its runs took to a target, else by goodput.

A setting's value is the median over its runs, which differ in their seed. A run that did not reach the target
has no value: settings with such runs come last, by how many of their runs reached it. The first
two are compared by the ratio of their medians; its interval is a bootstrap over runs (see repeats). Where it
holds 1, or there is none, nobody can tell which is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfscope.analysis.learning import LearningResult
from perfscope.analysis.study.repeats import center, center_interval, ratio_interval
from perfscope.analysis.study.results import LearningRanking, LearningRow, SchemeRow, StudyRun
from perfscope.messages.comparison import learning as words
from perfscope.vocabulary.comparison import RankBasis


def _amount(learning: LearningResult, basis: RankBasis) -> float | None:
    """What a run took, or its goodput."""
    if basis is RankBasis.GOODPUT:
        return learning.noise.goodput if learning.noise is not None else None
    if learning.to_target is None:
        return None
    of: dict[RankBasis, float | None] = {
        RankBasis.TIME: learning.to_target.train_ns,
        RankBasis.ENERGY: learning.to_target.joules,
        RankBasis.COST: learning.to_target.cost,
    }
    return of[basis]


def learning_ranking(
    rows: Sequence[SchemeRow], runs: Mapping[str, StudyRun], asked: RankBasis = RankBasis.TIME
) -> LearningRanking | None:
    """The settings in order; None where not all of their runs have the same target, or a noise scale each.

    Args:
        rows: two settings or more.
        runs: by label.
        asked: what targets are compared by; time where it is not known of the runs that reached theirs.
    """
    measured = {row.title: [runs[label].learning for label in row.runs] for row in rows}
    known = {title: [one for one in of if one is not None] for title, of in measured.items()}
    if any(len(known[title]) < len(of) for title, of in measured.items()) or len(rows) < 2:
        return None
    every = [one for of in known.values() for one in of]
    targets = {one.target for one in every}
    if len(targets) == 1 and "" not in targets:
        reached = [one for one in every if one.to_target is not None]
        basis, note = asked, ""
        if any(_amount(one, asked) is None for one in reached):
            basis, note = RankBasis.TIME, words.not_known(asked)
        return _ranking(known, basis, targets.pop(), note)
    if all(one.noise is not None and one.noise.goodput for one in every):
        return _ranking(known, RankBasis.GOODPUT, "", "")
    return None


def _ranking(
    known: Mapping[str, Sequence[LearningResult]], basis: RankBasis, target: str, note: str
) -> LearningRanking:
    rows = sorted((_row(title, of, basis) for title, of in known.items()), key=lambda row: _place(row, basis))
    first, second = rows[0], rows[1]
    ratio, interval, level = None, None, None
    whole = all(row.num_reached == row.num_runs for row in (first, second))
    if whole and first.value and second.value:
        better, worse = (first, second) if basis is RankBasis.GOODPUT else (second, first)
        ratio = center(better.values) / center(worse.values)
        interval = ratio_interval(better.values, worse.values)
        level = None if interval is None else interval.low <= 1 <= interval.high
    elif first.num_reached == first.num_runs > 1 and not second.num_reached:
        level = False
    return LearningRanking(
        basis=basis,
        target=target,
        rows=tuple(rows),
        ratio=ratio,
        interval=interval,
        level=level,
        note=note,
        headline=words.headline(rows, basis, target, ratio, interval, level),
        action=words.action(first.title, second.title, level, num_runs=min(first.num_runs, second.num_runs)),
    )


def _row(title: str, learnings: Sequence[LearningResult], basis: RankBasis) -> LearningRow:
    amounts = [amount for one in learnings if (amount := _amount(one, basis))]
    values = tuple(sorted(float(amount) for amount in amounts))
    return LearningRow(
        title=title,
        value=center(values) if values else None,
        values=values,
        interval=center_interval(values) if values else None,
        num_runs=len(learnings),
        num_reached=len(values),
    )


def _place(row: LearningRow, basis: RankBasis) -> tuple[int, float, str]:
    """Best first."""
    value = row.value or 0.0
    return row.num_runs - row.num_reached, -value if basis is RankBasis.GOODPUT else value, row.title
