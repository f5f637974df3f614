"""Settings by how fast they learn: what the target took, and held-out accuracy over time and bytes."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analysis.study.results import LearningRanking, SchemeStudy, StudyAnalysis
from perfscope.messages.comparison.learning import basis_words
from perfscope.messages.lists import counted
from perfscope.reports.curve_layout import MOST_CURVES
from perfscope.reports.display import visible
from perfscope.reports.learning_axes import SENT, TIME, learning_curve
from perfscope.reports.model import (
    Block,
    Column,
    CurveChart,
    IntervalBar,
    IntervalBars,
    Table,
    Unit,
)
from perfscope.vocabulary.comparison import RankBasis

_UNITS = {
    RankBasis.TIME: Unit.TIME,
    RankBasis.ENERGY: Unit.ENERGY,
    RankBasis.COST: Unit.NUMBER,
    RankBasis.GOODPUT: Unit.SAMPLES,
}


def ranking_blocks(study: StudyAnalysis, schemes: SchemeStudy, suffix: str) -> Iterator[Block]:
    """Nothing where the runs measured no learning in common."""
    if schemes.learning is None:
        return
    yield _bars(schemes.learning, suffix)
    yield _table(schemes.learning, suffix)
    yield from _curves(study, schemes, suffix)


def _bars(ranking: LearningRanking, suffix: str) -> IntervalBars:
    basis_text = basis_words(ranking.basis, visible(ranking.target))
    return IntervalBars(
        id=f"study-learning-bars{suffix}",
        title=f"{basis_text[:1].upper()}{basis_text[1:]}, median over runs",
        axis_title=basis_text,
        unit=_UNITS[ranking.basis],
        bars=tuple(
            IntervalBar(
                label=visible(row.title, 80),
                value=row.value,
                low=row.interval.low if row.interval else None,
                high=row.interval.high if row.interval else None,
                note=f"{row.num_reached} of {counted(row.num_runs, 'run')}",
                leading=row is ranking.rows[0] and ranking.level is False,
            )
            for row in ranking.rows
        ),
        caption="The line across a bar's end is the 95 % interval of the median over runs.",
    )


def _table(ranking: LearningRanking, suffix: str) -> Table:
    unit = _UNITS[ranking.basis]
    return Table(
        id=f"study-learning-ranks{suffix}",
        title="Ranking by learning",
        terminal_rows=16,
        columns=(
            Column(key="setting", title="Setting", primary=True),
            Column(key="value", title="Median", unit=unit, primary=True),
            Column(key="low", title="From", unit=unit),
            Column(key="high", title="To", unit=unit),
            Column(key="reached", title="Runs with a value", unit=Unit.COUNT, primary=True),
            Column(key="runs", title="Runs", unit=Unit.COUNT, primary=True),
        ),
        rows=tuple(
            (
                visible(row.title, 80),
                row.value,
                row.interval.low if row.interval else None,
                row.interval.high if row.interval else None,
                row.num_reached,
                row.num_runs,
            )
            for row in ranking.rows
        ),
    )


def _curves(study: StudyAnalysis, schemes: SchemeStudy, suffix: str) -> Iterator[CurveChart]:
    """Held-out accuracy of the first run of each setting."""
    for axis in (TIME, SENT):
        curves = []
        for row in schemes.rows:
            learning = study.run(row.runs[0]).learning
            points = learning.points if learning is not None else ()
            curve = learning_curve(visible(row.title, 60), points, axis, "accuracy")
            if curve is not None:
                curves.append(curve)
        if not curves or max(curve.x[-1] for curve in curves) <= 0:
            continue
        yield CurveChart(
            id=f"study-accuracy-{axis.name}{suffix}",
            title=f"Held-out accuracy against {axis.name}",
            x_title=axis.title,
            y_title="held-out accuracy",
            curves=tuple(curves[:MOST_CURVES]),
            x_unit=axis.unit,
            y_unit=Unit.RATIO,
            y_zero=False,
            caption="The first run of each setting.",
        )
