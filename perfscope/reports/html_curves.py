"""What the HTML report needs to draw curve charts and interval bars: SVG paths, data for the pointer."""

from __future__ import annotations

from collections.abc import Callable

from perfscope.reports import curve_places as places
from perfscope.reports.curves import Curve, CurveChart
from perfscope.reports.values import format_value

Json = dict[str, object]


def curve_globals() -> dict[str, object]:
    """Names for curves.html.j2."""
    given: dict[str, Callable[..., object]] = {
        "curve_slots": places.slots,
        "curve_path": curve_path,
        "curve_band": curve_band,
        "curve_marks": places.marks,
        "curve_shape": places.shape,
        "curve_x_ticks": places.x_ticks,
        "curve_y_ticks": places.y_ticks,
        "curve_words": curve_words,
        "bar_place": places.bar_place,
        "interval_ticks": places.interval_ticks,
    }
    return dict(given)


def _text(points: list[places.Point]) -> str:
    return "M" + "L".join(f"{10 * x:.1f},{1000 - 10 * y:.1f}" for x, y in points)


def curve_path(chart: CurveChart, curve: Curve, dashed: bool) -> str:
    """SVG path of the curve's solid, or dashed, pieces in a 1000 × 1000 box; "" where it has none."""
    pieces = [points for points, beyond in places.strokes(chart, curve) if beyond == dashed]
    return "".join(_text(points) if len(points) > 1 else f"{_text(points)}h1" for points in pieces)


def curve_band(chart: CurveChart, curve: Curve) -> str:
    """SVG path around the curve's intervals; "" where it has none."""
    found = places.band(chart, curve)
    return "".join(f"{_text([*low, *reversed(high)])}Z" for low, high in found if len(low) > 1)


def curve_words(chart: CurveChart, curve: Curve) -> str:
    """The curve's ends, for who cannot see it."""
    if not curve.x:
        return curve.label
    ends = [
        f"{format_value(chart.y_unit, curve.y[at])} at {format_value(chart.x_unit, curve.x[at])}"
        for at in (0, -1)
    ]
    return f"{curve.label}: {ends[0]}, {ends[1]}"


def curves_payload(chart: CurveChart) -> Json:
    """JSON-ready data for curves.js: per curve the points' places in per cent, and their texts."""
    box = places.frame(chart)
    return {
        "x_title": chart.x_title,
        "curves": [
            {
                "label": curve.label,
                "x": [round(box.x(value), 2) for value in curve.x],
                "at": [format_value(chart.x_unit, value) for value in curve.x],
                "text": [_point_words(chart, curve, number) for number in range(len(curve.x))],
            }
            for curve in chart.curves
        ],
    }


def _point_words(chart: CurveChart, curve: Curve, number: int) -> str:
    text = format_value(chart.y_unit, curve.y[number])
    if not curve.low or not curve.high or not curve.high[number] > curve.low[number]:
        return text
    low, high = (format_value(chart.y_unit, side[number]) for side in (curve.low, curve.high))
    return f"{text} ({low} to {high})"
