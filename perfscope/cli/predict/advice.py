"""`perfscope predict --advise`: advice by lemmas, as text and JSON."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec import to_builtins

from perfscope import __version__
from perfscope.analysis.predict.advice import Advice, advice_figures, advise
from perfscope.cli.engine import Engine
from perfscope.cli.report import ingest, opened_run
from perfscope.errors import UsageError
from perfscope.messages.predict_advice import FORMULAS, GAPS, MEMORY_NOT_USED, SOURCE, TITLES
from perfscope.rundir.reader import RunReader
from perfscope.units import MISSING, format_bytes, format_ns

TARGET = 0.8


def advice_of(runs: tuple[Path, ...], engine: Engine, as_json: bool, target: float = TARGET) -> str:
    """Text or JSON for one run.

    Raises:
        UsageError: not one run.
    """
    if len(runs) != 1:
        raise UsageError("--advise takes one run; name one run directory")
    analysis = opened_run(RunReader(ingest(runs[0], engine)), engine).analysis
    advice = advise(advice_figures(analysis), target)
    return advice_document(advice) if as_json else advice_text(advice, runs[0].name)


def advice_document(advice: Advice) -> str:
    """One object; each item with its formula, source and reason."""
    document = {"schema_version": 1, "perfscope_version": __version__, **to_builtins(advice)}
    document["items"] = [
        {
            **to_builtins(item),
            "formula": FORMULAS[item.quantity],
            "source": SOURCE,
            "reason": GAPS[item.gap] if item.gap else None,
        }
        for item in advice.items
    ]
    document["notes"] = [MEMORY_NOT_USED]
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def advice_text(advice: Advice, name: str) -> str:
    """Figures of the run, then each quantity with its formula."""
    figures = advice.figures
    lines = [f"Advice for {name}, parallel efficiency a = {advice.target:g}; lemmas of {SOURCE}", ""]
    lines.append(
        f"Measured: {figures.num_workers} workers, compute {_ns(figures.compute_ns)} and overhead "
        f"{_ns(figures.overhead_ns)} per step"
    )
    lines.append(
        f"Efficiency at {figures.num_workers} workers: {_share(advice.efficiency)} by the lemma, "
        f"{_share(figures.parallel_efficiency)} measured"
    )
    weights, rate = figures.weight_bytes, figures.bandwidth_bytes_per_s
    lines.append(
        f"Weights {MISSING if weights is None else format_bytes(weights)}, bandwidth of traced calls "
        f"{MISSING if rate is None else format_bytes(rate) + '/s'}"
    )
    for item in advice.items:
        beside = "" if item.measured is None else f" (the run has {item.measured:,.6g})"
        value = f"missing: {GAPS[item.gap]}" if item.gap else f"{item.value:,}"
        lines += ["", f"{TITLES[item.quantity]}: {value}{beside}", f"  {FORMULAS[item.quantity]}"]
    return "\n".join([*lines, "", f"Note: {MEMORY_NOT_USED}.", ""])


def _ns(value: float | None) -> str:
    return MISSING if value is None else format_ns(round(value))


def _share(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.1f} %"
