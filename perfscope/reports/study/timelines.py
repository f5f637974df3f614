"""Section "Timelines": a traced step of each of two runs, one above the other on one axis of time."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from perfscope import units
from perfscope.analysis.study.results import StudyAnalysis
from perfscope.analysis.timeline_extract import TimelineExtract
from perfscope.analysis.timeline_pair import MOST_RANKS, TimelinePair, pair_timelines
from perfscope.messages.comparison.exposed import signed
from perfscope.messages.lists import counted
from perfscope.messages.study import PART_TITLES
from perfscope.reports.display import visible
from perfscope.reports.model import ComparedRuns, LaneGrouping, Note, Section, Timeline
from perfscope.reports.sections.timeline import LONGEST_NAME, in_order, span_title

_NAMED_PARTS = 4  # whose change is said
_SHORT = 0.005  # of the step: changes below are left out


def timelines_section(study: StudyAnalysis, timelines: Mapping[str, TimelineExtract]) -> Section | None:
    """None where it is not two runs, or nothing of them was read. `timelines`: by the runs' names."""
    diff = study.diff
    if diff is None or not timelines:
        return None
    runs = [study.run(label) for label in (diff.before, diff.after)]
    extracts = [timelines.get(run.name) for run in runs]
    untraced = [
        visible(run.label, 80)
        for run, extract in zip(runs, extracts, strict=True)
        if extract is None or not any(window.steps for window in extract.windows)
    ]
    title = "Timelines"
    before, after = extracts
    pair = None if before is None or after is None or untraced else pair_timelines(before, after)
    if before is None or after is None or pair is None:
        which = " and ".join(untraced) or "one of the runs"
        note = Note(text=f"No step of {which} was traced, so there are no timelines to compare.")
        return Section(id="timeline", title=title, blocks=(note,))
    labels = (visible(diff.before, 40), visible(diff.after, 40))
    block = _block(pair, labels)
    return Section(id="timeline", title=title, lead=_lead(study), blocks=(block,))


def _block(pair: TimelinePair, labels: tuple[str, str]) -> Timeline:
    windows = tuple(in_order(window) for window in pair.extract.windows)
    extract = structs.replace(pair.extract, windows=windows)
    steps = tuple(((before.step, before.dur_ns), (after.step, after.dur_ns)) for before, after in pair.steps)
    return Timeline(
        id="timeline-chart",
        title="A traced step of each run, one row per rank and thread or stream",
        extract=extract,
        strings=tuple(visible(span_title(text), LONGEST_NAME) for text in extract.strings),
        focus=(0, 0, windows[0].dur_ns),
        caption=_caption(pair),
        groupings=(
            LaneGrouping(
                key="run",
                title="run",
                names=labels,
                group_of={rank: run for rank, (run, _) in pair.ranks.items()},
            ),
        ),
        compared=ComparedRuns(runs=labels, ranks=pair.ranks, steps=steps),
    )


def _caption(pair: TimelinePair) -> str:
    sentences = ["Both steps begin at 0; the steps with the median durations are shown first."]
    drawn = [sum(run == side for run, _ in pair.ranks.values()) for side in (0, 1)]
    if max(drawn) == MOST_RANKS:
        sentences.append(
            f"Of a run with more than {counted(MOST_RANKS, 'rank')} those are drawn that compute longest, "
            "shortest, and the median."
        )
    return " ".join(sentences)


def _lead(study: StudyAnalysis) -> str:
    """What the mean traced steps differ by, and in which parts."""
    assert study.diff is not None
    runs = [study.run(label).composition for label in (study.diff.before, study.diff.after)]
    before, after = runs
    if before is None or after is None:
        return ""
    changes = {part: getattr(after, part) - getattr(before, part) for part in PART_TITLES}
    notable = [
        f"{PART_TITLES[part]} {signed(change)}"
        for part, change in sorted(changes.items(), key=lambda item: -abs(item[1]))
        if abs(change) >= _SHORT * before.step
    ]
    whole = after.step - before.step
    sentence = (
        f"Mean traced step: {units.format_ns(before.step)} → {units.format_ns(after.step)} ({signed(whole)})"
    )
    return f"{sentence}: {', '.join(notable[:_NAMED_PARTS])}." if notable else f"{sentence}."
