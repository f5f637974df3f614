"""The PDF report: the same sections on A4, typeset by typst, charts as vectors from `drawing`.

Content reaches the template as JSON and is placed as text, so no name in it can become markup. Fonts are our
own copy of DejaVu Sans and those that typst brings along: the pages look the same on every machine.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import textwrap
from functools import singledispatch

from msgspec import structs

from perfscope.errors import PerfscopeError
from perfscope.messages.lists import plural
from perfscope.reports.asset_files import ASSETS
from perfscope.reports.distributions import HeatMap
from perfscope.reports.drawing import lay_out
from perfscope.reports.drawing.picture import Json
from perfscope.reports.drawing.print_picture import WIDTH, paper_svg
from perfscope.reports.drawing.still import lay_out_still
from perfscope.reports.drawing.topology import paper_svg as machine_svg
from perfscope.reports.model import (
    Block,
    Chart,
    Column,
    Counters,
    FactList,
    FindingList,
    Note,
    Report,
    Section,
    Table,
    Timeline,
    TopologyPicture,
    Unit,
)
from perfscope.reports.palette import light_palette

TONE_COLOR = {"good": "optimizer", "caution": "exposed_comm", "plain": "compute"}
_BREAKABLE = re.compile(r"(?<=[._/\-:,;=&?>])(?<!\d[.,])(?=[^\s._/\-:])")  # never inside 27.5
_LONG_WORD = re.compile(r"[^\s\u200b]{18}")
_PAGE = re.compile(rb"/Type\s*/Page\b")
MOST_PAGES = 12
MOST_ROWS = (60, 16, 8, 5)  # of a table; the first with which the report fits on MOST_PAGES
MOST_BLOCKS = (6, 3, 1)  # charts and tables of a section; likewise, where no number of rows does
SHORT_TEXT = 26  # characters that a column may take whole
MANY_COLUMNS, SHORT_TITLE = 6, 10
HALF, THIRD = 0.48 * WIDTH, 0.31 * WIDTH  # pixels
BREAK = "\u200b"  # zero-width space: a line may end here


def render_pdf(report: Report) -> bytes:
    """The whole report as PDF, of MOST_PAGES pages: with shorter, then with fewer tables and charts.

    Raises:
        PerfscopeError: typst could not typeset it (a bug, but the user's other outputs need not suffer).
    """
    sizes = [(rows, sys.maxsize) for rows in MOST_ROWS] + [(MOST_ROWS[-1], blocks) for blocks in MOST_BLOCKS]
    pdf = b""
    for most_rows, most_blocks in sizes:
        pdf = _typeset(pdf_data(report, most_rows, most_blocks))
        if num_pages(pdf) <= MOST_PAGES:
            break
    return pdf


def num_pages(pdf: bytes) -> int:
    """Pages of a PDF that typst wrote, whose page objects are not compressed."""
    return len(_PAGE.findall(pdf))


def _typeset(content: Json) -> bytes:
    import typst

    try:
        pdf: bytes = typst.compile(
            (ASSETS / "report.typ").read_bytes(),
            font_paths=typst.Fonts(include_system_fonts=False, font_paths=[str(ASSETS / "fonts")]),
            sys_inputs={"data": json.dumps(content, allow_nan=False)},
        )
    except typst.TypstError as error:
        reason = str(error).splitlines()[0] if str(error) else "no reason given"
        raise PerfscopeError(f"the PDF could not be typeset: {reason}") from error
    return pdf


def pdf_data(report: Report, most_rows: int = MOST_ROWS[0], most_blocks: int = sys.maxsize) -> Json:
    """All the template needs: texts, table cells as texts, charts as SVG.

    Args:
        report: all of it.
        most_rows: of a table.
        most_blocks: charts and tables of a section.
    """
    sections = [_shortened(section, most_rows, most_blocks) for section in report.sections]
    verdict = report.verdict
    overview = report.overview
    return {
        "title": soft(report.title),
        "subtitle": soft(report.subtitle),
        "context": soft(" · ".join(report.context)),
        "version": report.version,
        "colors": dict(light_palette()),
        "verdict": {
            "headline": soft(verdict.headline),
            "detail": soft(verdict.in_words if overview is None else verdict.detail),
            "points": [soft(point) for point in verdict.points],
            "symptoms": soft("; ".join(verdict.symptoms)),
            "action": soft(verdict.action),
            "confidence": soft(verdict.confidence),
            "saving": soft(verdict.saving),
            "color": TONE_COLOR[verdict.tone],
        },
        "notices": [_note_json(note) for note in report.notices],
        "overview": None
        if overview is None
        else {"title": overview.title, "svg": paper_svg(lay_out(overview))},
        "trend": [_trend(block, len(report.trend)) for block in report.trend],
        "figures": [{"title": f.title, "value": f.value, "note": soft(f.note)} for f in report.figures],
        "sections": [_section(section) for section in sections],
    }


def _trend(block: Chart | Note, num_beside: int) -> Json:
    """A chart of so many beside each other, or the note that there is none."""
    if isinstance(block, Note):
        return _note_json(block)
    picture = lay_out(block)
    return _picture(picture.title, paper_svg(picture, THIRD if num_beside > 2 else HALF), picture.caption)


def _shortened(section: Section, most_rows: int, most_blocks: int) -> Section:
    """Its first charts and tables, these with the rows and columns that paper has room for."""
    blocks: list[Block] = []
    left_out = 0
    for block in section.blocks:
        if isinstance(block, HeatMap):
            continue  # left to the page: the report on paper stays short
        if not isinstance(block, Note):
            most_blocks -= 1
            left_out += most_blocks < 0
        if isinstance(block, Note) or most_blocks >= 0:
            blocks.append(_on_paper(block, most_rows) if isinstance(block, Table) else block)
    if left_out:
        what = plural("chart or table is", left_out, "charts and tables are")
        blocks.append(Note(text=f"{left_out:,} more {what} in the HTML report."))
    return structs.replace(section, blocks=tuple(blocks))


def _on_paper(table: Table, most_rows: int) -> Table:
    kept = [index for index, column in enumerate(table.columns) if column.on_paper]
    return structs.replace(table.with_columns(kept), print_rows=min(table.print_rows, most_rows))


def soft(text: str) -> str:
    """`text` with places where a line may end inside paths and endless words."""
    broken = _BREAKABLE.sub(BREAK, text)
    return _LONG_WORD.sub(lambda match: match.group() + BREAK, broken)


def _section(section: Section) -> Json:
    blocks = [drawn for block in section.blocks for drawn in _block(block)]
    return {"id": section.id, "title": section.title, "lead": soft(section.lead), "blocks": blocks}


@singledispatch
def _block(block: Block) -> list[Json]:
    raise TypeError(f"no way to print a {type(block).__name__}")


@_block.register
def _(block: Chart) -> list[Json]:
    picture = lay_out(block)
    return [_picture(picture.title, paper_svg(picture), picture.caption)]


def _picture(title: str, svg: str, caption: str, width: float = 100) -> Json:
    return {"kind": "picture", "title": title, "svg": svg, "caption": soft(caption), "width": width}


@_block.register
def _(block: Note) -> list[Json]:
    return [_note_json(block)]


def _note_json(block: Note) -> Json:
    return {"kind": "note", "text": soft(block.text), "tone": block.tone}


@_block.register
def _(block: FactList) -> list[Json]:
    pairs = [[soft(name), soft(value)] for name, value in block.pairs]
    return [{"kind": "facts", "title": block.title, "pairs": pairs}]


CHARTS_PER_PIECE = 4  # of counters; shorter pictures leave shorter gaps at the ends of pages


@_block.register
def _(block: Counters) -> list[Json]:
    """Pieces that each repeat marks and time axis; the disturbances are listed once, below the last."""
    count = -(-len(block.charts) // CHARTS_PER_PIECE)
    ends = [len(block.charts) * n // count for n in range(count + 1)]
    cut = [block.charts[start:end] for start, end in itertools.pairwise(ends)]
    pieces = [lay_out(structs.replace(block, charts=charts)) for charts in cut]
    items = [
        _picture(block.title if n == 0 else "", paper_svg(piece), block.caption if n == count - 1 else "")
        for n, piece in enumerate(pieces)
    ]
    details = [f"{when}, {what}{f' ({more})' if more else ''}" for when, what, more in pieces[0].details]
    if details:
        items.append({"kind": "list", "items": [soft(line) for line in details]})
    return items


@_block.register
def _(block: TopologyPicture) -> list[Json]:
    pictures: list[Json] = []
    for number, machine in enumerate(block.machines):
        svg, share = machine_svg(machine)
        title = machine.title if number else f"{block.title}: {machine.title}"
        pictures.append(_picture(title, svg, machine.summary, round(100 * share, 1)))
    if block.caption:
        pictures.append(_note_json(Note(text=block.caption)))
    return pictures


@_block.register
def _(block: Timeline) -> list[Json]:
    if block.focus is None:
        return []
    picture = lay_out_still(block)
    return [_picture(picture.title, paper_svg(picture), picture.caption)]


@_block.register
def _(block: FindingList) -> list[Json]:
    cards = [
        {
            "title": soft(card.heading if card.is_verdict else card.title),
            "detail": soft(card.detail),
            "action": "" if card.is_verdict else soft(card.action),
            "where": soft(card.where),
            "gain": card.gain,
            "share": card.share,
            "confidence": "" if card.is_verdict else soft(card.confidence),
            "symptoms_title": card.symptoms_title,
            "symptoms": [soft(symptom.title) for symptom in card.symptoms],
        }
        for card in block.cards
    ]
    return [{"kind": "findings", "cards": cards, "empty": block.empty}]


@_block.register
def _(table: Table) -> list[Json]:
    rows = table.rows[: table.print_rows]
    columns = list(table.columns)
    cells = [[soft(table.cell(row, i)) for i in range(len(columns))] for row in range(len(rows))]
    left_out = len(table.rows) - len(rows)
    caption = f"{table.caption} {left_out:,} more rows are in the HTML report." if left_out else table.caption
    return [
        {
            "kind": "table",
            "title": table.title,
            "empty": table.empty,
            "together": len(rows) <= 9,
            "caption": soft(caption.strip()),
            "head": [
                {"title": _title(c, len(columns)), "align": c.align, "modeled": c.modeled} for c in columns
            ],
            "align": [column.align for column in columns],
            "widths": _widths(columns, cells),
            "size": 8.2 if len(columns) <= 7 else 7.2 if len(columns) <= 10 else 6.4,
            "rows": cells,
            "fills": _fills(table, len(rows)),
        }
    ]


def _fills(table: Table, count: int) -> list[list[str]]:
    """The color behind each cell, "" for none; [] for a table without colors."""
    palette = light_palette()
    return [[palette.get(f"heat-{tone}", "") for tone in row] for row in table.heat[:count]]


def _title(column: Column, num_columns: int) -> str:
    """In lines where there are many columns: a figure is as wide as its title, words get what is left."""
    if num_columns < MANY_COLUMNS or column.align == "left":
        return column.title
    return "\n".join(textwrap.wrap(column.title, SHORT_TITLE, break_long_words=False))


def _widths(columns: list[Column], rows: list[list[str]]) -> list[int]:
    """0 = as wide as needed, else shares of what is left: columns of long text take it."""
    longest = [max((len(row[i]) for row in rows), default=0) for i in range(len(columns))]
    texts = [column.unit in (Unit.TEXT, Unit.CODE) for column in columns]
    return [
        (3 if column.primary else 2) if text and size > SHORT_TEXT else 0
        for column, text, size in zip(columns, texts, longest, strict=True)
    ]
