"""The words and the JSON of `perfscope predict`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from perfscope import __version__
from perfscope.analysis.predict.records import LINK_WORDS
from perfscope.analysis.predict.results import Interval, LinkUsed, Prediction, PredictionReport
from perfscope.cli.bench_words import number, plural, table
from perfscope.units import MISSING, format_ns, format_rate, format_ratio

SCHEMA_VERSION = 1


def prediction_document(report: PredictionReport, ranks_per_host: int, notes: Sequence[str]) -> str:
    """JSON of everything, one object."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "perfscope_version": __version__,
        "ranks_per_host": ranks_per_host,
        **asdict(report),
        "notes": list(notes),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def prediction_text(report: PredictionReport, ranks_per_host: int, notes: Sequence[str]) -> str:
    """Table, best schemes, links, and what to know."""
    of = f"{plural(report.num_runs, 'run')} of up to {plural(report.max_measured_ranks, 'rank')}"
    lines = [
        f"Predicted for {report.model}, {report.mode} scaling, {plural(ranks_per_host, 'rank')} per host; "
        f"from {of}",
        "",
    ]
    numbers: dict[str, int] = {}
    for one in report.predictions:
        for warning in one.warnings:
            numbers.setdefault(warning, len(numbers) + 1)
    lines += table(
        ("N", "scheme", "mesh", "step", "95 % interval", "samples/s", "efficiency", "notes"),
        [_row(one, numbers) for one in report.predictions],
    )
    lines += ["", "Of the step", *_composition(report.predictions)]
    lines += ["", *(sentence for _, sentence in report.best)]
    lines += ["", *_reference(report), *_links(report)]
    general = [*notes, *report.warnings]
    if numbers or general or report.refusals:
        lines.append("")
    lines += [f"[{index}] {warning}" for warning, index in numbers.items()]
    lines += [f"note: {warning}" for warning in general]
    lines += [
        f"not predicted: {one.scheme} at {plural(one.num_ranks, 'rank')}: {one.reason}"
        for one in report.refusals
    ]
    return "\n".join(lines) + "\n"


def _row(one: Prediction, numbers: dict[str, int]) -> tuple[str, ...]:
    marks = ",".join(str(numbers[warning]) for warning in one.warnings)
    return (
        str(one.num_ranks),
        one.scheme,
        one.mesh,
        format_ns(one.step_ns),
        _span(one.step_interval_ns),
        number(one.samples_per_s),
        _efficiency(one),
        f"[{marks}]" if marks else "",
    )


def _span(interval: Interval) -> str:
    return f"{format_ns(interval.low)} to {format_ns(interval.high)}"


def _efficiency(one: Prediction) -> str:
    if one.efficiency is None or one.efficiency_interval is None:
        return MISSING
    low, high = (
        format_ratio(value, 0) for value in (one.efficiency_interval.low, one.efficiency_interval.high)
    )
    return f"{format_ratio(one.efficiency, 0)} ({low} to {high})"


def _composition(predictions: Sequence[Prediction]) -> list[str]:
    rows = [
        (
            str(one.num_ranks),
            one.scheme,
            _part(one.compute_ns, one),
            _part(one.straggler_ns, one),
            _part(one.exposed_comm_ns, one),
            format_ns(one.hidden_comm_ns),
        )
        for one in predictions
    ]
    return table(
        ("N", "scheme", "compute", "waiting for the last", "exposed transfer", "hidden transfer"), rows
    )


def _part(value: int, one: Prediction) -> str:
    return f"{format_ns(value)} ({format_ratio(value / one.step_ns, 0)})"


def _reference(report: PredictionReport) -> list[str]:
    base = report.reference
    if base is None:
        return ["Efficiency is missing: the batch of the runs is not known."]
    how = "measured" if base.measured else "predicted, as no run of so few ranks had this batch"
    return [
        f"Efficiency is relative to {base.scheme} on {plural(base.num_ranks, 'rank')} at a batch of "
        f"{base.batch:g}: {number(base.samples_per_s)} samples/s ({how})."
    ]


def _links(report: PredictionReport) -> list[str]:
    return [_link(one) for one in report.links]


def _link(one: LinkUsed) -> str:
    where = LINK_WORDS.get(one.link_class, one.link_class)
    late = format_ns(one.cost.alpha_s * 1e9)
    fast = format_rate(one.cost.bandwidth_bytes_per_s)
    if one.given is not None:
        return f"Links {where}: {late} and {fast}, given as {one.given!r}, not measured."
    alpha = beta = ""
    if one.alpha_s is not None:
        alpha = f" ({format_ns(one.alpha_s.low * 1e9)} to {format_ns(one.alpha_s.high * 1e9)})"
    if one.beta_s_per_byte is not None:
        low, high = (
            format_rate(1 / beta) if beta > 0 else "unlimited"
            for beta in (one.beta_s_per_byte.high, one.beta_s_per_byte.low)
        )
        beta = f" ({low} to {high})"
    calls = plural(one.num_calls, "call")
    return f"Links {where}: {late}{alpha} per message and {fast}{beta}, fitted to {calls}."
