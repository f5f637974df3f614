"""Section "Learning" of a bench run: the held-out set over its steps, targets, batches and noise."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope import units
from perfscope.analysis.learning import LearningResult, NoiseScale
from perfscope.analysis.results import RunAnalysis
from perfscope.messages.lists import counted
from perfscope.reports.display import visible
from perfscope.reports.learning_axes import SENT, STEPS, TIME, learning_curve
from perfscope.reports.model import Block, Column, Curve, CurveChart, FactList, Section, Table, Unit


def learning_section(analysis: RunAnalysis) -> Section | None:
    """None for runs in which nothing was measured between steps."""
    learning = None if analysis.bench is None else analysis.bench.learning
    if learning is None:
        return None
    blocks: list[Block] = []
    if learning.target:
        blocks.append(_target_facts(learning))
    if learning.points:
        blocks += [*_charts(learning), _points_table(learning)]
    if learning.noise is not None:
        blocks.append(_batches_table(learning.noise))
    return Section(id="learning", title="Learning", lead=_lead(learning), blocks=tuple(blocks))


def _lead(learning: LearningResult) -> str:
    sentences = []
    if learning.points:
        last = learning.points[-1]
        text = f"Held-out accuracy {_percent(last.accuracy)} behind step {last.step:,}"
        if learning.best_accuracy is not None:
            text += f"; the data allows {learning.best_accuracy:.1%}"
        if last.auc is not None:
            text += f"; AUC {last.auc:.3f}"
            text += "" if learning.best_auc is None else f", the data allows {learning.best_auc:.3f}"
        sentences.append(f"{text}.")
    if "to_target" in learning.missing:
        sentences.append(f"{visible(learning.missing['to_target'])}.")
    if (noise := learning.noise) is not None:
        text = f"The gradient noise scale is {noise.samples:,.3g} samples: updates use {noise.efficiency:.0%}"
        text += " of what their samples could teach in very small batches"
        if noise.goodput is not None:
            text += f", a goodput of {units.three_digits(noise.goodput)} samples/s"
        sentences.append(f"{text}.")
    elif "noise" in learning.missing:
        sentences.append(f"No gradient noise scale: {learning.missing['noise']}.")
    return " ".join(sentences)


def _percent(value: float | None) -> str:
    return units.MISSING if value is None else f"{value:.1%}"


def _target_facts(learning: LearningResult) -> FactList:
    reached, missing = learning.to_target, learning.missing
    pairs = [("Target", visible(learning.target))]
    if reached is None:
        pairs.append(("Reached", f"no: {visible(missing.get('to_target', ''))}"))
        return FactList(id="learning-target", title="To the target", pairs=tuple(pairs))
    pairs += [
        ("Steps", f"{reached.step:,}"),
        ("Samples", f"{reached.samples:,}"),
        ("Training time", units.format_ns(reached.train_ns)),
        ("Bytes sent", _amount(units.format_bytes(reached.bytes), missing.get("bytes"))),
        (
            "Energy",
            _amount(units.format_si(reached.joules, "J") if reached.joules else "", missing.get("joules")),
        ),
        ("Cost", _amount("" if reached.cost is None else f"{reached.cost:.4g}", missing.get("cost"))),
    ]
    return FactList(id="learning-target", title="To the target", pairs=tuple(pairs))


def _amount(text: str, missing: str | None) -> str:
    return f"{units.MISSING} ({visible(missing)})" if missing else text


def _charts(learning: LearningResult) -> Iterator[CurveChart]:
    for figure, title, unit, best in (
        ("accuracy", "Held-out accuracy", Unit.RATIO, learning.best_accuracy),
        ("auc", "Held-out AUC", Unit.RATIO, learning.best_auc),
        ("loss", "Held-out loss", Unit.LOSS, learning.best_loss),
    ):
        for axis in (STEPS, TIME, SENT):
            curve = learning_curve(title, learning.points, axis, figure)
            if curve is None or curve.x[-1] <= curve.x[0]:
                continue
            curves = [curve]
            across = (curve.x[0], curve.x[-1])
            if best is not None:
                curves.append(
                    Curve(label="best that the data allows", x=across, y=(best, best), kind="level")
                )
            yield CurveChart(
                id=f"learning-{figure}-{axis.name}",
                title=f"{title} against {axis.name}",
                x_title=axis.title,
                y_title=title[0].lower() + title[1:],
                curves=tuple(curves),
                x_unit=axis.unit,
                y_unit=unit,
                y_zero=False,
                caption=f"On {counted(learning.num_held_out, 'sample')} that no step was trained on.",
            )


def _points_table(learning: LearningResult) -> Table:
    return Table(
        id="learning-points",
        title="Evaluations",
        terminal_rows=12,
        columns=(
            Column(key="step", title="Step", unit=Unit.COUNT, primary=True),
            Column(key="samples", title="Samples", unit=Unit.COUNT),
            Column(key="time", title="Training time", unit=Unit.TIME, primary=True),
            Column(key="bytes", title="Bytes", unit=Unit.BYTES),
            Column(key="loss", title="Loss", unit=Unit.LOSS, primary=True),
            Column(key="accuracy", title="Accuracy", unit=Unit.RATIO, primary=True),
            Column(key="top5", title="Top 5", unit=Unit.RATIO),
            Column(key="auc", title="AUC", unit=Unit.RATIO),
        ),
        rows=tuple(
            (
                *(point.step, point.samples, point.train_ns, point.bytes),
                *(point.loss, point.accuracy, point.top5, point.auc),
            )
            for point in learning.points
        ),
    )


def _batches_table(noise: NoiseScale) -> Table:
    return Table(
        id="learning-batches",
        title="Predicted efficiency by samples behind an update",
        terminal_rows=8,
        columns=(
            Column(key="batch", title="Batch", unit=Unit.COUNT, primary=True),
            Column(key="efficiency", title="Efficiency", unit=Unit.RATIO, primary=True),
        ),
        rows=noise.by_batch,
        caption=(
            f"Noise scale / (noise scale + batch), at the best learning rate of each batch; "
            f"{counted(noise.num_measurements, 'measurement')}."
        ),
    )
