"""The words and the JSON of `perfscope predict`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from msgspec import to_builtins

from perfscope import __version__
from perfscope.analysis.predict.records import Refusal
from perfscope.analysis.predict.results import Interval, LinkUsed, Prediction, PredictionReport
from perfscope.cli.formatting import number, table
from perfscope.messages.links import WHERE
from perfscope.messages.lists import counted, joined, plural
from perfscope.units import MISSING, format_ns, format_rate, format_ratio

SCHEMA_VERSION = 1
_NO_MISFIT = 0.005


def prediction_document(report: PredictionReport, ranks_per_host: int, notes: Sequence[str]) -> str:
    """JSON of everything, one object."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "perfscope_version": __version__,
        "ranks_per_host": ranks_per_host,
        **to_builtins(report),
        "notes": list(notes),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def prediction_text(report: PredictionReport, ranks_per_host: int, notes: Sequence[str]) -> str:
    """Table, best schemes, links, and what to know."""
    cores = "" if report.cores_per_rank is None else f", {_cores(report.cores_per_rank)} per rank"
    of = f"{counted(report.num_runs, 'run')} of up to {counted(report.max_measured_ranks, 'rank')}"
    lines = [
        f"Predicted for {report.model}, {report.mode} scaling, {counted(ranks_per_host, 'rank')} per host"
        f"{cores}; from {of}",
        "",
    ]
    if report.not_comparable is not None:
        lines = [f"WARNING: {report.not_comparable}.", "", *lines]
    numbers: dict[str, int] = {}
    for one in report.predictions:
        for warning in one.warnings:
            numbers.setdefault(warning, len(numbers) + 1)
    lines += table(
        (
            *("N", "scheme", "mesh", "predicted", "95 % interval", "measured", "samples/s", "efficiency"),
            *("× best", "notes"),
        ),
        [_row(one, numbers) for one in report.predictions],
    )
    lines += ["", "Of the step", *_composition(report.predictions)]
    if report.best:
        lines += ["", *(sentence for _, sentence in report.best)]
    lines += ["", *_reference(report), *_links(report)]
    general = [*notes, *report.warnings]
    if numbers or general or report.refusals:
        lines.append("")
    lines += [f"[{index}] {warning}" for warning, index in numbers.items()]
    lines += [f"note: {warning}" for warning in general]
    lines += [f"not predicted: {who}: {reason}" for who, reason in grouped(report.refusals)]
    return "\n".join(lines) + "\n"


def _row(one: Prediction, numbers: dict[str, int]) -> tuple[str, ...]:
    marks = ",".join(str(numbers[warning]) for warning in one.warnings)
    return (
        str(one.num_ranks),
        one.scheme,
        one.mesh,
        format_ns(one.step_ns),
        _span(one.step_interval_ns),
        _measured(one),
        number(one.samples_per_s),
        _efficiency(one),
        MISSING if one.times_best is None else f"{one.times_best:.3g}",
        f"[{marks}]" if marks else "",
    )


def _span(interval: Interval) -> str:
    return f"{format_ns(interval.low)} to {format_ns(interval.high)}"


def _efficiency(one: Prediction) -> str:
    if one.efficiency is None or one.efficiency_interval is None:
        return MISSING
    low, high = (_percent(value) for value in (one.efficiency_interval.low, one.efficiency_interval.high))
    return f"{_percent(one.efficiency)} ({low} to {high})"


def _percent(value: float) -> str:
    """Two significant digits below 10 %, whole per cent above."""
    return f"{100 * value:.0f} %" if value >= 0.0995 else f"{100 * value:.2g} %"


def _measured(one: Prediction) -> str:
    """`131 ms (+4 %)`: what was run, and how far the prediction is from it."""
    if one.measured_step_ns is None or one.misfit is None:
        return MISSING
    return f"{format_ns(one.measured_step_ns)} ({100 * one.misfit:+.0f} %)"


def _cores(value: float) -> str:
    return f"{value:g} {plural('core', value)}"


def grouped(refusals: Sequence[Refusal]) -> list[tuple[str, str]]:
    """(schemes and numbers of ranks, the reason they share)."""
    sizes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for one in refusals:
        sizes[one.reason, one.scheme].append(one.num_ranks)
    schemes: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
    for (reason, scheme), found in sizes.items():
        schemes[reason, tuple(found)].append(scheme)
    return [
        (f"{_listed(names)} at {_listed([*map(str, found)])} rank{'' if found == (1,) else 's'}", reason)
        for (reason, found), names in schemes.items()
    ]


def _listed(words: Sequence[str]) -> str:
    return joined(words)


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
    lines = []
    of: dict[tuple[int, float], list[str]] = defaultdict(list)
    for base in report.references:
        how = "" if base.measured else ", predicted"
        of[base.num_ranks, base.batch].append(f"{base.scheme} {number(base.samples_per_s)} samples/s{how}")
    for (num, batch), speeds in of.items():
        lines.append(
            f"Efficiency is relative to a scheme's own smallest run, {counted(num, 'rank')} at a batch of "
            f"{batch:g}: {'; '.join(speeds)}."
        )
    if not lines:
        lines.append("Efficiency is missing: no scheme asked for has a run of known batch to compare with.")
    best = report.best_run
    if best is not None:
        lines.append(
            f"× best: samples/s over {number(best.samples_per_s)} of {best.scheme} on "
            f"{counted(best.num_ranks, 'rank')} at a batch of {best.batch:g}, the fastest run measured."
        )
    if report.fitted:
        worst = max(report.fitted, key=lambda one: abs(one.misfit))
        typical = median(abs(one.misfit) for one in report.fitted)
        lines.append(
            "The model goes through the runs that it is fitted to: the error beyond them is unknown."
            if abs(worst.misfit) < _NO_MISFIT
            else f"For the runs that it is fitted to, the model is off by {_percent(typical)} (median), at "
            f"most {_percent(abs(worst.misfit))} ({worst.name}); that is no test of it."
        )
    return lines


def _links(report: PredictionReport) -> list[str]:
    return [_link(one) for one in report.links]


def _link(one: LinkUsed) -> str:
    where = WHERE.get(one.link_class, one.link_class)
    late = format_ns(one.cost.alpha_s * 1e9)
    fast = format_rate(one.cost.bandwidth_bytes_per_s)
    if one.given is not None:
        return f"Links {where}: {late} and {fast}, given as {one.given!r}, not measured."
    alpha = beta = ""
    if one.alpha_s is not None:
        alpha = f" ({format_ns(one.alpha_s.low * 1e9)} to {format_ns(one.alpha_s.high * 1e9)})"
    if one.beta_s_per_byte is not None:
        low, high = one.beta_s_per_byte.high, one.beta_s_per_byte.low
        slow = format_rate(1 / low) if low > 0 else ""
        beta = f" ({slow} to {format_rate(1 / high)})" if high > 0 else f" (at least {slow})" if slow else ""
    calls = counted(one.num_calls, "call")
    rate = f"{fast}{beta}" if one.cost.bandwidth_bytes_per_s else f"no time per byte to be seen{beta}"
    return f"Links {where}: {late}{alpha} per message and {rate}, fitted to {calls}."
