"""`perfscope predict --advise`: advice by lemmas, as text and JSON."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec import to_builtins

from perfscope import __version__
from perfscope.analysis.predict.advice import (
    Advice,
    AdviceItem,
    RunBeside,
    advice_figures,
    advise,
    runs_beside,
)
from perfscope.cli.engine import Engine
from perfscope.cli.formatting import wrapped
from perfscope.cli.report import ingest, opened_run
from perfscope.errors import UsageError
from perfscope.messages.lists import counted
from perfscope.messages.predict_advice import (
    FORMULAS,
    GAPS,
    MEMORY_LINEAR,
    NO_SERVERS,
    ONE_RUN,
    RECORDING,
    SOURCE,
    TITLES,
    substituted,
    unlike_traced,
)
from perfscope.rundir.reader import RunReader
from perfscope.units import MISSING, format_bytes, format_ns, three_digits
from perfscope.vocabulary.lemmas import Quantity

TARGET = 0.8
_UNLIKE = 1.5  # of the usual step: traced steps that do not stand for it


def advice_of(runs: tuple[Path, ...], engine: Engine, as_json: bool, target: float = TARGET) -> str:
    """Text or JSON for the first run, beside what all of them measured."""
    analyses = [opened_run(RunReader(ingest(run, engine)), engine).analysis for run in runs]
    models = sorted({analysis.bench.model for analysis in analyses if analysis.bench is not None})
    if len(models) > 1:
        raise UsageError(f"the runs are of different models ({', '.join(models)}): name runs of one model")
    figures = [
        (run.name or str(run), advice_figures(analysis)) for run, analysis in zip(runs, analyses, strict=True)
    ]
    advice = advise(figures[0][1], target)
    beside = runs_beside(figures, advice.overhead_ratio)
    return advice_document(advice, beside) if as_json else advice_text(advice, figures[0][0], beside)


def advice_document(advice: Advice, beside: tuple[RunBeside, ...]) -> str:
    """One object; each item with its formula, source and reason, and the runs beside it."""
    document = {"schema_version": 1, "perfscope_version": __version__, **to_builtins(advice)}
    document["items"] = [
        {
            **to_builtins(item),
            "formula": FORMULAS[item.quantity],
            "with_values": _with_values(item, advice),
            "source": None if item.quantity is Quantity.FITTING_BATCH else SOURCE,
            "reason": GAPS[item.gap] if item.gap else None,
            "to_record": RECORDING.get(item.gap) if item.gap else None,
        }
        for item in advice.items
    ]
    document["runs"] = to_builtins(beside)
    document["notes"] = [
        *([MEMORY_LINEAR] if advice.figures.memory is not None else []),
        *([ONE_RUN] if len(beside) == 1 else []),
    ]
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def advice_text(advice: Advice, name: str, beside: tuple[RunBeside, ...]) -> str:
    """Figures of the run, each quantity with its formula and values, and what the runs measured."""
    figures = advice.figures
    lines = [f"Advice for {name}, parallel efficiency a = {advice.target:g}; lemmas of {SOURCE}", ""]
    lines.append(
        f"Measured: {counted(figures.num_workers, 'worker')}, compute {_ns(figures.compute_ns)} and overhead "
        f"{_ns(figures.overhead_ns)} per step"
    )
    lines.append(
        f"Efficiency at {counted(figures.num_workers, 'worker')}: {_share(advice.efficiency)} by the lemma; "
        f"useful work in the traced steps: {_share(figures.parallel_efficiency)}"
    )
    weights, rate = figures.weight_bytes, figures.bandwidth_bytes_per_s
    lines.append(
        f"Weights {MISSING if weights is None else format_bytes(weights)}, bandwidth of traced calls "
        f"{MISSING if rate is None else format_bytes(rate) + '/s'}"
    )
    for item in advice.items:
        lines += ["", *_item_lines(item, advice)]
    lines += ["", *_run_lines(beside)]
    if advice.figures.memory is not None:
        lines += ["", f"Note: {MEMORY_LINEAR}."]
    traced_ns = (figures.compute_ns or 0.0) + (figures.overhead_ns or 0.0)
    usual_ns = (
        figures.batch / figures.samples_per_s * 1e9 if figures.batch and figures.samples_per_s else None
    )
    if usual_ns is not None and traced_ns > _UNLIKE * usual_ns:
        lines.append(f"Note: {unlike_traced(traced_ns, usual_ns)}.")
    return "\n".join(wrapped([*lines, ""]))


def _item_lines(advised: AdviceItem, advice: Advice) -> list[str]:
    beside = "" if advised.measured is None else f" (the run has {advised.measured:,.6g})"
    answer = f"missing: {GAPS[advised.gap]}" if advised.gap else f"{advised.value:,}"
    lines = [f"{TITLES[advised.quantity]}: {answer}{beside}", f"  {FORMULAS[advised.quantity]}"]
    if (formula := _with_values(advised, advice)) is not None:
        lines.append(f"  {formula}")
    if advised.gap in RECORDING:
        lines.append(f"  To have it: {RECORDING[advised.gap]}")
    if advised.quantity is Quantity.SERVERS and advised.value is not None and advised.measured is None:
        lines.append(f"  {NO_SERVERS}")
    return lines


def _with_values(advised: AdviceItem, advice: Advice) -> str | None:
    if advised.value is None:
        return None
    return substituted(advised.quantity, advised.used, advice.target, advice.figures.num_workers)


def _run_lines(beside: tuple[RunBeside, ...]) -> list[str]:
    if len(beside) == 1:
        return [f"Measured beside it: missing, {ONE_RUN}."]
    lines = ["Measured beside it (samples/s per worker, of the run with the fewest workers):"]
    for run in beside:
        speed = MISSING if run.samples_per_s is None else three_digits(run.samples_per_s)
        batch = MISSING if run.batch is None else f"{run.batch:,g}"
        servers = f", {counted(run.num_servers, 'server')}" if run.num_servers else ""
        lemma = "other batch: no lemma" if run.by_lemma is None else f"{_share(run.by_lemma)} by the lemma"
        lines.append(
            f"  {run.name}: {counted(run.num_workers, 'worker')}{servers}, {batch} samples per step, "
            f"{speed} samples/s: {_share(run.efficiency)} measured, {lemma}"
        )
    return lines


def _ns(value: float | None) -> str:
    return MISSING if value is None else format_ns(round(value))


def _share(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.1f} %"
