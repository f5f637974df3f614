"""Section "Hangs": ranks that made no step for long, and where they stood."""

from __future__ import annotations

from msgspec.structs import replace

from perfscope.analysis.hangs import Hang, HungRank
from perfscope.analysis.results import RunAnalysis
from perfscope.messages.hangs import Place, hang_action, hang_sentence, place_text
from perfscope.messages.lists import ranks_of
from perfscope.reports.display import visible
from perfscope.reports.model import Column, Note, Section, Table, Unit, Value, Verdict
from perfscope.reports.moments import utc
from perfscope.vocabulary.hangs import HangEnd

_ENDS = {
    HangEnd.RESUMED: "went on",
    HangEnd.RUN_FAILED: "the run was ended",
    HangEnd.RUN_EXITED: "the run ended by itself",
    HangEnd.NOT_CLOSED: "the run was not closed",
}
_SOURCES = {"py-spy": "py-spy", "mark": "last mark"}
_LONGEST = 400


def hangs_section(analysis: RunAnalysis) -> Section | None:
    """None where no rank hung."""
    if not analysis.hangs:
        return None
    table = Table(
        id="hangs-table",
        title="Ranks that made no step, by where they stood",
        columns=(
            Column(key="since", title="Since", primary=True),
            Column(key="stood", title="For", unit=Unit.TIME, primary=True),
            Column(key="ranks", title="Ranks", primary=True),
            Column(key="place", title="Where they stood", primary=True),
            Column(key="source", title="Known from"),
            Column(key="steps", title="Steps made", unit=Unit.COUNT),
            Column(key="usual", title="Median step", unit=Unit.TIME),
            Column(key="end", title="How it ended"),
        ),
        rows=tuple(row for hang in analysis.hangs for row in _rows(hang)),
        terminal_rows=12,
        caption="A rank hangs that makes no step for ten times its median one, and at least for a minute "
        "(--hang-after), while no rank evaluates or writes a checkpoint.",
    )
    lead = " ".join(_sentence(analysis, hang) for hang in analysis.hangs[:3])
    return Section(id="hangs", title="Hangs", lead=lead, blocks=(table,))


def hang_notices(analysis: RunAnalysis) -> tuple[Note, ...]:
    """What must be said before the figures, of hangs after which the run went on."""
    return tuple(
        Note(text=_sentence(analysis, hang), tone="caution")
        for hang in analysis.hangs
        if hang.end is HangEnd.RESUMED
    )


def with_hang(analysis: RunAnalysis, verdict: Verdict) -> Verdict:
    """The verdict of a run that ended while it hung begins with that."""
    hang = next((hang for hang in reversed(analysis.hangs) if hang.is_last_word), None)
    if hang is None:
        return verdict
    # The flight recorder's dumps are of the hang itself.
    of_hang = bool(analysis.progress) and analysis.progress[0].is_open
    before = verdict.headline if of_hang else f"Before that: {verdict.headline}"
    return replace(
        verdict,
        headline=_sentence(analysis, hang),
        detail=f"{before} {verdict.detail}".strip(),
        action=visible(hang_action(_places(hang)), _LONGEST),
        tone="caution",
        confidence="",
        symptoms=(),
        links=(),
    )


def _sentence(analysis: RunAnalysis, hang: Hang) -> str:
    ending = analysis.run.exit
    signal = None if ending is None else ending.signal
    return visible(hang_sentence(_places(hang), hang.stood_ns, hang.end, signal), _LONGEST)


def _places(hang: Hang) -> list[tuple[int, Place]]:
    return [(rank.rank, rank.place) for rank in hang.ranks]


def _rows(hang: Hang) -> list[tuple[Value, ...]]:
    alike: dict[str, list[HungRank]] = {}
    for rank in hang.ranks:
        alike.setdefault(place_text(rank.place), []).append(rank)
    return [
        (
            utc(min(rank.since_unix_ns for rank in ranks)),
            hang.stood_ns,
            ranks_of([rank.rank for rank in ranks]),
            visible(text, _LONGEST) or "not known",
            _SOURCES.get(ranks[0].source, "the kernel" if ranks[0].state else None),
            max(rank.steps for rank in ranks),
            ranks[0].usual_ns,
            _ENDS[hang.end],
        )
        for text, ranks in alike.items()
    ]
