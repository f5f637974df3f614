"""Section "What changed": two runs, largest change first."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope import units
from perfscope.analysis.study.results import DiffRow, DiffSection, RunDiff, StudyAnalysis
from perfscope.reports.display import visible
from perfscope.reports.model import Block, Column, Note, Section, Table, Unit, Value, format_value
from perfscope.reports.study.formatting import LONGEST, compositions, ratio_tone

UNITS = {
    "time": Unit.TIME,
    "bytes": Unit.BYTES,
    "count": Unit.NUMBER,
    "ratio": Unit.RATIO,
    "rate": Unit.SAMPLES,
    "text": Unit.TEXT,
}
MOST_ROWS = 40  # on paper
_KEY = "blue: shorter, orange: longer; the darker, the more"


def diff_sections(study: StudyAnalysis) -> list[Section]:
    diff = study.diff
    if diff is None:
        return []
    blocks: list[Block | None] = [_composition(study, diff)]
    blocks += [_table(section, diff) for section in diff.sections if section.rows]
    blocks += [
        Note(text=f"{visible(section.title, 120)}: {visible(section.reason, LONGEST)}.")
        for section in diff.sections
        if section.reason
    ]
    same = [
        f"{visible(section.title, 120)} ({section.num_same:,})"
        for section in diff.sections
        if not section.rows and not section.reason and section.num_same
    ]
    if same:
        blocks.append(Note(text=f"Without any change: {', '.join(same)}."))
    present = tuple(block for block in blocks if block is not None)
    return [
        Section(
            id="study-diff",
            tables="every",
            title="What changed",
            lead=visible(_lead(study, diff), LONGEST),
            blocks=present or (Note(text="The two runs do not differ."),),
        )
    ]


def _lead(study: StudyAnalysis, diff: RunDiff) -> str:
    """What the report's first sentence does not tell: it is about the speeds already."""
    return diff.moved if study.headline != diff.headline else ""


def _composition(study: StudyAnalysis, diff: RunDiff) -> Block | None:
    runs = [study.run(label) for label in (diff.before, diff.after)]
    return compositions(
        "study-diff-composition",
        "Where the step goes",
        [(run.label, run.composition) for run in runs],
        "Mean over ranks and traced steps.",
    )


def _table(section: DiffSection, diff: RunDiff) -> Table:
    kinds = {row.unit for row in section.rows}
    single = UNITS.get(next(iter(kinds)), Unit.TEXT) if len(kinds) == 1 else None
    wordy = kinds == {"text"}
    heat = () if wordy or diff.refused else tuple(_heat(row) for row in section.rows)
    same = f"{section.num_same:,} without a change are left out." if section.num_same else ""
    key = _KEY if any(map(any, heat)) else ""
    columns = [
        Column(key="what", title="What", primary=True),
        Column(key="before", title="Before", unit=single or Unit.TEXT, primary=True),
        Column(key="after", title="After", unit=single or Unit.TEXT, primary=True),
    ]
    if not wordy:
        columns.append(
            Column(
                key="change", title="Change", unit=single or Unit.TEXT, signed=True, primary=True, hint=key
            )
        )
        if not diff.refused:
            columns.append(Column(key="ratio", title="After / before", unit=Unit.FACTOR, primary=True))
        has_share = any(row.share is not None for row in section.rows)
        columns.append(Column(key="share", title="Of the difference", unit=Unit.RATIO, primary=has_share))
    columns.append(Column(key="note", title="Note"))
    return Table(
        id=f"study-diff-{visible(section.id, 40)}",
        terminal_form="changes" if wordy else "columns",
        title=visible(section.title, 120),
        columns=tuple(columns),
        rows=tuple(_row(row, single, wordy, bool(diff.refused)) for row in section.rows),
        heat=heat,
        caption=same,
        print_rows=MOST_ROWS,
    ).trimmed()


def _row(row: DiffRow, single: Unit | None, wordy: bool, refused: bool) -> tuple[Value, ...]:
    unit = UNITS.get(row.unit, Unit.TEXT)
    note = f"only {row.only}" if row.only else None
    sides: Sequence[Value] = [row.before, row.after]
    if single is None or single is Unit.TEXT:
        sides = [None if side is None else visible(_text(unit, side), LONGEST) for side in sides]
    if wordy:
        return (visible(row.what, 160), *sides, note)
    change: Value = row.change
    if single is None:
        change = None if row.change is None else units.with_sign(_text(unit, row.change), row.change)
        if change and unit is Unit.RATIO:
            change = change.replace("%", "points")  # of percent: +1.5 % would be of the share itself
    ratio = () if refused else (row.ratio,)
    return (visible(row.what, 160), *sides, change, *ratio, row.share, note)


def _text(unit: Unit, value: Value) -> str:
    """As everywhere, but of small plain figures, such as losses, as many digits as tell them apart."""
    if isinstance(value, float) and unit in (Unit.TEXT, Unit.NUMBER) and value != round(value):
        return f"{value:,.4g}"
    return format_value(unit, value)


def _heat(row: DiffRow) -> tuple[str, ...]:
    """Times tell what is worse: longer. Of everything else more is neither good nor bad."""
    tone = ratio_tone(row.ratio, less_is_good=True) if row.unit == "time" else ""
    return ("", "", "", tone, tone, "", "")
