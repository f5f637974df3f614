"""The HTML report: one offline file that works with scripts off and forbids every request.

Tables and charts are written as HTML and SVG here; the script adds sorting, tooltips and the timeline. The
page's Content-Security-Policy admits exactly the one script and the one style sheet inside it, by hash.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from perfscope.reports.asset_files import asset
from perfscope.reports.drawing import Picture, lay_out
from perfscope.reports.drawing.page import figure_html, paint, patterns_svg
from perfscope.reports.drawing.picture import Json
from perfscope.reports.drawing.topology import page_svgs
from perfscope.reports.model import Chart, Column, Report, Table, Timeline, Value
from perfscope.reports.timeline_data import timeline_payload

if TYPE_CHECKING:
    import jinja2

SCRIPTS = (
    "format.js",
    "page.js",
    "machine.js",
    "heatmap.js",
    "icicle.js",
    "links.js",
    "places.js",
    "search.js",
    "timeline_data.js",
    "timeline_text.js",
    "timeline_machine.js",
    "timeline_loader.js",
    "timeline_path.js",
    "timeline_range.js",
    "timeline_groups.js",
    "timeline_view.js",
    "timeline_input.js",
    "start.js",
)
STYLES = ("report.css", "machine.css", "timeline.css")
# Only in reports that compare: the others stay small.
CURVE_SCRIPT, CURVE_STYLE, HISTORY_STYLE = "curves.js", "curves.css", "history.css"
LONG_TEXT = 44  # characters of a cell from which on it wraps
TEMPLATES = ("report.html.j2", "blocks.html.j2")


def render_html(report: Report) -> str:
    """The whole report as one HTML document."""
    from markupsafe import Markup

    blocks = [block for section in report.sections for block in section.blocks]
    charts = [block for block in (report.overview, *report.trend, *blocks) if isinstance(block, Chart)]
    pictures = {id(chart): lay_out(chart) for chart in charts}
    timelines = [block for block in blocks if isinstance(block, Timeline)]
    sheets = {sheet for picture in pictures.values() for sheet in picture.sheets}
    if any(isinstance(block, Table) and block.heat for block in blocks):
        sheets.add(CURVE_STYLE)
    script = script_text(CURVE_STYLE in sheets, bool(timelines))
    style = style_text(CURVE_STYLE in sheets, HISTORY_STYLE in sheets)
    environment = _environment()
    environment.globals["figure"] = lambda chart: Markup(
        figure_html(pictures[id(chart)], is_first=chart is report.overview)
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        style=Markup(style),
        script=Markup(script),
        style_hash=content_hash(style),
        script_hash=content_hash(script),
        data=Markup(json_for_script(_data(pictures.values(), timelines))),
    )


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
    import hashlib  # loads OpenSSL, which no other output needs

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
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.DictLoader({name: asset(name) for name in TEMPLATES}),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(
        pct=_percent,
        kind_of=lambda block: type(block).__name__,
        patterns=Markup(patterns_svg()),
        machine_pictures=lambda machine: Markup(page_svgs(machine, paint)),
        bar_maximum=_bar_maximum,
        sort_value=_sort_value,
        cell_looks=_cell_looks,
        sort_state=_sort_state,
    )
    return environment


def _data(pictures: Iterable[Picture], timelines: Sequence[Timeline]) -> Json:
    """What the scripts need: hook -> id -> data of the chart, and the timeline."""
    by_hook: dict[str, Json] = {"series": {}, "counters": {}, "curves": {}, "heat": {}}
    for picture in pictures:
        if picture.data is not None:
            by_hook.setdefault(picture.hook, {})[picture.id] = picture.data()
    return {**by_hook, "timeline": timeline_payload(timelines[0]) if timelines else None}


def _percent(value: float) -> str:
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return f"{text}%"


def _bar_maximum(table: Table) -> float:
    """One scale for all inline bars of a table, so that bars can be compared across columns too."""
    return max((table.maximum(i) for i, column in enumerate(table.columns) if column.bar), default=0.0)


def _sort_value(value: Value) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _cell_looks(column: Column, value: Value, tone: str) -> str:
    """Classes of a cell; "" of a number, of which there are most."""
    looks = [column.unit.value] if column.align == "left" else []
    looks += ["heat", f"heat-{tone}"] if tone else []
    looks += ["long"] if isinstance(value, str) and len(value) > LONG_TEXT else []
    return " ".join(looks)


def _sort_state(table: Table, column: Column) -> str:
    if table.sorted_by is None or table.sorted_by[0] != column.key:
        return "none"
    return "descending" if table.sorted_by[1] else "ascending"
