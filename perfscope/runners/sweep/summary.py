"""A study's table: every cell's figures over its repeats, and the sentences that say what it shows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfscope.messages.disturbances import disturbed_by
from perfscope.runners.sweep.heading import fact
from perfscope.runners.sweep.sides import BETWEEN, WITHIN, by_side
from perfscope.runners.sweep.state import DONE, FAILED, PENDING, CellState, Study
from perfscope.units import MISSING, format_bytes, format_ratio
from perfscope.vocabulary.comparison import SINGLE_RUNS_APART

# figure -> how it is found in a run's figures
_PLAIN = (
    "samples_per_s",
    "step_p10_ns",
    "step_median_ns",
    "exposed_comm_ns",
    "exposed_comm_ratio",
    "final_loss",
    "held_out_loss",
    "peak_rss_bytes",
)
_SENT = ("predicted", "recorded", "predicted_wire", "wire")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure over the repeats of a cell."""

    median: float
    low: float
    high: float
    count: int

    @property
    def noise(self) -> float:
        """(high - low) / median; 0 for one repeat, which says nothing."""
        return (self.high - self.low) / abs(self.median) if self.median else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """One cell of the table.

    Attributes:
        name, scheme: of the cell.
        label: the scheme, and whatever else tells the cell from others of the study.
        group: what cells must share to be compared: model and batch.
        status: done, failed, impossible, pending or partly (some repeats failed or are pending).
        note: why a figure or the cell is missing.
        facts: what was trained, by column of study.csv: ranks, mesh, steps ...
        num_runs: repeats that are asked for.
        num_done, num_failed: of them.
        num_diverged: of those done.
        disturbances: of each run that was disturbed, what disturbed it.
        figures: by name; bytes as `predicted between hosts` ...
    """

    name: str
    scheme: str
    label: str
    group: tuple[str, str]
    status: str
    note: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    num_runs: int = 0
    num_done: int = 0
    num_failed: int = 0
    num_diverged: int = 0
    disturbances: tuple[tuple[str, ...], ...] = ()
    figures: Mapping[str, Spread] = field(default_factory=dict)

    def median(self, figure: str) -> float | None:
        """Of a figure, None if it is missing."""
        spread = self.figures.get(figure)
        return spread.median if spread else None


def study_rows(study: Study) -> list[SummaryRow]:
    """Rows of the wanted cells: by group, fastest first; at the end those without figures."""
    rows = [_row(cell, label) for cell, label in zip(study.wanted, _labels(study.wanted), strict=True)]
    return sorted(rows, key=_place)


def _place(row: SummaryRow) -> tuple[bool, tuple[str, str], float, str]:
    if not row.figures:
        return True, ("", ""), 0.0, row.label
    return False, row.group, -(row.median("samples_per_s") or -1.0), row.label


def sentences(rows: Sequence[SummaryRow]) -> list[str]:
    """The verdict, per group: which cell is fastest and by how much, which sent least; then what failed.

    Before it, where something else used the machine: how many runs that hit.
    """
    lines = _disturbed(rows)
    groups = list(dict.fromkeys(row.group for row in rows if row.figures))
    for group in groups:
        members = [row for row in rows if row.group == group]
        where = f"{group[0]}, batch {group[1]}: " if len(groups) > 1 else ""
        lines += [where + text for text in (_fastest(members), _leanest(members)) if text]
    diverged = [row for row in rows if row.num_diverged]
    if diverged:
        lines.append(f"Training diverged: {', '.join(row.label for row in diverged)}; lower lr.")
    failed = [row for row in rows if row.num_failed]
    if failed:
        lines.append(
            f"{len(failed)} of {len(rows)} cells did not finish: {', '.join(row.label for row in failed)}."
        )
    going = [row for row in rows if row.num_done and row.num_done + row.num_failed < row.num_runs]
    if going:
        lines.append(
            "; ".join(f"{row.label}: {row.num_done} of {row.num_runs} repeats so far" for row in going) + "."
        )
    if not any(row.num_done for row in rows):
        lines.append("No run has finished.")
    return lines


def _disturbed(rows: Sequence[SummaryRow]) -> list[str]:
    """`2 of 6 runs were disturbed by other processes`, or nothing."""
    hit = [kinds for row in rows for kinds in row.disturbances]
    if not hit:
        return []
    done = sum(row.num_done for row in rows)
    causes = dict.fromkeys(disturbed_by(kind) for kinds in hit for kind in kinds)
    by = f" by {' and '.join(causes)}" if causes else ""
    was = "was" if len(hit) == 1 else "were"
    return [f"{len(hit)} of {done} runs {was} disturbed{by} (marked *)."]


def _fastest(rows: Sequence[SummaryRow]) -> str:
    speeds = sorted(
        ((row, row.figures["samples_per_s"]) for row in rows if "samples_per_s" in row.figures),
        key=lambda pair: -pair[1].median,
    )
    if not speeds:
        return ""
    (first, best), *slower = speeds
    text = f"{first.label} is fastest with {rate_text(best.median)} samples/s"
    if not slower:
        return f"{first.label} trains {rate_text(best.median)} samples/s."
    second, next_best = slower[0]
    gain = best.median / next_best.median - 1 if next_best.median else 0.0
    lead = (
        f"{gain + 1:.1f} times" if gain >= 1 else f"{format_ratio(gain, 0 if gain >= 0.1 else 1)} more than"
    )
    over = f"{lead} {second.label} ({rate_text(next_best.median)})"
    if min(best.count, next_best.count) < 2:
        whose = "each" if max(best.count, next_best.count) < 2 else "of one of them"
        unknown = f"with one repeat {whose} the noise is not known"
        if gain + 1 < SINGLE_RUNS_APART:
            return (
                f"Which is fastest is not known: {unknown}, and {first.label} has {rate_text(best.median)} "
                f"samples/s, {over}."
            )
        return f"{text}, {over}; {unknown}."
    noise = max(best.noise, next_best.noise)
    if best.low <= next_best.high:
        return (
            f"{first.label} ({rate_text(best.median)} samples/s) and {second.label} "
            f"({rate_text(next_best.median)}) are level: "
            f"repeats of one differ by up to {format_ratio(noise, 0)}, their ranges overlap."
        )
    return f"{text}, {over}; repeats differ by up to {format_ratio(noise, 0)}."


def _leanest(rows: Sequence[SummaryRow]) -> str:
    """Over the slowest link: between hosts where anything crosses hosts, else within."""
    for side in (BETWEEN, WITHIN):
        sent = [(row, _sent(row, side)) for row in rows if row.figures]
        comparable = [(row, amount) for row, amount in sent if amount is not None]
        several = [row for row in rows if row.figures and not row.scheme.startswith("serial")]
        comparable = [(row, amount) for row, amount in comparable if row in several]
        if side is BETWEEN:  # those of one host send nothing there, whatever their scheme
            comparable = [(row, amount) for row, amount in comparable if amount]
        if len(comparable) < 2 or not any(amount for _, amount in comparable):
            continue
        least, most = min(comparable, key=lambda pair: pair[1]), max(comparable, key=lambda pair: pair[1])
        return (
            f"{least[0].label} sends the fewest bytes {side}: {format_bytes(least[1])} per step; "
            f"the most are {format_bytes(most[1])} ({most[0].label})."
        )
    return ""


def _sent(row: SummaryRow, side: str) -> float | None:
    """What was recorded, else what was predicted."""
    recorded = row.median(f"recorded {side}")
    return recorded if recorded is not None else row.median(f"predicted {side}")


def rate_text(value: float | None) -> str:
    """Samples per second: three significant digits, or a dash."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _row(cell: CellState, label: str) -> SummaryRow:
    group = (
        str(cell.settings.get("model", "smallcnn")),
        str(cell.plan.get("batch", cell.settings.get("batch", ""))),
    )
    if cell.impossible is not None:
        return SummaryRow(
            name=cell.name,
            scheme=cell.scheme,
            label=label,
            group=group,
            status="impossible",
            note=cell.impossible,
            facts=_facts(cell),
        )
    done = [run.figures for run in cell.runs if run.status == DONE and run.figures]
    failed = [run for run in cell.runs if run.status == FAILED]
    pending = [run for run in cell.runs if run.status == PENDING]
    notes = list(dict.fromkeys(f"{run.error}" for run in failed))
    notes += list(
        dict.fromkeys(
            f"no {_words(name)}: {why}"
            for figures in done
            for name, why in (figures.get("missing") or {}).items()
        )
    )
    status = "done"
    if failed or pending:
        status = "partly" if done else (FAILED if failed else PENDING)
    return SummaryRow(
        name=cell.name,
        scheme=cell.scheme,
        label=label,
        group=group,
        status=status,
        note="; ".join(notes),
        facts=_facts(cell),
        num_runs=len(cell.runs),
        num_done=len(done),
        num_failed=len(failed),
        num_diverged=sum(bool(figures.get("diverged")) for figures in done),
        disturbances=tuple(
            tuple(figures.get("disturbances") or ()) for figures in done if figures.get("disturbed")
        ),
        figures=_spreads(done),
    )


def _facts(cell: CellState) -> dict[str, str]:
    scheme, _, modifiers = cell.scheme.partition("+")
    return {
        "scheme": scheme,
        "modifiers": modifiers,
        "model": fact(cell, "model", "smallcnn"),
        **{name: fact(cell, name) for name in ("ranks", "mesh", "batch", "steps")},
        "cluster": cell.cluster or "",
        "threads": fact(cell, "threads"),
    }


def _words(figure: str) -> str:
    return {
        "exposed_comm_ns": "exposed communication",
        "recorded": "recorded bytes",
        "step_median_ns": "step time",
    }.get(figure, figure.replace("_", " "))


def _spreads(runs: Sequence[Mapping[str, Any]]) -> dict[str, Spread]:
    values: dict[str, list[float]] = {}
    for figures in runs:
        for name in _PLAIN:
            if figures.get(name) is not None:
                values.setdefault(name, []).append(float(figures[name]))
        for kind in _SENT:
            sides = by_side((figures.get("bytes_per_step") or {}).get(kind))
            for side, amount in (sides or {}).items():
                values.setdefault(f"{kind} {side}", []).append(amount)
    return {
        name: Spread(
            median=statistics.median(values_), low=min(values_), high=max(values_), count=len(values_)
        )
        for name, values_ in values.items()
    }


def _labels(cells: Sequence[CellState]) -> list[str]:
    """The scheme, and of mesh, ranks, cluster what tells cells of one scheme, model and batch apart."""
    labels = []
    for cell in cells:
        alike = [
            cell_
            for cell_ in cells
            if cell_.scheme == cell.scheme
            and cell_.settings.get("model") == cell.settings.get("model")
            and cell_.settings.get("batch") == cell.settings.get("batch")
        ]
        label_parts = [cell.scheme]
        if len(alike) > 1:
            keys = sorted({key for cell_ in alike for key in cell_.settings})
            differing = [key for key in keys if len({str(cell_.settings.get(key)) for cell_ in alike}) > 1]
            label_parts += [f"{key}={cell.settings.get(key, 'default')}" for key in differing]
            if len({cell_.cluster for cell_ in alike}) > 1:
                label_parts.append(f"cluster={cell.cluster or 'none'}")
        labels.append(" ".join(label_parts))
    return labels
