"""Sentences of a verdict."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from perfscope.gate.records import Fingerprint, RunFigures
from perfscope.gate.results import CheckResult, LeftOut, MetricVerdict, Outcome, Side
from perfscope.messages.lists import counted
from perfscope.units import format_ns

MANY_OF_ONE_SIDE = 4  # disturbed runs that chance would hardly put on one side,
ENOUGH = 4  # where that many of the other were seen to be undisturbed
FIELDS = {
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


def fingerprint_sentence(base: Side, head: Side, allowed: Collection[str]) -> list[str]:
    """Why the sides may not be compared, in sentences; [] if they may."""
    runs = (*base.runs, *head.runs)
    if not runs:
        return []
    reference = runs[0]
    sentences: dict[str, str] = {}  # by field: the first run that differs
    for run in runs[1:]:
        for field, mine, theirs in reference.fingerprint.differences(run.fingerprint, allowed):
            text = (
                f"Not comparable: {FIELDS[field]} differs, {_shown(mine)} in {reference.name} "
                f"and {_shown(theirs)} in {run.name}."
            )
            sentences.setdefault(field, text)
    if not sentences:
        return []
    return [
        *sentences.values(),
        "Compare runs of the same fingerprint; where the difference is what you want to judge, "
        "allow it with `--allow FIELD`.",
    ]


def fingerprint_words(fingerprint: Fingerprint) -> str:
    """A fingerprint for a person, in one line."""
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


def too_few_sentence(
    base: Side,
    head: Side,
    pairs: Sequence[tuple[RunFigures, RunFigures]],
    needed: int,
    lost: Sequence[LeftOut],
    planned: int,
) -> str:
    """Fewer runs than a verdict needs."""
    have = f"{counted(len(base.runs), 'run')} of {base.label} and {len(head.runs)} of {head.label}"
    if pairs:
        have = counted(len(pairs), "pair")
    sides = {left_out_run.side for left_out_run in lost if left_out_run.disturbed}
    disturbed = sum(left_out_run.disturbed for left_out_run in lost)
    why = f" ({counted(disturbed, 'disturbed run')} left out)" if disturbed else ""
    unit = "pairs" if pairs else "a side"
    advice = "make more runs"
    if disturbed:
        advice += ", on a quieter machine"
    if disturbed and planned:
        advice = "find a quieter machine, or raise `repeats`"
    other_runs = [run for side in (base, head) for run in side.runs if run.side not in sides]
    if (
        len(sides) == 1
        and disturbed >= MANY_OF_ONE_SIDE
        and sum(run.clean is True for run in other_runs) >= ENOUGH
    ):
        advice = f"only runs of {sides.pop()} were disturbed: perhaps its own code starts what disturbs them"
    return f"Inconclusive: {have}{why}, at least {needed} {unit} are needed: {advice}."


def unproven_sentence(verdict: MetricVerdict, alpha: float, needed: float) -> str:
    """Beyond the threshold, and either not proven or within the noise of single runs."""
    beyond = (
        f"{_signed(verdict.worse or 0.0)} is beyond the threshold of {_percent(verdict.metric.threshold)}"
    )
    if verdict.p is not None and verdict.p < alpha:
        return f"{beyond}, but within twice the noise of single runs ({_percent(needed)})"
    return f"{beyond}, but not proven (p = {verdict.p:.3f}, needed below {alpha:g})"


def headline(result: CheckResult) -> str:
    """The verdict in one sentence, with its figures."""
    deciding = result.deciding
    assert deciding is not None
    if result.outcome is Outcome.INCONCLUSIVE:
        return f"Inconclusive: {result.reasons[0]}" if result.reasons else "Inconclusive."
    failing = [verdict for verdict in result.metrics if verdict.fails]
    if failing and deciding not in failing:
        worst = failing[0]
        return f"Regression: {worst.metric.title.lower()} is worse by {_percent(worst.worse)}{_proof(worst)}."
    if deciding.worse is None or deciding.base is None or deciding.head is None:
        return "Pass."
    steps = f"{format_ns(deciding.base)} → {format_ns(deciding.head)}"
    if failing:
        slower = (
            f", {sum(ratio > 0 for ratio in result.pairs)} of {counted(len(result.pairs), 'pair')} slower"
        )
        proof = _proof(deciding) + (slower if result.pairs else "")
        return f"Regression: a step takes {_percent(deciding.worse)} longer ({steps}){proof}."
    if deciding.state == "better":
        return f"Pass: a step takes {_percent(-deciding.worse)} less time ({steps}){_interval(deciding)}."
    allowed = _percent(deciding.metric.threshold)
    took = f"{_percent(abs(deciding.worse))} {'longer' if deciding.worse > 0 else 'less'}"
    if _percent(abs(deciding.worse)) == _percent(0.0):
        took = "as long as before"
    sentence = f"Pass: no slow-down beyond {allowed}; a step takes {took} ({steps}){_interval(deciding)}"
    if deciding.worse > 0 and deciding.p is not None and deciding.p < result.alpha:
        sentence += "; that it is slower is certain, and within what is allowed"
    return f"{sentence}."


def _percent(value: float | None) -> str:
    return "an unknown share" if value is None else f"{100 * value:.1f} %"


def _signed(value: float) -> str:
    return f"{100 * value:+.1f} %".replace("-", "−")


def _proof(verdict: MetricVerdict) -> str:
    return f"{_interval(verdict)}, {_p(verdict.p)}" if verdict.p is not None else _interval(verdict)


def _p(value: float) -> str:
    return f"p = {value:.3f}" if value >= 0.0005 else "p < 0.001"


def _interval(verdict: MetricVerdict) -> str:
    if verdict.low is None or verdict.high is None:
        return ""
    return f", 95 % interval {_signed(verdict.low)} to {_signed(verdict.high)}"


def _shown(value: object) -> str:
    if value in ("", None, ()):
        return "unknown"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
