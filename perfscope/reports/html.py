"""The HTML report: one offline file that works with scripts off and forbids every request.

Tables and charts are written as HTML and SVG here; the script adds sorting, tooltips and the timeline. The
page's Content-Security-Policy admits exactly the one script and the one style sheet inside it, by hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from perfscope import units
from perfscope.reports import geometry
from perfscope.reports.display import path_end
from perfscope.reports.gate_history.html import history_globals, history_payload
from perfscope.reports.html_curves import curve_globals, curves_payload
from perfscope.reports.html_machine import counters_payload, machine_globals
from perfscope.reports.model import (
    Block,
    Column,
    Counters,
    CurveChart,
    HistoryChart,
    IntervalBars,
    Line,
    Report,
    Series,
    Table,
    Timeline,
    Value,
)
from perfscope.reports.timeline_data import timeline_payload

if TYPE_CHECKING:
    import jinja2

SCRIPTS = (
    "format.js",
    "page.js",
    "machine.js",
    "timeline_data.js",
    "timeline_text.js",
    "timeline_machine.js",
    "timeline_path.js",
    "timeline_view.js",
    "timeline_input.js",
    "start.js",
)
STYLES = ("report.css", "machine.css", "timeline.css")
# Only in reports that compare: the others stay small.
CURVE_SCRIPT, CURVE_STYLE, HISTORY_STYLE = "curves.js", "curves.css", "history.css"
TEMPLATES = ("report.html.j2", "blocks.html.j2", "curves.html.j2", "history.html.j2", "machine.html.j2")
# Parts that carry a hatch beside their colour, so that no two neighbours differ by colour alone.
PATTERNED = frozenset(
    {
        "exposed_comm",
        "transfer",
        "wait",
        "input_wait",
        "copy",
        "optimizer",
        "idle_host_wait",
        "idle_kernel_wait",
    }
)


def render_html(report: Report) -> str:
    """The whole report as one HTML document."""
    from markupsafe import Markup

    compares = _compares(report)
    timeline = any(isinstance(block, Timeline) for section in report.sections for block in section.blocks)
    script = script_text(compares, timeline)
    style = style_text(compares, _has_history(report))
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            style=Markup(style),
            script=Markup(script),
            style_hash=content_hash(style),
            script_hash=content_hash(script),
            data=Markup(json_for_script(_data(report))),
        )
    )


@cache
def asset(name: str) -> str:
    """The text of one file of the report's assets."""
    return files("perfscope.reports").joinpath("assets", name).read_text(encoding="utf-8")


def _compares(report: Report) -> bool:
    """Whether the report has what curves.css and curves.js are for."""
    blocks = [block for section in report.sections for block in section.blocks]
    drawn = (CurveChart, IntervalBars, HistoryChart)
    return any(isinstance(block, drawn) or _is_heat(block) for block in blocks)


def _has_history(report: Report) -> bool:
    return any(isinstance(block, HistoryChart) for section in report.sections for block in section.blocks)


def _is_heat(block: Block) -> bool:
    return isinstance(block, Table) and bool(block.heat)


def style_text(compares: bool = False, history: bool = False) -> str:
    """The style sheets as one."""
    extra = [*([CURVE_STYLE] if compares else []), *([HISTORY_STYLE] if history else [])]
    return "\n".join(asset(name) for name in (*STYLES, *extra))


@cache
def script_text(compares: bool = False, timeline: bool = True) -> str:
    """The scripts that a report needs as one, sharing one private scope."""
    named = (*([CURVE_SCRIPT] if compares else []), *SCRIPTS)
    parts = "\n".join(asset(name) for name in named if timeline or not name.startswith("timeline_"))
    return f'(() => {{\n"use strict";\n{parts}}})();\n'


def content_hash(text: str) -> str:
    """The hash source a Content-Security-Policy wants: ``sha256-<base64>``."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def json_for_script(value: object) -> str:
    """`value` as ASCII JSON that no HTML parser can leave: ``<``, ``>`` and ``&`` are escaped.

    Raises ValueError on NaN and infinities.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.DictLoader({name: asset(name) for name in TEMPLATES}),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(
        time=units.format_ns,
        path_end=path_end,
        pct=_percent,
        patterned=PATTERNED,
        kind_of=_kind_of,
        unknown_block=_unknown_block,
        segments=geometry.bar_segments,
        used_parts=geometry.used_parts,
        bar_text=geometry.bar_text,
        bar_end=geometry.bar_end,
        bar_ticks=lambda chart: geometry.bar_ticks(chart, 6),
        series_frame=geometry.series_frame,
        clip_note=geometry.clip_note,
        y_ticks=lambda frame: geometry.time_ticks(frame.low, frame.high, 2),
        x_ticks=lambda frame: geometry.count_ticks(frame.x_max, 8),
        line_path=line_path,
        band_path=band_path,
        bar_maximum=_bar_maximum,
        sort_value=_sort_value,
        sort_state=_sort_state,
    )
    environment.globals.update(machine_globals())
    environment.globals.update(curve_globals())
    environment.globals.update(history_globals())
    return environment


def _data(report: Report) -> dict[str, object]:
    blocks: list[Block] = [block for section in report.sections for block in section.blocks]
    timelines = [timeline_payload(block) for block in blocks if isinstance(block, Timeline)]
    series = {
        block.id: {
            "x_title": block.x_title,
            "x_max": geometry.series_frame(block).x_max,
            "lines": [{"label": line.label, "x": line.x, "y": line.y} for line in block.lines],
        }
        for block in blocks
        if isinstance(block, Series)
    }
    counters = {block.id: counters_payload(block) for block in blocks if isinstance(block, Counters)}
    curves = {block.id: curves_payload(block) for block in blocks if isinstance(block, CurveChart)}
    curves |= {block.id: history_payload(block) for block in blocks if isinstance(block, HistoryChart)}
    return {
        "series": series,
        "counters": counters,
        "curves": curves,
        "timeline": timelines[0] if timelines else None,
    }


def _percent(value: float) -> str:
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return f"{text}%"


def _kind_of(block: Block) -> str:
    return type(block).__name__


def _unknown_block(kind: str) -> str:
    raise TypeError(f"the HTML report cannot draw a {kind}")


def _point(frame: geometry.SeriesFrame, x: int, y: int) -> str:
    across = 1000 * x / frame.x_max
    up = 1000 * (1 - (y - frame.low) / (frame.high - frame.low))
    return f"{across:.1f},{max(min(up, 2000), -1000):.1f}"


def line_path(frame: geometry.SeriesFrame, line: Line) -> str:
    """SVG path of a line in a 1000 × 1000 box."""
    points = [_point(frame, x, y) for x, y in zip(line.x, line.y, strict=True)]
    return "M" + "L".join(points) if len(points) > 1 else f"M{points[0]}h1"


def band_path(frame: geometry.SeriesFrame, line: Line) -> str:
    """SVG path around a thinned line's extremes."""
    up = [_point(frame, x, y) for x, y in zip(line.x, line.high, strict=True)]
    down = [_point(frame, x, y) for x, y in zip(line.x, line.low, strict=True)]
    return "M" + "L".join([*up, *reversed(down)]) + "Z"


def _bar_maximum(table: Table) -> float:
    """One scale for all inline bars of a table, so that bars can be compared across columns too."""
    return max((table.maximum(i) for i, column in enumerate(table.columns) if column.bar), default=0.0)


def _sort_value(value: Value) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return str(value)


def _sort_state(table: Table, column: Column) -> str:
    if table.sorted_by is None or table.sorted_by[0] != column.key:
        return "none"
    return "descending" if table.sorted_by[1] else "ascending"
