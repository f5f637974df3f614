"""Section "Phases": time by the names that the program and its frameworks give, and of calls that perfscope
times."""

from __future__ import annotations

from perfscope.analysis.phases import PhaseResult
from perfscope.analysis.results import RunAnalysis
from perfscope.messages.lists import ranks_of
from perfscope.reports.display import visible
from perfscope.reports.model import Block, Column, Note, Section, Table, Unit, Value
from perfscope.vocabulary.host_calls import SOURCE

MOST_ROWS = 100
FEW_ROWS = 16  # so many are all listed
LEAST = 0.0002  # of the run: where there are more, shorter ones are left out
_LONGEST = 80
_SOURCES = {
    "perfscope": "perfscope.phase",
    "nvtx": "NVTX",
    "lightning": "Lightning",
    "transformers": "Trainer",
    SOURCE: "perfscope (call)",
}


def phases_section(analysis: RunAnalysis) -> Section | None:
    """None where nothing was marked, and the training thread made none of the calls that perfscope times."""
    if not analysis.phases:
        return None
    blocks: list[Block] = [_table(analysis)]
    still_open = [phase for phase in analysis.phases if any(rank.is_open for rank in phase.ranks)]
    if still_open:
        blocks.append(Note(text=_open_text(still_open), tone="plain"))
    return Section(id="phases", title="Phases", blocks=tuple(blocks))


def _table(analysis: RunAnalysis) -> Table:
    wall = analysis.whole_run.wall_ns if analysis.whole_run is not None else None
    longest = sorted(analysis.phases, key=lambda phase: -phase.ns)[:MOST_ROWS]
    least = 0.0 if wall is None or len(longest) <= FEW_ROWS else wall * LEAST
    listed = [phase for phase in analysis.phases if phase.ns >= max(least, longest[-1].ns)]
    hidden = len(analysis.phases) - len(listed)
    several = len({rank.rank for phase in listed for rank in phase.ranks}) > 1
    left_out = f" Not listed: {hidden:,} shorter phases." if hidden else ""
    return Table(
        id="phases-table",
        title="Time of phases by name" + (", mean over ranks" if several else ""),
        columns=(
            Column(key="phase", title="Phase", primary=True),
            Column(key="time", title="Time", unit=Unit.TIME, bar="compute", primary=True),
            Column(key="share", title="Of the run", unit=Unit.RATIO, primary=True),
            Column(key="own", title="Own time", unit=Unit.TIME),
            Column(key="step", title="Per step", unit=Unit.TIME, primary=True),
            Column(key="before", title="Before steps", unit=Unit.TIME),
            Column(key="steps", title="In steps", unit=Unit.TIME),
            Column(key="other", title="Between and after", unit=Unit.TIME),
            Column(key="count", title="Count", unit=Unit.COUNT),
            Column(key="longest", title="Longest rank", unit=Unit.TIME),
            Column(key="rank", title="Rank", unit=Unit.COUNT),
            Column(key="source", title="Marked by"),
        ),
        rows=tuple(_row(phase, wall, several=several) for phase in listed),
        terminal_rows=16,
        caption="A nested phase is indented, and part of the phase around it. Own time is without nested "
        f"phases.{left_out}",
    )


def _row(phase: PhaseResult, wall_ns: int | None, *, several: bool) -> tuple[Value, ...]:
    longest = max(phase.ranks, key=lambda rank: rank.ns)
    indent = "\u2003" * (len(phase.path) - 1)
    thread = "" if phase.is_training_thread else " (other threads)"
    return (
        f"{indent}{visible(phase.name, _LONGEST)}{thread}",
        phase.ns,
        phase.ns / wall_ns if wall_ns else None,
        phase.own_ns,
        phase.per_step_ns,
        phase.before_ns,
        phase.in_steps_ns,
        max(0, phase.ns - phase.before_ns - phase.in_steps_ns),
        round(phase.count),
        longest.ns if several else None,
        longest.rank if several else None,
        _SOURCES.get(phase.source, visible(phase.source, _LONGEST)),
    )


def _open_text(phases: list[PhaseResult]) -> str:
    each = "; ".join(
        f"{visible(phase.name, _LONGEST)} on {ranks_of([rank.rank for rank in phase.ranks if rank.is_open])}"
        for phase in phases[:8]
    )
    return f"Not ended when the record ends, so that their time may be longer: {each}."
