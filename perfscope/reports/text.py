"""The report for a terminal: the verdict first, then only what one would act on."""

from __future__ import annotations

import os
import textwrap
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

from perfscope import units
from perfscope.reports.geometry import used_parts
from perfscope.reports.model import (
    Block,
    FindingList,
    Note,
    Part,
    Report,
    Section,
    StackedBars,
    Table,
    Timeline,
)

NARROWEST, WIDEST = 80, 120
MOST_BARS = 16
MOST_FINDINGS = 4
MOST_MISSING = 8
# Rows of the tables that are worth a terminal; every other table is left to the HTML.
TABLE_ROWS = {"layers-table": 8, "collectives-table": 6}

# Each part has its own character, so that bars read without colour.
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
COLOUR = {
    "compute": "34",
    "exposed_comm": "31",
    "copy": "35",
    "input_wait": "33",
    "optimizer": "32",
}


@dataclass(frozen=True, slots=True)
class Style:
    """Terminal styling, or none."""

    on: bool

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.on else text

    def quiet(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.on else text

    def part(self, key: str, text: str) -> str:
        code = COLOUR.get(key, "90")
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text else text


def render_text(report: Report, *, width: int = 100, color: bool = False) -> str:
    """The report in at most `width` columns (kept between 80 and 120), with a newline at the end."""
    width = max(NARROWEST, min(width, WIDEST))
    style = Style(color)
    lines = [*_head(report, width, style), ""]
    for section in report.sections:
        body = list(_section(section, report.verdict.headline, width, style))
        if body:
            lines += [style.bold(section.title), *body, ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def cells(text: str) -> int:
    """Terminal columns `text` takes: wide East Asian characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def fit(text: str, width: int) -> str:
    """`text` in at most `width` columns: a long path keeps its end, which tells it from its neighbours."""
    if cells(text) <= width:
        return text
    kept = text
    while kept and cells(kept) > width - 1:
        kept = kept[1:]
    return f"…{kept}"


def pad(text: str, width: int, *, right: bool = False) -> str:
    space = " " * max(width - cells(text), 0)
    return space + text if right else text + space


def _wrapped(text: str, width: int, indent: str = "  ", first: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def _head(report: Report, width: int, style: Style) -> Iterator[str]:
    verdict = report.verdict
    yield style.quiet(fit(report.title, width))
    if report.subtitle:
        shown = textwrap.shorten(report.subtitle, width, placeholder=" …")
        yield style.quiet(shown if cells(shown) <= width else fit(shown, width))
    yield ""
    yield from (style.bold(line) for line in _wrapped(verdict.headline, width, ""))
    if verdict.action:
        yield from _wrapped(verdict.action, width, "    ", "  → ")
    if verdict.detail:
        yield from _wrapped(verdict.detail, width)
    yield ""
    names = max(cells(figure.title) for figure in report.figures)
    values = max(cells(figure.value) for figure in report.figures)
    for figure in report.figures:
        line = f"  {pad(figure.title, names)}  {pad(figure.value, values, right=True)}"
        rest = width - cells(line) - 2
        yield line + (style.quiet(f"  {fit(figure.note, rest)}") if figure.note else "")


def _section(section: Section, headline: str, width: int, style: Style) -> Iterator[str]:
    if section.id in ("run", "steps", "provenance"):
        if section.id == "provenance" and section.lead:
            yield from _wrapped(section.lead, width)
        return
    if section.lead and section.id != "findings":
        yield from _wrapped(section.lead, width)
    for block in section.blocks:
        if isinstance(block, FindingList):
            yield from _findings(block, headline, width, style)
        else:
            yield from _block(block, width, style)


def _block(block: Block, width: int, style: Style) -> Iterator[str]:
    if isinstance(block, Note):
        yield from _wrapped(block.text, width)
    elif isinstance(block, StackedBars) and all(part.key in FILL for part in block.parts):
        yield from _bars(block, width, style)
    elif isinstance(block, Table):
        yield from _table_or_list(block, width, style)
    elif isinstance(block, Timeline):
        yield "  Drawn in the HTML report; for Perfetto: perfscope export --format perfetto"


def _findings(block: FindingList, headline: str, width: int, style: Style) -> Iterator[str]:
    if not block.cards:
        yield from _wrapped(block.empty, width)
    for number, card in enumerate(block.cards[:MOST_FINDINGS], 1):
        gain = f" [saves at most {card.gain}{', ' + card.share if card.share else ''}]" if card.gain else ""
        told = card.title == headline
        title = "The verdict above" if told else card.title
        lines = _wrapped(f"{title}{gain}", width, "     ", f"  {number}. ")
        yield from (style.bold(line) if n == 0 else line for n, line in enumerate(lines))
        if card.detail:
            yield from (style.quiet(line) for line in _wrapped(card.detail, width, "     "))
        if card.action and not told:
            yield from _wrapped(card.action, width, "       ", "     → ")
    left = len(block.cards) - MOST_FINDINGS
    if left > 0:
        yield style.quiet(f"  {left} more in the HTML report.")


def _bars(chart: StackedBars, width: int, style: Style) -> Iterator[str]:
    shown = chart.bars
    if len(shown) > MOST_BARS:
        shown = tuple(sorted(shown, key=lambda bar: -bar.total)[:MOST_BARS])
    names = min(max(cells(bar.label) for bar in shown), 24)
    totals = max(cells(units.format_ns(bar.total)) for bar in shown)
    room = width - names - totals - 6
    for bar in shown:
        columns = bar_columns(bar.values, chart.longest, room)
        drawn = "".join(style.part(p.key, FILL[p.key] * n) for p, n in zip(chart.parts, columns, strict=True))
        space = " " * (room - sum(columns))
        total = pad(units.format_ns(bar.total), totals, right=True)
        yield f"  {pad(fit(bar.label, names), names)}  {drawn}{space}  {total}"
    if len(chart.bars) > len(shown):
        yield style.quiet(f"  Here only the {len(shown)} slowest.")
    yield from _legend(used_parts(chart), width, style)


def _legend(parts: tuple[Part, ...], width: int, style: Style) -> Iterator[str]:
    line, used = " ", 1
    for part in parts:
        size = cells(part.title) + 4
        if used + size > width:
            yield line
            line, used = " ", 1
        line += f" {style.part(part.key, FILL[part.key])} {part.title} "
        used += size
    yield line.rstrip()


def bar_columns(values: tuple[int, ...], longest: int, room: int) -> list[int]:
    """Whole columns for each value, so that their sum is the bar's own rounded length.

    Cumulative ends are rounded, not the pieces. A piece that is there at all may round to no column.
    """
    if longest <= 0:
        return [0] * len(values)
    columns, done, total = [], 0, 0
    for value in values:
        total += value
        end = round(room * total / longest)
        columns.append(end - done)
        done = end
    return columns


def _table_or_list(table: Table, width: int, style: Style) -> Iterator[str]:
    if table.id == "missing-table":
        yield from _missing(table, width, style)
    elif table.id in TABLE_ROWS and table.rows:
        yield from _table(table, width, style, TABLE_ROWS[table.id])


def _missing(table: Table, width: int, style: Style) -> Iterator[str]:
    for what, reason in table.rows[:MOST_MISSING]:
        yield from _wrapped(f"{what}: {reason}", width, "    ", "  - ")
    if len(table.rows) > MOST_MISSING:
        yield style.quiet(f"  {len(table.rows) - MOST_MISSING} more in the HTML report.")


def _table(table: Table, width: int, style: Style, most: int) -> Iterator[str]:
    chosen = [index for index, column in enumerate(table.columns) if column.primary]
    rows = [[table.columns[i].text(row[i]) for i in chosen] for row in table.rows[:most]]
    titles = [table.columns[i].title for i in chosen]
    sizes = [max(cells(title), *(cells(row[n]) for row in rows)) for n, title in enumerate(titles)]
    sizes[0] = max(min(sizes[0], width - 2 - sum(sizes[1:]) - 2 * len(sizes[1:])), 8)
    right = [table.columns[i].align == "right" for i in chosen]

    def line(values: list[str]) -> str:
        parts = [pad(fit(v, s), s, right=r) for v, s, r in zip(values, sizes, right, strict=True)]
        return f"  {'  '.join(parts)}".rstrip()

    yield style.quiet(line(titles))
    yield from (line(row) for row in rows)
    if len(table.rows) > most:
        yield style.quiet(f"  {len(table.rows) - most:,} more in the HTML report.")


def wants_color(stream: TextIO) -> bool:
    """Colour only for a terminal that can show it and a user who did not set NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
