"""What the HTML report needs to draw history charts: names for its template, data for the pointer."""

from __future__ import annotations

import math
from collections.abc import Callable

from perfscope.reports.gate_history import places
from perfscope.reports.gate_history.chart import HistoryChart, RunPoint
from perfscope.reports.values import Unit, format_value

Json = dict[str, object]


def history_globals() -> dict[str, object]:
    """Names for history.html.j2."""
    given: dict[str, Callable[..., object]] = {
        "history_frame": places.frame,
        "history_spots": places.spots,
        "history_dots": places.dots,
        "history_rules": places.rules,
        "history_label_rows": places.label_rows,
        "history_pieces": places.pieces,
        "history_parts": places.shown_parts,
        "history_y_ticks": places.y_ticks,
        "history_part_ticks": places.part_ticks,
        "history_x_ticks": places.x_ticks,
        "history_has_doubtful": places.has_doubtful,
        "history_caption": places.full_caption,
        "history_line": line_path,
        "history_words": words,
    }
    return dict(given)


def line_path(chart: HistoryChart) -> str:
    """SVG path through the points in a 1000 × 1000 box; it ends and begins anew where a value is missing."""
    box = places.frame(chart)
    path, drawing = "", False
    for point in chart.points:
        if not math.isfinite(point.value):
            drawing = False
            continue
        path += (
            f"{'L' if drawing else 'M'}{10 * box.x(point.number):.1f},{1000 - 10 * box.y(point.value):.1f}"
        )
        drawing = True
    return path


def words(chart: HistoryChart) -> str:
    """The chart for who cannot see it."""
    known = [point for point in chart.points if math.isfinite(point.value)]
    if not known:
        return f"{chart.title}: no session has it"
    told = [
        f"{chart.title}, {len(known)} sessions, {format_value(chart.unit, known[0].value)} in the first, "
        f"{format_value(chart.unit, known[-1].value)} in the last"
    ]
    told += [f"{mark.text} from session {mark.number} ({mark.label}) on" for mark in chart.breaks]
    return "; ".join(told)


def history_payload(chart: HistoryChart) -> Json:
    """JSON-ready data for curves.js: places in per cent, and what stands beside the pointer there."""
    box = places.frame(chart)
    x = [round(box.x(point.number), 2) for point in chart.points]
    at = [_run_words(point) for point in chart.points]

    def curve(label: str, chosen: list[int], texts: list[str]) -> Json:
        return {"label": label, "x": [x[n] for n in chosen], "at": [at[n] for n in chosen], "text": texts}

    points = list(enumerate(chart.points))
    known = [n for n, point in points if math.isfinite(point.value)]
    curves = [curve(chart.y_title, known, [_value_words(chart, chart.points[n]) for n in known])]
    for number, part in enumerate(chart.parts):
        has = [n for n, point in points if point.parts and point.parts[number] > 0]
        if has:
            texts = [format_value(Unit.TIME, chart.points[n].parts[number]) for n in has]
            curves.append(curve(part.title, has, texts))
    return {"x_title": "Session", "curves": curves}


def _run_words(point: RunPoint) -> str:
    return " · ".join(filter(None, (f"{point.number:,}", point.label, point.date)))


def _value_words(chart: HistoryChart, point: RunPoint) -> str:
    text = format_value(chart.unit, point.value)
    said = []
    counted = [run for run in point.runs if run.doubtful == point.doubtful]
    if len(counted) > 1:
        said.append(f"median of {len(counted):,} runs")
    if point.doubtful:
        said.append("disturbed")
    return f"{text} ({', '.join(said)})" if said else text
