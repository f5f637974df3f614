"""The report for a terminal: the verdict first, then only what one would act on."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Iterator, Sequence
from typing import TextIO

from perfscope import units
from perfscope.reports.gate_history.text import history_lines
from perfscope.reports.geometry import bar_end, used_parts
from perfscope.reports.model import (
    Block,
    ChartPart,
    CounterLine,
    Counters,
    CurveChart,
    FactList,
    FindingCard,
    FindingList,
    HistoryChart,
    IntervalBars,
    Note,
    Report,
    Section,
    StackedBars,
    Table,
    Timeline,
    TopologyPicture,
    Unit,
    Value,
    format_value,
)
from perfscope.reports.terminal import Style as Style
from perfscope.reports.terminal import cells as cells
from perfscope.reports.terminal import fit as fit
from perfscope.reports.terminal import head as head
from perfscope.reports.terminal import pad as pad
from perfscope.reports.terminal import wrapped
from perfscope.reports.text_curves import curve_lines, interval_lines

NARROWEST, WIDEST = 80, 120
MOST_BARS = 16
MOST_FINDINGS = 4
MOST_MISSING = 8
MOST_DISTURBANCES = 5
MOST_STUDY_ROWS = 24  # of tables of a section that shows every one

# Each part has its own character, so that bars read without color.
FILL = {
    "compute": "█",
    "exposed_comm": "▒",
    "copy": "▞",
    "input_wait": "░",
    "optimizer": "▓",
    "idle": "·",
    "idle_host_wait": "-",
    "idle_kernel_wait": ".",
    "idle_other": "·",
}


def render_text(report: Report, *, width: int = 100, color: bool = False) -> str:
    """The report in at most `width` columns (kept between 80 and 120), with a newline at the end."""
    width = max(NARROWEST, min(width, WIDEST))
    style = Style(color)
    lines = [*_head(report, width, style), ""]
    for section in report.sections:
        if section.in_notices:
            continue
        body = list(_section(section, width, style))
        if body:
            lines += [style.bold(section.title), *body, ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def render_sections(report: Report, names: Sequence[str], *, width: int = 100, color: bool = False) -> str:
    """Some sections of the report, by their ids, as `render_text` has them.

    Raises:
        KeyError: no section has that id.
    """
    width, style = max(NARROWEST, min(width, WIDEST)), Style(color)
    lines: list[str] = []
    for name in names:
        section = report.section(name)
        body = list(_body(section, width, style))
        body += [
            line for block in section.blocks if isinstance(block, FactList) for line in _facts(block, width)
        ]
        lines += [style.bold(section.title), *(body or ["  It is in the HTML report only."]), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _head(report: Report, width: int, style: Style) -> Iterator[str]:
    verdict = report.verdict
    yield style.quiet(fit(report.title, width))
    if report.subtitle:
        subtitle = textwrap.shorten(report.subtitle, width, placeholder=" …")
        yield style.quiet(subtitle if cells(subtitle) <= width else fit(subtitle, width))
    yield ""
    yield from (style.bold(line) for line in wrapped(verdict.headline, width, ""))
    if verdict.action:
        yield from wrapped(verdict.action, width, "    ", "  → ")
    if verdict.confidence:
        yield from wrapped(verdict.confidence, width)
    if verdict.in_words:
        yield from wrapped(verdict.in_words, width)
    for point in verdict.points:
        yield from wrapped(point, width, "    ", "  - ")
    for notice in report.notices:
        yield ""
        yield from (style.bold(line) for line in wrapped(notice.text, width, "    ", "  ! "))
    if not report.figures:
        return
    yield ""
    names = min(max(cells(figure.title) for figure in report.figures), width // 2 - 8)
    values = min(max(cells(figure.value) for figure in report.figures), width // 2 - 4)
    for figure in report.figures:
        title, value = fit(figure.title, names), fit(figure.value, values)
        line = f"  {pad(title, names)}  {pad(value, values, right=True)}"
        room = width - cells(line) - 2
        notes = textwrap.wrap(figure.note, room) if room > NARROWEST_COLUMN else []
        yield line + (style.quiet(f"  {notes[0]}") if notes else "")
        yield from (style.quiet(f"{' ' * (cells(line) + 2)}{note}") for note in notes[1:])


def _section(section: Section, width: int, style: Style) -> Iterator[str]:
    if section.in_terminal == "lead":
        yield from wrapped(section.lead, width) if section.lead else ()
    elif section.in_terminal != "nothing":
        yield from _body(section, width, style)


def _body(section: Section, width: int, style: Style) -> Iterator[str]:
    if section.lead and section.in_terminal != "blocks":
        yield from wrapped(section.lead, width)
    has_text = bool(section.lead)
    for block in section.blocks:
        if isinstance(block, FindingList):
            yield from _findings(block, width, style)
            continue
        every = section.tables == "every"
        lines = list(_block(block, width, style, every=every))
        if lines and has_text and section.tables != "chosen":
            yield ""
        if lines and every and not isinstance(block, Note):
            yield f"  {style.bold(head(getattr(block, 'title', ''), width - 2))}"
        has_text = has_text or bool(lines)
        yield from lines


def _block(block: Block, width: int, style: Style, *, every: bool) -> Iterator[str]:
    if isinstance(block, Note):
        yield from wrapped(block.text, width)
    elif isinstance(block, StackedBars) and all(part.key in FILL for part in block.parts):
        yield from _bars(block, width, style)
    elif isinstance(block, (CurveChart, IntervalBars, HistoryChart)):
        yield from _plotted(block, width, style)
    elif isinstance(block, Table):
        yield from _table_or_list(block, width, style, every=every)
    elif isinstance(block, TopologyPicture):
        for machine in block.machines:
            yield from wrapped(f"{machine.title}: {machine.summary}", width)
    elif isinstance(block, Counters):
        yield from _counters(block, width, style)
    elif isinstance(block, Timeline):
        elsewhere = "" if block.compared else "; for Perfetto: perfscope export --format perfetto"
        yield f"  Drawn in the HTML report{elsewhere}"


def _facts(block: FactList, width: int) -> Iterator[str]:
    names = max((cells(name) for name, _ in block.pairs), default=0)
    for name, value in block.pairs:
        yield from wrapped(value, width, " " * (names + 4), f"  {pad(name, names)}  ")


def _plotted(block: CurveChart | IntervalBars | HistoryChart, width: int, style: Style) -> Iterator[str]:
    if isinstance(block, CurveChart):
        return curve_lines(block, width, style)
    if isinstance(block, IntervalBars):
        return interval_lines(block, width, style)
    return history_lines(block, width, style)


SPARKS = "▁▂▃▄▅▆▇█"
MOST_SPARKS = 10
SPARK_COLUMNS = 36


def _counters(block: Counters, width: int, style: Style) -> Iterator[str]:
    """The first two lines of each chart as a row of blocks, with their means."""
    rows = [(chart, line) for chart in block.charts for line in chart.lines[:2]][:MOST_SPARKS]
    # A short run has fewer readings than there is room: a column each, so that none is drawn twice.
    columns = max(min(SPARK_COLUMNS, max(len(line.t_ns) for _, line in rows)), 1)
    names = min(max(cells(line.label) for _, line in rows), width - SPARK_COLUMNS - 22)
    for chart, line in rows:
        finite = [value for value in line.mean if math.isfinite(value)]
        mean = format_value(chart.unit, sum(finite) / len(finite)) if finite else ""
        sparks = _sparks(line, chart.unit, block.span_ns, columns)
        yield f"  {pad(fit(line.label, names), names)}  {sparks}  {line.note or f'mean {mean}'}"
    if all(line.note for _, line in rows):
        return
    scale = "Shares are drawn from 0 to 100 %, other lines from 0 to their largest value; means"
    yield from (style.quiet(line) for line in wrapped(f"{scale} are over all {_span(block)}.", width))
    left = sum(len(chart.lines) + chart.num_left_out for chart in block.charts) - len(rows)
    if left > 0:
        yield style.quiet(f"  {left:,} more in the HTML report.")


def _span(block: Counters) -> str:
    return f"{units.format_ns(block.span_ns)} of readings, start and end of the job included"


def _sparks(line: CounterLine, unit: Unit, span_ns: int, columns: int) -> str:
    """The line from 0 to its largest value, a share to 100 %; a blank where readings are missing.

    A column between two readings of a slow source takes the earlier one.
    """
    bins: list[list[float]] = [[] for _ in range(columns)]
    for at, value in zip(line.t_ns, line.mean, strict=True):
        if 0 <= at <= span_ns:
            bins[min(at * columns // max(span_ns, 1), columns - 1)].append(value)
    last_filled = max((n for n, values in enumerate(bins) if values), default=-1)
    means: list[float | None] = []
    for n, values in enumerate(bins):
        finite = [value for value in values if math.isfinite(value)]
        carried = means[-1] if means and not values and n < last_filled else None
        means.append(sum(finite) / len(finite) if finite else carried)
    largest = max((mean for mean in means if mean is not None), default=0.0)
    top = max(largest, 1.0) if unit is Unit.RATIO else largest
    last = len(SPARKS) - 1
    return "".join(
        " " if mean is None else SPARKS[round(last * max(mean, 0.0) / top)] if top > 0 else SPARKS[0]
        for mean in means
    )


def _findings(block: FindingList, width: int, style: Style) -> Iterator[str]:
    if not block.cards:
        yield from wrapped(block.empty, width)
    # The verdict is the first finding: where nothing is added to it, it is not said again.
    cards = [c for c in block.cards if not c.is_verdict or c.detail or c.gain or c.symptoms]
    for number, card in enumerate(cards[:MOST_FINDINGS], 1):
        title = card.heading if card.is_verdict else card.title  # the full verdict is at the top
        lines = wrapped(f"{title}{_saving(card)}", width, "     ", f"  {number}. ")
        yield from (style.bold(line) if n == 0 else line for n, line in enumerate(lines))
        if card.detail:
            yield from (style.quiet(line) for line in wrapped(card.detail, width, "     "))
        if card.confidence and not card.is_verdict:
            yield from (style.quiet(line) for line in wrapped(card.confidence, width, "     "))
        if card.action and not card.is_verdict:
            yield from wrapped(card.action, width, "       ", "     → ")
        if card.symptoms:
            yield from wrapped(card.symptoms_title, width, "     ")
        for symptom in card.symptoms:
            yield from wrapped(f"{symptom.title}{_saving(symptom)}", width, "       ", "     - ")
    left = len(cards) - MOST_FINDINGS
    if left > 0:
        yield style.quiet(f"  {left} more in the HTML report.")


def _saving(card: FindingCard) -> str:
    share = f", {card.share}" if card.share else ""
    return f" [saves at most {card.gain}{share}]" if card.gain else ""


def _bars(chart: StackedBars, width: int, style: Style) -> Iterator[str]:
    bars = chart.bars
    if len(bars) > MOST_BARS:
        bars = tuple(sorted(bars, key=lambda bar: -bar.total)[:MOST_BARS])
    names = min(max(cells(bar.label) for bar in bars), 24)
    totals = max(cells(bar_end(chart, bar)) for bar in bars)
    room = width - names - totals - 6
    for bar in bars:
        columns = bar_columns(bar.values, chart.longest, room)
        drawn = "".join(style.part(p.key, FILL[p.key] * n) for p, n in zip(chart.parts, columns, strict=True))
        space = " " * (room - sum(columns))
        total = pad(bar_end(chart, bar), totals, right=True)
        yield f"  {pad(fit(bar.label, names), names)}  {drawn}{space}  {total}"
    if len(chart.bars) > len(bars):
        yield style.quiet(f"  Here only the {len(bars)} slowest.")
    yield from _legend(used_parts(chart), width, style)


def _legend(parts: tuple[ChartPart, ...], width: int, style: Style) -> Iterator[str]:
    line, used = " ", 1
    for part in parts:
        size = cells(part.title) + 4
        if used + size > width:
            yield line
            line, used = " ", 1
        line += f" {style.part(part.key, FILL[part.key])} {part.title} "
        used += size
    yield line.rstrip()


def bar_columns(values: tuple[float, ...], longest: float, room: int) -> list[int]:
    """Whole columns for each value, so that their sum is the bar's own rounded length.

    Cumulative ends are rounded, not the pieces. A piece that is there at all may round to no column.
    """
    if longest <= 0:
        return [0] * len(values)
    columns, done, total = [], 0, 0.0
    for value in values:
        total += value
        end = round(room * total / longest)
        columns.append(end - done)
        done = end
    return columns


def _table_or_list(table: Table, width: int, style: Style, *, every: bool) -> Iterator[str]:
    forms = {
        "reasons": _missing,
        "episodes": _disturbances,
        "sentences": _sayings,
        "changes": _changes,
    }
    if table.terminal_form == "none":
        return
    if table.terminal_form in forms:
        yield from forms[table.terminal_form](table, width, style) if table.rows else ()
    elif every and table.rows:
        yield from _table(table, width, style, MOST_STUDY_ROWS)
        yield from (style.quiet(line) for line in wrapped(table.caption, width))
    elif table.terminal_rows and table.rows:
        if table.terminal_title:
            yield style.bold(f"  {head(table.title, width - 2)}")
        yield from _table(table, width, style, table.terminal_rows)


def _by_key(table: Table, row: tuple[Value, ...]) -> dict[str, str]:
    """Column key -> text, without empty cells."""
    pairs = zip(table.columns, row, strict=True)
    return {column.key: column.text(value) for column, value in pairs if value not in (None, "")}


def _disturbances(table: Table, width: int, style: Style) -> Iterator[str]:
    """The sentence of each with its figures below: a table would cut the one or the other."""
    for number, row in enumerate(table.rows[:MOST_DISTURBANCES], 1):
        cell = _by_key(table, row)
        yield from wrapped(cell.get("what", ""), width, "     ", f"  {number}. ")
        facts = [f"from {cell.get('from', units.MISSING)} for {cell.get('for', units.MISSING)}"]
        facts += [f"{cell['severity']} taken"] if "severity" in cell else []
        facts += [f"on {cell['host']}"] if "host" in cell else []
        if "during" in cell:
            facts.append(f"step during it {cell['during']}, otherwise {cell.get('otherwise', units.MISSING)}")
        facts += [f"traced windows affected: {cell['windows']}"] if "windows" in cell else []
        yield from (style.quiet(line) for line in wrapped("; ".join(facts), width, "     "))
    if len(table.rows) > MOST_DISTURBANCES:
        yield style.quiet(f"  {len(table.rows) - MOST_DISTURBANCES:,} more in the HTML report.")


def _changes(table: Table, width: int, style: Style) -> Iterator[str]:
    """Words before and after, one under the other where they are long: columns would cut them."""
    for number in range(min(len(table.rows), MOST_STUDY_ROWS)):
        what, before, after = (table.cell(number, at) for at in range(3))
        if cells(what) + cells(before) + cells(after) + 9 <= width:
            yield f"  - {what}: {before} → {after}"
            continue
        yield from wrapped(f"{what}:", width, "    ", "  - ")
        for mark, text in (("-", before), ("+", after)):
            yield from wrapped(
                textwrap.shorten(text, 3 * width, placeholder=" …"), width, "      ", f"    {mark} "
            )
    left = len(table.rows) - MOST_STUDY_ROWS
    if left > 0:
        yield style.quiet(f"  {left:,} more in the HTML report.")
    yield from (style.quiet(line) for line in wrapped(table.caption, width))


def _sayings(table: Table, width: int, style: Style) -> Iterator[str]:
    """The sentence of each row under its first cell's name, parameters below."""
    for row in table.rows:
        cell = _by_key(table, row)
        first = table.columns[0].text(row[0])
        yield from wrapped(f"{first}: {cell.get('sentence', units.MISSING)}", width, "    ", "  - ")
        if "parameters" in cell:
            yield from (style.quiet(line) for line in wrapped(cell["parameters"], width, "    "))
    yield from (style.quiet(line) for line in wrapped(table.caption, width))


def _missing(table: Table, width: int, style: Style) -> Iterator[str]:
    for what, reason, *_ in table.rows[:MOST_MISSING]:
        yield from wrapped(f"{what}: {reason}", width, "    ", "  - ")
    if len(table.rows) > MOST_MISSING:
        yield style.quiet(f"  {len(table.rows) - MOST_MISSING} more in the HTML report.")


NARROWEST_COLUMN = 8


def _table(table: Table, width: int, style: Style, most: int) -> Iterator[str]:
    chosen = [index for index, column in enumerate(table.columns) if column.primary]
    rows = [[table.cell(number, i) for i in chosen] for number in range(min(len(table.rows), most))]
    titles = [table.columns[i].title for i in chosen]
    right = [table.columns[i].align == "right" for i in chosen]
    wanted = [max(cells(title), *(cells(row[n]) for row in rows)) for n, title in enumerate(titles)]
    sizes = _narrowed(wanted, right, width - 2)

    def line(values: list[str]) -> str:
        parts = [pad(head(v, s), s, right=r) for v, s, r in zip(values, sizes, right, strict=False)]
        return f"  {'  '.join(parts)}".rstrip()

    yield style.quiet(line(titles))
    notes = table.row_notes or (None,) * len(rows)
    for values, note in zip(rows, notes, strict=False):
        is_long = cells(values[0]) > sizes[0]
        yield line([note.name, *values[1:]] if note is not None and note.name and is_long else values)
        if note is not None and (is_long or not note.name):
            yield from (style.quiet(more) for more in wrapped(note.text, width, "    "))
    if len(table.rows) > most:
        yield style.quiet(f"  {len(table.rows) - most:,} more in the HTML report.")


def _narrowed(wanted: list[int], right: list[bool], room: int) -> list[int]:
    """Widths that fit `room` with two blanks between: the widest words give way, then the last columns."""
    sizes = list(wanted)
    while sum(sizes) + 2 * (len(sizes) - 1) > room:
        wide = [n for n, size in enumerate(sizes) if not right[n] and size > NARROWEST_COLUMN]
        if wide:
            sizes[max(wide, key=lambda n: sizes[n])] -= 1
        elif len(sizes) > 1:
            sizes.pop()
        else:
            return [room]
    return sizes


def wants_color(stream: TextIO) -> bool:
    """Color only for a terminal that can show it and a user who did not set NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
