"""The verdict of a check, and why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from perfscope.messages.lists import counted
from perfscope.messages.sentences import clause
from perfscope.units import format_change, format_ns

FIELDS = {  # of a fingerprint
    "cpu": "CPU model",
    "num_cpus": "number of CPUs",
    "gpus": "GPUs",
    "num_hosts": "number of hosts",
    "torch": "torch version",
    "perfscope": "perfscope version",
    "world_size": "number of ranks",
    "batch": "samples per step",
    "scheme": "parallel scheme",
}
SAME_FINGERPRINT = (
    "Compare runs of the same fingerprint; where the difference is what you want to judge, "
    "allow it with `--allow FIELD`."
)
PASS = "Pass."


class Fingerprint(Protocol):
    """What must be the same of two runs; "" or None: not recorded."""

    @property
    def cpu(self) -> str: ...
    @property
    def num_cpus(self) -> int | None: ...
    @property
    def gpus(self) -> tuple[str, ...]: ...
    @property
    def num_hosts(self) -> int | None: ...
    @property
    def torch(self) -> str: ...
    @property
    def perfscope(self) -> str: ...
    @property
    def world_size(self) -> int | None: ...
    @property
    def batch(self) -> int | None: ...
    @property
    def scheme(self) -> str: ...


def fingerprint_words(fingerprint: Fingerprint) -> str:
    """A fingerprint in one line."""
    parts = [
        fingerprint.cpu,
        counted(fingerprint.num_cpus, "CPU") if fingerprint.num_cpus else "",
        ", ".join(fingerprint.gpus),
        f"{fingerprint.num_hosts} hosts" if (fingerprint.num_hosts or 1) > 1 else "",
        f"torch {fingerprint.torch}" if fingerprint.torch else "",
        f"perfscope {fingerprint.perfscope}" if fingerprint.perfscope else "",
        counted(fingerprint.world_size, "rank") if fingerprint.world_size else "",
        f"batch {fingerprint.batch}" if fingerprint.batch else "",
        fingerprint.scheme,
    ]
    return ", ".join(part for part in parts if part) or "nothing recorded"


def not_comparable(field: str, reference: tuple[str, object], other: tuple[str, object]) -> str:
    """`field`: of FIELDS; the names of two runs, and their values of it."""
    return (
        f"Not comparable: {FIELDS[field]} differs, {_shown(reference[1])} in {reference[0]} "
        f"and {_shown(other[1])} in {other[0]}."
    )


def other_kind(fields: Sequence[str]) -> str:
    """Why a run is left out of a calibration."""
    return f"not of the same kind: {', '.join(FIELDS[field] for field in fields)} differs"


def _shown(value: object) -> str:
    if value in ("", None, ()):
        return "unknown"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def too_few(
    runs: tuple[tuple[str, int], tuple[str, int]],
    num_pairs: int,
    needed: int,
    *,
    num_disturbed: int,
    side: str,
    planned: bool,
) -> str:
    """Fewer runs than a verdict needs.

    Args:
        runs: label of each side, base first, and how many it has.
        num_pairs: 0 where runs are not paired.
        needed: pairs, or runs a side.
        num_disturbed: runs that were left out for it.
        side: the only side of which runs were disturbed, more often than by chance; "" = none.
        planned: the check itself ran a planned number of pairs.
    """
    (base, num_base), (head, num_head) = runs
    have = f"{counted(num_base, 'run')} of {base} and {num_head} of {head}"
    if num_pairs:
        have = counted(num_pairs, "pair")
    why = f" ({counted(num_disturbed, 'disturbed run')} left out)" if num_disturbed else ""
    advice = "make more runs"
    if side:
        advice = f"only runs of {side} were disturbed: perhaps its own code starts what disturbs them"
    elif num_disturbed:
        advice = (
            "find a quieter machine, or raise `repeats`" if planned else f"{advice}, on a quieter machine"
        )
    unit = "pairs" if num_pairs else "a side"
    return f"Inconclusive: {have}{why}, at least {needed} {unit} are needed: {advice}."


def within_noise(worse: float, threshold: float, needed: float) -> str:
    """A metric is beyond its threshold, by less than the noise of single runs asks for."""
    return f"{_beyond(worse, threshold)}, but within twice the noise of single runs ({_percent(needed)})"


def not_proven(worse: float, threshold: float, p: float | None, alpha: float) -> str:
    """A metric is beyond its threshold, and the test does not prove it."""
    return f"{_beyond(worse, threshold)}, but not proven (p = {p:.3f}, needed below {alpha:g})"


def _beyond(worse: float, threshold: float) -> str:
    return f"{_signed(worse)} is beyond the threshold of {_percent(threshold)}"


def inconclusive(reasons: Sequence[str]) -> str:
    return f"Inconclusive: {reasons[0]}" if reasons else "Inconclusive."


def worse_metric(title: str, worse: float | None, proof: str) -> str:
    """Another metric than the step time fails the check; `proof`: of `interval_and_p`."""
    return f"Regression: {title.lower()} is worse by {_percent(worse)}{proof}."


def regression(
    worse: float, steps_ns: tuple[float, float], proof: str, *, num_slower: int, num_pairs: int
) -> str:
    """A step takes longer, by the share `worse`."""
    slower = f", {num_slower} of {counted(num_pairs, 'pair')} slower" if num_pairs else ""
    return f"Regression: a step takes {_percent(worse)} longer ({_steps(steps_ns)}){proof}{slower}."


def improvement(worse: float, steps_ns: tuple[float, float], interval: str) -> str:
    """`worse` is below 0."""
    return f"Pass: a step takes {_percent(-worse)} less time ({_steps(steps_ns)}){interval}."


def no_slow_down(
    worse: float, steps_ns: tuple[float, float], interval: str, *, threshold: float, is_certain: bool
) -> str:
    """`is_certain`: it is slower beyond doubt, by less than the threshold."""
    took = f"{_percent(abs(worse))} {'longer' if worse > 0 else 'less'}"
    if _percent(abs(worse)) == _percent(0.0):
        took = "as long as before"
    text = (
        f"Pass: no slow-down beyond {_percent(threshold)}; a step takes {took} ({_steps(steps_ns)}){interval}"
    )
    if is_certain:
        text += "; that it is slower is certain, and within what is allowed"
    return f"{text}."


def _steps(steps_ns: tuple[float, float]) -> str:
    return f"{format_ns(steps_ns[0])} → {format_ns(steps_ns[1])}"


def interval(low: float | None, high: float | None) -> str:
    """``, 95 % interval −1.0 % to +2.0 %``."""
    if low is None or high is None:
        return ""
    return f", 95 % interval {_signed(low)} to {_signed(high)}"


def interval_and_p(low: float | None, high: float | None, p: float | None) -> str:
    """``, 95 % interval +1.0 % to +2.0 %, p = 0.004``."""
    if p is None:
        return interval(low, high)
    return f"{interval(low, high)}, {f'p = {p:.3f}' if p >= 0.0005 else 'p < 0.001'}"


def more_pairs(num_planned: int, num_run: int) -> str:
    return f"{num_planned} pairs were inconclusive, so {num_run} were run."


def per_sample(base: str, head: str, batches: tuple[int, int]) -> str:
    """Batches differ, and may: the head's times are those of the base's number of samples."""
    return (
        f"Steps of {head} have {batches[1]:,} samples, those of {base} {batches[0]:,}: its times are "
        f"given for {batches[0]:,} samples."
    )


def another_day(base: str, head: str) -> str:
    return (
        f"All runs of {base} were made within an hour, at another time than those of {head}: how much this "
        "machine differs from day to day is not known. Add runs of other days, or run pairs."
    )


def disturbance_not_known(num: int, num_runs: int, why: str) -> str:
    return f"Whether something disturbed {num} of {num_runs} runs is not known: {clause(why)}."


def runs_failed(num: int, num_runs: int, label: str, why: str) -> str:
    return f"{num} of {num_runs} runs of {label} failed: {why}."


def other_lengths(num_base: float, num_head: float) -> str:
    """Steps of the runs of each side."""
    return f"The runs are not alike: {num_base:,.0f} steps in the base, {num_head:,.0f} in the head."


def nothing_measured(label: str, run: str, why: str, num_more: int) -> str:
    more = f" (and {num_more} more)" if num_more else ""
    return f"Measurement failed: nothing was measured of {label}: {run}: {why}{more}."


def not_known(title: str, reason: str) -> str:
    return f"{title} is not known: {reason}."


def unproven_metric(title: str, reason: str) -> str:
    return f"{title}: {reason}."


def _percent(value: float | None) -> str:
    return "an unknown share" if value is None else f"{100 * value:.1f} %"


def _signed(value: float) -> str:
    return format_change(value)
