"""Turns a study into the one Report that every renderer draws: the verdict first, then why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from perfscope import __version__, units
from perfscope.analysis.study.results import (
    REFUSE,
    Problem,
    RunDiff,
    ScalingSeries,
    SchemeStudy,
    StudyAnalysis,
)
from perfscope.analysis.timeline_extract import TimelineExtract
from perfscope.messages.links import WHERE
from perfscope.messages.lists import counted
from perfscope.reports.display import visible
from perfscope.reports.model import KeyFigure, Note, Report, Section, Unit, Verdict, format_value
from perfscope.reports.study.diff import diff_sections
from perfscope.reports.study.document import build_study_document
from perfscope.reports.study.formatting import LONGEST, listed, times
from perfscope.reports.study.frameworks import (
    framework_figures,
    framework_sections,
    framework_sentences,
)
from perfscope.reports.study.runs import MOST_WARNINGS, missing_section, problems_section, runs_section
from perfscope.reports.study.scaling import points_reference, scaling_sections
from perfscope.reports.study.schemes import scheme_sections
from perfscope.reports.study.timelines import timelines_section
from perfscope.vocabulary.comparison import ProblemKind

_END = re.compile(r"(?<=[\w)%])\. +(?=\S)")  # of a sentence; the next may begin with the name of a run
_SENTENCE = re.compile(r"(?<=[\w)])\. +(?=[A-Z])")
_PER_CENT = re.compile(r"(?<=\d) %")
UNCERTAIN = "?"
NOT_COMPARED = "each by itself: not compared"
NO_TIMES: Mapping[str, int] = MappingProxyType({})
NO_TIMELINES: Mapping[str, TimelineExtract] = MappingProxyType({})


def build_study_report(
    study: StudyAnalysis,
    started: Mapping[str, int] = NO_TIMES,
    timelines: Mapping[str, TimelineExtract] = NO_TIMELINES,
) -> Report:
    """The report of several runs.

    Args:
        study: the figures.
        started: name of a run -> when it started, Unix time in ns.
        timelines: of two runs, name of a run -> what of it is drawn.
    """
    scaling, schemes = scaling_sections(study), scheme_sections(study)
    sections: list[Section | None] = [
        timelines_section(study, timelines),
        *diff_sections(study),
        *framework_sections(study),
        *([*scaling, *schemes] if study.by == "world_size" else [*schemes, *scaling]),
        problems_section(study),
        missing_section(study),
        runs_section(study, started),
    ]
    return Report(
        title=_title(study),
        subtitle=_subtitle(study),
        verdict=_verdict(study),
        overview=None,
        figures=tuple(_figures(study)),
        sections=tuple(section for section in sections if section is not None),
        document=build_study_document(study, started),
        version=__version__,
        notices=tuple(_notices(study)),
    )


def _title(study: StudyAnalysis) -> str:
    if study.diff is not None:
        return f"{visible(study.diff.before, 80)} against {visible(study.diff.after, 80)}"
    return f"{len(study.runs):,} runs compared"


def _subtitle(study: StudyAnalysis) -> str:
    """What the runs share."""
    if len(study.schemes) == 1 and study.schemes[0].title:
        return visible(study.schemes[0].title, LONGEST)
    models = list(dict.fromkeys(run.model for run in study.runs if run.model))
    machines = list(dict.fromkeys(run.machine.text for run in study.runs if run.machine.text))
    return visible(", ".join(values[0] for values in (models, machines) if len(values) == 1), LONGEST)


def _verdict(study: StudyAnalysis) -> Verdict:
    refused = any(problem.severity == REFUSE for problem in study.problems) or _cannot_tell(study)
    first, remainder = first_sentence(study.headline)
    points = [point for text in _details(study) for point in sentences_of(text)]
    return Verdict(
        headline=together(visible(first, LONGEST)),
        detail=visible(remainder, LONGEST),
        points=tuple(visible(point, LONGEST) for point in points),
        action=visible(study.action, LONGEST),
        tone="caution" if refused else "plain",
    )


def _cannot_tell(study: StudyAnalysis) -> bool:
    """Whether what was measured says nothing."""
    return any(
        entry is not None and entry.cannot_tell is not None
        for entry in (
            *(study.scaling.series if study.scaling else ()),
            *(schemes.verdict for schemes in study.schemes),
            study.diff,
        )
    )


def sentences_of(text: str) -> list[str]:
    """Each with its full stop."""
    pieces = _END.split(text)
    return [f"{piece.rstrip('.')}." for piece in pieces] if len(pieces) > 1 else [text]


def first_sentence(text: str) -> tuple[str, str]:
    """The sentence that becomes the title, and the rest."""
    match = _SENTENCE.search(text)
    return (text, "") if match is None else (text[: match.start() + 1], text[match.end() :])


def together(text: str) -> str:
    """`text` with figures that keep their unit on the same line."""
    return _PER_CENT.sub("\u00a0%", text)


def _details(study: StudyAnalysis) -> Iterator[str]:
    """Why, and where it would turn; what the headline says already is not said again."""
    sentences = [study.headline]
    for text in _sentences(study):
        if text and text not in sentences:
            sentences.append(text)
            yield text  # one that begins with a small letter begins with the name of a run or a scheme


def _sentences(study: StudyAnalysis) -> Iterator[str]:
    yield from _undermined(study)
    yield from framework_sentences(study)
    for schemes in study.schemes[:1]:
        if schemes.verdict is not None:
            yield from (schemes.verdict.why, schemes.verdict.turn)
    for series in study.scaling.series[:1] if study.scaling else ():
        yield series.sentence
        yield series.verdict
        yield from (growth.sentence for growth in series.what_grew[:1])
    if study.diff is not None and not study.schemes and study.scaling is None:
        yield study.diff.headline


def _undermined(study: StudyAnalysis) -> Iterator[str]:
    """What takes the ground from under the speeds that the headline is about."""
    traced = {
        label
        for problem in study.problems
        if problem.id is ProblemKind.TRACED_SPEED
        for label in problem.runs
    }
    points = [
        point for series in (study.scaling.series[:1] if study.scaling else ()) for point in series.points
    ]
    rows = [row for schemes in study.schemes[:1] if schemes.verdict for row in schemes.rows]
    labels = {label for entry in points or rows for label in entry.runs}
    if traced & labels:
        which = "its samples/s" if labels <= traced else "some of its samples/s"
        yield f"Rely on this order with care: {which} count traced steps, which tracing slows unequally."


def _notices(study: StudyAnalysis) -> Iterator[Note]:
    """Refusals, all of them, then the first warnings."""
    for problem in study.problems:
        if problem.severity == REFUSE:
            yield Note(text=f"May not be compared: {_problem(problem)}", tone="refuse")
    refused = len(study.problems) > 0 and study.refused
    where = "What may not be compared" if refused else "Caveats"
    warnings = [problem for problem in study.problems if problem.severity != REFUSE]
    for problem in warnings[:MOST_WARNINGS]:
        yield Note(text=_problem(problem), tone="caution")
    if len(warnings) > MOST_WARNINGS:
        yield Note(text=f"{len(warnings) - MOST_WARNINGS} more to mind: see “{where}”.")
    cautions = [
        scheme_study.verdict.caution
        for scheme_study in study.schemes
        if scheme_study.verdict and scheme_study.verdict.caution
    ]
    yield from (Note(text=visible(text, LONGEST), tone="caution") for text in dict.fromkeys(cautions))


# Problems whose text does not say which runs have them.
_RUNS_NOT_NAMED = (ProblemKind.NO_REFERENCE, ProblemKind.SUPERLINEAR, ProblemKind.UNEQUAL_WORLD_SIZES)


def _problem(problem: Problem) -> str:
    runs = problem.runs if problem.id in _RUNS_NOT_NAMED else ()
    return visible(problem.text, LONGEST) + (f" ({listed(runs)})" if runs else "")


def _figures(study: StudyAnalysis) -> Iterator[KeyFigure]:
    if study.diff is not None:
        yield from _diff_figures(study)
    else:
        for series in study.scaling.series[:1] if study.scaling else ():
            yield from _scaling_figures(series)
        for schemes in study.schemes[:1]:
            yield from _scheme_figures(schemes)
        yield from framework_figures(study)
    keys = {run.repeat_key for run in study.runs}
    per = counted(len(keys), "setting")
    disturbed = sum(bool(run.disturbed) for run in study.runs)
    note = f"{per}; {disturbed:,} disturbed by something else" if disturbed else per
    yield KeyFigure(id="runs", title="Runs", value=f"{len(study.runs):,}", note=note)


def _scaling_figures(series: ScalingSeries) -> Iterator[KeyFigure]:
    if not series.points:
        return
    last, tells = series.points[-1], series.cannot_tell is None
    measured = "" if tells else f"measured {times(last.speedup)}; "
    yield KeyFigure(
        id="speedup",
        title=f"Speedup at {last.world_size:,} ranks",
        value=times(last.speedup) if tells else UNCERTAIN,
        note=f"{measured}ideal {times(last.ideal_speedup)}, over {points_reference(series)}",
    )
    interval = last.efficiency_interval
    note = f"{series.mode or 'unknown'} scaling"
    if not tells:
        note = f"measured {units.format_ratio(last.efficiency)}, {note}"
    if interval is not None:
        note += f"; {units.format_ratio(interval.low)} to {units.format_ratio(interval.high)}"
    yield KeyFigure(
        id="efficiency",
        title=f"Efficiency at {last.world_size:,} ranks",
        value=units.format_ratio(last.efficiency) if tells else UNCERTAIN,
        note=note,
    )
    if tells and series.what_grew and series.what_grew[0].excess_ns > 0:
        grew = series.what_grew[0]
        yield KeyFigure(
            id="grew",
            title="Grew most",
            value=f"+{units.format_ns(grew.excess_ns)}",
            note=f"{visible(grew.title, 80)}, per step, over the ideal",
        )


def _scheme_figures(schemes: SchemeStudy) -> Iterator[KeyFigure]:
    verdict = schemes.verdict
    row = next((scheme for scheme in schemes.rows if verdict and scheme.title == verdict.winner), None)
    if verdict is None or row is None:
        return
    tells = verdict.cannot_tell is None
    note = f"{format_value(Unit.SAMPLES, row.samples_per_s)} samples/s"
    yield KeyFigure(
        id="winner",
        title="Fastest",
        value=visible(row.title, 40) if tells else UNCERTAIN,
        note=note if tells else f"measured fastest: {visible(row.title, 40)}, {note}",
    )
    if verdict.ratio is not None and tells:
        sure = {True: "; the repeats do not distinguish them", None: "; no repeats to say how sure"}
        yield KeyFigure(
            id="lead",
            title="Ahead of the next",
            value=times(verdict.ratio),
            note=f"the samples/s of {visible(verdict.runner_up, 60)}" + sure.get(verdict.level, ""),
        )
    share = row.composition.share("exposed_comm") if row.composition else None
    if share is not None and row.composition is not None:
        yield KeyFigure(
            id="exposed_comm",
            title="Its exposed communication",
            value=units.format_ratio(share),
            note=f"{units.format_ns(row.composition.exposed_comm)} of the traced step",
        )
    for link in row.links[:1]:
        sent = link.recorded if link.recorded is not None else link.predicted
        yield KeyFigure(
            id="bytes",
            title=f"It sends {WHERE.get(link.link_class, visible(link.link_class, 40))}",
            value=units.format_bytes(sent),
            note="per step, all ranks, " + ("recorded" if link.recorded is not None else "by formula"),
        )


def _change(diff: RunDiff, before: float, after: float) -> str:
    if diff.refused:
        return NOT_COMPARED
    return units.format_change(after / before - 1) if before else units.MISSING


def _diff_figures(study: StudyAnalysis) -> Iterator[KeyFigure]:
    assert study.diff is not None
    before, after = study.run(study.diff.before), study.run(study.diff.after)
    first, then = before.typical_step_ns, after.typical_step_ns
    if first is not None and then is not None:
        yield KeyFigure(
            id="step",
            title="Typical step",
            value=f"{units.format_ns(first)} → {units.format_ns(then)}",
            note=_change(study.diff, first, then),
        )
    if before.samples_per_s and after.samples_per_s:
        rates = [format_value(Unit.SAMPLES, run.samples_per_s) for run in (before, after)]
        yield KeyFigure(
            id="rate",
            title="Samples/s",
            value=" → ".join(rates),
            note=(
                NOT_COMPARED
                if study.diff.refused
                else f"{times(after.samples_per_s / before.samples_per_s)} as many"
            ),
        )
    shares = [run.composition.share("exposed_comm") if run.composition else None for run in (before, after)]
    if None not in shares:
        yield KeyFigure(
            id="exposed_comm",
            title="Exposed communication",
            value=" → ".join(units.format_ratio(share) for share in shares),
            note="of the mean traced step",
        )
