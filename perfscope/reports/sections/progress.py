"""Section "Process groups": who hangs where, from the dumps of a flight recorder."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analysis.progress import GroupProgress, RankProgress
from perfscope.analysis.results import RunAnalysis
from perfscope.messages.progress import (
    NO_HANG,
    OPEN_ACTION,
    group_words,
    no_dump_sentence,
    progress_sentence,
)
from perfscope.reports.display import visible
from perfscope.reports.model import Block, Column, Note, Section, Table, Unit, Value, Verdict

_MOST_GROUPS = 64  # drawn; all are in the JSON report
_LIBRARY = "/torch/distributed/"  # frames of PyTorch itself say nothing of the training
_MOST_RANKS = 8
_MOST_FRAMES = 6
_LONGEST = 2000


def progress_verdict(groups: Sequence[GroupProgress]) -> Verdict:
    """What the process group that stopped first is at."""
    first = groups[0]
    without = next((group.without_dump for group in groups if group.without_dump), ())
    return Verdict(
        headline=_sentence(first) if first.is_open else NO_HANG,
        detail=no_dump_sentence(without) if without else "",
        action=OPEN_ACTION[first.state] if first.is_open else "",
        tone="caution" if first.is_open else "good",
    )


def progress_lines(groups: Sequence[GroupProgress]) -> list[str]:
    """One line for each process group that is not over, one for each of its ranks that others wait for."""
    lines = []
    for group in groups[:_MOST_GROUPS]:
        if group.is_open:
            lines.append(_sentence(group))
            rows = [row for row in group.ranks if not row.has_entered] or group.ranks
            lines += [line for row in rows[:_MOST_RANKS] if (line := _at(row))]
    without = next((group.without_dump for group in groups if group.without_dump), ())
    lines += [no_dump_sentence(without)] if without else []
    return lines or [NO_HANG]


def _at(row: RankProgress) -> str:
    _, _, _, _, _, call, shapes, frames = _row(row)
    size, location = f" ({shapes})" if shapes else "", f" at {frames}" if frames else ""
    return f"  rank {row.rank}: {call}{size}{location}" if call else ""


def progress_section(analysis: RunAnalysis) -> Section | None:
    """None without dumps."""
    if not analysis.progress:
        return None
    blocks: list[Block] = []
    for group in analysis.progress[:_MOST_GROUPS]:
        blocks.append(Note(text=_sentence(group), tone="caution" if group.is_open else "plain"))
        blocks.append(_table(len(blocks), group))
    return Section(id="progress", title="Process groups", blocks=tuple(blocks))


def _sentence(group: GroupProgress) -> str:
    group_text = group_words(group.name, group.title)
    collective = (group.seq, group.collectives)
    return visible(
        progress_sentence(group_text, group.state, collective, group.waiting, group.not_entered), _LONGEST
    )


def _table(number: int, group: GroupProgress) -> Table:
    group_text = visible(group_words(group.name, group.title))
    return Table(
        id=f"progress-{number}",
        title=f"Ranks of {group_text}",
        columns=(
            Column(key="rank", title="Rank", unit=Unit.COUNT, primary=True),
            Column(key="enqueued", title="Called", unit=Unit.COUNT, primary=True, hint="last collective"),
            Column(key="started", title="Started", unit=Unit.COUNT, hint="last collective"),
            Column(key="completed", title="Completed", unit=Unit.COUNT, primary=True, hint="last collective"),
            Column(key="p2p", title="Sends, receives", unit=Unit.COUNT, hint="not over"),
            Column(key="call", title="Is at", unit=Unit.CODE, primary=True, hint="or its latest call"),
            Column(key="shapes", title="Input", unit=Unit.CODE),
            Column(key="frames", title="Called from", unit=Unit.CODE),
        ),
        rows=tuple(_row(row) for row in group.ranks),
        terminal_rows=8 if group.is_open else 0,
        cards=True,
    )


def _row(row: RankProgress) -> tuple[Value, ...]:
    call = row.call
    cells: tuple[str, str, str] = ("", "", "")
    if call is not None:
        frames = [_short(frame) for frame in call.frames if _LIBRARY not in frame][:_MOST_FRAMES]
        cells = (f"{call.name} #{call.seq}", ", ".join(call.shapes), " < ".join(frames))
    texts = tuple(visible(text, _LONGEST) for text in cells)
    return (row.rank, row.enqueued, row.started, row.completed, row.num_p2p, *texts)


def _short(frame: str) -> str:
    """``train.py:10 step``: without the file's folder."""
    return frame.rpartition("/")[2]
