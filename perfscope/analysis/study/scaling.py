"""How the runs scale: speedup, efficiency, laws, POP's factors and what grew (METRICS §3, §4)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perfscope.analysis.scaling.points import ScalePoint
from perfscope.analysis.scaling.speedup import efficiency_of, karp_flatt_of, speedup_of
from perfscope.analysis.study.averages import known_center, mean_composition
from perfscope.analysis.study.causes import common_cause, verdict_of_report
from perfscope.analysis.study.laws import fitted_laws
from perfscope.analysis.study.pop import pop_tree
from perfscope.analysis.study.repeats import center, center_interval, ratio_interval
from perfscope.analysis.study.results import (
    PARTS,
    STRONG,
    WARN,
    Composition,
    Growth,
    Interval,
    Problem,
    ScalingPoint,
    ScalingSeries,
    ScalingStudy,
    StudyRun,
)
from perfscope.analysis.study.series import RunSeries, find_series
from perfscope.messages.comparison import scaling as words
from perfscope.messages.comparison.doubt import REPEAT_QUIETLY, cannot_tell
from perfscope.messages.comparison.schemes import ONE_REPEAT
from perfscope.messages.study import PART_TITLES
from perfscope.vocabulary.comparison import CannotTell, ProblemKind, StudyPart
from perfscope.vocabulary.efficiency import IMPOSSIBLE

SUPERLINEAR = 1.01  # above it more than the ranks must have helped
NOTABLE = 0.01  # of the step: a part that grew by less is not named
NOTABLY = 1.02  # times the speed of the largest N: fewer ranks are the better choice


def scaling_study(
    runs: Sequence[StudyRun], mode: str | None, reference: StudyRun | None
) -> tuple[ScalingStudy | None, list[Problem]]:
    """Scaling of every series of `runs` (which are all usable); None where no run has more than one rank."""
    series = [_Line(series=run_series, asked=reference).result() for run_series in find_series(runs, mode)]
    series.sort(
        key=lambda scaling_series: (
            bool(scaling_series.refused),
            -max((p.world_size for p in scaling_series.points), default=0),
        )
    )
    if not series:
        return None, []
    return ScalingStudy(series=tuple(series)), _problems(series)


class _Line(Struct, frozen=True, kw_only=True):
    series: RunSeries
    asked: StudyRun | None  # --reference

    def result(self) -> ScalingSeries:
        series = self.series
        refused = series.refused or self._why_not()
        if refused or series.mode is None:
            return ScalingSeries(
                name=series.name,
                mode=series.mode,
                mode_reason=series.mode_reason,
                reference="",
                reference_world_size=None,
                reference_reason="",
                refused=refused or series.mode_reason,
                refusal=_refusal(series),
            )
        size, reason = self._reference()
        points = _points(series, size)
        pop, pop_missing = pop_tree({n: series.at(n) for n in series.sizes}, size, series.mode)
        grew, grew_missing = _what_grew(points, size, series.mode)
        verdict, action = _cause(series, points)
        doubt = _cannot_tell(points)
        sentence = _sentence(points, size, grew)
        throughputs = [
            ScalePoint(
                num_ranks=n,
                throughputs=tuple(sorted(_speeds(series.at(n)))),
                samples_per_rank=series.at(n)[0].samples_per_rank,
            )
            for n in series.sizes
        ]
        return ScalingSeries(
            name=series.name,
            mode=series.mode,
            mode_reason=series.mode_reason,
            reference=series.at(size)[0].label,
            reference_world_size=size,
            reference_reason=reason,
            reference_stated=self.asked is not None and self.asked.world_size == size,
            points=points,
            fits=fitted_laws(throughputs, series.mode, center(_speeds(series.at(size)))),
            pop=pop,
            pop_missing=pop_missing,
            what_grew=grew,
            what_grew_missing=grew_missing,
            sentence=cannot_tell(doubt, sentence, size) if doubt is not None else sentence,
            verdict=verdict,
            action=REPEAT_QUIETLY if doubt is not None else action,
            cannot_tell=doubt,
        )

    def _why_not(self) -> str:
        sizes = self.series.sizes
        if len(sizes) < 2:
            return words.one_size(sizes[0] if sizes else None)
        if self.asked is not None and self.asked.label not in {run.label for run in self.series.runs}:
            return words.reference_elsewhere(self.asked.label)
        return ""

    def _reference(self) -> tuple[int, str]:
        if self.asked is not None and self.asked.world_size:
            return self.asked.world_size, words.REFERENCE_STATED
        size = self.series.sizes[0]
        if self.series.borrowed and size == 1:
            return size, words.REFERENCE_SERIAL
        return size, words.REFERENCE_FEWEST


def _refusal(series: RunSeries) -> ProblemKind:
    if series.mixed:
        return ProblemKind.MIXED_SETTINGS
    return ProblemKind.NO_SCALING if series.mode else ProblemKind.NO_MODE


def _speeds(runs: Sequence[StudyRun]) -> list[float]:
    return [run.samples_per_s for run in runs if run.samples_per_s is not None]


def _points(series: RunSeries, reference: int) -> tuple[ScalingPoint, ...]:
    base = _speeds(series.at(reference))
    return tuple(_point(size, series.at(size), base, reference) for size in series.sizes)


def _point(size: int, runs: Sequence[StudyRun], base: Sequence[float], reference: int) -> ScalingPoint:
    speeds, is_reference = _speeds(runs), size == reference
    speedup = 1.0 if is_reference else speedup_of(center(speeds), center(base))
    interval = None if is_reference else ratio_interval(speeds, base)
    share = reference / size
    scaled = None
    if interval is not None:
        scaled = Interval(
            low=interval.low * share, high=interval.high * share, num_repeats=interval.num_repeats
        )
    return ScalingPoint(
        world_size=size,
        runs=tuple(run.label for run in runs),
        is_reference=is_reference,
        samples_per_s=center(speeds),
        samples_per_s_interval=center_interval(speeds),
        step_ns=known_center([run.typical_step_ns for run in runs]),
        speedup=speedup,
        speedup_interval=interval,
        efficiency=1.0 if is_reference else efficiency_of(speedup, size, reference),
        efficiency_interval=scaled,
        ideal_speedup=size / reference,
        karp_flatt=karp_flatt_of(speedup, size) if reference == 1 and not is_reference else None,
        no_interval="" if interval else (words.IS_REFERENCE if is_reference else ONE_REPEAT),
        composition=mean_composition(runs),
        disturbed=sum(bool(run.disturbed) for run in runs),
    )


def _cannot_tell(points: Sequence[ScalingPoint]) -> CannotTell | None:
    """Why the points say nothing of scaling; None where they do."""
    reference = next(point for point in points if point.is_reference)
    last = points[-1] if not points[-1].is_reference else points[0]
    if reference.disturbed == len(reference.runs):
        return CannotTell.REFERENCE_DISTURBED
    if last.disturbed == len(last.runs):
        return CannotTell.RUNS_DISTURBED
    if any(point.efficiency > IMPOSSIBLE for point in points if point.world_size > reference.world_size):
        return CannotTell.IMPOSSIBLE_EFFICIENCY
    return None


def _what_grew(points: Sequence[ScalingPoint], reference: int, mode: str) -> tuple[tuple[Growth, ...], str]:
    """Parts of the step at the largest N against what ideal scaling would leave of the reference's."""
    last = points[-1]
    first = next(point for point in points if point.is_reference)
    if last is first:
        return (), words.REFERENCE_IS_LARGEST
    for point in (first, last):
        if point.composition is None:
            return (), words.runs_not_traced(point.world_size)
    before, after = first.composition, last.composition
    assert before is not None and after is not None
    share = reference / last.world_size if mode == STRONG else 1.0
    grown = [_growth(part, before, after, share, last.world_size) for part in PARTS]
    grown.sort(key=lambda growth: (-growth.excess_ns, growth.part))
    return tuple(grown), ""


def _growth(part: str, before: Composition, after: Composition, share: float, size: int) -> Growth:
    first, then = float(getattr(before, part)), float(getattr(after, part))
    excess = then - first * share
    # What is saved is a part of the step that it would be without: never more than all of it.
    step = after.step if excess > 0 else after.step - excess
    of_step = excess / step if step > 0 else None
    return Growth(
        part=part,
        title=PART_TITLES[part],
        before_ns=first,
        after_ns=then,
        expected_ns=first * share,
        excess_ns=excess,
        excess_share=of_step,
        sentence=words.growth(part, (first, then), first * share, of_step, size),
    )


def _cause(series: RunSeries, points: Sequence[ScalingPoint]) -> tuple[str, str]:
    """What bounds the largest number of ranks, by its run's own verdict, and what to do."""
    last = points[-1]
    best = max(points, key=lambda point: point.samples_per_s)
    common = common_cause(series.at(last.world_size))
    verdict, action = "", ""
    if common is not None:
        run, cause = common
        verdict = verdict_of_report(words.at_ranks(last.world_size), run, cause)
        action = cause.text.action
    if best.samples_per_s > NOTABLY * last.samples_per_s:
        advice = words.fewer_ranks(best.world_size, after_action=bool(action))
        action = f"{action} {advice}".strip()
    return verdict, action


def _sentence(points: Sequence[ScalingPoint], reference: int, grew: Sequence[Growth]) -> str:
    last = points[-1] if not points[-1].is_reference else points[0]
    worst = grew[0] if grew else None
    notable = worst is not None and worst.excess_ns > 0 and (worst.excess_share or 0) >= NOTABLE
    return words.speedup(
        last.world_size,
        reference,
        last.speedup,
        ideal=last.ideal_speedup,
        efficiency=last.efficiency,
        grew=(worst.part, worst.excess_share or 0.0) if worst is not None and notable else None,
    )


def _problems(series: Sequence[ScalingSeries]) -> list[Problem]:
    problems = []
    for scaling_series in series:
        first = scaling_series.reference_world_size or 0
        if first > 1:
            problems.append(
                Problem(
                    severity=WARN,
                    id=ProblemKind.NO_REFERENCE,
                    text=words.no_single_rank(
                        scaling_series.name, first, stated=scaling_series.reference_stated
                    ),
                    runs=(scaling_series.reference,),
                    affects=(StudyPart.SCALING,),
                )
            )
        above = [p for p in scaling_series.points if p.efficiency > SUPERLINEAR and p.world_size > first]
        if above:
            problems.append(
                Problem(
                    severity=WARN,
                    id=ProblemKind.SUPERLINEAR,
                    text=words.superlinear(scaling_series.name, [point.world_size for point in above]),
                    runs=tuple(label for point in above for label in point.runs),
                    affects=(StudyPart.SCALING,),
                )
            )
    return problems
