"""Losses against samples and against seconds, a curve for each setting."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from perfscope.analysis.study.results import LossCurve, StudyAnalysis
from perfscope.messages.lists import counted
from perfscope.reports.curve_layout import MOST_CURVES, log_marks
from perfscope.reports.display import visible
from perfscope.reports.model import Block, Curve, CurveChart, Unit
from perfscope.reports.study.formatting import listed

MOST_POINTS = 240
SAME = 0.01  # of the losses' range: curves that are nowhere farther apart are drawn once
LONG_SPAN = 8.0  # slowest over fastest: beyond it seconds are drawn logarithmically


def loss_charts(
    study: StudyAnalysis, rows: Iterable[tuple[str, Sequence[str]]], suffix: str
) -> Iterator[Block]:
    """Loss against samples, then against seconds; nothing where no run kept its losses.

    Args:
        rows: title and labels of the runs of each curve.
    """
    by_title = [(title, _curve(study, runs)) for title, runs in rows]
    curves = [(title, curve) for title, curve in by_title if curve is not None and len(curve.losses) > 1]
    if not curves:
        return
    without = [title for title, curve in by_title if curve is None]
    caption_end = f" Not recorded for {listed(without)}." if without else ""
    yield from _by_samples([(t, c) for t, c in curves if c.samples], suffix, caption_end)
    yield from _by_seconds([(t, c) for t, c in curves if c.seconds], suffix, caption_end)


def _curve(study: StudyAnalysis, labels: Sequence[str]) -> LossCurve | None:
    """Of the first repeat that has one."""
    curves = (study.run(label).loss_curve for label in labels)
    return next((curve for curve in curves if curve is not None), None)


def _by_samples(curves: list[tuple[str, LossCurve]], suffix: str, caption_end: str) -> Iterator[CurveChart]:
    groups = grouped(curves)
    if not groups:
        return
    drawn = groups[:MOST_CURVES]
    left = len(groups) - len(drawn)
    same = [f"{visible(names[0], 60)} stands for {listed(names[1:], 12)}" for names, _ in drawn if names[1:]]
    caption = "What was learned from as many samples. Curves that agree within 1 % are drawn once"
    caption += f": {'; '.join(same)}." if same else "."
    yield CurveChart(
        id=f"study-loss-samples{suffix}",
        title="Training loss against samples seen",
        x_title="samples seen by all ranks",
        y_title="training loss",
        curves=tuple(
            _drawn(_name(names), [float(value) for value in curve.samples], curve.losses)
            for names, curve in drawn
        ),
        x_unit=Unit.COUNT,
        y_unit=Unit.LOSS,
        y_zero=False,
        caption=_with_left(caption, left) + caption_end,
    )


def _by_seconds(curves: list[tuple[str, LossCurve]], suffix: str, caption_end: str) -> Iterator[CurveChart]:
    if not curves:
        return
    drawn = curves[:MOST_CURVES]
    ends = [curve.seconds[-1] for _, curve in drawn]
    starts = [value for _, curve in drawn for value in curve.seconds[:1] if value > 0]
    log = min(ends) > 0 and max(ends) > LONG_SPAN * min(ends) and len(starts) == len(drawn)
    caption = "What was learned in as much time: setting up is not counted, what the first step compiles is."
    caption += " The time axis is logarithmic." if log else ""
    yield CurveChart(
        id=f"study-loss-seconds{suffix}",
        title="Training loss against time",
        x_title="time since the first step's start",
        y_title="training loss",
        curves=tuple(
            _drawn(visible(title, 60), [1e9 * value for value in curve.seconds], curve.losses)
            for title, curve in drawn
        ),
        x_unit=Unit.TIME,
        y_unit=Unit.LOSS,
        x_log=log,
        y_zero=False,
        x_marks=log_marks(1e9 * min(starts), 1e9 * max(ends)) if log else (),
        caption=_with_left(caption, len(curves) - len(drawn)) + caption_end,
    )


def _with_left(caption: str, left: int) -> str:
    return f"{caption} The {left} slowest are left to the JSON." if left > 0 else caption


def _name(names: Sequence[str]) -> str:
    more = len(names) - 1
    name = visible(names[0], 60)
    return f"{name} and {counted(more, 'other')}" if more else name


def _drawn(label: str, x: Sequence[float], y: Sequence[float]) -> Curve:
    """The curve, thinned to what can be seen; its last point is kept."""
    step = max(-(-len(x) // MOST_POINTS), 1)
    kept = sorted({*range(0, len(x), step), len(x) - 1})
    return Curve(label=label, x=tuple(x[i] for i in kept), y=tuple(y[i] for i in kept))


def grouped(curves: Sequence[tuple[str, LossCurve]]) -> list[tuple[list[str], LossCurve]]:
    """Curves with the same course under their first's name, in the order given."""
    losses = [v for _, curve in curves for v in curve.losses if math.isfinite(v)]
    room = SAME * (max(losses) - min(losses)) if losses else 0.0
    groups: list[tuple[list[str], LossCurve]] = []
    for title, curve in curves:
        for names, other in groups:
            if curve.samples == other.samples and _near(curve, other, room):
                names.append(title)
                break
        else:
            groups.append(([title], curve))
    return groups


def _near(first: LossCurve, other: LossCurve, room: float) -> bool:
    return all(abs(a - b) <= room for a, b in zip(first.losses, other.losses, strict=True))
