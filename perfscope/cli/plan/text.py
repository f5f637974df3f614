"""The words of `perfscope plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from perfscope import __version__
from perfscope.analysis.plan.ranking import order_agreement
from perfscope.analysis.plan.records import Basis, Candidate, Excluded, Planned, Trial, Unfit
from perfscope.cli.formatting import command_lines, number, table, wrapped
from perfscope.messages.lists import counted
from perfscope.messages.plan import (
    LOWER_BOUNDS,
    PREDICTIONS,
    UNVERIFIED_MEMORY,
    excluded_by_memory,
    excluded_by_scheme,
    verified_order,
)
from perfscope.reports.plan.naming import label
from perfscope.units import format_bytes, format_ns, format_ratio

SCHEMA_VERSION = 2
_BOUNDS = {True: (" ≥", " ≤"), False: ("", "")}  # marks of lower bounds: of times, of rates


def plan_document(
    heading: Mapping[str, Any],
    best: Sequence[Planned],
    front: Sequence[Planned],
    excluded: Sequence[Excluded],
    assumed: Sequence[str],
    trials: Sequence[Trial],
) -> dict[str, Any]:
    """Of --json."""
    return {
        "schema_version": SCHEMA_VERSION,
        "perfscope_version": __version__,
        **heading,
        "order": "time_per_sample",
        "best": to_builtins(best),
        "pareto": to_builtins(front),
        "excluded": to_builtins(excluded),
        "assumed": list(assumed),
        "verified": [
            {
                "label": label(trial.plan.candidate),
                "batch": trial.plan.candidate.batch,
                "step_s": trial.plan.step_s,
                "basis": trial.plan.basis.value,
                "measured_step_s": trial.measured_step_s,
                "measured_to_computed": trial.measured_to_computed,
                "problem": trial.problem,
            }
            for trial in trials
        ],
        "order_agreement": agreement(trials),
    }


def plan_text(
    heading: str,
    plans: Sequence[Planned],
    top: int,
    command: str,
    front: Sequence[Planned],
    excluded: Sequence[Excluded],
    assumed: Sequence[str],
    limit: float | None,
) -> str:
    """The table of the `top` best, what the first one is, memory with recomputation, the Pareto front, what
    cannot be, and what is assumed.

    Args:
        plans: all that fit, the best first.
    """
    best = plans[:top]
    lines = [heading, "", *_ranking(best), "", PREDICTIONS if is_predicted(best[0]) else LOWER_BOUNDS]
    if any(not plan.candidate.memory.is_verified for plan in (*best, *front)):
        lines.append(UNVERIFIED_MEMORY)
    lines += ["", _memory_of_best(best[0]), *command_lines(command, "   ")]
    lines += _recomputation(plans)
    if len(front) > 1:
        cost = "" if best[0].cost is None else ", cost"
        kind = "time" if is_predicted(best[0]) else "lower bound of time"
        lines += ["", f"Pareto front ({kind}{cost} and memory)"]
        lines += _front(front)
    refused = [option for option in excluded if option.why is Unfit.REFUSED]
    full = [option for option in excluded if option.why is Unfit.MEMORY]
    if full and limit is not None:
        lines += ["", excluded_by_memory(full, limit)]
    if refused:
        lines += ["", *excluded_by_scheme(refused)]
    lines += ["", "Assumed", *(f"  - {sentence}" for sentence in assumed)]
    return "\n".join(wrapped(lines)) + "\n"


def _ranking(best: Sequence[Planned]) -> list[str]:
    low, high = _BOUNDS[not is_predicted(best[0])]
    columns = [
        ("", [f"{rank}. {label(plan.candidate)}" for rank, plan in enumerate(best, start=1)]),
        ("batch", [number(plan.candidate.batch) for plan in best]),
        (f"step{low}", [format_ns(plan.step_s * 1e9) for plan in best]),
        (f"samp/s{high}", [number(1 / plan.sample_s) for plan in best]),
        ("comm", [format_ratio(plan.communication_ratio, 0) for plan in best]),
        ("memory", [_held(plan) for plan in best]),
        (f"eff.{high}", [format_ratio(plan.efficiency, 0) for plan in best]),
    ]
    if any(plan.bubble_ratio for plan in best):
        columns.insert(5, ("bubble", [format_ratio(plan.bubble_ratio, 0) for plan in best]))
    heads, cells = zip(*columns, strict=True)
    return table(heads, list(zip(*cells, strict=True)))


def _held(plan: Planned) -> str:
    memory = plan.candidate.memory
    return format_bytes(memory.peak) + ("" if memory.is_verified else " ?")


def _memory_of_best(plan: Planned) -> str:
    memory = plan.candidate.memory
    parts = ", ".join(
        f"{name} {format_bytes(size)}"
        for name, size in (
            ("weights", memory.weights),
            ("gradients", memory.gradients),
            ("optimizer", memory.state),
            ("activations", memory.activations),
            ("buffers", memory.buffers),
        )
        if size
    )
    return f"1. holds {_held(plan)} per rank: {parts}"


def _recomputation(plans: Sequence[Planned]) -> list[str]:
    """Memory and step with and without activation checkpointing, at the batch and precision of the best."""
    first = plans[0].candidate
    low, _ = _BOUNDS[not is_predicted(plans[0])]
    plain = {_way(plan.candidate): plan for plan in plans if not plan.candidate.checkpointing}
    rows = []
    for plan in plans:
        option = plan.candidate
        if not option.checkpointing or (option.batch, option.dtype) != (first.batch, first.dtype):
            continue
        name, batch = _way(replace(option, checkpointing=False))
        kept = plain.get((name, batch))
        memory, step = ("does not fit", "") if kept is None else (_held(kept), format_ns(kept.step_s * 1e9))
        rows.append((name, memory, step, _held(plan), format_ns(plan.step_s * 1e9)))
    if not rows:
        return []
    head = ("", "memory", f"step{low}", "recomputed", f"step{low}")
    title = f"Activations kept, and recomputed (activation checkpointing), batch {number(first.batch)}"
    return ["", title, *table(head, rows[:_MOST_PAIRS])]


def _way(option: Candidate) -> tuple[str, int]:
    return label(option), option.batch


_MOST_PAIRS = 3


def _front(front: Sequence[Planned]) -> list[str]:
    has_cost = front[0].cost is not None
    low, _ = _BOUNDS[not is_predicted(front[0])]
    head = ("", "ranks", "batch", f"time/sample{low}", "memory", *((f"cost/1M{low}",) if has_cost else ()))
    rows = [
        (
            label(plan.candidate),
            str(plan.candidate.num_ranks),
            number(plan.candidate.batch),
            format_ns(plan.sample_s * 1e9),
            _held(plan),
            *((number(plan.cost),) if has_cost else ()),
        )
        for plan in front
    ]
    return table(head, rows)


def verified_text(trials: Sequence[Trial]) -> str:
    """Computed beside measured steps."""
    body = [
        (
            label(trial.plan.candidate),
            number(trial.plan.candidate.batch),
            format_ns(trial.plan.step_s * 1e9),
            format_ns(None if trial.measured_step_s is None else trial.measured_step_s * 1e9),
            "–" if trial.measured_to_computed is None else f"{trial.measured_to_computed:.2f}x",
        )
        for trial in trials
    ]
    low, _ = _BOUNDS[not is_predicted(trials[0].plan)]
    head = ("", "batch", f"step{low}" if low else "predicted", "measured", "ratio")
    lines = ["Verified on this machine", *table(head, body)]
    lines += [f"  {label(trial.plan.candidate)}: {trial.problem}" for trial in trials if trial.problem]
    if (share := agreement(trials)) is not None:
        num = sum(trial.measured_step_s is not None for trial in trials)
        lines.append(f"  {verified_order(share, num)}")
    return "\n" + "\n".join(wrapped(lines)) + "\n"


def agreement(trials: Sequence[Trial]) -> float | None:
    """Of the measured order of times per sample with the computed one."""
    measured = [(trial.plan, trial.measured_step_s) for trial in trials if trial.measured_step_s is not None]
    return order_agreement(
        [plan.sample_s for plan, _ in measured], [step / plan.candidate.batch for plan, step in measured]
    )


def is_predicted(plan: Planned) -> bool:
    """Whether its times are predictions, not lower bounds."""
    return plan.basis is Basis.CALIBRATED


def heading_of(model: str, size: str, cluster: str, *, num_ways: int, num_fit: int) -> str:
    """What was asked."""
    return f"{model} at {size} on {cluster}: {counted(num_ways, 'way')} to train, {num_fit:,} fit"
