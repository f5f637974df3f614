"""Where the step of a run goes when it is not traced.

The always-on probe times the untraced step, its wait for input, its optimizer and its backward pass
exactly. What it cannot distinguish (computation, communication, copies, idling) is split in the proportions
of the traced steps. So the parts add up to the untraced step, and what tracing slows down alike falls out.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.gate.explain.sides import Figure, Shift, Sides
from perfscope.gate.records import PARTS, RunFigures
from perfscope.messages.gate import explanation as words

EXACT = ("input_wait", "optimizer")  # parts that the always-on probe times
TRACED = ("compute", "exposed_comm", "copy", "idle")  # parts that only a trace distinguishes


def phase_step(run: RunFigures) -> float | None:
    return run.phases.step if run.phases else None


def traced_step(run: RunFigures) -> float | None:
    return run.composition.step if run.composition else None


def metric_step(run: RunFigures) -> float | None:
    return run.metrics.get("step_p10")


STEP_NAMES: Mapping[Figure, str] = {
    phase_step: words.MEDIAN_STEP,
    metric_step: words.P10_STEP,
    traced_step: words.TRACED_STEP,
}


def step_figure(sides: Sides) -> Figure | None:
    """The best step time that both sides have: p10, which is judged, else the median, else the traced."""
    return next((figure for figure in (metric_step, phase_step, traced_step) if sides.all_have(figure)), None)


def steady_parts(run: RunFigures, step: float | None) -> dict[str, float]:
    """Parts of the step `step`, ns, that add up to it; {} without a trace or a step."""
    traced = run.composition
    if traced is None or not step or traced.step <= 0:
        return {}
    scale = step / traced.step
    parts = {part: getattr(traced, part) * scale for part in PARTS}
    for part in EXACT:
        exact = getattr(run.phases, part) if run.phases else None
        if exact is not None and exact <= step:
            parts[part] = exact
    left = step - sum(parts[part] for part in EXACT)
    traced_ns = sum(getattr(traced, part) for part in TRACED)
    if left < 0 or traced_ns <= 0:
        return {}
    for part in TRACED:
        parts[part] = left * getattr(traced, part) / traced_ns
    return parts


def phase_parts(run: RunFigures, step: float | None) -> dict[str, float]:
    """Without a trace: what the always-on probe says of `step`, adding up to it; {} if it knows no part."""
    phases = run.phases
    if phases is None or not step or phases.step <= 0:
        return {}
    exact_parts = {part: value for part in EXACT if (value := getattr(phases, part)) is not None}
    left = phases.step - sum(exact_parts.values())
    if phases.backward is not None and left > 0:
        exact_parts["backward"] = phases.backward * (step - sum(exact_parts.values())) / left
    return {**exact_parts, "rest": step - sum(exact_parts.values())} if exact_parts else {}


def trace_slowdown(sides: Sides) -> float:
    """How many times longer traced steps take than others, median over runs; 1.0 where that is unknown."""
    ratios = sorted(
        traced / step
        for run in sides.runs
        if (step := metric_step(run) or phase_step(run)) and (traced := traced_step(run))
    )
    return ratios[len(ratios) // 2] if ratios else 1.0


def phase_shift(sides: Sides, name: str) -> Shift | None:
    """Of the untraced `backward`, `input_wait`, `optimizer`, or of the `rest` of the median step."""

    def figure(run: RunFigures) -> float | None:
        return phase_parts(run, phase_step(run)).get(name)

    return sides.shift(figure)
