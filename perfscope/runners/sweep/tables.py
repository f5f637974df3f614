"""A study's rows as text for a terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from perfscope.messages.lists import counted
from perfscope.runners.sweep.sides import BETWEEN, WITHIN
from perfscope.runners.sweep.state import PENDING, Study
from perfscope.runners.sweep.summary import Spread, SummaryRow, rate_text
from perfscope.units import MISSING, format_bytes, format_ns, format_ratio

_CSV_FACTS = ("scheme", "modifiers", "model", "ranks", "mesh", "batch", "steps", "cluster", "threads")
_CSV_FIGURES = (
    *("samples_per_s", "step_p10_ns", "step_median_ns", "exposed_comm_ns", "exposed_comm_ratio"),
    *("final_loss", "held_out_loss", "peak_rss_bytes"),
    *(
        f"{kind} {side}"
        for side in (BETWEEN, WITHIN)
        for kind in ("predicted", "recorded", "predicted_wire", "wire")
    ),
)


def text_table(rows: Sequence[SummaryRow]) -> str:
    """Aligned columns of the cells that ran; then a line for each that lacks something."""
    if not any(row.figures for row in rows):
        return "\n".join(_notes(rows)) + "\n"
    head, body = _cells(rows)
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, *body)
    ]
    notes = _notes(rows)
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def markdown(study: Study, rows: Sequence[SummaryRow], sentences: Sequence[str]) -> str:
    """study.md."""
    head, body = _cells(rows)
    lines = [
        f"# {study.title}",
        "",
        f"{study.trained}.",
        "",
        *sentences,
        "",
        f"| {' | '.join(head)} |",
        f"|---{'|---:' * (len(head) - 1)}|",
        *(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in body),
        "",
        *(f"- {note}" for note in _notes(rows)),
        "",
        f"Figures are medians over {counted(study.repeats, 'repeat')}, with the range. "
        "Bytes are per step over all senders: by formula / as recorded / as the interfaces counted them. "
        "Exposed communication is the share of a traced step, whose length is shown with it: tracing makes "
        "a step longer than the median. A * marks figures of runs that something else disturbed.",
        "",
        f"Machine: {', '.join(f'{key} {value}' for key, value in study.machine.items())}.",
        "",
    ]
    return "\n".join(lines)


def csv_text(rows: Sequence[SummaryRow]) -> str:
    """study.csv: base units (ns, bytes), empty = missing; repeats_done, disturbed, diverged count runs."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [_column(name) for name in _CSV_FIGURES]
    writer.writerow(
        ["cell", *_CSV_FACTS, "status", "repeats_done", "repeats", "disturbed", "diverged"]
        + [f"{name}{end}" for name in names for end in ("", "_min", "_max")]
        + ["note"]
    )
    for row in rows:
        values: list[object] = []
        for name in _CSV_FIGURES:
            spread = row.figures.get(name)
            values += ["", "", ""] if spread is None else [spread.median, spread.low, spread.high]
        counts = [row.num_done, row.num_runs, len(row.disturbances), row.num_diverged]
        facts = [row.facts.get(name, "") for name in _CSV_FACTS]
        writer.writerow([row.name, *facts, row.status, *counts, *values, row.note])
    return out.getvalue()


def _column(figure: str) -> str:
    """`predicted between hosts` -> `predicted_between_hosts_bytes_per_step`."""
    return figure.replace(" ", "_") + ("_bytes_per_step" if " " in figure else "")


def _cells(rows: Sequence[SummaryRow]) -> tuple[list[str], list[list[str]]]:
    """Head and lines. Columns about several groups or hosts appear only where there are several."""
    several = len({row.group for row in rows if row.figures}) > 1
    hosts = any(row.median(f"predicted {BETWEEN}") for row in rows)
    head = ["scheme", *(["model", "batch"] if several else []), "repeats", "samples/s", "(range)"]
    head += ["step p10", "median"]
    head += [f"bytes {BETWEEN}"] if hosts else []
    head += [f"bytes {WITHIN}", "exposed comm (of traced step)", "held-out loss", "peak memory"]
    lines = []
    for row in rows:
        if row.status == PENDING:
            continue
        line = [row.label, *(row.group if several else ()), _repeats(row), _marked_rate(row)]
        line += [_range(row.figures.get("samples_per_s"))]
        line += [_time(row, "step_p10_ns"), _time(row, "step_median_ns")]
        line += [_sent(row, BETWEEN)] if hosts else []
        line += [_sent(row, WITHIN), _exposed(row)]
        line += ["diverged" if row.num_diverged else _loss(row.median("held_out_loss"))]
        line += [format_bytes(row.median("peak_rss_bytes"))]
        lines.append(line)
    return head, lines


def _notes(rows: Sequence[SummaryRow]) -> list[str]:
    """One line for every cell that has no figures, or lacks one; cells that were not run yet share one."""
    pending = [row.name for row in rows if row.status == PENDING]
    names = f"{', '.join(pending[:4])}{' ...' if len(pending) > 4 else ''}"
    return [
        f"{row.name}: {'impossible: ' if row.status == 'impossible' else ''}{row.note}"
        for row in rows
        if row.note and row.status != PENDING
    ] + ([f"not run yet: {len(pending)} of {len(rows)} cells ({names})"] if pending else [])


def _repeats(row: SummaryRow) -> str:
    return f"{row.num_done}/{row.num_runs}" if row.num_runs else MISSING


def _marked_rate(row: SummaryRow) -> str:
    return rate_text(row.median("samples_per_s")) + ("*" if row.disturbances else "")


def _exposed(row: SummaryRow) -> str:
    """`33 % of 27.4 ms`: the share first, the traced step beside it."""
    share, time = row.median("exposed_comm_ratio"), row.median("exposed_comm_ns")
    if share is None or time is None:
        return MISSING
    return f"{format_ratio(share, 0)} of {format_ns(time / share)}" if share and time else "0 %"


def _time(row: SummaryRow, figure: str) -> str:
    return format_ns(row.median(figure))


def _range(spread: Spread | None) -> str:
    return (
        MISSING
        if spread is None or spread.count < 2
        else f"({rate_text(spread.low)}–{rate_text(spread.high)})"
    )


def _loss(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}"


def _sent(row: SummaryRow, side: str) -> str:
    """`predicted / recorded / wire`, one word where they say the same."""
    values = [format_bytes(row.median(f"{kind} {side}")) for kind in ("predicted", "recorded", "wire")]
    if not row.figures:
        return MISSING
    return " / ".join(values)
