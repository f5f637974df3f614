"""The words of `perfscope plan`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from perfscope import __version__
from perfscope.analysis.plan.records import Candidate, Excluded, Planned, Unfit
from perfscope.cli.formatting import number, table
from perfscope.messages.lists import counted
from perfscope.messages.plan import excluded_by_memory, excluded_by_scheme, verified_order
from perfscope.units import format_bytes, format_ns, format_ratio

SCHEMA_VERSION = 1
_WIDTH = 80


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
    front: Sequence[Planned],
    excluded: Sequence[Excluded],
    assumed: Sequence[str],
    limit: float | None,
) -> str:
    """The table, what the best one is, the Pareto front, what cannot be, and what is assumed."""
    lines = [heading, "", *_ranking(best), ""]
    lines += _memory_of_best(best[0])
    if len(front) > 1:
        lines += ["", "Pareto front (time, memory" + (", cost)" if best[0].cost is not None else ")")]
        lines += _front(front)
    refused = [option for option in excluded if option.why is Unfit.REFUSED]
    full = [option for option in excluded if option.why is Unfit.MEMORY]
    if full and limit is not None:
        lines += ["", excluded_by_memory(full, limit)]
    if refused:
        lines += ["", *excluded_by_scheme(refused)]
    lines += ["", "Assumed", *(f"  - {sentence}" for sentence in assumed)]
    return "\n".join(_wrapped(lines)) + "\n"


def _ranking(best: Sequence[Planned]) -> list[str]:
    rows = [
        (
            f"{place}. {label(plan.candidate)}",
            number(plan.candidate.batch),
            format_ns(plan.step_s * 1e9),
            number(1 / plan.sample_s),
            format_ratio(plan.communication_ratio, 0),
            format_ratio(plan.bubble_ratio, 0),
            format_bytes(plan.candidate.memory.peak),
            format_ratio(plan.efficiency, 0),
        )
        for place, plan in enumerate(best, start=1)
    ]
    return table(("", "batch", "step", "samp/s", "comm", "bubble", "memory", "eff."), rows)


def _memory_of_best(plan: Planned) -> list[str]:
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
    return [f"1. holds {format_bytes(memory.peak)} per rank: {parts}", f"   {command_of(plan.candidate)}"]


def command_of(option: Candidate) -> str:
    """The options of `perfscope bench run` that differ between candidates."""
    terms = ["perfscope bench run", option.scheme, f"--batch {option.batch}"]
    if option.scheme != "serial":
        terms.append(f"--mesh {option.mesh}")
    if option.stages > 1:
        terms.append(f"--microbatches {option.microbatches}")
    elif option.microbatches > 1:
        terms.append(f"--accumulate {option.microbatches}")
    if option.checkpointing:
        terms.append("--activation-checkpointing")
    if option.dtype != "float32":
        terms.append(f"--dtype {option.dtype}")
    return " ".join(terms)


def _front(front: Sequence[Planned]) -> list[str]:
    has_cost = front[0].cost is not None
    head = ("", "ranks", "batch", "time/sample", "memory", *(("cost/1M",) if has_cost else ()))
    rows = [
        (
            label(plan.candidate),
            str(plan.candidate.num_ranks),
            number(plan.candidate.batch),
            format_ns(plan.sample_s * 1e9),
            format_bytes(plan.candidate.memory.peak),
            *((number(plan.cost),) if has_cost else ()),
        )
        for plan in front
    ]
    return table(head, rows)


def verified_text(rows: Sequence[Mapping[str, Any]], agreement: float | None) -> str:
    """Predicted beside measured."""
    body = [
        (
            row["label"],
            number(row["batch"]),
            format_ns(row["predicted_step_s"] * 1e9),
            format_ns(None if row["measured_step_s"] is None else row["measured_step_s"] * 1e9),
            "–" if row["error_ratio"] is None else f"{100 * row['error_ratio']:+.0f} %",
        )
        for row in rows
    ]
    lines = ["Verified on this machine", *table(("", "batch", "predicted", "measured", "error"), body)]
    lines += [f"  {row['label']}: {row['problem']}" for row in rows if row["problem"]]
    if agreement is not None:
        lines.append(f"  {verified_order(agreement, len(rows))}")
    return "\n" + "\n".join(_wrapped(lines)) + "\n"


def heading_of(model: str, size: str, cluster: str, num: int, num_fit: int) -> str:
    """What was asked."""
    return f"{model} at {size} on {cluster}: {counted(num, 'way')} to train, {num_fit:,} fit"


def _wrapped(lines: Sequence[str]) -> list[str]:
    """Sentences in lines of at most _WIDTH columns; tables are narrower by themselves."""
    import textwrap

    wrapped: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + (2 if line.lstrip().startswith("- ") else 0))
        wrapped += (
            textwrap.wrap(
                line,
                _WIDTH,
                subsequent_indent=indent,
                break_on_hyphens=False,
                break_long_words=False,
                drop_whitespace=True,
                replace_whitespace=False,
            )
            if len(line) > _WIDTH
            else [line]
        )
    return wrapped
