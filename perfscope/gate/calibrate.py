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
from perfscope.gate.metrics import DECIDES
from perfscope.gate.records import Fingerprint, RunFigures
from perfscope.gate.results import ExcludedRun
from perfscope.gate.sequential import fewest_pairs
from perfscope.gate.settings import ALPHA, Settings
from perfscope.gate.simulated_checks import TARGET, TARGET_POWER, Z_95, CheckTrial, Rule, tried
from perfscope.gate.statistics import Floats, robust_spread
from perfscope.messages.gate import calibration as words
from perfscope.messages.gate.runs import disturbed
from perfscope.messages.gate.verdict import other_kind

FEWEST_RUNS = 10
PAIRS = tuple(range(5, 17))
MOST_FALSE_ALARMS = 0.02
FEW_CHECKS = 5  # without using a run twice: of fewer the shares are estimates


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
    left_out: tuple[ExcludedRun, ...] = ()
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
    trials: tuple[CheckTrial, ...] = ()
    current: CheckTrial | None = None
    suggestion: CheckTrial | None = None
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
    calibration = Calibration(
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
        calibration,
        headline=_headline(calibration),
        sentences=tuple(_sentences(calibration, settings, residuals)),
    )


def _keeps_to_both(trial: CheckTrial) -> bool:
    return trial.false_alarms <= MOST_FALSE_ALARMS and trial.finds(TARGET) >= TARGET_POWER


def _suggestion(trials: Sequence[CheckTrial]) -> CheckTrial | None:
    """The fewest pairs that do; of their thresholds the quietest (by half per cents), then the smallest."""
    good = [trial for trial in trials if _keeps_to_both(trial)]
    if good:
        return min(
            good,
            key=lambda candidate: (
                candidate.pairs,
                math.floor(candidate.false_alarms / 0.005),
                candidate.threshold,
            ),
        )
    quiet = [trial for trial in trials if trial.false_alarms <= MOST_FALSE_ALARMS] or trials
    # Half a percent more that is seen is not worth another pair.
    return min(
        quiet,
        key=lambda check_trial: (
            math.ceil(check_trial.visible / 0.005) if check_trial.visible is not None else math.inf,
            check_trial.false_alarms if check_trial.visible is None else 0.0,
            check_trial.pairs,
            check_trial.threshold,
        ),
        default=None,
    )


def _usable(
    runs: Sequence[RunFigures], settings: Settings
) -> tuple[tuple[RunFigures, ...], tuple[ExcludedRun, ...]]:
    """Runs a check would judge, of the commonest fingerprint, in time order where that is known."""
    lost: list[ExcludedRun] = []
    fit: list[RunFigures] = []
    for run in runs:
        reason = why_unusable(run, settings)
        if not reason and run.clean is False:
            reason = disturbed(run.clean_reason)
        if reason:
            lost.append(ExcludedRun(name=run.name, side="", reason=reason))
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
            reason = other_kind([field for field, _, _ in differing])
            lost.append(ExcludedRun(name=run.name, side="", reason=reason))
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


def _too_few(num: int, left_out: tuple[ExcludedRun, ...], settings: Settings) -> Calibration:
    fewest = _fewest_runs(settings)
    reason = words.too_few(
        num,
        fewest,
        settings.pairs,
        max(fewest, 2 * settings.pairs),
        num_left_out=len(left_out),
        why=left_out[0].reason if left_out else "",
    )
    return Calibration(
        num_runs=num,
        reason=reason,
        headline=words.not_calibrated(reason),
        left_out=left_out,
        alpha=settings.alpha,
    )


def _headline(calibration: Calibration) -> str:
    best = calibration.suggestion
    if best is None:
        return words.NO_TRIAL
    check, wrong = words.check(best.pairs, best.threshold), _wrong(best)
    if calibration.sees_target:
        return words.use(check, wrong, [(effect, best.finds(effect)) for effect in (TARGET, 2 * TARGET)])
    most = max(trial.pairs for trial in calibration.trials)
    if best.false_alarms > MOST_FALSE_ALARMS:
        return words.too_noisy(most, check, wrong, best.visible)
    return words.not_reliable(TARGET, most, check, wrong, best.visible)


def _sentences(calibration: Calibration, settings: Settings, logs: Floats) -> list[str]:
    """What else there is to know.

    Args:
        logs: log step_p10 without the drift, shape (runs,).
    """
    sentences = []
    best = calibration.suggestion
    if best:
        most = best.most if best.most > best.pairs else None
        sentences.append(words.cost(best.needed, best.needed_slower, TARGET, most))
    if best and calibration.sees_target and best.visible is not None and best.sure is not None:
        sentences.append(words.smallest(best.visible, best.sure))
    threshold = settings.metrics[DECIDES].threshold
    sentences += _as_configured(calibration, settings, len(logs))
    largest = max((trial.pairs for trial in calibration.trials), default=0)
    if best and not calibration.sees_target and largest < PAIRS[-1]:
        sentences.append(words.more_runs(PAIRS[-1]))
    if (
        calibration.drift is not None
        and calibration.drift_low is not None
        and calibration.drift_high is not None
    ):
        drifts = calibration.drift_low > 0 or calibration.drift_high < 0
        if drifts and abs(calibration.drift) > threshold / 2:
            sentences.append(words.drift(calibration.drift))
    wild = _wild(logs)
    if wild:
        sentences.append(words.outliers(wild, len(logs)))
    if best and best.num_apart < FEW_CHECKS:
        sentences.append(words.estimates(len(logs), best.num_apart, best.most))
    return sentences


def _as_configured(calibration: Calibration, settings: Settings, num_runs: int) -> list[str]:
    least = fewest_pairs(calibration.alpha)
    if settings.pairs < least:
        return [words.proves_nothing(settings.pairs, calibration.alpha, least)]
    if calibration.current is None:
        return [words.runs_needed(settings.pairs, num_runs)]
    return (
        []
        if calibration.current is calibration.suggestion
        else [words.as_configured(describe(calibration.current))]
    )


def describe(trial: CheckTrial) -> str:
    """A trial in words: "a check of 8 to 16 pairs at 5 % is wrong 1.2 % of the time and finds ..."."""
    span = (trial.pairs, trial.most)
    return words.trial(span, trial.threshold, _wrong(trial), TARGET, trial.finds(TARGET))


def _wrong(trial: CheckTrial) -> str:
    return words.wrong(trial.false_alarms, trial.high)


def _wild(logs: Floats) -> int:
    spread = robust_spread(logs)
    return int((np.abs(logs - np.median(logs)) > 4 * spread).sum()) if spread else 0
