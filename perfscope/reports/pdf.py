"""The PDF report: the same sections on A4, typeset by typst, charts as vectors from matplotlib.

Content reaches the template as JSON and is placed as text, so no name in it can become markup. Fonts are
matplotlib's own DejaVu Sans, so that the pages look the same on every machine.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from perfscope import units
from perfscope.errors import PerfscopeError
from perfscope.reports import geometry
from perfscope.reports.charts import chart_svg
from perfscope.reports.gate_history.places import full_caption
from perfscope.reports.model import (
    Block,
    Column,
    Counters,
    CurveChart,
    Facts,
    FindingList,
    HistoryChart,
    IntervalBars,
    Note,
    Report,
    RooflineChart,
    Section,
    Series,
    StackedBars,
    Table,
    Timeline,
    Topology,
    Unit,
)
from perfscope.reports.palette import light_palette
from perfscope.reports.timeline_picture import MOST_RANKS
from perfscope.reports.topology_svg import print_svg

Json = dict[str, object]

TONE_COLOUR = {"good": "optimizer", "caution": "exposed_comm", "plain": "compute"}
_BREAKABLE = re.compile(r"(?<=[._/\-:,;=&?>])(?<!\d[.,])(?=[^\s._/\-:])")  # never inside 27.5
_LONG_WORD = re.compile(r"[^\s\u200b]{18}")
SHORT_TEXT = 26  # characters that a column may take whole
BREAK = "\u200b"  # zero-width space: a line may end here


def render_pdf(report: Report) -> bytes:
    """The whole report as PDF.

    Raises:
        PerfscopeError: typst could not typeset it (a bug, but the user's other outputs need not suffer).
    """
    import typst

    template = files("perfscope.reports").joinpath("assets", "report.typ").read_bytes()
    try:
        pdf: bytes = typst.compile(
            template,
            font_paths=typst.Fonts(include_system_fonts=False, font_paths=[str(_font_folder())]),
            sys_inputs={"data": json.dumps(pdf_data(report), allow_nan=False)},
        )
    except typst.TypstError as error:
        reason = str(error).splitlines()[0] if str(error) else "no reason given"
        raise PerfscopeError(f"the PDF could not be typeset: {reason}") from error
    return pdf


def pdf_data(report: Report) -> Json:
    """All the template needs: texts, table cells as texts, charts as SVG."""
    verdict = report.verdict
    overview = report.overview
    return {
        "title": soft(report.title),
        "subtitle": soft(report.subtitle),
        "version": report.version,
        "colours": dict(light_palette()),
        "verdict": {
            "headline": soft(verdict.headline),
            "detail": soft(verdict.detail),
            "action": soft(verdict.action),
            "colour": TONE_COLOUR[verdict.tone],
        },
        "notices": [_note(note) for note in report.notices],
        "overview": None if overview is None else {"title": overview.title, "svg": chart_svg(overview)},
        "figures": [{"title": f.title, "value": f.value, "note": soft(f.note)} for f in report.figures],
        "sections": [_section(section) for section in report.sections],
    }


def soft(text: str) -> str:
    """`text` with places where a line may end inside paths and endless words."""
    broken = _BREAKABLE.sub(BREAK, text)
    return _LONG_WORD.sub(lambda match: match.group() + BREAK, broken)


def _font_folder() -> Path:
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def _section(section: Section) -> Json:
    blocks = [drawn for block in section.blocks for drawn in _block(block)]
    return {"id": section.id, "title": section.title, "lead": soft(section.lead), "blocks": blocks}


def _block(block: Block) -> list[Json]:
    if isinstance(block, Table):
        return [_table(block)]
    if isinstance(block, (StackedBars, RooflineChart, CurveChart, IntervalBars)):
        return [_picture(block.title, chart_svg(block), block.caption)]
    if isinstance(block, HistoryChart):
        return [_picture(block.title, chart_svg(block), full_caption(block))]
    if isinstance(block, Counters):
        return _counters(block)
    if isinstance(block, Topology):
        return _topology(block)
    if isinstance(block, Series):
        notes = " ".join(filter(None, (block.caption, geometry.clip_note(geometry.series_frame(block)))))
        return [_picture(block.title, chart_svg(block), notes)]
    if isinstance(block, Timeline):
        return _timeline(block)
    if isinstance(block, Note):
        return [_note(block)]
    if isinstance(block, Facts):
        pairs = [[soft(name), soft(value)] for name, value in block.pairs]
        return [{"kind": "facts", "title": block.title, "pairs": pairs}]
    return [_findings(block)]


def _picture(title: str, svg: str, caption: str) -> Json:
    return {"kind": "picture", "title": title, "svg": svg, "caption": soft(caption), "width": 100}


def _note(block: Note) -> Json:
    return {"kind": "note", "text": soft(block.text), "tone": block.tone}


CHARTS_PER_PIECE = 4  # of counters; shorter pictures leave shorter gaps at the ends of pages


def _counters(block: Counters) -> list[Json]:
    """Pieces that each repeat marks and time axis; the disturbances are told once, below the last."""
    count = -(-len(block.charts) // CHARTS_PER_PIECE)
    ends = [len(block.charts) * n // count for n in range(count + 1)]
    pieces = [block.charts[start:end] for start, end in itertools.pairwise(ends)]
    told = [
        f"{units.format_ns(mark.start_ns) if mark.start_ns else '0 s'} to "
        f"{units.format_ns(mark.end_ns)}, {mark.title}{f' ({mark.detail})' if mark.detail else ''}"
        for mark in block.disturbances
    ]
    captions = [""] * count
    captions[0] = "The dark line on top is the training's steps, blue bars are traced windows"
    captions[0] += ", hatched bands disturbances." if block.disturbances else "."
    captions[-1] = " ".join(filter(None, (captions[-1], block.caption)))
    pieces_drawn = [
        _picture(
            block.title if n == 0 else "", chart_svg(dataclasses.replace(block, charts=piece)), captions[n]
        )
        for n, piece in enumerate(pieces)
    ]
    pieces_drawn += [{"kind": "list", "items": [soft(one) for one in told]}] if told else []
    return pieces_drawn


def _topology(block: Topology) -> list[Json]:
    pictures: list[Json] = []
    for number, machine in enumerate(block.machines):
        svg, share = print_svg(machine)
        title = machine.title if number else f"{block.title}: {machine.title}"
        pictures.append(_picture(title, svg, machine.summary) | {"width": round(100 * share, 1)})
    if block.caption:
        pictures.append(_note(Note(text=block.caption)))
    return pictures


def _timeline(block: Timeline) -> list[Json]:
    if block.focus is None:
        return []
    window, _, duration = block.focus
    ranks = {lane.rank for w in block.extract.windows if w.window == window for lane in w.lanes}
    which = f"{MOST_RANKS} of {len(ranks)} ranks, those on the critical path before others"
    which = which if block.paths else f"the first {MOST_RANKS} of {len(ranks)} ranks"
    shown = which if len(ranks) > MOST_RANKS else "all ranks"
    caption = (
        f"One step ({units.format_ns(duration)}) of window {window}, {shown}; spans finer than the print are "
        "merged, and nesting is left out where there are many lanes."
    )
    if any(path.window == window for path in block.paths):
        caption += (
            " The dark line is the critical path, an arrow what had to end before the next could go on."
        )
    if any(number == window for number, _ in block.disturbances):
        caption += " The hatched band: something else took part of the machine."
    return [_picture("A step, one row per rank and thread or stream", chart_svg(block), caption)]


def _findings(block: FindingList) -> Json:
    cards = [
        {
            "title": soft(card.title),
            "detail": soft(card.detail),
            "action": soft(card.action),
            "where": soft(card.where),
            "gain": card.gain,
            "share": card.share,
        }
        for card in block.cards
    ]
    return {"kind": "findings", "cards": cards, "empty": block.empty}


def _table(table: Table) -> Json:
    rows = table.rows[: table.print_rows]
    columns = list(table.columns)
    cells = [[soft(table.cell(row, i)) for i in range(len(columns))] for row in range(len(rows))]
    left_out = len(table.rows) - len(rows)
    caption = (
        f"{table.caption} {left_out:,} further rows stand in the HTML report." if left_out else table.caption
    )
    return {
        "kind": "table",
        "title": table.title,
        "empty": table.empty,
        "together": len(rows) <= 9,
        "caption": soft(caption.strip()),
        "head": [{"title": c.title, "align": c.align, "modelled": c.modelled} for c in columns],
        "align": [column.align for column in columns],
        "widths": _widths(columns, cells),
        "size": 7.2 if len(columns) <= 7 else 6.3 if len(columns) <= 10 else 5.6,
        "rows": cells,
        "fills": _fills(table, len(rows)),
    }


def _fills(table: Table, count: int) -> list[list[str]]:
    """The colour behind each cell, "" for none; [] for a table without colours."""
    palette = light_palette()
    return [[palette.get(f"heat-{tone}", "") for tone in row] for row in table.heat[:count]]


def _widths(columns: list[Column], rows: list[list[str]]) -> list[int]:
    """0 = as wide as needed, else shares of what is left: columns of long text take it."""
    longest = [max((len(row[i]) for row in rows), default=0) for i in range(len(columns))]
    texts = [column.unit in (Unit.TEXT, Unit.CODE) for column in columns]
    return [
        (3 if column.primary else 2) if text and size > SHORT_TEXT else 0
        for column, text, size in zip(columns, texts, longest, strict=True)
    ]


def section_titles(data: Mapping[str, object]) -> list[tuple[str, str]]:
    """(id, title) of the sections in `pdf_data`'s result, for the parity test."""
    sections = data["sections"]
    assert isinstance(sections, list)
    return [(section["id"], section["title"]) for section in sections]
