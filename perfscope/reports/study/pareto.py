"""Time, memory and bytes of settings, and which of them no other one beats in all three."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from perfscope.analysis.study.pareto import is_by_target
from perfscope.analysis.study.pareto_results import ParetoPoint
from perfscope.analysis.study.results import SchemeStudy
from perfscope.messages.missing import cause_text, figure_text
from perfscope.reports.curve_layout import MOST_CURVES
from perfscope.reports.display import visible
from perfscope.reports.model import Block, Column, Curve, CurveChart, Table, Unit
from perfscope.vocabulary.figures import Figure

_ACROSS: tuple[tuple[str, str, Callable[[ParetoPoint], float | None]], ...] = (
    ("memory", "peak memory of a rank", lambda point: point.memory_bytes),
    ("bytes", "bytes sent per step, all ranks", lambda point: point.sent_bytes),
)


def pareto_blocks(schemes: SchemeStudy, suffix: str) -> Iterator[Block]:
    """Nothing where fewer than two settings have all three figures."""
    points = schemes.pareto
    if sum(point.figures is not None for point in points) < 2:
        return
    ranking = schemes.learning
    time_title = (
        f"time to {visible(ranking.target)}" if ranking and is_by_target(ranking) else "time per sample"
    )
    yield _table(points, time_title, suffix)
    for key, title, value in _ACROSS:
        yield _chart(points, time_title, (key, title, value), suffix)


def _table(points: Sequence[ParetoPoint], time_title: str, suffix: str) -> Table:
    return Table(
        id=f"study-pareto-table{suffix}",
        title="Time, memory and bytes",
        terminal_rows=16,
        columns=(
            Column(key="setting", title="Setting", primary=True),
            Column(key="time", title=time_title[:1].upper() + time_title[1:], unit=Unit.TIME, primary=True),
            Column(key="memory", title="Peak memory of a rank", unit=Unit.BYTES, primary=True),
            Column(key="bytes", title="Bytes sent per step", unit=Unit.BYTES, primary=True),
            Column(key="best", title="Pareto optimal", primary=True),
            Column(key="reason", title="Reason for missing values"),
        ),
        rows=tuple(
            (
                visible(point.title, 80),
                point.time_ns,
                point.memory_bytes,
                point.sent_bytes,
                _standing(point),
                "; ".join(_reasons(point)) or None,
            )
            for point in points
        ),
        caption="Pareto optimal: no other setting is as good or better in all three figures. "
        "Cannot tell: one would be, if it were faster, and the intervals of their times overlap. "
        "Medians over repeats; the noise of memory and bytes is not considered.",
    ).trimmed()


def _standing(point: ParetoPoint) -> str | None:
    if point.undecided:
        return "cannot tell"
    return None if point.is_best is None else ("yes" if point.is_best else "no")


def _reasons(point: ParetoPoint) -> Iterator[str]:
    """The runs' own reasons; of figures they say nothing about, what is usually why."""
    yield from dict.fromkeys(f"{figure_text(entry)}: {cause_text(entry)}" for entry in point.missing)
    stated = {entry.figure for entry in point.missing}
    if point.time_ns is None and Figure.SAMPLES_PER_S not in stated:
        yield "time: no speed was measured, or a run missed the target"
    if Figure.MEMORY_AND_LINKS in stated:
        return
    if point.memory_bytes is None:
        yield "memory: the ranks recorded none"
    if point.sent_bytes is None:
        yield "bytes: calls of a library need a traced window, and other programs record none"


def _chart(
    points: Sequence[ParetoPoint],
    time_title: str,
    across: tuple[str, str, Callable[[ParetoPoint], float | None]],
    suffix: str,
) -> CurveChart:
    """One mark for each setting that is known in all three figures, the optimal ones first."""
    key, title, value = across
    measured = sorted((point for point in points if point.figures), key=lambda point: not point.is_best)
    curves = tuple(
        Curve(
            label=f"{visible(point.title, 60)}{' (optimal)' if point.is_best else ''}",
            x=(point.time_ns or 0.0,),
            y=(value(point) or 0.0,),
        )
        for point in measured[:MOST_CURVES]
    )
    left_out = len(measured) - len(curves)
    return CurveChart(
        id=f"study-pareto-{key}{suffix}",
        title=f"{title[:1].upper()}{title[1:]} against {time_title}",
        x_title=time_title,
        y_title=title,
        curves=curves,
        x_unit=Unit.TIME,
        y_unit=Unit.BYTES,
        caption="Left and low is better."
        + (f" {left_out} more settings are in the table only." if left_out else ""),
    )
