"""The words and the JSON of `perfscope predict`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from msgspec import to_builtins

from perfscope import __version__
from perfscope.analysis.predict.records import Refusal
from perfscope.analysis.predict.results import LinkUsed, Prediction, PredictionReport
from perfscope.cli.formatting import number, table
from perfscope.messages.links import WHERE
from perfscope.messages.lists import counted, joined, plural
from perfscope.units import MISSING, format_change, format_ns, format_rate, format_ratio

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
    for prediction in report.predictions:
        for warning in prediction.warnings:
            numbers.setdefault(warning, len(numbers) + 1)
    lines += table(
        (
            *("N", "scheme", "mesh", "predicted", "95 % interval", "measured", "samples/s", "efficiency"),
            *("× best", "notes"),
        ),
        [_row(prediction, numbers) for prediction in report.predictions],
    )
    lines += ["", "Of the step", *_composition(report.predictions)]
    if report.best:
        lines += ["", *(sentence for _, sentence in report.best)]
    lines += ["", *_reference(report), *[_link(used) for used in report.links]]
    general = [*notes, *report.warnings]
    if numbers or general or report.refusals:
        lines.append("")
    lines += [f"[{index}] {warning}" for warning, index in numbers.items()]
    lines += [f"note: {warning}" for warning in general]
    lines += [f"not predicted: {plans}: {reason}" for plans, reason in grouped(report.refusals)]
    return "\n".join(lines) + "\n"


def _row(prediction: Prediction, numbers: dict[str, int]) -> tuple[str, ...]:
    marks = ",".join(str(numbers[warning]) for warning in prediction.warnings)
    return (
        str(prediction.num_ranks),
        prediction.scheme,
        prediction.mesh,
        format_ns(prediction.step_ns),
        f"{format_ns(prediction.step_interval_ns.low)} to {format_ns(prediction.step_interval_ns.high)}",
        _measured(prediction),
        number(prediction.samples_per_s),
        _efficiency(prediction),
        MISSING if prediction.times_best is None else f"{prediction.times_best:.3g}",
        f"[{marks}]" if marks else "",
    )


def _efficiency(prediction: Prediction) -> str:
    if prediction.efficiency is None or prediction.efficiency_interval is None:
        return MISSING
    low, high = (
        _percent(value) for value in (prediction.efficiency_interval.low, prediction.efficiency_interval.high)
    )
    return f"{_percent(prediction.efficiency)} ({low} to {high})"


def _percent(value: float) -> str:
    """Two significant digits below 10 %, whole percent above."""
    return f"{100 * value:.0f} %" if value >= 0.0995 else f"{100 * value:.2g} %"


def _measured(prediction: Prediction) -> str:
    """`131 ms (+4 %)`: what was run, and how far the prediction is from it."""
    if prediction.measured_step_ns is None or prediction.misfit is None:
        return MISSING
    return f"{format_ns(prediction.measured_step_ns)} ({format_change(prediction.misfit, 0)})"


def _cores(value: float) -> str:
    return f"{value:g} {plural('core', value)}"


def grouped(refusals: Sequence[Refusal]) -> list[tuple[str, str]]:
    """(schemes and numbers of ranks, the reason they share)."""
    sizes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for refusal in refusals:
        sizes[refusal.reason, refusal.scheme].append(refusal.num_ranks)
    schemes: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
    for (reason, scheme), num_ranks in sizes.items():
        schemes[reason, tuple(num_ranks)].append(scheme)
    return [
        (f"{_listed(names)} at {_listed([*map(str, scheme)])} rank{'' if scheme == (1,) else 's'}", reason)
        for (reason, scheme), names in schemes.items()
    ]


def _listed(names: Sequence[str]) -> str:
    return joined(names)


def _composition(predictions: Sequence[Prediction]) -> list[str]:
    rows = [
        (
            str(prediction.num_ranks),
            prediction.scheme,
            _part(prediction.compute_ns, prediction),
            _part(prediction.straggler_ns, prediction),
            _part(prediction.exposed_comm_ns, prediction),
            format_ns(prediction.hidden_comm_ns),
        )
        for prediction in predictions
    ]
    return table(
        ("N", "scheme", "compute", "waiting for the last", "exposed transfer", "hidden transfer"), rows
    )


def _part(value: int, prediction: Prediction) -> str:
    return f"{format_ns(value)} ({format_ratio(value / prediction.step_ns, 0)})"


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
        worst = max(report.fitted, key=lambda fitted_run: abs(fitted_run.misfit))
        typical = median(abs(run.misfit) for run in report.fitted)
        lines.append(
            "The model goes through the runs that it is fitted to: the error beyond them is unknown."
            if abs(worst.misfit) < _NO_MISFIT
            else f"For the runs that it is fitted to, the model is off by {_percent(typical)} (median), at "
            f"most {_percent(abs(worst.misfit))} ({worst.name}); that is no test of it."
        )
    return lines


def _link(used: LinkUsed) -> str:
    where = WHERE.get(used.link_class, used.link_class)
    late = format_ns(used.cost.alpha_s * 1e9)
    fast = format_rate(used.cost.bandwidth_bytes_per_s)
    if used.given is not None:
        return f"Links {where}: {late} and {fast}, given as {used.given!r}, not measured."
    alpha = beta = ""
    if used.alpha_s is not None:
        alpha = f" ({format_ns(used.alpha_s.low * 1e9)} to {format_ns(used.alpha_s.high * 1e9)})"
    if used.beta_s_per_byte is not None:
        low, high = used.beta_s_per_byte.high, used.beta_s_per_byte.low
        slow = format_rate(1 / low) if low > 0 else ""
        beta = f" ({slow} to {format_rate(1 / high)})" if high > 0 else f" (at least {slow})" if slow else ""
    calls = counted(used.num_calls, "call")
    rate = f"{fast}{beta}" if used.cost.bandwidth_bytes_per_s else f"no time per byte to be seen{beta}"
    source = " of perfscope doctor --links" if used.is_from_doctor else ""
    return f"Links {where}: {late}{alpha} per message and {rate}, fitted to {calls}{source}."
