"""The words of `perfscope bench run`: what is going to be run, and what came of it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from perfscope.cli.bench.notes import period_of
from perfscope.cli.formatting import exposed, number, table
from perfscope.messages.bench import chunk_words
from perfscope.messages.lists import counted
from perfscope.runners.sweep.sides import BETWEEN, WITHIN, by_side
from perfscope.units import format_bytes, format_ns

SIDES = (WITHIN, BETWEEN)


def plan_text(record: Mapping[str, Any], command: Sequence[str], notes: Sequence[str]) -> str:
    """What would be run, for --dry-run.

    Args:
        record: identity of the planned job.
        command: that starts the ranks.
        notes: of the launching.
    """
    effective = record["effective_batch"]
    batch = f"{record['batch']}" + (
        f" ({effective} behind one update)" if effective != record["batch"] else ""
    )
    lines = [
        f"{record['full_name']}: {record['summary']}",
        "",
        f"  model      {record['model']}, {record['num_params']:,} parameters, {record['dtype']}, "
        f"input {'x'.join(map(str, record['input_shape']))}",
        *_ranks_lines(record),
        f"  batch      {batch}, {record['group_batch']} per {'worker' if _pairs(record) else 'data part'}; "
        f"{counted(record['steps'], 'step')}",
        f"  threads    {threads_words(record)}",
        f"  update     {_update(record)}",
    ]
    lines += _groups([group for group in record["groups"] if group["axis"] != "server"])
    predicted = record["predicted"]
    exact, wire = predicted["bytes_algorithmic_per_step"], predicted["bytes_wire_per_step"]
    if exact:
        lines += ["", "Predicted bytes per step, over all senders"]
        lines += table(
            ("link", "by formula", f"as {record['backend']} moves them"),
            [(name, format_bytes(exact[name]), format_bytes(wire.get(name))) for name in sorted(exact)],
        )
    else:
        lines += ["", "Nothing is communicated."]
    lines += ["", "Command", f"  {shlex.join(command)}", *(f"note: {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def _update(record: Mapping[str, Any]) -> str:
    """`sgd at 0.03 (rule: none), momentum 0.9, cosine after 10 steps of warm-up`."""
    rate = record["learning_rate"]
    parts = [f"{record['optimizer']} at {rate['value']:g} (rule: {rate['rule']})"]
    if record["optimizer"] not in ("adamw", "lamb"):
        parts.append(f"momentum {record['momentum']:g}")
    if record["schedule"] != "constant":
        parts.append(f"schedule {record['schedule']}")
    if record["warmup"]:
        parts.append(f"warm-up {counted(record['warmup'], 'step')}")
    if record["weight_decay"]:
        parts.append(f"weight decay {record['weight_decay']:g}")
    if record["clip_norm"] is not None:
        parts.append(f"gradient norm at most {record['clip_norm']:g}")
    return ", ".join(parts)


def verdict_text(record: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """What came of a run: speed, losses, bytes."""
    speed = figures["samples_per_s"]
    lines = [
        f"{record['full_name']} on {record['model']}, {counted(record['num_ranks'], 'rank')}: "
        f"{number(speed)} samples/s (step median {format_ns(figures['step_median_ns'])}, "
        f"p10 {format_ns(figures['step_p10_ns'])}); {threads_words(record)}",
        f"Training loss {number(figures['first_loss'])} to {number(figures['final_loss'])}, "
        f"held-out loss {number(figures['held_out_loss'])}; "
        f"{_exposed(record, figures)}peak memory of a rank {format_bytes(figures['peak_rss_bytes'])}",
    ]
    lines += _skipped_lines(record, figures["details"])
    if chunk := figures["details"].get("chunk_bytes"):
        lines.append(chunk_words(chunk, figures["details"]["chunk_from"]))
    lines += learning_lines(figures.get("learning"))
    if figures.get("diverged"):
        lines.append("Training diverged: lower --lr")
    if figures.get("disturbed"):
        lines.append("The run was disturbed by others on this machine: see `perfscope report`")
    amounts = figures["bytes_per_step"]
    if amounts["predicted"] or amounts["recorded"]:
        lines += ["", "Bytes per step, over all senders", *_bytes_table(amounts)]
        lines += _period_lines(record, amounts)
    lines += [
        f"{_MISSING_WORDS.get(name, name)} is missing: {why}" for name, why in figures["missing"].items()
    ]
    return "\n".join(lines) + "\n"


def _skipped_lines(record: Mapping[str, Any], details: Mapping[str, Any]) -> list[str]:
    """Updates that did not change the weights; nothing where gradients are not scaled."""
    if (skipped := details.get("skipped_updates")) is None:
        return []
    return [
        f"Skipped updates {skipped:,} of {record['steps']:,} (gradients not finite in float16), "
        f"loss scale {details['loss_scale']:,g}"
    ]


def _auc_words(auc: float | None, best: float | None) -> str:
    if auc is None:
        return ""
    return f", AUC {auc:.3f}" + ("" if best is None else f" (the data allows {best:.3f})")


def learning_lines(learning: Mapping[str, Any] | None) -> list[str]:
    """The last evaluation, what the target took, and the noise scale: a line each, of what was measured."""
    if learning is None:
        return []
    lines = []
    if points := learning["points"]:
        last, best = points[-1], learning["best_accuracy"]
        bound = "" if best is None else f" (the data allows {best:.1%})"
        bound += _auc_words(last["auc"], learning["best_auc"])
        lines.append(
            f"Held-out accuracy {last['accuracy']:.1%}{bound}, loss {number(last['loss'])}, "
            f"on {learning['num_held_out']:,} samples behind step {last['step']}"
        )
    if (reached := learning["to_target"]) is not None:
        amounts = [counted(reached["step"], "step"), f"{reached['samples']:,} samples"]
        amounts += [format_bytes(reached["bytes"])] if reached["bytes"] else []
        amounts += [f"{reached['joules']:,.4g} J"] if reached["joules"] is not None else []
        amounts += [f"cost {reached['cost']:.4g}"] if reached["cost"] is not None else []
        lines.append(
            f"Target {learning['target']} reached after {format_ns(reached['train_ns'])}: "
            f"{', '.join(amounts)}"
        )
    if (noise := learning["noise"]) is not None:
        lines.append(
            f"Gradient noise scale {noise['samples']:,.3g} samples: efficiency {noise['efficiency']:.0%}, "
            f"goodput {number(noise['goodput'])} samples/s"
        )
    return [*lines, *(reason for name, reason in learning["missing"].items() if name in _SAID_MISSING)]


_SAID_MISSING = ("to_target", "noise")


def _exposed(record: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    if record["num_ranks"] == 1 or figures["exposed_comm_ns"] is None:
        return ""
    return f"exposed communication {exposed(figures['exposed_comm_ns'], figures['exposed_comm_ratio'])}; "


def threads_words(record: Mapping[str, Any]) -> str:
    """`2 threads per rank`, or what decides it."""
    if record.get("threads"):
        return f"{counted(int(record['threads']), 'thread')} per rank"
    bound = record.get("bind", "none") != "none"
    return (
        "as many threads per rank as it is bound to cores" if bound else "threads per rank as its host gives"
    )


def _pairs(record: Mapping[str, Any]) -> list[list[int]]:
    """(server, worker) of schemes with a server."""
    return [group["ranks"] for group in record["groups"] if group["axis"] == "server"]


def _ranks_lines(record: Mapping[str, Any]) -> list[str]:
    pairs = _pairs(record)
    if pairs:
        return [
            f"  ranks      1 server (rank {pairs[0][0]}) + {counted(len(pairs), 'worker')}, "
            f"{record['group_batch']} samples each"
        ]
    return [
        f"  mesh       {' x '.join(f'{axis}={parts}' for axis, parts in record['mesh'].items()) or 'none'} "
        f"= {counted(record['num_ranks'], 'rank')}"
    ]


def _period_lines(record: Mapping[str, Any], amounts: Mapping[str, Any]) -> list[str]:
    """Why what was recorded is not what whole periods would send."""
    steps, period = int(record["steps"]), period_of(record)
    predicted, recorded = (sum((amounts[name] or {}).values()) for name in ("predicted", "recorded"))
    if period == 1 or not predicted or not recorded or abs(recorded / predicted - 1) < _SAME:
        return []
    exchanges = round(recorded / predicted * steps / period)
    return [
        f"{counted(steps, 'step')} hold {counted(exchanges, 'exchange')}, one every {period} steps is "
        "predicted"
    ]


_SAME = 0.001


_MISSING_WORDS = {
    "held_out_loss": "held-out loss",
    "exposed_comm_ns": "exposed communication",
    "step_median_ns": "step time",
    "recorded": "the count of recorded bytes",
}


def _bytes_table(amounts: Mapping[str, Any]) -> list[str]:
    columns = [by_side(amounts[name]) for name in ("predicted", "recorded", "predicted_wire", "wire")]
    rows = []
    for side in SIDES:
        values = [None if column is None else column[side] for column in columns]
        if any(values[:3]):
            rows.append((side, *map(format_bytes, values)))
    return table(("link", "predicted", "recorded", "predicted on the wire", "counted there"), rows)


def _groups(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    group_lines = [
        f"  {'groups' if index == 0 else '':10} {group['axis']}: ranks {_ranks(group['ranks'])} "
        f"on {', '.join(group['hosts'])}"
        for index, group in enumerate(groups[:_MOST_GROUPS])
    ]
    if len(groups) > _MOST_GROUPS:
        group_lines.append(f"  {'':10} and {len(groups) - _MOST_GROUPS} more")
    return group_lines


_MOST_GROUPS = 12


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) > 8:
        return f"{', '.join(map(str, ranks[:3]))} ... {ranks[-1]}"
    return ", ".join(map(str, ranks))
