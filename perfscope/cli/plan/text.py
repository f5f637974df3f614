"""The words of `perfscope plan`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from perfscope import __version__
from perfscope.analysis.plan.records import Candidate, Excluded, Planned, Unfit
from perfscope.cli.formatting import command_lines, number, table, wrapped
from perfscope.messages.lists import counted
from perfscope.messages.plan import (
    LOWER_BOUNDS,
    UNVERIFIED_MEMORY,
    excluded_by_memory,
    excluded_by_scheme,
    verified_order,
)
from perfscope.runners.config import BenchConfig
from perfscope.units import format_bytes, format_ns, format_ratio

SCHEMA_VERSION = 1
_ORDER = "lower_bound_of_time_per_sample"


def label(option: Candidate) -> str:
    """What is done, in the words of `bench run`: mesh, and what else is not the default."""
    terms = ["serial" if option.scheme == "serial" else option.mesh]
    if option.microbatches > 1:
        terms.append(f"m={option.microbatches}")
    if option.checkpointing:
        terms.append("ckpt")
    if option.dtype != "float32":
        terms.append({"bfloat16": "bf16", "float16": "fp16"}.get(option.dtype, option.dtype))
    return " ".join(terms)


def plan_document(
    heading: Mapping[str, Any],
    best: Sequence[Planned],
    front: Sequence[Planned],
    excluded: Sequence[Excluded],
    assumed: Sequence[str],
    verified: Sequence[Mapping[str, Any]],
) -> str:
    """One JSON object."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "perfscope_version": __version__,
        **heading,
        "order": _ORDER,
        "best": to_builtins(best),
        "pareto": to_builtins(front),
        "excluded": to_builtins(excluded),
        "assumed": list(assumed),
        "verified": list(verified),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def plan_text(
    heading: str,
    best: Sequence[Planned],
    first: BenchConfig,
    front: Sequence[Planned],
    excluded: Sequence[Excluded],
    assumed: Sequence[str],
    limit: float | None,
) -> str:
    """The table, what the first one is, the Pareto front, what cannot be, and what is assumed."""
    lines = [heading, "", *_ranking(best), "", LOWER_BOUNDS]
    if any(not plan.candidate.memory.is_verified for plan in (*best, *front)):
        lines.append(UNVERIFIED_MEMORY)
    lines += ["", _memory_of_best(best[0]), *command_lines(command_of(first), "   ")]
    if len(front) > 1:
        cost = "" if best[0].min_cost is None else " and cost"
        lines += ["", f"Pareto front (lower bounds of time{cost}, and memory)"]
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
    rows = [
        (
            f"{place}. {label(plan.candidate)}",
            number(plan.candidate.batch),
            format_ns(plan.min_step_s * 1e9),
            number(1 / plan.min_sample_s),
            format_ratio(plan.communication_ratio, 0),
            format_ratio(plan.bubble_ratio, 0),
            _held(plan),
            format_ratio(plan.max_efficiency, 0),
        )
        for place, plan in enumerate(best, start=1)
    ]
    return table(("", "batch", "step ≥", "samp/s ≤", "comm", "bubble", "memory", "eff. ≤"), rows)


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


def command_of(config: BenchConfig) -> str:
    """The command that trains a candidate; the number of steps is its default."""
    return shlex.join(("perfscope", "bench", "run", config.scheme, *bench_options(config)))


def bench_options(config: BenchConfig) -> list[str]:
    """Options of `perfscope bench run` for a candidate."""
    given: dict[str, Any] = {
        "--model": config.model,
        "--input": "x".join(map(str, config.input_shape)),
        "--classes": config.num_classes,
        "--batch": config.batch,
        "--dtype": config.dtype,
        "--optimizer": config.optimizer,
        "--ranks": config.num_ranks,
        "--mesh": config.mesh,
        "--microbatches": config.num_microbatches,
        "--accumulate": config.accumulate if config.accumulate > 1 else None,
        "--momentum": config.momentum or None,
    }
    options = [str(word) for pair in given.items() if pair[1] is not None for word in pair]
    return [*options, *(["--activation-checkpointing"] if config.activation_checkpointing else [])]


def _front(front: Sequence[Planned]) -> list[str]:
    has_cost = front[0].min_cost is not None
    head = ("", "ranks", "batch", "time/sample ≥", "memory", *(("cost/1M ≥",) if has_cost else ()))
    rows = [
        (
            label(plan.candidate),
            str(plan.candidate.num_ranks),
            number(plan.candidate.batch),
            format_ns(plan.min_sample_s * 1e9),
            _held(plan),
            *((number(plan.min_cost),) if has_cost else ()),
        )
        for plan in front
    ]
    return table(head, rows)


def verified_text(rows: Sequence[Mapping[str, Any]], agreement: float | None) -> str:
    """Lower bounds beside measured steps."""
    body = [
        (
            row["label"],
            number(row["batch"]),
            format_ns(row["min_step_s"] * 1e9),
            format_ns(None if row["measured_step_s"] is None else row["measured_step_s"] * 1e9),
            "–" if row["measured_to_min"] is None else f"{row['measured_to_min']:.1f}x",
        )
        for row in rows
    ]
    lines = ["Verified on this machine", *table(("", "batch", "step ≥", "measured", "ratio"), body)]
    lines += [f"  {row['label']}: {row['problem']}" for row in rows if row["problem"]]
    if agreement is not None:
        num = sum(row["measured_step_s"] is not None for row in rows)
        lines.append(f"  {verified_order(agreement, num)}")
    return "\n" + "\n".join(wrapped(lines)) + "\n"


def heading_of(model: str, size: str, cluster: str, num: int, num_fit: int) -> str:
    """What was asked."""
    return f"{model} at {size} on {cluster}: {counted(num, 'way')} to train, {num_fit:,} fit"
