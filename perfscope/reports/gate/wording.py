"""What the outputs of a check say alike: verdict, figures, states, sentences; every string made harmless.

Names come from traces, commands and files. `shown` makes control characters, direction overrides and half
surrogates visible (`reports.display`) and spells `##[`, by which a CI runner takes a command out of the
middle of a log line; `::` at the beginning of a line is the other such mark, see `inert`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from perfscope import units
from perfscope.gate.metrics import DECIDES, GateMetric, MetricUnit
from perfscope.gate.records import Fingerprint
from perfscope.gate.results import (
    CheckResult,
    Difference,
    ExcludedRun,
    Explanation,
    MetricVerdict,
    Moved,
    Outcome,
)
from perfscope.messages.gate.verdict import fingerprint_words
from perfscope.messages.lists import counted, first_of
from perfscope.messages.sentences import capital, clause
from perfscope.reports.display import visible
from perfscope.reports.gate.units import FORMS

NAME, SENTENCE = 120, 400  # characters of a name and of a sentence that are shown
MOST_SENTENCES = 12
WORD = {
    Outcome.PASS: "Pass",
    Outcome.REGRESSION: "Regression",
    Outcome.INCONCLUSIVE: "Inconclusive",
    Outcome.NO_BASELINE: "No baseline",
    Outcome.FAILED: "Measurement failed",
}
STATE = {
    "ok": "ok",
    "worse": "worse",
    "unproven": "not proven",
    "better": "better",
    "unknown": "unknown",
}
_ENORMOUS = 1e18
_RESTATE = ("step_mean", "throughput")
_LINE_COMMAND = re.compile(r"^(\s*):(?=:)")


def shown(text: object, longest: int = NAME) -> str:
    """`text` on one line, nothing hidden in it, no command to a CI runner in the middle of it."""
    return visible(text, longest).replace("##[", "#\\x23[")


def sentence(text: object) -> str:
    """A sentence with names in it, safe to show; without spaces at its ends."""
    return shown(text, SENTENCE).strip()


def inert(line: str) -> str:
    r"""`line`, with `\x3a:` for `::` at its beginning: there it would be a workflow command of GitHub."""
    return _LINE_COMMAND.sub(lambda match: f"{match[1]}\\x3a", line)


def finite(value: float | None) -> float | None:
    """None of what is no figure."""
    return value if value is not None and math.isfinite(value) else None


def verdict_line(result: CheckResult) -> str:
    """The verdict in one sentence that begins with its word: ``Regression: a step takes …``."""
    return sentence(result.headline) or f"{WORD[result.outcome]}."


def is_doubtful(result: CheckResult) -> bool:
    """A pass although a metric that decides seems worse: it is only not proven."""
    unproven = any(
        verdict.state == "unproven" and verdict.metric.severity == "error" for verdict in result.metrics
    )
    return result.outcome is Outcome.PASS and unproven


def subtitle(result: CheckResult) -> str:
    """What was compared: ``small-cnn: head against base, 8 of 8 pairs in 6 min 12 s``."""
    sides = f"{shown(result.head.label)} against {shown(result.base.label)}"
    parts = [sides]
    if result.pairs:
        planned = f" of {result.planned}" if result.planned else ""
        parts.append(f"{len(result.pairs)}{planned} pairs")
    elif result.base.runs or result.head.runs:
        parts.append(f"{counted(len(result.head.runs), 'run')} against {len(result.base.runs)}")
    text = f"{shown(result.name)}: {', '.join(parts)}"
    elapsed = finite(result.elapsed_s)
    return f"{text} in {duration(elapsed)}" if elapsed is not None else text


def duration(seconds: float) -> str:
    """Seconds as a person says them: ``6 min 12 s``."""
    total = round(seconds)
    if total < 60:
        return units.format_ns(seconds * 1e9)
    hours, remainder = divmod(total, 3600)
    minutes, left = divmod(remainder, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {left} s"


def figure(unit: MetricUnit, value: float | None) -> str:
    """A metric's value with its unit; an en dash where there is none."""
    number, forms = finite(value), FORMS[unit]
    if number is None:
        return units.MISSING
    if abs(number) >= _ENORMOUS:
        return f"{number * forms.exposition[1]:.3g} {forms.symbol}".rstrip()
    return forms.text(number)


def share(value: float | None, digits: int = 1) -> str:
    """A signed share: ``+10.3 %``; what rounds to nothing has no sign."""
    number = finite(value)
    if number is None:
        return units.MISSING
    if abs(number) >= 1e4:
        return f"{_sign(number)}{100 * abs(number):.2e} %"
    if abs(number) >= 10:
        return f"{_sign(number)}{100 * abs(number):,.0f} %"
    sign = _sign(number) if round(100 * abs(number), digits) else ""
    return f"{sign}{units.format_ratio(abs(number), digits)}"


def by_how_much(verdict: MetricVerdict) -> str:
    """The change without a sign, for sentences that say its direction: ``8.1 %``."""
    return share(verdict.worse).lstrip("+−")


def interval(low: float | None, high: float | None) -> str:
    """``+7.9 … +12.6 %``."""
    if finite(low) is None or finite(high) is None:
        return units.MISSING
    return f"{share(low).removesuffix(' %')} … {share(high)}"


def limit(metric: GateMetric) -> str:
    """From when on a metric counts as worse."""
    number = finite(metric.threshold)
    return units.MISSING if number is None else f"{100 * number:.3g} %"


def state_words(verdict: MetricVerdict) -> str:
    """The state, and what it does to the check."""
    if verdict.state == "worse":
        return "worse: fails" if verdict.metric.severity == "error" else "worse: warns"
    return STATE[verdict.state]


def judged(result: CheckResult) -> tuple[MetricVerdict, ...]:
    """Verdicts to show, step_p10 first, each metric once; not those of severity off, nor unmeasured ones."""
    seen: dict[str, MetricVerdict] = {}
    for verdict in sorted(result.metrics, key=lambda metric_verdict: metric_verdict.metric.id != DECIDES):
        if verdict.metric.severity != "off" and not is_unmeasured(verdict):
            seen.setdefault(verdict.metric.id, verdict)
    return tuple(seen.values())


def is_unmeasured(verdict: MetricVerdict) -> bool:
    """Neither side knows the figure, and the check does not depend on it: no row of a table is worth it."""
    return verdict.base is None and verdict.head is None and verdict.metric.severity != "error"


def unmeasured_sentence(result: CheckResult) -> str:
    """``Not measured: energy per step (no counter was readable).``; "" if all is measured."""
    parts = [
        shown(verdict.metric.title).lower() + (f", {reason}" if (reason := sentence(verdict.reason)) else "")
        for verdict in result.metrics
        if is_unmeasured(verdict) and verdict.metric.severity != "off"
    ]
    return f"Not measured: {'; '.join(parts)}." if parts else ""


def warnings_of(result: CheckResult) -> list[str]:
    """Metrics that are proven worse and only warn, then the other warnings; nothing twice.

    The mean step and the throughput say nothing new where the step time itself is worse: they stay in the
    table.
    """
    deciding = result.deciding
    restated = _RESTATE if deciding is not None and deciding.state == "worse" else ()
    worse = [
        verdict
        for verdict in judged(result)
        if verdict.state == "worse"
        and not verdict.fails
        and verdict.worse is not None
        and verdict.metric.id not in restated
    ]
    warnings = [
        f"{shown(verdict.metric.title)} is worse by {by_how_much(verdict)}"
        f"{' of the step' if verdict.metric.scale == 'step' else ''} "
        f"({figure(verdict.metric.unit, verdict.base)} → {figure(verdict.metric.unit, verdict.head)}); "
        "it does not fail the check."
        for verdict in worse
    ]
    return (warnings + [sentence(text) for text in result.warnings])[:MOST_SENTENCES]


def reasons_of(result: CheckResult) -> list[str]:
    return [text for reason in result.reasons if (text := sentence(reason))][:MOST_SENTENCES]


def remarks_of(result: CheckResult) -> list[str]:
    """What the verdicts of single metrics add: ``Input wait: known of 4 pairs only.``"""
    by_sentence: dict[str, list[str]] = {}
    verdicts = judged(result)
    for verdict in verdicts:
        if verdict.reason and not verdict.in_reasons:
            by_sentence.setdefault(clause(sentence(verdict.reason)), []).append(shown(verdict.metric.title))
    return [
        f"{'Every metric' if len(titles) == len(verdicts) > 1 else '; '.join(titles)}: {reason}."
        for reason, titles in by_sentence.items()
    ]


def tells(result: CheckResult) -> Explanation | None:
    """The explanation, unless everything is as it was: then there is nothing to explain."""
    if result.explanation is None:
        return None
    quiet = result.outcome is Outcome.PASS and all(
        verdict.state in ("ok", "unknown") for verdict in judged(result)
    )
    return None if quiet else result.explanation


def weighty(result: CheckResult) -> list[str]:
    """Differences that can explain a change of speed by themselves."""
    return _differences(result, True)


def other_differences(result: CheckResult) -> list[str]:
    return _differences(result, False)


def _differences(result: CheckResult, is_weighty: bool) -> list[str]:
    differences = result.explanation.surroundings if result.explanation else ()
    return [difference_words(difference) for difference in differences if difference.weighty is is_weighty][
        :MOST_SENTENCES
    ]


def difference_words(difference: Difference) -> str:
    """The sentence, else the two values."""
    return sentence(difference.text) or capital(
        f"{shown(difference.what)}: {shown(difference.base)} → {shown(difference.head)}"
    )


def certain(moved: Sequence[Moved], most: int) -> list[Moved]:
    """What certainly moved, the largest change first."""
    moveds = [move for move in moved if move.is_certain and finite(move.change_ns) is not None]
    return sorted(moveds, key=lambda move: -abs(move.change_ns))[:most]


def moved_name(move: Moved) -> str:
    return shown(move.title or move.what, 80)


def change_ns(value: float | None) -> str:
    """A signed time: ``+2.41 ms``."""
    number = finite(value)
    return f"{_sign(number) if number else ''}{figure(MetricUnit.NS, number and abs(number))}"


def _sign(value: float) -> str:
    return "+" if value > 0 else "−"


def pairs_words(result: CheckResult) -> list[str]:
    return [share(pair).removesuffix(" %") for pair in result.pairs]


def slower(result: CheckResult) -> int:
    return sum(pair > 0 for pair in result.pairs)


def noise_sentence(result: CheckResult) -> str:
    """How far runs of the same thing differ, and what this check can see; "" if not known."""
    noise = result.noise
    spread = finite(noise.spread) if noise else None
    if noise is None or spread is None:
        return ""
    text = f"Runs of one side differ by {units.format_ratio(spread)} (robust standard deviation)"
    visible_change = finite(noise.visible)
    if visible_change is None:
        return f"{text}."
    seen = units.format_ratio(visible_change)
    return f"{text}; a check like this finds a slow-down of {seen} four times out of five."


def rule_sentence(result: CheckResult) -> str:
    """What it takes to fail, and why there are fewer runs than planned."""
    metric = result.deciding.metric if result.deciding else None
    parts = []
    if metric is not None and metric.severity != "off":
        parts.append(
            f"Fails if “{shown(metric.title)}” is worse by more than {limit(metric)} in the median, "
            f"with p below {result.alpha:g}."
        )
    if result.stopped:
        parts.append(f"Stopped early: {clause(sentence(result.stopped))}.")
    return " ".join(parts)


def left_out_lines(result: CheckResult, most: int) -> list[str]:
    """What is not judged and why, in at most `most` lines and one for the rest. Disturbed runs of a side are
    reported together: what disturbed one is mostly what disturbed the others.
    """
    groups: dict[tuple[str, int], list[ExcludedRun]] = {}
    for at, run in enumerate(result.left_out):
        groups.setdefault((run.side, -1 if run.disturbed else at), []).append(run)
    lines = [_left_out_line(group) for group in groups.values()]
    if len(lines) > most:
        num_more = sum(len(group) for group in list(groups.values())[most:])
        lines[most:] = [f"Left out: {num_more:,} more"]
    return lines


def _left_out_line(group: Sequence[ExcludedRun]) -> str:
    first = group[0]
    side = f" ({shown(first.side)})" if first.side else ""
    if len(group) == 1:
        return f"Left out: {shown(first.name)}{side}: {sentence(first.reason)}"
    named = first_of((shown(run.name) for run in group), MOST_SENTENCES)
    of = f" of {shown(first.side)}" if first.side else ""
    return f"Left out: {len(group):,} disturbed runs{of}: {named}. The first: {sentence(first.reason)}"


def key_of(fingerprint: Fingerprint | None) -> str:
    """The fingerprint's name; "" where there is none."""
    if fingerprint is None:
        return ""
    try:
        return fingerprint.key
    except UnicodeEncodeError:  # half a surrogate in a CPU's name: no encoder takes it
        return ""


def machine_sentence(result: CheckResult) -> str:
    """``On AMD EPYC, 2 CPUs, …, batch 32 (fingerprint ff5162f2fdeb).``; "" if not known."""
    if result.fingerprint is None:
        return ""
    key = key_of(result.fingerprint)
    ending = f" (fingerprint {key})." if key else "."
    return f"On {sentence(fingerprint_words(result.fingerprint))}{ending}"


def commit_of(result: CheckResult) -> str:
    """The head's commit as git knows it; "" = not recorded, or several."""
    commits = {run.surroundings.commit for run in result.head.runs}
    return commits.pop() if len(commits) == 1 else ""
