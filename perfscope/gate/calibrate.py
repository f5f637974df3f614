"""How often a check is wrong on this machine, and how small a slow-down it sees: from runs of the same code.

No model of the noise: checks are put together from the runs themselves and judged by the gate's own rule.
A slow-down is made by really multiplying the step times of one side.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfscope.gate.decide import why_unusable
from perfscope.gate.looks import fewest_pairs
from perfscope.gate.metrics import DECIDES
from perfscope.gate.records import Fingerprint, RunFigures
from perfscope.gate.results import LeftOut
from perfscope.gate.settings import ALPHA, Settings
from perfscope.gate.statistics import Floats, robust_spread
from perfscope.gate.trials import TARGET, TARGET_POWER, Z_95, Rule, Trial, tried
from perfscope.gate.verdict_words import FIELDS
from perfscope.messages.lists import counted

FEWEST_RUNS = 10
PAIRS = tuple(range(5, 17))
MOST_FALSE_ALARMS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What checks on this machine are worth.

    Attributes:
        reason: why nothing could be said; "" = the rest is filled in.
        headline: the suggestion, or what the machine can see, in one sentence.
        sentences: what else a reader should know, weightiest first.
        step_ns: median step_p10 of the runs.
        spread: standard deviation of a run's step_p10 as a share, robust, drift taken out.
        drift: change of step_p10 from the first to the last run, as a share (Theil-Sen); low, high its 95 %
            interval.
        session_s: from the start of the first to the start of the last run; None = not recorded.
        trials: by pairs, then threshold. Only as many pairs as there are runs for: a check uses none twice.
        current: the trial of the settings; None = too few runs for it.
        suggestion: the check of fewest planned pairs with few false alarms that sees +10 %; where none does,
            the one that sees most.
        sees_target: whether the suggestion keeps to both.
    """

    num_runs: int
    reason: str = ""
    headline: str = ""
    sentences: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    fingerprint: Fingerprint | None = None
    step_ns: float | None = None
    spread: float | None = None
    drift: float | None = None
    drift_low: float | None = None
    drift_high: float | None = None
    session_s: float | None = None
    alpha: float = ALPHA
    early_stop: bool = True
    draws: int = 0
    seed: int = 0
    trials: tuple[Trial, ...] = ()
    current: Trial | None = None
    suggestion: Trial | None = None
    sees_target: bool = False


def calibrate(
    runs: Sequence[RunFigures],
    settings: Settings,
    *,
    seed: int = 0,
    draws: int = 2000,
    pairs: Sequence[int] = PAIRS,
    rule: Rule | None = None,
) -> Calibration:
    """What the gate's rule does with checks resampled from A/A runs of this machine.

    Args:
        runs: of one and the same code, at least 10; best made in a row.
        draws: checks for every number of pairs.
        pairs: numbers of pairs to try, besides that of the settings; those that can prove nothing at
            `settings.alpha` are not.
        rule: another rule than the gate's own; it sees the planned pairs only.
    """
    usable, left_out = _usable(runs, settings)
    if len(usable) < _fewest_runs(settings):
        return _too_few(len(usable), left_out, settings)
    logs = np.log([run.metrics[DECIDES] for run in usable])
    slope, low, high = _theil_sen(logs)
    trials = tried(logs, settings, rule, pairs, (seed, draws))
    threshold = settings.metrics[DECIDES].threshold
    current = next((t for t in trials if t.pairs == settings.pairs and t.threshold == threshold), None)
    suggestion = _suggestion(trials)
    length = len(logs) - 1
    residuals = logs - slope * np.arange(len(logs))
    result = Calibration(
        num_runs=len(usable),
        left_out=left_out,
        fingerprint=usable[0].fingerprint,
        step_ns=float(np.exp(np.median(logs))),
        spread=robust_spread(residuals),
        drift=math.expm1(slope * length),
        drift_low=math.expm1(low * length),
        drift_high=math.expm1(high * length),
        session_s=_session(usable),
        alpha=settings.alpha,
        early_stop=settings.early_stop,
        draws=draws,
        seed=seed,
        trials=trials,
        current=current,
        suggestion=suggestion,
        sees_target=suggestion is not None and _keeps_to_both(suggestion),
    )
    return replace(
        result,
        headline=_headline(result),
        sentences=tuple(_sentences(result, settings, residuals)),
    )


def _keeps_to_both(trial: Trial) -> bool:
    return trial.false_alarms <= MOST_FALSE_ALARMS and trial.finds(TARGET) >= TARGET_POWER


def _suggestion(trials: Sequence[Trial]) -> Trial | None:
    """The fewest pairs that do; of their thresholds the quietest (by half per cents), then the smallest."""
    good = [trial for trial in trials if _keeps_to_both(trial)]
    if good:
        return min(
            good,
            key=lambda trial_row: (
                trial_row.pairs,
                math.floor(trial_row.false_alarms / 0.005),
                trial_row.threshold,
            ),
        )
    quiet = [trial for trial in trials if trial.false_alarms <= MOST_FALSE_ALARMS] or trials
    # Half a per cent more that is seen is not worth another pair.
    return min(
        quiet,
        key=lambda trial_row: (
            math.ceil(trial_row.visible / 0.005) if trial_row.visible is not None else math.inf,
            trial_row.false_alarms if trial_row.visible is None else 0.0,
            trial_row.pairs,
            trial_row.threshold,
        ),
        default=None,
    )


def _usable(
    runs: Sequence[RunFigures], settings: Settings
) -> tuple[tuple[RunFigures, ...], tuple[LeftOut, ...]]:
    """Runs a check would judge, of the commonest fingerprint, in time order where that is known."""
    lost: list[LeftOut] = []
    fit: list[RunFigures] = []
    for run in runs:
        reason = why_unusable(run, settings)
        if not reason and run.clean is False:
            reason = f"disturbed: {run.clean_reason}"
        if reason:
            lost.append(LeftOut(name=run.name, side="", reason=reason))
        else:
            fit.append(run)
    prints = Counter(run.fingerprint for run in fit)
    alike = {
        fingerprint: sum(
            num for two, num in prints.items() if not fingerprint.differences(two, settings.allow)
        )
        for fingerprint in prints
    }
    common = max(alike, key=lambda fingerprint: alike[fingerprint], default=Fingerprint())
    kept = []
    for run in fit:
        differing = common.differences(run.fingerprint, settings.allow)
        if differing:
            named = ", ".join(FIELDS[field] for field, _, _ in differing)
            lost.append(LeftOut(name=run.name, side="", reason=f"not of the same kind: {named} differs"))
        else:
            kept.append(run)
    starts = [run.surroundings.start_unix_ns for run in kept]
    if None not in starts:
        kept.sort(key=lambda run: run.surroundings.start_unix_ns or 0)
    return tuple(kept), tuple(lost)


def _session(runs: Sequence[RunFigures]) -> float | None:
    first, last = (runs[at].surroundings.start_unix_ns for at in (0, -1))
    return (last - first) / 1e9 if first is not None and last is not None else None


def _theil_sen(values: Floats) -> tuple[float, float, float]:
    """Median of all pairwise slopes per position, its 95 % interval (Hollander, Wolfe, Chicken, 9.2-9.3)."""
    first, second = np.triu_indices(len(values), 1)
    slopes = np.sort((values[second] - values[first]) / (second - first))
    num = len(values)
    width = Z_95 * math.sqrt(num * (num - 1) * (2 * num + 5) / 18)
    at = min(max(0, math.floor((len(slopes) - width) / 2)), (len(slopes) - 1) // 2)
    return float(np.median(slopes)), float(slopes[at]), float(slopes[-1 - at])


def _fewest_runs(settings: Settings) -> int:
    return max(FEWEST_RUNS, 2 * fewest_pairs(settings.alpha))


def _too_few(num: int, left_out: tuple[LeftOut, ...], settings: Settings) -> Calibration:
    lost = f" ({len(left_out)} left out: {left_out[0].reason})" if left_out else ""
    fewest = _fewest_runs(settings)
    wanted = max(fewest, 2 * settings.pairs)
    reason = (
        f"{counted(num, 'run')} to judge by{lost}, at least {fewest} are needed, "
        f"{wanted} for a check of {settings.pairs} pairs: make {wanted - num} more of the same code"
    )
    return Calibration(
        num_runs=num,
        reason=reason,
        headline=f"Not calibrated: {reason}.",
        left_out=left_out,
        alpha=settings.alpha,
    )


def _headline(result: Calibration) -> str:
    best = result.suggestion
    if best is None:
        return "Not calibrated: no number of pairs that the settings allow could be tried."
    check = f"{best.pairs} pairs at {_percent(best.threshold)}"
    wrong = _wrong(best)
    if result.sees_target:
        finds = " and ".join(
            f"+{_percent(effect)} in {_percent(best.finds(effect), 0)}" for effect in (TARGET, 2 * TARGET)
        )
        return f"Use {check}: a check is {wrong} and finds {finds}."
    most = max(trial.pairs for trial in result.trials)
    sight = "not even +30 %" if best.visible is None else f"+{_percent(best.visible)}"
    if best.false_alarms > MOST_FALSE_ALARMS:
        return (
            f"This machine is too noisy for a gate of up to {most} pairs: the quietest, {check}, is {wrong} "
            f"and finds {sight} four times out of five."
        )
    return (
        f"This machine cannot see +{_percent(TARGET)} reliably with up to {most} pairs: the best, {check}, "
        f"finds {sight} four times out of five and is {wrong}."
    )


def _sentences(result: Calibration, settings: Settings, logs: Floats) -> list[str]:
    """What else there is to know.

    Args:
        logs: log step_p10 without the drift, shape (runs,).
    """
    sentences = []
    best = result.suggestion
    if best:
        sentences.append(_cost(best))
    if best and result.sees_target and best.visible is not None and best.sure is not None:
        sentences.append(
            f"The smallest slow-down that it finds four times out of five is +{_percent(best.visible)}; "
            f"+{_percent(best.sure)} it finds nearly always (97 %)."
        )
    configured = settings.metrics[DECIDES].threshold
    sentences += _as_configured(result, settings, len(logs))
    most = max((trial.pairs for trial in result.trials), default=0)
    if result.suggestion and not result.sees_target and most < PAIRS[-1]:
        sentences.append(
            f"With more runs more pairs could be tried: {2 * PAIRS[-1]} runs for {PAIRS[-1]} pairs."
        )
    if result.drift is not None and result.drift_low is not None and result.drift_high is not None:
        drifts = result.drift_low > 0 or result.drift_high < 0
        if drifts and abs(result.drift) > configured / 2:
            slower = "slower" if result.drift > 0 else "faster"
            sentences.append(
                f"The machine became {_percent(abs(result.drift))} {slower} over the session: interleaved "
                "pairs bear that, runs against a stored baseline do not."
            )
    wild = _wild(logs)
    if wild:
        sentences.append(
            f"{wild} of {len(logs)} runs {'lie' if wild > 1 else 'lies'} far from the others "
            "(more than 4 standard deviations): "
            "something disturbs this machine now and then."
        )
    trial = result.suggestion
    if trial and trial.num_apart < 5:
        apart = counted(trial.num_apart, "check")
        sentences.append(
            f"The {len(logs)} runs make {apart} of {trial.most} pairs without using a run twice, so the "
            "shares are estimates; more runs, at other times of the day, make them better."
        )
    return sentences


def _as_configured(result: Calibration, settings: Settings, num_runs: int) -> list[str]:
    asked, least = f"A check of {settings.pairs} pairs as configured", fewest_pairs(result.alpha)
    if settings.pairs < least:
        return [f"{asked} can prove nothing at alpha {result.alpha:g}: give it {least} or more."]
    if result.current is None:
        return [f"{asked} needs {2 * settings.pairs} runs to be tried; there are {num_runs}."]
    return [] if result.current is result.suggestion else [f"As configured, {describe(result.current)}."]


def _cost(trial: Trial) -> str:
    return (
        f"It takes {trial.needed:.1f} pairs on average where nothing changed and {trial.needed_slower:.1f} "
        f"at +{_percent(TARGET)}"
        + (f"; in doubt it goes on to {trial.most}." if trial.most > trial.pairs else ".")
    )


def describe(trial: Trial) -> str:
    """A trial in words: "a check of 8 to 16 pairs at 5 % is wrong 1.2 % of the time and finds ..."."""
    finds = _percent(trial.finds(TARGET), 0)
    span = f"{trial.pairs} to {trial.most}" if trial.most > trial.pairs else f"{trial.pairs}"
    return (
        f"a check of {span} pairs at {_percent(trial.threshold)} is {_wrong(trial)} "
        f"and finds +{_percent(TARGET)} in {finds}"
    )


def _wrong(trial: Trial) -> str:
    if trial.false_alarms == 0:
        return f"wrong less than {_percent(max(trial.high, 0.001))} of the time"
    return f"wrong {_percent(trial.false_alarms)} of the time"


def _wild(logs: Floats) -> int:
    spread = robust_spread(logs)
    return int((np.abs(logs - np.median(logs)) > 4 * spread).sum()) if spread else 0


def _percent(value: float, digits: int = 1) -> str:
    """5 %, 7.5 %, 0.05 -> without needless zeros."""
    text = f"{100 * value:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"
