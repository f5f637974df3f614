"""What a check on this machine is worth: text for a terminal, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from perfscope.gate.calibrate import PAIRS, Calibration
from perfscope.gate.simulated_checks import EFFECTS, TARGET, TARGET_POWER, CheckTrial
from perfscope.messages.gate.verdict import fingerprint_words
from perfscope.reports.gate.wording import inert, sentence, shown
from perfscope.reports.terminal import Style, cells, fit, pad, wrapped
from perfscope.units import MISSING, format_change, format_ns, format_ratio

SCHEMA_VERSION = 1
_SHOWN_PAIRS = (5, 6, 8, 10, 12, 16)
_MOST_COLUMNS = 6
_MOST_LEFT_OUT = 4
_FIRST, _CELL = 13, 12  # columns of the table: pairs and needed together, each threshold


def render_calibration(c: Calibration, *, width: int, color: bool) -> str:
    """The suggestion first, then what it rests on, then one table; lines of at most `width` columns."""
    style = Style(color)
    lines = [style.bold(line) for line in _wrapped(sentence(c.headline), width, indent="")]
    for text in c.sentences:
        lines += _wrapped(sentence(text), width, indent="")
    if c.trials:
        lines += ["", *_table(c, width, style), "", *(style.quiet(line) for line in _basis(c, width))]
    lines += _left_out(c, width)
    return "\n".join(inert(line) for line in lines) + "\n"


def calibration_document(c: Calibration) -> dict[str, object]:
    """The same as a JSON document. Shares are ratios, times ns; `found` is listed under `effects`' order."""
    document: dict[str, object] = {"schema_version": SCHEMA_VERSION, "kind": "calibration"}
    # Not asdict of the whole: what a field is called here must not change because an attribute does.
    return document | {
        "headline": c.headline,
        "reason": c.reason,
        "sentences": list(c.sentences),
        "num_runs": c.num_runs,
        "left_out": [
            {"name": left_out_run.name, "reason": left_out_run.reason} for left_out_run in c.left_out
        ],
        "fingerprint": asdict(c.fingerprint) | {"key": c.fingerprint.key} if c.fingerprint else None,
        "step_p10_ns": c.step_ns,
        "spread_ratio": c.spread,
        "drift_ratio": c.drift,
        "drift_low_ratio": c.drift_low,
        "drift_high_ratio": c.drift_high,
        "session_s": c.session_s,
        "alpha": c.alpha,
        "early_stop": c.early_stop,
        "draws": c.draws,
        "seed": c.seed,
        "effects": list(EFFECTS),
        "target": TARGET,
        "suggestion": _place(c.suggestion),
        "sees_target": c.sees_target,
        "current": _place(c.current),
        "trials": [_trial(trial) for trial in c.trials],
    }


def _place(trial: CheckTrial | None) -> dict[str, object] | None:
    return None if trial is None else {"pairs": trial.pairs, "threshold": trial.threshold}


def _trial(trial: CheckTrial) -> dict[str, object]:
    return {
        "pairs": trial.pairs,
        "most_pairs": trial.most,
        "mean_pairs_unchanged": trial.needed,
        "mean_pairs_target": trial.needed_slower,
        "threshold": trial.threshold,
        "false_alarm_ratio": trial.false_alarms,
        "false_alarm_low_ratio": trial.low,
        "false_alarm_high_ratio": trial.high,
        "visible_ratio": trial.visible,
        "sure_ratio": trial.sure,
        "found": [round(share, 6) for share in trial.power],
        "num_apart": trial.num_apart,
    }


def _table(c: Calibration, width: int, style: Style) -> Iterator[str]:
    """A row for some numbers of pairs, a column for each threshold."""
    marked = [trial for trial in (c.suggestion, c.current) if trial is not None]
    pairs = sorted(
        {trial_.pairs for trial_ in c.trials} & {*_SHOWN_PAIRS, *(trial.pairs for trial in marked)}
    )
    thresholds = _columns(c, marked, (width - _FIRST) // _CELL)
    by_place = {(trial_.pairs, trial_.threshold): trial_ for trial_ in c.trials}
    shown_at = c.suggestion.threshold if c.suggestion else thresholds[0]
    head = "".join(pad(_share(threshold), _CELL, right=True) for threshold in thresholds)
    yield style.bold(fit(f"{pad('pairs', 5)}{pad('needed', _FIRST - 5, right=True)}{head}", width))
    for num in pairs:
        row = f"{num:>5}{by_place[num, shown_at].needed:>{_FIRST - 5}.1f}"
        for threshold in thresholds:
            row += _cell(by_place[num, threshold], c, style)
        yield row.rstrip()
    marks = ["* suggested"] if c.suggestion else []
    marks += ["= as configured"] if c.current and c.current is not c.suggestion else []
    yield from (
        style.quiet(line)
        for line in _wrapped(
            "Pairs planned, and about how many a check needs where nothing changed, at "
            f"{_share(shown_at)}. Other columns are thresholds; in each: false alarms, and the smallest "
            "slow-down that is found "
            f"{TARGET_POWER:.0%} of the time".replace("80%", "80 %")
            + f", both in percent. {', '.join(marks)}.",
            width,
            indent="",
        )
    )


def _columns(c: Calibration, marked: list[CheckTrial], room: int) -> list[float]:
    """Thresholds that fit: those of the marked trials, then every other one from below."""
    every = sorted({trial_.threshold for trial_ in c.trials})
    kept = {trial.threshold for trial in marked}
    for threshold in every:
        if len(kept) < max(1, min(room, _MOST_COLUMNS)):
            kept.add(threshold)
    return sorted(kept)


def _cell(trial: CheckTrial, c: Calibration, style: Style) -> str:
    seen = ">30" if trial.visible is None else f"{100 * trial.visible:.1f}"
    mark = "*" if trial is c.suggestion else "=" if trial is c.current else " "
    text = f"{100 * trial.false_alarms:.1f} / {seen}{mark}"
    space = " " * max(_CELL - cells(text), 1)
    return space + (style.bold(text) if mark != " " else text)


def _basis(c: Calibration, width: int) -> Iterator[str]:
    spread = MISSING if c.spread is None else format_ratio(c.spread)
    session = f" over {format_ns(c.session_s * 1e9)}" if c.session_s else ""
    drift = ""
    if c.drift is not None and c.drift_low is not None and c.drift_high is not None:
        between = f"{format_change(c.drift_low).removesuffix(' %')} to {format_change(c.drift_high)}"
        drift = f", drift {format_change(c.drift)} ({between}){session}"
    text = (
        f"From {c.num_runs} runs of one and the same code: p10 of a step {format_ns(c.step_ns)}, runs differ "
        f"by {spread} (standard deviation){drift}. {c.draws:,} checks resampled for each number of pairs, "
        f"judged by the gate's own rule (alpha {c.alpha:g}, "
        f"{'with' if c.early_stop else 'without'} early stop){_reach(c)}."
    )
    yield from _wrapped(text, width, indent="")
    if c.fingerprint:
        yield from _wrapped(f"Valid for {sentence(fingerprint_words(c.fingerprint))}.", width, indent="")
    untried = [num for num in PAIRS if num not in {trial_.pairs for trial_ in c.trials}]
    if untried and 2 * untried[-1] > c.num_runs:
        first = next(num for num in untried if 2 * num > c.num_runs)
        yield from _wrapped(
            f"Not tried: {first} pairs and more, which need {2 * first} runs and more.", width, indent=""
        )


def _reach(c: Calibration) -> str:
    """Which checks in doubt could not go on as far as they would: the runs ended first."""
    most = c.num_runs // 2
    cut = [trial.pairs for trial in c.trials if trial.most == most and trial.wanted > most]
    return (
        f"; those of {min(cut)} pairs and more go on to {most} at most here, all that the runs allow"
        if cut
        else ""
    )


def _left_out(c: Calibration, width: int) -> list[str]:
    if not c.left_out:
        return []
    lines = ["", f"Left out {len(c.left_out)}:"]
    for left_out_run in c.left_out[:_MOST_LEFT_OUT]:
        lines += _wrapped(f"{shown(left_out_run.name, 60)}: {sentence(left_out_run.reason)}", width)
    if len(c.left_out) > _MOST_LEFT_OUT:
        lines.append(f"  and {len(c.left_out) - _MOST_LEFT_OUT} more")
    return lines


def _share(value: float) -> str:
    text = f"{100 * value:.1f}".removesuffix(".0")
    return f"{text} %"


def _wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    """Wrapped so that no figure is parted from its percent sign."""
    kept = wrapped(text.replace(" %", "\u00a0%"), width, indent)
    return [line.replace("\u00a0", " ") for line in kept]
