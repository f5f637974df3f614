"""Exposed communication of settings side by side, by axis and layer; what tells each from the fastest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from perfscope.analysis.study.results import SchemeRow, SchemeStudy
from perfscope.analysis.study.step_parts import axes_of, by_axis, has_axes
from perfscope.analysis.study.step_results import PartChange, StepDifference
from perfscope.messages.comparison import exposed as words
from perfscope.messages.study import PART_TITLES
from perfscope.reports.display import visible
from perfscope.reports.model import Block, Column, Table, Unit, Value
from perfscope.reports.sections.communication import heat_tone
from perfscope.reports.study.formatting import LONGEST

MOST_SETTINGS = 6  # columns of the table by layer; it must fit a page
MOST_CHANGES = 6  # of each setting
STEP, OTHERS = "step", "all other parts"
OTHER_BATCHES = " The settings' steps have other batches."


def exposed_blocks(schemes: SchemeStudy, word: str, suffix: str) -> list[Block | None]:
    """Tables by axis, by layer, and of the differences to the fastest; None: nothing to show."""
    return [
        _axis_table(schemes, word, suffix),
        _layer_table(schemes, suffix),
        _difference_table(schemes, word, suffix),
    ]


def _caption(schemes: SchemeStudy, text: str) -> str:
    return text + (OTHER_BATCHES if len({row.batch for row in schemes.rows}) > 1 else "")


def _divided(rows: Sequence[SchemeRow]) -> list[SchemeRow]:
    """Settings whose exposed communication is known by axis."""
    return [row for row in rows if row.step_parts and has_axes(row.step_parts)]


def _axis_table(schemes: SchemeStudy, word: str, suffix: str) -> Table | None:
    rows = _divided(schemes.rows)
    axes = axes_of([row.step_parts for row in rows])
    if len(axes) < 2:
        return None
    largest = max(max(by_axis(row.step_parts).values(), default=0) for row in rows)
    cells: list[tuple[Value, ...]] = []
    heat: list[tuple[str, ...]] = []
    for row in schemes.rows:
        times = by_axis(row.step_parts) if row in rows else None
        mine = [None if times is None else times.get(axis, 0) for axis in axes]
        total = None if times is None else sum(times.values())
        cells.append((visible(row.title, 80), *mine, total))
        heat.append(("", *(heat_tone(value, largest) for value in mine), ""))
    return Table(
        id=f"study-axes-table{suffix}",
        title="Exposed communication by axis, per traced step",
        columns=(
            Column(key="title", title=word.capitalize(), primary=True),
            *(
                Column(key=f"axis{number}", title=visible(axis, 40), unit=Unit.TIME, primary=number <= 4)
                for number, axis in enumerate(axes, 1)
            ),
            Column(key="total", title="Together", unit=Unit.TIME, primary=True),
        ),
        rows=tuple(cells),
        heat=tuple(heat),
        caption=_caption(schemes, "Mean over ranks; 0: the setting has no exposed calls along the axis."),
    )


def _layer_table(schemes: SchemeStudy, suffix: str) -> Table | None:
    rows = _divided(schemes.rows)[:MOST_SETTINGS]
    axes = axes_of([row.step_parts for row in rows])
    if not axes:
        return None
    times: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * len(rows))
    for number, row in enumerate(rows):
        for part in row.step_parts:
            if part.axis is not None:
                times[words.exposed_row(part.layer, part.reason, None), part.axis][number] += part.ns
    order = sorted(times, key=lambda key: (-max(times[key]), key))
    largest = max(map(max, times.values()))
    several = len(axes) > 1
    return Table(
        id=f"study-layers-table{suffix}",
        title="Exposed communication by layer, per traced step",
        columns=(
            Column(key="layer", title="Layer", primary=True),
            *([Column(key="axis", title="Axis", primary=True)] if several else []),
            *(
                Column(
                    key=f"setting{number}", title=visible(row.title, 40), unit=Unit.TIME, primary=number <= 4
                )
                for number, row in enumerate(rows, 1)
            ),
        ),
        rows=tuple(
            (visible(key[0], 160), *([visible(key[1], 40)] if several else []), *times[key]) for key in order
        ),
        heat=tuple(
            (*([""] * (1 + several)), *(heat_tone(value, largest) for value in times[key])) for key in order
        ),
        caption=_caption(schemes, "Mean over ranks; 0: the setting has no exposed calls of the layer."),
        print_rows=40,
    )


def _difference_table(schemes: SchemeStudy, word: str, suffix: str) -> Table | None:
    if not schemes.differences:
        return None
    several = len({axis for difference in schemes.differences for axis in difference.by_axis}) > 1
    return Table(
        id=f"study-differences-table{suffix}",
        title=f"What tells each {word}'s traced step from that of the fastest",
        columns=(
            Column(key="title", title=word.capitalize(), primary=True),
            Column(key="what", title="Part", primary=True),
            Column(key="before", title="Fastest", unit=Unit.TIME, primary=True),
            Column(key="after", title="This", unit=Unit.TIME, primary=True),
            Column(key="change", title="Difference", unit=Unit.TIME, signed=True, primary=True),
            Column(key="share", title="Of the step's", unit=Unit.RATIO, primary=True),
        ),
        rows=tuple(row for difference in schemes.differences for row in _changes(difference, several)),
        caption=_caption(
            schemes,
            f"{visible(schemes.differences[0].before, 80)} is the fastest. The parts of each {word} add up "
            "to its step; negative shares make up for others.",
        ),
        print_rows=40,
    )


def _changes(difference: StepDifference, several: bool) -> list[tuple[Value, ...]]:
    """The step, its largest changes, and the sum of all others."""
    title = visible(difference.after, 80)
    rows: list[tuple[Value, ...]] = [
        (title, STEP, difference.before_ns, difference.after_ns, difference.change_ns, None)
    ]
    for change in difference.changes[:MOST_CHANGES]:
        share = change.change_ns / difference.change_ns if difference.change_ns else None
        what = visible(part_text(change, several), LONGEST)
        rows.append((title, what, change.before_ns, change.after_ns, change.change_ns, share))
    if len(difference.changes) > MOST_CHANGES:
        largest = difference.changes[:MOST_CHANGES]
        before = difference.before_ns - sum(change.before_ns for change in largest)
        after = difference.after_ns - sum(change.after_ns for change in largest)
        share = (after - before) / difference.change_ns if difference.change_ns else None
        rows.append((title, OTHERS, before, after, after - before, share))
    return rows


def part_text(change: PartChange, several: bool) -> str:
    """The part in words; `several`: exposed communication names its axis."""
    if change.axis is None:
        return PART_TITLES[change.part]
    of = words.exposed_row(change.layer, change.reason, change.axis if several else None)
    return f"exposed: {of}"
