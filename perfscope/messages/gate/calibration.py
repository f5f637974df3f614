"""What checks on a machine are worth."""

from __future__ import annotations

from perfscope.messages.lists import counted

NO_TRIAL = "Not calibrated: no number of pairs that the settings allow could be tried."


def too_few(num: int, needed: int, pairs: int, wanted: int, *, num_left_out: int, why: str) -> str:
    """`wanted`: runs for a check of so many `pairs`; `why` the first run was left out."""
    lost = f" ({num_left_out} left out: {why})" if num_left_out else ""
    return (
        f"{counted(num, 'run')} to judge by{lost}, at least {needed} are needed, "
        f"{wanted} for a check of {pairs} pairs: make {wanted - num} more of the same code"
    )


def not_calibrated(reason: str) -> str:
    return f"Not calibrated: {reason}."


def check(pairs: int, threshold: float) -> str:
    """ "8 pairs at 5 %"."""
    return f"{pairs} pairs at {_percent(threshold)}"


def use(check: str, wrong: str, finds: list[tuple[float, float]]) -> str:
    """`finds`: slow-down -> share of the checks that find it."""
    powers = " and ".join(f"+{_percent(effect)} in {_percent(share, 0)}" for effect, share in finds)
    return f"Use {check}: a check is {wrong} and finds {powers}."


def too_noisy(most: int, check: str, wrong: str, visible: float | None) -> str:
    return (
        f"This machine is too noisy for a gate of up to {most} pairs: the quietest, {check}, is {wrong} "
        f"and finds {_sight(visible)} four times out of five."
    )


def not_reliable(target: float, most: int, check: str, wrong: str, visible: float | None) -> str:
    return (
        f"This machine cannot see +{_percent(target)} reliably with up to {most} pairs: the best, {check}, "
        f"finds {_sight(visible)} four times out of five and is {wrong}."
    )


def _sight(visible: float | None) -> str:
    return "not even +30 %" if visible is None else f"+{_percent(visible)}"


def wrong(false_alarms: float, high: float) -> str:
    """How often a check is wrong; `high`: the end of the 95 % interval."""
    if false_alarms == 0:
        return f"wrong less than {_percent(max(high, 0.001))} of the time"
    return f"wrong {_percent(false_alarms)} of the time"


def smallest(visible: float, sure: float) -> str:
    return (
        f"The smallest slow-down that it finds four times out of five is +{_percent(visible)}; "
        f"+{_percent(sure)} it finds nearly always (97 %)."
    )


def more_runs(pairs: int) -> str:
    return f"With more runs more pairs could be tried: {2 * pairs} runs for {pairs} pairs."


def drift(change: float) -> str:
    """Of the step time over the session, as a share."""
    return (
        f"The machine became {_percent(abs(change))} {'slower' if change > 0 else 'faster'} over the "
        "session: interleaved pairs bear that, runs against a stored baseline do not."
    )


def outliers(num: int, num_runs: int) -> str:
    return (
        f"{num} of {num_runs} runs {'lie' if num > 1 else 'lies'} far from the others "
        "(more than 4 standard deviations): something disturbs this machine now and then."
    )


def estimates(num_runs: int, num_checks: int, pairs: int) -> str:
    """`num_checks`: that can be made without using a run twice."""
    return (
        f"The {num_runs} runs make {counted(num_checks, 'check')} of {pairs} pairs without using a run "
        "twice, so the shares are estimates; more runs, at other times of the day, make them better."
    )


def proves_nothing(pairs: int, alpha: float, least: int) -> str:
    return f"{_configured(pairs)} can prove nothing at alpha {alpha:g}: give it {least} or more."


def runs_needed(pairs: int, num_runs: int) -> str:
    return f"{_configured(pairs)} needs {2 * pairs} runs to be tried; there are {num_runs}."


def as_configured(trial: str) -> str:
    """`trial`: of `trial`."""
    return f"As configured, {trial}."


def _configured(pairs: int) -> str:
    return f"A check of {pairs} pairs as configured"


def cost(needed: float, needed_slower: float, target: float, most: int | None) -> str:
    """Pairs that a check takes on average; `most`: in doubt, None where that is no more than planned."""
    text = (
        f"It takes {needed:.1f} pairs on average where nothing changed and {needed_slower:.1f} "
        f"at +{_percent(target)}"
    )
    return f"{text}; if inconclusive, it continues to {most}." if most is not None else f"{text}."


def trial(pairs: tuple[int, int], threshold: float, wrong: str, target: float, share: float) -> str:
    """ "a check of 8 to 16 pairs at 5 % is wrong 1.2 % of the time and finds +10 % in 95 %"."""
    span = f"{pairs[0]} to {pairs[1]}" if pairs[1] > pairs[0] else f"{pairs[0]}"
    return (
        f"a check of {span} pairs at {_percent(threshold)} is {wrong} and finds +{_percent(target)} in "
        f"{_percent(share, 0)}"
    )


def _percent(value: float, digits: int = 1) -> str:
    """5 %, 7.5 %, 0.05 -> without needless zeros."""
    text = f"{100 * value:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"
