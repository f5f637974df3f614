"""The words of framework runs: a plan, a run's figures, the table of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfscope.analysis.study.parity import EARLY_STEPS, EARLY_TOLERANCE, TOLERANCE
from perfscope.cli.formatting import number, table
from perfscope.messages.lists import counted
from perfscope.units import MISSING, format_bytes, format_ns

if TYPE_CHECKING:
    from perfscope.runners.frameworks.interpreters import Interpreter
    from perfscope.runners.frameworks.matrix import FrameworkCell
    from perfscope.runners.frameworks.request import FrameworkRun


def plan_lines(run: FrameworkRun, interpreter: Interpreter) -> list[str]:
    """What would be run."""
    config = run.config
    retired = f"; {run.framework.retired}" if run.framework.retired else ""
    version = f" {interpreter.version}" if interpreter.version else ""
    return [
        f"{run.framework.name}: {run.summary}{retired}",
        "",
        f"  framework  {run.framework.name}{version} on Python {interpreter.python} ({interpreter.path})",
        f"  model      {config.model}, float32, input {'x'.join(map(str, config.input_shape))}, "
        f"{config.num_classes} classes",
        f"  processes  {config.num_ranks}, {counted(config.threads or 1, 'thread')} each, on the CPU",
        f"  batch      {config.batch}, {config.batch // config.num_ranks} per process; "
        f"{counted(config.steps, 'step')}",
        f"  rate       {config.learning_rate:g}, momentum {config.momentum:g}",
    ]


def figures_text(run: FrameworkRun, interpreter: Interpreter, figures: Mapping[str, Any]) -> str:
    """What came of a run: speed, losses, memory."""
    config = run.config
    version = f" {interpreter.version}" if interpreter.version else ""
    lines = [
        f"{run.framework.name}{version} on {config.model}, {_processes(config.num_ranks)}: "
        f"{number(figures['samples_per_s'])} samples/s (step median {format_ns(figures['step_median_ns'])}, "
        f"p10 {format_ns(figures['step_p10_ns'])}); {counted(config.threads or 1, 'thread')} each",
        f"Training loss {number(figures['first_loss'])} to {number(figures['final_loss'])}; "
        f"peak memory of a process {format_bytes(figures['peak_rss_bytes'])}",
    ]
    if figures["samples_per_s"] is None:
        lines.append("Speed is missing: no step of the training was recorded")
    if run.framework.retired:
        lines.append(f"{run.framework.name} is {run.framework.retired}")
    return "\n".join(lines) + "\n"


def matrix_text(cells: Sequence[FrameworkCell], reference: str) -> str:
    """One table per model: speed, scaling, loss parity; then what was left out, and why."""
    lines: list[str] = []
    for model in dict.fromkeys(cell.model for cell in cells):
        of_model = [cell for cell in cells if cell.model == model and cell.runs_done]
        if of_model:
            head = (
                "framework",
                "processes",
                "samples/s",
                "x 1 process",
                "loss parity",
                f"first {EARLY_STEPS} steps",
                "all",
            )
            lines += [model, *table(head, [_row(cell, of_model) for cell in of_model]), ""]
    parities = [cell.parity for cell in cells if cell.parity is not None]
    if parities:
        longest = max(int(agreement["num_steps"]) for agreement in parities)
        lines.append(
            f"Loss parity: losses of the first {counted(longest, 'step')} "
            f"against {reference}'s on as many processes, relative. The same: within {EARLY_TOLERANCE:.0e} "
            f"over the first {EARLY_STEPS}, within {TOLERANCE:g} over all: rounding may part curves later."
        )
    return "\n".join([*lines, *_notes(cells)]) + "\n"


def _notes(cells: Sequence[FrameworkCell]) -> list[str]:
    """What differs, what is retired, what failed, what was left out; each reason once."""
    notes: list[str] = []
    left_out: dict[str, list[str]] = {}
    for cell in cells:
        if cell.parity is not None and cell.parity["agrees"] is not True:
            notes.append(f"{cell.name}: {cell.parity['verdict']}: {cell.parity['reason']}")
        if cell.retired and cell.runs_done:
            notes.append(f"{cell.framework} is {cell.retired}")
        if cell.skipped:
            left_out.setdefault(cell.skipped, []).append(cell.name)
        notes += [f"{cell.name} failed: {run['error']}" for run in cell.runs if run.get("error")]
    notes += [f"Left out: {', '.join(names)}: {reason}" for reason, names in left_out.items()]
    return list(dict.fromkeys(notes))


def _processes(num: int) -> str:
    return counted(num, "process", "processes")


def _row(cell: FrameworkCell, of_model: Sequence[FrameworkCell]) -> tuple[str, ...]:
    alone = next(
        (
            other_cell
            for other_cell in of_model
            if other_cell.framework == cell.framework and other_cell.ranks == 1
        ),
        None,
    )
    speed, base = cell.samples_per_s, alone.samples_per_s if alone else None
    scaling = f"{speed / base:.2f}" if speed and base and cell.ranks > 1 else MISSING
    parity = cell.parity
    apart = [parity[name] if parity else None for name in ("early_difference", "max_difference")]
    return (
        cell.framework,
        str(cell.ranks),
        number(speed),
        scaling,
        parity["verdict"] if parity else MISSING,
        *(
            MISSING if difference is None else f"{difference:.1e}" if difference else "0"
            for difference in apart
        ),
    )
