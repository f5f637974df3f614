"""From the runs of two sides to a verdict.

Pairs that ran one after the other are judged by the signed-rank test on their ratios; runs made at other
times by the rank-sum test, and then the change must also exceed twice the noise that the runs show. A
verdict needs both: proof (p < alpha) and size (median beyond the threshold).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfscope.gate.metrics import DECIDES, METRICS, GateMetric, MetricUnit, worse_by
from perfscope.gate.records import BASE, HEAD, RunFigures
from perfscope.gate.results import CheckResult, ExcludedRun, MetricVerdict, Noise, Outcome, Side, State
from perfscope.gate.sequential import fewest_pairs
from perfscope.gate.settings import Settings
from perfscope.gate.statistics import (
    rank_sum_p,
    robust_spread,
    shift_interval,
    signed_rank_p,
    visible_change,
    visible_shift,
    walsh_interval,
)
from perfscope.messages.gate import metrics as metric_words
from perfscope.messages.gate import runs as run_words
from perfscope.messages.gate import verdict as words

Pair = tuple[RunFigures, RunFigures]
ONE_GO_NS = 3_600_000_000_000  # runs that start within an hour are of one session
UNLIKE_STEPS = 2.0  # times as many steps: runs that warm up, or end, differently
MANY_OF_ONE_SIDE = 4  # disturbed runs that chance would hardly put on one side,
ENOUGH = 4  # where that many of the other were seen to be undisturbed
NOISE_FACTOR = 2.0  # unpaired: the change must exceed this many times the spread of single runs


def judge(
    base: Side,
    head: Side,
    settings: Settings,
    *,
    name: str,
    planned: int = 0,
    stopped: str = "",
    left_out: Sequence[ExcludedRun] = (),
    failed: str = "",
) -> CheckResult:
    """The verdict on two sides, without its explanation.

    Args:
        base, head: every run that was made or named; those that cannot be judged are left out here.
        planned: pairs or runs a side that were asked for; 0 = as many as there are.
        stopped: why there are fewer.
        left_out: runs that were repeated or could not be read.
        failed: why the measurement as a whole failed; "" = it did not.
    """
    lost = list(left_out)
    base = replace(base, runs=_usable(base.runs, BASE, settings, lost))
    head = replace(head, runs=_usable(head.runs, HEAD, settings, lost))
    pairs = pairs_of(base.runs, head.runs)
    result = CheckResult(
        name=name,
        outcome=Outcome.INCONCLUSIVE,
        headline="",
        base=base,
        head=head,
        planned=planned,
        stopped=stopped,
        alpha=settings.alpha,
        left_out=tuple(lost),
        fingerprint=next((run.fingerprint for run in (*head.runs, *base.runs)), None),
        settings=_as_written(settings),
    )
    refused = failed or _why_failed(base, head, lost)
    if refused:
        return replace(result, outcome=Outcome.FAILED, headline=refused)
    other = incomparable(base, head, settings.allow)
    if not other:
        base, head, scaled = _per_sample(base, head)
        pairs = pairs_of(base.runs, head.runs)
        doubts = (*_doubts_about_time(base, head, pairs), *_unwatched((*base.runs, *head.runs)))
        result = replace(result, warnings=(*scaled, *doubts))
    verdicts = tuple(_verdict(metric, base, head, pairs, settings) for metric in settings.metrics.values())
    noise = _noise(base, head, pairs, settings)
    result = replace(result, metrics=verdicts, pairs=tuple(ratio_of(pair) - 1 for pair in pairs), noise=noise)
    if other:
        return replace(result, headline=words.inconclusive(other), reasons=tuple(other[1:]))
    needed = _fewest_runs(base, head, pairs, settings, is_settled=bool(stopped))
    if (len(pairs) if pairs else min(len(base.runs), len(head.runs))) < needed:
        result = replace(result, noise=replace(noise, visible=None) if noise else None)
        return replace(result, headline=_too_few(base, head, len(pairs), needed, lost, planned))
    outcome, reasons = _outcome(verdicts, _unlike(base, head, lost))
    if len(pairs) > settings.pairs:
        reasons.append(words.more_pairs(settings.pairs, len(pairs)))
    return _with_outcome(result, outcome, reasons)


def _with_outcome(result: CheckResult, outcome: Outcome, reasons: Sequence[str]) -> CheckResult:
    """The headline of an inconclusive check is its first reason."""
    if outcome is Outcome.INCONCLUSIVE:
        verdicts = tuple(replace(verdict, in_reasons=_is_open(verdict)) for verdict in result.metrics)
        headline = words.inconclusive(reasons)
        return replace(result, metrics=verdicts, headline=headline, reasons=tuple(reasons[1:]))
    result = replace(result, outcome=outcome, reasons=tuple(reasons))
    return replace(result, headline=_headline(result))


def incomparable(base: Side, head: Side, allowed: Collection[str]) -> list[str]:
    """Why the sides may not be compared, in sentences; [] if they may."""
    reference, *runs = (*base.runs, *head.runs) or (None,)
    if reference is None:
        return []
    sentences: dict[str, str] = {}  # by field: the first run that differs
    for run in runs:
        for field, mine, theirs in reference.fingerprint.differences(run.fingerprint, allowed):
            text = words.not_comparable(field, (reference.name, mine), (run.name, theirs))
            sentences.setdefault(field, text)
    return [*sentences.values(), words.SAME_FINGERPRINT] if sentences else []


def _too_few(
    base: Side, head: Side, num_pairs: int, needed: int, lost: Sequence[ExcludedRun], planned: int
) -> str:
    """Fewer runs than a verdict needs."""
    sides = {excluded_run.side for excluded_run in lost if excluded_run.disturbed}
    num_disturbed = sum(run.disturbed for run in lost)
    runs = [run for side in (base, head) for run in side.runs if run.side not in sides]
    not_chance = num_disturbed >= MANY_OF_ONE_SIDE and sum(run.clean is True for run in runs) >= ENOUGH
    return words.too_few(
        ((base.label, len(base.runs)), (head.label, len(head.runs))),
        num_pairs,
        needed,
        num_disturbed=num_disturbed,
        side=sides.pop() if len(sides) == 1 and not_chance else "",
        planned=bool(planned),
    )


def _headline(result: CheckResult) -> str:
    """A verdict that is not inconclusive in one sentence, with its figures."""
    deciding = result.deciding
    assert deciding is not None
    failing = [verdict for verdict in result.metrics if verdict.fails]
    if failing and deciding not in failing:
        return words.worse_metric(failing[0].metric.title, failing[0].worse, _proof(failing[0]))
    if deciding.worse is None or deciding.base is None or deciding.head is None:
        return words.PASS
    steps = (deciding.base, deciding.head)
    if failing:
        num_slower = sum(pair > 0 for pair in result.pairs)
        proof = _proof(deciding)
        return words.regression(
            deciding.worse, steps, proof, num_slower=num_slower, num_pairs=len(result.pairs)
        )
    interval = words.interval(deciding.low, deciding.high)
    if deciding.state == "better":
        return words.improvement(deciding.worse, steps, interval)
    is_certain = deciding.worse > 0 and deciding.p is not None and deciding.p < result.alpha
    threshold = deciding.metric.threshold
    return words.no_slow_down(deciding.worse, steps, interval, threshold=threshold, is_certain=is_certain)


def _proof(verdict: MetricVerdict) -> str:
    return words.interval_and_p(verdict.low, verdict.high, verdict.p)


def _fewest_runs(
    base: Side, head: Side, pairs: Sequence[Pair], settings: Settings, *, is_settled: bool
) -> int:
    """Pairs, or runs a side, without which no slow-down however large could be proven.

    A check that was settled early has passed; it needs no more than `fewest`.
    """
    if is_settled:
        return settings.fewest
    if pairs:
        return max(settings.fewest, fewest_pairs(settings.alpha))
    n, m = len(base.runs), len(head.runs)
    most = max(n, m, 1)
    needed = next(k for k in range(1, 1000) if 1 / math.comb(most + k, k) < settings.alpha)
    return max(settings.fewest, min(needed, most + 1))


def _per_sample(base: Side, head: Side) -> tuple[Side, Side, tuple[str, ...]]:
    """Where batches are allowed to differ: the head's times for as many samples as the base's steps have."""
    first, second = (next((run.fingerprint.batch for run in side.runs), None) for side in (base, head))
    if not first or not second or first == second:
        return base, head, ()
    factor = first / second
    times = {metric.id for metric in METRICS.values() if metric.unit in (MetricUnit.NS, MetricUnit.JOULES)}
    runs = tuple(
        replace(
            run,
            metrics={id_: value * (factor if id_ in times else 1) for id_, value in run.metrics.items()},
        )
        for run in head.runs
    )
    return base, replace(head, runs=runs), (words.per_sample(base.label, head.label, (first, second)),)


def _doubts_about_time(base: Side, head: Side, pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Runs that were not interleaved, and of which the base was made in one go, at another time."""
    starts = [[run.surroundings.start_unix_ns for run in side.runs] for side in (base, head)]
    if pairs or not all(starts) or any(start is None for side_starts in starts for start in side_starts):
        return ()
    first, second = ([start for start in side_starts if start is not None] for side_starts in starts)
    apart = max(min(second) - max(first), min(first) - max(second))
    if max(first) - min(first) > ONE_GO_NS or apart <= ONE_GO_NS:
        return ()
    return (words.another_day(base.label, head.label),)


def _unwatched(runs: Sequence[RunFigures]) -> tuple[str, ...]:
    """Runs of which it is not known whether something disturbed them, though it was checked."""
    unknown = [run for run in runs if run.clean is None and run.clean_reason]
    if not unknown:
        return ()
    return (words.disturbance_not_known(len(unknown), len(runs), unknown[0].clean_reason),)


def _unlike(base: Side, head: Side, lost: Sequence[ExcludedRun]) -> list[str]:
    """Why the runs that are left support a weaker conclusion than their number suggests."""
    reasons = []
    for side, runs in ((BASE, base), (HEAD, head)):
        failures = [
            excluded_run for excluded_run in lost if excluded_run.side == side and not excluded_run.disturbed
        ]
        if failures:
            num = len(runs.runs) + len(failures)
            reasons.append(words.runs_failed(len(failures), num, runs.label, failures[0].reason))
    steps = [float(np.median([run.num_steps for run in side.runs])) for side in (base, head)]
    if max(steps) > UNLIKE_STEPS * min(steps):
        reasons.append(words.other_lengths(*steps))
    return reasons


def pairs_of(base: Sequence[RunFigures], head: Sequence[RunFigures]) -> list[Pair]:
    """Runs of the same pair number, in order; [] unless every run has one and none has it twice."""
    sides: list[Mapping[int, RunFigures]] = []
    for runs in (base, head):
        numbered = {run.pair: run for run in runs if run.pair is not None}
        if len(numbered) != len(runs):
            return []
        sides.append(numbered)
    return [(sides[0][pair], sides[1][pair]) for pair in sorted(sides[0]) if pair in sides[1]]


def ratio_of(pair: Pair) -> float:
    """step_p10 of head over base."""
    return pair[1].metrics[DECIDES] / pair[0].metrics[DECIDES]


def why_unusable(run: RunFigures, settings: Settings) -> str:
    """Why nothing may be concluded from the run; "" if something may."""
    if run.problem:
        return run.problem
    if DECIDES not in run.metrics:
        return run.absent.get(DECIDES, metric_words.ABSENT[DECIDES])
    if run.num_steps < settings.fewest_steps:
        return run_words.few_steps(run.num_steps, settings.fewest_steps)
    return ""


def _usable(
    runs: Sequence[RunFigures], side: str, settings: Settings, lost: list[ExcludedRun]
) -> tuple[RunFigures, ...]:
    kept = []
    for run in runs:
        reason = why_unusable(run, settings)
        if reason:
            lost.append(ExcludedRun(name=run.name, side=side, reason=reason))
        elif run.clean is False:
            reason = run_words.disturbed(run.clean_reason)
            lost.append(ExcludedRun(name=run.name, side=side, reason=reason, disturbed=True))
        else:
            kept.append(run)
    return tuple(kept)


def _why_failed(base: Side, head: Side, lost: Sequence[ExcludedRun]) -> str:
    """A side of which nothing is left but failures has not been measured."""
    for side, runs in ((BASE, base), (HEAD, head)):
        failures = [run for run in lost if run.side == side and not run.disturbed]
        if not runs.runs and failures:
            first = failures[0]
            return words.nothing_measured(runs.label, first.name, first.reason, len(failures) - 1)
    return ""


def _verdict(
    metric: GateMetric, base: Side, head: Side, pairs: Sequence[Pair], settings: Settings
) -> MetricVerdict:
    first = [run.metrics[metric.id] for run in base.runs if metric.id in run.metrics]
    second = [run.metrics[metric.id] for run in head.runs if metric.id in run.metrics]
    verdict = MetricVerdict(
        metric=metric,
        state="unknown",
        base=float(np.median(first)) if first else None,
        head=float(np.median(second)) if second else None,
        num_base=len(first),
        num_head=len(second),
    )
    if not first or not second:
        return replace(verdict, reason=_why_absent(metric, base, head, bool(first), bool(second)))
    step = float(np.median([run.metrics[DECIDES] for run in base.runs]))
    if pairs:
        changes = [
            _change(metric, figures.metrics[metric.id], other.metrics[metric.id], figures.metrics[DECIDES])
            for figures, other in pairs
            if metric.id in figures.metrics and metric.id in other.metrics
        ]
        if None in changes:
            return replace(verdict, reason=metric_words.ZEROS)
        return _paired(verdict, [change for change in changes if change is not None], settings)
    return _unpaired(verdict, first, second, step, settings)


def _why_absent(metric: GateMetric, base: Side, head: Side, has_base: bool, has_head: bool) -> str:
    side = base if not has_base else head
    reason = next((why for run in side.runs if (why := run.absent.get(metric.id))), metric_words.NOT_RECORDED)
    return reason if has_base == has_head else metric_words.of_side(side.label, reason)


def _change(metric: GateMetric, base: float, head: float, base_step: float) -> float | None:
    """On the scale that is tested: logarithms where shares are of the metric itself, else the share."""
    worse = worse_by(metric, base, head, base_step)
    if worse is None or metric.scale == "step":
        return worse
    return math.log1p(worse)


def _share(metric: GateMetric, tested: float) -> float:
    return tested if metric.scale == "step" else math.expm1(tested)


def _paired(verdict: MetricVerdict, changes: Sequence[float], settings: Settings) -> MetricVerdict:
    if len(changes) < settings.fewest:
        return replace(verdict, paired=True, reason=metric_words.few_pairs(len(changes)))
    metric = verdict.metric
    interval = walsh_interval(changes)
    shares = [_share(metric, change) for change in changes]
    return _stated(
        replace(verdict, paired=True),
        worse=float(np.median(shares)),
        interval=interval,
        p=signed_rank_p(changes),
        p_better=signed_rank_p([-change for change in changes]),
        needed=metric.threshold,
        alpha=settings.alpha,
    )


def _unpaired(
    verdict: MetricVerdict,
    first: Sequence[float],
    second: Sequence[float],
    step: float,
    settings: Settings,
) -> MetricVerdict:
    metric = verdict.metric
    if min(len(first), len(second)) < settings.fewest:
        return replace(verdict, reason=metric_words.few_runs(len(first), len(second)))
    center = float(np.median(first))
    placed = [_change(metric, center, value, step) for value in (*first, *second)]
    if None in placed:
        return replace(verdict, reason=metric_words.ZEROS)
    values = [value for value in placed if value is not None]
    mine, theirs = values[: len(first)], values[len(first) :]
    spread = robust_spread(mine)  # not the head's: what makes it slower may make it restless, too
    return _stated(
        verdict,
        worse=_share(metric, float(np.median(theirs)) - float(np.median(mine))),
        interval=shift_interval(mine, theirs),
        p=rank_sum_p(mine, theirs),
        p_better=rank_sum_p(theirs, mine),
        needed=max(metric.threshold, NOISE_FACTOR * spread),
        alpha=settings.alpha,
    )


def _stated(
    verdict: MetricVerdict,
    *,
    worse: float,
    interval: tuple[float, float] | None,
    p: float,
    p_better: float,
    needed: float,
    alpha: float,
) -> MetricVerdict:
    threshold = verdict.metric.threshold
    state: State = "ok"
    if worse > threshold:
        state = "worse" if p < alpha and worse > needed else "unproven"
    elif -worse > needed / (1 + needed) and p_better < alpha:
        state = "better"
    metric = verdict.metric
    low, high = interval if interval is not None else (None, None)
    stated = replace(
        verdict,
        state=state,
        worse=worse,
        low=None if low is None else _share(metric, low),
        high=None if high is None else _share(metric, high),
        p=p,
    )
    if state != "unproven":
        return stated
    if p < alpha:
        return replace(stated, reason=words.within_noise(worse, threshold, needed))
    return replace(stated, reason=words.not_proven(worse, threshold, p, alpha))


def _noise(base: Side, head: Side, pairs: Sequence[Pair], settings: Settings) -> Noise | None:
    """From the spread of pairs, which drift does not widen; else from the spread of runs."""
    threshold, alpha = settings.metrics[DECIDES].threshold, settings.alpha
    if len(pairs) >= 2:
        spread = robust_spread([math.log(ratio_of(pair)) for pair in pairs])
        visible = visible_change(spread, settings.looks, threshold, alpha)
        return Noise(spread=spread / math.sqrt(2), visible=visible)
    logs = [[math.log(run.metrics[DECIDES]) for run in side.runs] for side in (base, head)]
    if len(logs[0]) < 2:
        return None
    spread = robust_spread(logs[0])
    needed = max(threshold, NOISE_FACTOR * spread)
    num = min(map(len, logs))
    return Noise(spread=spread, visible=visible_shift(spread, num, needed, alpha) if num else None)


def _outcome(verdicts: Sequence[MetricVerdict], unlike: Sequence[str]) -> tuple[Outcome, list[str]]:
    """The outcome, and why it is inconclusive where it is."""
    if any(verdict.fails for verdict in verdicts):
        return Outcome.REGRESSION, list(unlike)
    sentences = {"unknown": words.not_known, "unproven": words.unproven_metric}
    open_ones = [
        sentence(verdict.metric.title, verdict.reason)
        for state, sentence in sentences.items()
        for verdict in verdicts
        if _is_open(verdict) and verdict.state == state
    ]
    reasons = [*open_ones, *unlike]
    return (Outcome.INCONCLUSIVE if reasons else Outcome.PASS), reasons


def _is_open(verdict: MetricVerdict) -> bool:
    """Whether this alone makes the check inconclusive."""
    return verdict.metric.severity == "error" and verdict.state in ("unknown", "unproven")


def _as_written(settings: Settings) -> dict[str, object]:
    return {
        "pairs": settings.pairs,
        "most_pairs": settings.looks[-1],
        "alpha": settings.alpha,
        "fewest": settings.fewest,
        "fewest_steps": settings.fewest_steps,
        "repeats": settings.repeats,
        "early_stop": settings.early_stop,
        "pin_heap": settings.pin_heap,
        "allow": list(settings.allow),
        "source": str(settings.source) if settings.source else None,
    }
