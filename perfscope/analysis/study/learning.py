"""Which setting learns fastest: by what its runs took to a target, else by goodput.

A setting's value is the median over its runs, which differ in their seed. A run that did not reach the target
has no value: settings with such runs come last, by the share of their runs that reached it. The first
two are compared by the ratio of their medians; its interval is a bootstrap over runs (see repeats). Where it
holds 1, or there is none, which is better is not known.

Goodput compares batches alone. A noise scale is that of the trajectory it was measured on, so that one scale,
the median over settings, is used for all; other rules, rates, compressions or stale gradients learn
differently at the same scale, and are not ranked by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from perfscope.analysis.learning import LearningResult, ToTarget, efficiency_of
from perfscope.analysis.study.repeats import center, center_interval, ratio_interval
from perfscope.analysis.study.results import LearningRanking, LearningRow, SchemeRow, StudyRun
from perfscope.messages.comparison import learning as words
from perfscope.vocabulary.comparison import RankBasis

_Amounts = Mapping[str, Sequence[float | None]]  # by title, of each run; None: it did not reach the target


def learning_ranking(
    rows: Sequence[SchemeRow], runs: Mapping[str, StudyRun], asked: RankBasis = RankBasis.TIME
) -> LearningRanking | None:
    """The settings in order; None where their runs have neither a target in common nor comparable goodputs.

    Args:
        rows: two settings or more.
        runs: by label.
        asked: what targets are compared by; time where it is not known of the runs that reached theirs.
    """
    of_row = {row.title: [runs[label] for label in row.runs] for row in rows}
    learned = {
        title: [run.learning for run in of if run.learning is not None] for title, of in of_row.items()
    }
    if any(len(learned[title]) < len(of) for title, of in of_row.items()) or len(rows) < 2:
        return None
    targets = {learning.target for of in learned.values() for learning in of}
    if len(targets) == 1 and "" not in targets:
        return _by_target(learned, asked, targets.pop())
    return _by_goodput(of_row)


def _by_target(
    learned: Mapping[str, Sequence[LearningResult]], asked: RankBasis, target: str
) -> LearningRanking | None:
    to_targets = {title: [learning.to_target for learning in of] for title, of in learned.items()}
    reached = [to_target for of in to_targets.values() for to_target in of if to_target is not None]
    for basis in dict.fromkeys((asked, RankBasis.TIME)):
        if any(_amount(to_target, basis) is None for to_target in reached):
            continue
        amounts = {
            title: [None if to_target is None else _amount(to_target, basis) for to_target in of]
            for title, of in to_targets.items()
        }
        return _ranking(amounts, basis, target, "" if basis is asked else words.not_known(asked))
    return None


def _amount(taken: ToTarget, basis: RankBasis) -> float | None:
    """What a run took; nothing takes 0, so that 0 is unknown, too."""
    of = {RankBasis.TIME: taken.train_ns, RankBasis.ENERGY: taken.joules, RankBasis.COST: taken.cost}
    return of[basis] or None


def _by_goodput(of_row: Mapping[str, Sequence[StudyRun]]) -> LearningRanking | None:
    """None where settings differ in more than the batch, or a run has no noise scale."""
    every = [run for of in of_row.values() for run in of]
    keys = {run.batchless_key for run in every}
    if len(keys) > 1 or "" in keys or len({_update_size(run) for run in every}) < 2:
        return None
    scales, amounts = [], {}
    for of in of_row.values():
        measured = [run.learning.noise.samples for run in of if run.learning and run.learning.noise]
        if len(measured) < len(of):
            return None
        scales.append(center(measured))
    scale = center(scales)
    for title, of in of_row.items():
        amounts[title] = [
            (run.samples_per_s or 0.0) * efficiency_of(_update_size(run), scale) or None for run in of
        ]
    return (
        None if any(None in of for of in amounts.values()) else _ranking(amounts, RankBasis.GOODPUT, "", "")
    )


def _update_size(run: StudyRun) -> int:
    return run.effective_batch or run.batch or 0


def _ranking(amounts: _Amounts, basis: RankBasis, target: str, note: str) -> LearningRanking:
    rows = sorted((_row(title, of) for title, of in amounts.items()), key=lambda row: _place(row, basis))
    first, second = rows[0], rows[1]
    ratio, interval, level = None, None, None
    all_reached = all(row.num_reached == row.num_runs for row in (first, second))
    if all_reached and first.value and second.value:
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


def _row(title: str, amounts: Sequence[float | None]) -> LearningRow:
    values = tuple(sorted(float(amount) for amount in amounts if amount is not None))
    return LearningRow(
        title=title,
        value=center(values) if values else None,
        values=values,
        interval=center_interval(values) if values else None,
        num_runs=len(amounts),
        num_reached=len(values),
    )


def _place(row: LearningRow, basis: RankBasis) -> tuple[float, float, str]:
    """Best first."""
    share = row.num_reached / row.num_runs
    if row.value is None:
        return -share, math.inf, row.title
    return -share, -row.value if basis is RankBasis.GOODPUT else row.value, row.title
