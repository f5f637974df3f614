"""Section "What if": the step without each of its costs, as the replay predicts it."""

from __future__ import annotations

from perfscope import units
from perfscope.analysis.results import RunAnalysis
from perfscope.messages.lists import plural
from perfscope.messages.sentences import capital
from perfscope.reports.display import visible
from perfscope.reports.model import Column, Note, Section, Table, Unit
from perfscope.reports.sections.layer_names import layer_names, with_types


def what_ifs_section(analysis: RunAnalysis) -> Section | None:
    """None where nothing could be replayed; why is listed with “Not collected”."""
    check = analysis.replay
    if check is None or not analysis.what_ifs:
        return None
    best = analysis.what_ifs[0]
    names = layer_names(analysis.layers)
    notes = tuple(
        Note(
            text=f"{visible(capital(caution))}: the ranking is reliable, the magnitudes are not.",
            tone="caution",
        )
        for caution in sorted({what_if.caution for what_if in analysis.what_ifs if what_if.caution})
    )
    table = Table(
        id="what-ifs",
        terminal_rows=8,
        title="Predicted step time, one change at a time",
        columns=(
            Column(key="what", title="What if", primary=True),
            Column(key="step", title="Step", unit=Unit.TIME, modeled=True, bar="compute", primary=True),
            Column(key="gain", title="Saved", unit=Unit.TIME, modeled=True),
            Column(key="share", title="Saved", unit=Unit.RATIO, modeled=True, primary=True),
            Column(key="evidence", title="Rests on (traced steps)"),
        ),
        rows=tuple(
            (
                visible(with_types(what_if.title, names)),
                what_if.step_ns,
                what_if.gain_ns,
                what_if.gain_ratio,
                visible(with_types(what_if.evidence, names)),
            )
            for what_if in analysis.what_ifs
        ),
        caption=(
            f"Each row replays {units.format_count(check.num_steps)} traced "
            f"{plural('step', check.num_steps)} with one thing changed, on the scale of the median "
            f"step. Unchanged, the replay gives {units.format_ns(check.replayed_ns)} for "
            f"{units.format_ns(check.measured_ns)} measured. Savings overlap and do not add up."
        ),
        sorted_by=("gain", True),
        cards=True,
    )
    return Section(
        id="what-if",
        title="What if",
        lead=(
            f"With {visible(with_types(best.title, names))} the step would take "
            f"{units.format_ns(best.step_ns)}, {units.format_ratio(best.gain_ratio)} less."
        ),
        blocks=(*notes, table),
    )
