"""Conducts the comparison of several runs: gathers them, says which may be compared, and compares those."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.study.comparable import (
    batch_difference,
    forbidding_differences,
    problems_of_runs,
    shared_differences,
    usable,
    without_bad_factors,
)
from perfscope.analysis.study.diff import run_diff
from perfscope.analysis.study.framework_verdict import verdict_of
from perfscope.analysis.study.frameworks import framework_studies, separating_problems
from perfscope.analysis.study.gather import SEPARATOR, gather
from perfscope.analysis.study.grouping import (
    FRAMEWORK,
    LABEL,
    MACHINE,
    SCHEME,
    WORLD_SIZE,
    explained,
    group_of,
    names_of,
    settings_beside,
    with_name,
)
from perfscope.analysis.study.incomparable import forbidding, refused_diff
from perfscope.analysis.study.machines import with_short_groups
from perfscope.analysis.study.models import doubtful_models, model_of
from perfscope.analysis.study.results import (
    REFUSE,
    STRONG,
    WARN,
    WEAK,
    FrameworkStudy,
    Problem,
    RunDiff,
    RunEntry,
    ScalingStudy,
    SchemeStudy,
    StudyAnalysis,
    StudyRun,
    UnusableRun,
)
from perfscope.analysis.study.scaling import scaling_study
from perfscope.analysis.study.schemes import comparison_class, scheme_studies
from perfscope.messages.comparison import overview as words
from perfscope.messages.comparison import problems as problem_words
from perfscope.messages.comparison import scaling as scaling_words
from perfscope.messages.missing import cause_text
from perfscope.messages.study import named
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.comparison import ProblemKind, RankBasis, StudyPart
from perfscope.vocabulary.figures import Figure

_SCALING, _SCHEMES, _DIFF = (StudyPart.SCALING,), (StudyPart.SCHEMES,), (StudyPart.DIFF,)
_ASKED = (Figure.SCALING, Figure.WINNER)
_REASONS = 3  # why runs are left out, that are listed


class _View(Struct, frozen=True, kw_only=True):
    """One comparison, with its conclusion about the runs; or several of them together."""

    scaling: ScalingStudy | None = None
    schemes: tuple[SchemeStudy, ...] = ()
    diff: RunDiff | None = None
    frameworks: tuple[FrameworkStudy, ...] = ()
    problems: Sequence[Problem] = ()
    missing: Sequence[Missing] = ()

    def __add__(self, other: _View) -> _View:
        return _View(
            scaling=other.scaling or self.scaling,
            schemes=other.schemes or self.schemes,
            diff=other.diff or self.diff,
            frameworks=other.frameworks or self.frameworks,
            problems=(*self.problems, *other.problems),
            missing=(*self.missing, *other.missing),
        )


class _Grouping(Struct, frozen=True, kw_only=True):
    """What runs are compared by.

    Attributes:
        by: what grouping.names_of knows; "" = nothing.
        reason: why.
        stated: whether the user named it.
        explained: what the user has the runs compared by, and may differ.
        basis: what runs with a target are ranked by.
    """

    by: str
    reason: str
    stated: bool
    explained: frozenset[str] = frozenset()
    basis: RankBasis = RankBasis.TIME

    @property
    def may_differ(self) -> str:
        """`by`, but for a label that was not named."""
        return "" if not self.stated and self.by.startswith(LABEL) else self.by


def analyze_study(
    entries: Sequence[RunEntry],
    by: str | None = None,
    mode: str | None = None,
    reference: str | None = None,
    left_out: Sequence[UnusableRun] = (),
    rank_by: RankBasis = RankBasis.TIME,
) -> StudyAnalysis:
    """Everything `perfscope compare` shows.

    Args:
        entries: the runs; their order matters for the diff of two alone.
        by: what grouping.names_of knows; None: by what differs, said in `by_reason`. Runs may differ in what
            is named, or in what goes with it one to one.
        mode: "strong" or "weak"; None: read from the samples per rank.
        reference: a run's label or name: the number of ranks that speedups are against, and the diff's
            first run.
        left_out: what was named, too, and could not be read; it is reported as missing.
        rank_by: what runs with a target are ranked by.

    Raises:
        ValueError: `by` or `mode` is none of these, no entry, or `reference` names no run, or several.
    """
    _check(entries, by, mode)
    runs = gather(entries)
    asked = _reference(runs, reference)
    grouping = replace(_grouping(runs, by), basis=rank_by)
    runs = tuple(_grouped(run, grouping.by) for run in runs)
    if grouping.by and MACHINE in names_of(grouping.by):
        runs = with_short_groups(runs)
    view = _of_runs(runs, entries, left_out)
    runs = tuple(map(without_bad_factors, runs))
    if len(runs) == 1:
        view += _View(problems=(_only_one(runs[0]),))
    else:
        view += _compare(runs, entries, grouping, mode, asked)
    view = replace(view, problems=_ordered(view.problems))
    forbidden = forbidding(view.problems, runs)
    diff = refused_diff(view.diff, forbidden) if view.diff is not None and forbidden else view.diff
    view = replace(view, diff=diff)
    headline, action = _headline(runs, view, grouping.by if grouping.stated else "")
    return StudyAnalysis(
        by=grouping.by,
        by_reason=grouping.reason,
        headline=headline,
        runs=runs,
        scaling=view.scaling,
        schemes=view.schemes,
        diff=view.diff,
        problems=tuple(view.problems),
        missing=tuple(dict.fromkeys(view.missing)),
        action=action,
        frameworks=view.frameworks,
    )


def _grouping(runs: Sequence[StudyRun], by: str | None) -> _Grouping:
    if by:
        return _Grouping(by=by, reason=words.STATED, stated=True, explained=explained(runs, by))
    by, reason = _what_differs(runs)
    return _Grouping(by=by, reason=reason, stated=False)


def _of_runs(runs: Sequence[StudyRun], entries: Sequence[RunEntry], left_out: Sequence[UnusableRun]) -> _View:
    """What is to be said of the runs, however they are compared."""
    of_name = {entry.name: model_of(entry) for entry in entries}
    return _View(
        problems=(
            *_left_out(left_out),
            *problems_of_runs(runs, entries),
            *doubtful_models(runs, {run.label: of_name[run.name] for run in runs}),
        ),
        missing=tuple(map(_unread, left_out)),
    )


def _compare(
    runs: Sequence[StudyRun],
    entries: Sequence[RunEntry],
    grouping: _Grouping,
    mode: str | None,
    asked: StudyRun | None,
) -> _View:
    by, good = grouping.by, usable(runs, entries)
    view = _View()
    if len(runs) == 2 and by != FRAMEWORK:
        view += _diff(runs, entries, grouping, asked)
    if by == FRAMEWORK:
        view += _frameworks(good) + _unlabelled(runs, by)
    elif by == WORLD_SIZE:
        view += _scaling(good, mode, asked)
        if not grouping.stated and len({run.scheme for run in good}) > 1:
            regrouped = [replace(run, group=group_of(run, SCHEME)) for run in good]
            view += _schemes(regrouped, SCHEME, grouping)
    elif by:
        grouped = [run for run in good if run.group]
        view += _unequal(grouped, grouping) + _schemes(grouped, by, grouping) + _unlabelled(runs, by)
    elif view.diff is None:
        problems = forbidding_differences(runs, WARN, (StudyPart.EVERYTHING,))
        view += _View(problems=(*problems, *batch_difference(runs, WARN, (StudyPart.EVERYTHING,))))
    return view + _common(runs, by, is_diff=view.diff is not None)


def _check(entries: Sequence[RunEntry], by: str | None, mode: str | None) -> None:
    if not entries:
        raise ValueError("no run was given")
    if mode not in (None, STRONG, WEAK):
        raise ValueError(f"mode {mode!r} is neither strong nor weak")
    if by is not None:
        names_of(by)


def _reference(runs: Sequence[StudyRun], reference: str | None) -> StudyRun | None:
    if reference is None:
        return None
    wanted = reference.rstrip("/")
    study_runs = [run for run in runs if wanted in (run.label, run.name.rstrip("/"))]
    if len(study_runs) > 1:
        raise ValueError(f"reference {reference} is the name of {len(study_runs)} runs: name one by its path")
    if not study_runs:
        raise ValueError(f"reference {reference} is none of the runs: {named([run.label for run in runs])}")
    return study_runs[0]


def _only_one(run: StudyRun) -> Problem:
    text = problem_words.only_one(run.label)
    return Problem(severity=REFUSE, id=ProblemKind.ONE_RUN, text=text, runs=(run.label,))


def _grouped(run: StudyRun, by: str) -> StudyRun:
    """The run in its group; what it is grouped by tells it from other settings, too."""
    group = group_of(run, by)
    beside = group and settings_beside(by)
    return replace(run, group=group, repeat_key=run.repeat_key + (f"{SEPARATOR}{group}" if beside else ""))


def _what_differs(runs: Sequence[StudyRun]) -> tuple[str, str]:
    """What runs are compared by where the user has not said, and why."""
    if all(run.framework_run for run in runs) and len({run.framework for run in runs}) > 1:
        return FRAMEWORK, words.BY_FRAMEWORK
    sizes: dict[tuple[str, str], set[int | None]] = defaultdict(set)
    for run in runs:
        sizes[run.scheme, run.model].add(run.world_size)
    serial = {model for scheme, model in sizes if scheme == "serial"}
    scales = any(
        len(of) > 1 or (scheme != "serial" and model in serial and of - {1})
        for (scheme, model), of in sizes.items()
    )
    schemes = {run.scheme for run in runs if run.scheme}
    if scales and len(schemes - {"serial"}) > 1:
        return WORLD_SIZE, words.BY_SIZE_AND_SCHEME
    if scales:
        return WORLD_SIZE, words.BY_SIZE
    if len(schemes) > 1:
        return SCHEME, words.BY_SCHEME
    names = sorted({name for run in runs for name in run.labels})
    telling = [name for name in names if len({run.labels.get(name) for run in runs} - {None}) > 1]
    if len(telling) == 1:
        return f"{LABEL}{telling[0]}", words.by_label(telling[0])
    if len(telling) > 1:
        return "", words.by_labels(telling)
    if len({run.world_size for run in runs}) > 1:
        return WORLD_SIZE, words.BY_SIZE
    return "", words.BY_NOTHING


def _diff(
    runs: Sequence[StudyRun], entries: Sequence[RunEntry], grouping: _Grouping, asked: StudyRun | None
) -> _View:
    """As given, or from the reference to the other."""
    left = list(runs)
    pairs = []
    for entry in entries:
        run = next(study_run for study_run in left if study_run.name == entry.name)
        left.remove(run)
        pairs.append((run, entry))
    if asked is not None and pairs[1][0].label == asked.label:
        pairs.reverse()
    by = grouping.may_differ if any(run.group for run in runs) else ""
    problems = forbidding_differences(runs, REFUSE, _DIFF, by=by, explained=grouping.explained)
    if len({run.world_size for run in runs}) == 1:  # of others it is a matter of strong or weak scaling
        problems += batch_difference(runs, REFUSE, _DIFF, by=by, explained=grouping.explained)
    return _View(diff=run_diff(pairs[0], pairs[1]), problems=problems)


def _scaling(runs: Sequence[StudyRun], mode: str | None, asked: StudyRun | None) -> _View:
    scaling, problems = scaling_study(runs, mode, asked)
    problems = [*problems, *forbidding_differences(runs, REFUSE, _SCALING)]
    if scaling is None:
        cause = Cause.SINGLE_RANK_RUNS if runs else Cause.NO_USABLE_RUN
        return _View(problems=problems, missing=[missing_figure(Figure.SCALING, cause, of_series="")])
    missing = []
    for series in scaling.series:
        if series.refused:
            assert series.refusal
            of = scaling_words.of_series(series.name)
            entry = missing_figure(Figure.SCALING, Cause.REFUSED, of_series=of, reason=series.refused)
            missing.append(entry)
            text = scaling_words.not_shown(series.name, series.refused)
            problems.append(Problem(severity=REFUSE, id=series.refusal, text=text, affects=_SCALING))
    return _View(scaling=scaling, problems=problems, missing=missing)


def _frameworks(runs: Sequence[StudyRun]) -> _View:
    studies = framework_studies(runs)
    missing = [entry for study in studies for entry in study.missing]
    if not studies:
        missing.append(missing_figure(Figure.WINNER, Cause.NO_FRAMEWORK))
    return _View(frameworks=studies, problems=separating_problems(runs), missing=missing)


def _unequal(runs: Sequence[StudyRun], grouping: _Grouping) -> _View:
    """What keeps grouped runs from being compared."""
    by, named_ = grouping.may_differ, grouping.explained
    problems = [*forbidding_differences(runs, REFUSE, _SCHEMES, by=by, explained=named_)]
    if WORLD_SIZE in named_:
        problems += batch_difference(runs, REFUSE, _SCHEMES, by=by, explained=named_) if runs else []
        return _View(problems=problems)
    problems += _unequal_sizes(runs, grouping.by, named_)
    for size in {run.world_size for run in runs}:
        same = [run for run in runs if run.world_size == size]
        problems += batch_difference(same, REFUSE, _SCHEMES, by=by, explained=named_)
    return _View(problems=problems)


def _schemes(runs: Sequence[StudyRun], by: str, grouping: _Grouping) -> _View:
    studies = scheme_studies(runs, by, grouping.explained, grouping.basis)
    missing = [
        missing_figure(Figure.WINNER, Cause.REFUSED, reason=study.refused)
        for study in studies
        if study.refused
    ]
    if not studies:
        missing.append(missing_figure(Figure.WINNER, Cause.NOT_GROUPED))
    compared = {label for study in studies for row in study.rows for label in row.runs}
    alone = [run.label for run in runs if run.label not in compared]
    if alone:
        missing.append(missing_figure(Figure.RATIOS, Cause.NO_COUNTERPART, runs=named(alone)))
    return _View(schemes=studies, missing=missing)


def _unequal_sizes(runs: Sequence[StudyRun], by: str, named_: Collection[str]) -> list[Problem]:
    """Groups whose runs have several numbers of ranks, and groups that have others than their fellows."""
    groups: dict[str, set[int | None]] = defaultdict(set)
    for run in runs:
        groups[run.group].add(run.world_size)
    if len({run.world_size for run in runs}) < 2:
        return []
    classes: dict[object, set[str]] = defaultdict(set)
    for run in runs:
        classes[comparison_class(run, named_)].add(run.repeat_key)
    is_unequal = any(len(keys) > 1 for keys in classes.values())
    several = any(len(sizes) > 1 for sizes in groups.values())
    text = problem_words.unequal_sizes(
        by.removeprefix(LABEL) if several else "",
        {name: sorted(sizes, key=lambda size: size or 0) for name, sizes in groups.items()},
        with_name(by, WORLD_SIZE),
        some_compared=is_unequal,
    )
    return [
        Problem(
            severity=WARN if is_unequal else REFUSE,
            id=ProblemKind.UNEQUAL_WORLD_SIZES,
            text=text,
            runs=tuple(run.label for run in runs),
            affects=_SCHEMES,
        )
    ]


def _unlabelled(runs: Sequence[StudyRun], by: str) -> _View:
    without = tuple(run.label for run in runs if not run.group)
    if not without:
        return _View()
    text = problem_words.no_value(without, by.removeprefix(LABEL), is_label=by.startswith(LABEL))
    severity = REFUSE if len(runs) - len(without) < 2 else WARN
    problem = Problem(severity=severity, id=ProblemKind.NO_LABEL, text=text, runs=without, affects=_SCHEMES)
    return _View(problems=(problem,))


def _unread(run: UnusableRun) -> Missing:
    return missing_figure(Figure.STUDY_RUN, Cause.RUN_LEFT_OUT, run=run.name, reason=run.reason)


def _left_out(lost: Sequence[UnusableRun]) -> list[Problem]:
    if not lost:
        return []
    reasons: dict[str, list[str]] = defaultdict(list)
    for run in lost:
        reasons[run.reason].append(run.name)
    text = problem_words.left_out(reasons, _REASONS)
    return [Problem(severity=WARN, id=ProblemKind.LEFT_OUT, text=text)]


def _common(runs: Sequence[StudyRun], by: str, *, is_diff: bool) -> _View:
    """What all of the study's figures rest on."""
    problems = shared_differences(runs, (StudyPart.EVERYTHING,), libraries_of_groups=by == FRAMEWORK)
    commands: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for run in runs:
        if not run.scheme and not run.framework_run:  # whose commands name temporary files
            commands[run.repeat_key].add(run.command)
    keys = {key for key, of in commands.items() if len(of) > 1}
    if keys and not is_diff:
        labels = tuple(run.label for run in runs if run.repeat_key in keys)
        text = problem_words.other_command(labels)
        kind = ProblemKind.OTHER_COMMAND
        problems = [*problems, Problem(severity=WARN, id=kind, text=text, runs=labels)]
    return _View(problems=problems)


def _ordered(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Refusals first, each said once with all that it affects."""
    distinct: dict[tuple[str, str, str], Problem] = {}
    for problem in problems:
        key = (problem.severity, problem.id, problem.text)
        earlier = distinct.get(key)
        affects = dict.fromkeys((*(earlier.affects if earlier else ()), *problem.affects))
        distinct[key] = replace(problem, affects=tuple(affects))
    return tuple(sorted(distinct.values(), key=lambda problem: problem.severity != REFUSE))


def _with_more_steps(study: SchemeStudy, problems: Sequence[Problem]) -> str:
    """The verdict's action; where its speeds are of traced steps, these come first."""
    action = study.verdict.action if study.verdict else ""
    traced = {
        label for problem in problems if problem.id is ProblemKind.TRACED_SPEED for label in problem.runs
    }
    if not any(traced & set(row.runs) for row in study.rows):
        return action
    return words.more_steps(action)


def _headline(runs: Sequence[StudyRun], view: _View, stated: str) -> tuple[str, str]:
    """The one sentence over the whole study, and what to do about it; `stated`: --by."""
    if view.scaling is not None:
        scaling_series = [series for series in view.scaling.series if not series.refused]
        if scaling_series:
            best = max(
                scaling_series,
                key=lambda series: (series.points[-1].world_size, series.points[-1].samples_per_s),
            )
            text = words.of_series(best.name, best.sentence) if len(scaling_series) > 1 else best.sentence
            return text, best.action
    if view.frameworks:
        return verdict_of(view.frameworks)
    for study in sorted(view.schemes, key=lambda scheme_study: -len(scheme_study.rows)):
        if study.verdict is not None:
            return study.verdict.headline, _with_more_steps(study, view.problems)
    if view.diff is not None:
        return view.diff.headline, view.diff.action or (_remedy(view) if view.diff.refused else "")
    refusals = sum(problem.severity == REFUSE for problem in view.problems)
    if refusals:
        return words.refused(len(runs), refusals), _remedy(view)
    if stated:
        why = next(
            (cause_text(missing) for missing in view.missing if missing.figure in _ASKED), words.SEE_PROBLEMS
        )
        return words.not_compared_by(len(runs), stated, why), ""
    return words.choose(len(runs)), ""


def _remedy(view: _View) -> str:
    of = (
        words.REMEDIES[problem.id]
        for problem in view.problems
        if problem.severity == REFUSE and problem.id in words.REMEDIES
    )
    return next(of, "")
