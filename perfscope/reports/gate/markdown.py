"""A check as GitHub-flavoured Markdown: for $GITHUB_STEP_SUMMARY and for comments on a change.

Format: https://github.github.com/gfm/. A step summary may have 1 MiB, a comment 65,536 characters: the text
stays below 60 kB by leaving out its last sections. Names are set as code; in sentences every character that
means something to Markdown or HTML is written as an entity, and `@`, `#` and `://` are cut by an empty
comment, so that no name of a layer mentions a person, refers to an issue or becomes a link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from perfscope.gate.metrics import MetricUnit
from perfscope.gate.records import RunFigures
from perfscope.gate.results import CheckResult, MetricVerdict, Moved, Outcome
from perfscope.messages.sentences import capital
from perfscope.reports.gate import wording

MOST_BYTES = 60_000
MOST_ROWS, MOST_RUNS = 8, 60
SIGN = {
    Outcome.PASS: "✅",
    Outcome.REGRESSION: "❌",
    Outcome.INCONCLUSIVE: "⚠️",
    Outcome.NO_BASELINE: "⚠️",
    Outcome.FAILED: "❌",
}
_PLAIN_NAME = re.compile(r"[\w./:+=, %()-]*[\w./:+=%()-]", re.ASCII)
# At the beginning also what would start a list, an underline or a workflow command.
_SPECIAL = re.compile(r"^(?:[-+=:]|\d(?=\d*[.)]))|[\\`*_\[\]|~$<>&#@]|:(?=//)|\bwww(?=\.)")
_BETWEEN_TICKS = re.compile("`([^`]+)`")
_CUT = {"#": "&#35;<!-- -->", "@": "&#64;<!-- -->", ":": "&#58;<!-- -->", "www": "www<!-- -->"}


def render_markdown(result: CheckResult) -> str:
    """The check in at most 60 kB, with a newline at the end."""
    sections = [
        _verdict(result),
        "\n\n".join(prose(line) for line in wording.reasons_of(result)),
        _cause(result),
        _warnings(result),
        _metrics(result),
        _moved(result),
        _differed(result),
        _evidence(result),
        _runs(result),
    ]
    text, left = "", 0
    for section in filter(None, sections):
        block = f"\n{section}\n" if text else f"{section}\n"
        if len((text + block).encode()) > MOST_BYTES:
            left += 1
        else:
            text += block
    return f"{text}\n_{left} more sections did not fit here._\n" if left else text


def text(sentence: str) -> str:
    """`sentence` as it reads, whatever is in it."""
    return _SPECIAL.sub(_entity, wording.sentence(sentence))


def prose(sentence: str) -> str:
    """A sentence of ours: what stands between backticks in it is set as code."""
    parts = _BETWEEN_TICKS.split(wording.sentence(sentence))
    return "".join(
        f"<code>{_SPECIAL.sub(_entity, part)}</code>" if at % 2 else _SPECIAL.sub(_entity, part)
        for at, part in enumerate(parts)
    )


def code(name: object) -> str:
    """A name, set as code; in table cells too."""
    spelled = wording.shown(name, 80)
    if _PLAIN_NAME.fullmatch(spelled):
        return f"`{spelled.strip()}`"
    return f"<code>{_SPECIAL.sub(_entity, spelled)}</code>" if spelled.strip() else "–"


def _entity(match: re.Match[str]) -> str:
    matched = match.group()
    return _CUT.get(matched) or f"&#{ord(matched)};"


def _verdict(result: CheckResult) -> str:
    sign = SIGN[Outcome.INCONCLUSIVE] if wording.is_doubtful(result) else SIGN[result.outcome]
    lines = [f"### {sign} {text(wording.verdict_line(result))}", "", f"_{_subtitle(result)}_"]
    return "\n".join(lines)


def _subtitle(result: CheckResult) -> str:
    return text(wording.subtitle(result))


def _cause(result: CheckResult) -> str:
    explanation = wording.tells(result)
    if explanation is None:
        return ""
    headline = capital(wording.sentence(explanation.headline))
    lines = [f"**{text(headline)}**"] if headline else []
    lines += [f"- ⚠️ {text(line)}" for line in wording.weighty(result)]
    if explanation.action:
        lines.append(f"\n➜ {prose(explanation.action)}")
    return "\n".join(lines)


def _warnings(result: CheckResult) -> str:
    return "\n".join(f"- ⚠️ **Warning:** {text(line)}" for line in wording.warnings_of(result))


def _metrics(result: CheckResult) -> str:
    verdicts = wording.judged(result)
    lines = []
    if verdicts:
        header = ("Metric", "Base", "Head", "Worse by", "95 % interval", "Limit", "State")
        is_compared = any(wording.finite(verdict.worse) is not None for verdict in verdicts)
        keep = range(len(header)) if is_compared else (0, 1, 2, 6)
        rows = [tuple(row[at] for at in keep) for row in (header, *map(_metric_row, verdicts))]
        lines.append(_table(rows[0], rows[1:], "".join("lrrrrrl"[at] for at in keep)))
    remarks = [*wording.remarks_of(result), wording.unmeasured_sentence(result)]
    lines += [f"\n{text(line)}" for line in remarks if line]
    return "\n".join(lines).strip("\n")


def _metric_row(verdict: MetricVerdict) -> tuple[str, ...]:
    of_step = (
        " of the step" if verdict.metric.scale == "step" and wording.finite(verdict.worse) is not None else ""
    )
    state = text(wording.state_words(verdict))
    loud = verdict.state in ("worse", "better", "unproven")
    return (
        text(wording.shown(verdict.metric.title)),
        wording.figure(verdict.metric.unit, verdict.base),
        wording.figure(verdict.metric.unit, verdict.head),
        wording.share(verdict.worse) + of_step,
        wording.interval(verdict.low, verdict.high),
        wording.limit(verdict.metric),
        f"**{state}**" if loud else state,
    )


def _moved(result: CheckResult) -> str:
    explanation = wording.tells(result)
    if explanation is None:
        return ""
    rows = [
        _moved_row(kind, move)
        for kind, moved in (
            ("part", explanation.parts),
            ("layer", explanation.layers),
            ("collective", explanation.collectives),
        )
        for move in wording.certain(moved, MOST_ROWS)
    ]
    notes = [f"\n{text(line)}" for line in explanation.notes[: wording.MOST_SENTENCES]]
    if not rows:
        return "\n".join(notes).strip("\n")
    header = ("What moved, per step", "", "Base", "Head", "Change", "95 % interval", "")
    return "\n".join([_table(header, rows, "llrrrrl"), *notes])


def _moved_row(kind: str, move: Moved) -> tuple[str, ...]:
    name = wording.moved_name(move)
    return (
        text(name) if kind == "part" else code(name),
        kind,
        wording.figure(MetricUnit.NS, move.base_ns),
        wording.figure(MetricUnit.NS, move.head_ns),
        wording.change_ns(move.change_ns),
        f"{wording.change_ns(move.low_ns)} … {wording.change_ns(move.high_ns)}",
        text(move.note),
    )


def _differed(result: CheckResult) -> str:
    is_explained = wording.tells(result) is not None
    differences = [*([] if is_explained else wording.weighty(result)), *wording.other_differences(result)]
    return (
        "\n".join(["**What differed**", "", *(f"- {text(line)}" for line in differences)])
        if differences
        else ""
    )


def _evidence(result: CheckResult) -> str:
    sentences = []
    if result.pairs:
        each = ", ".join(wording.pairs_words(result)[:MOST_RUNS])
        sentences.append(f"Pairs: {each} % ({wording.slower(result)} of {len(result.pairs)} slower).")
    notes = (wording.noise_sentence(result), wording.rule_sentence(result), wording.machine_sentence(result))
    sentences += [sentence for sentence in notes if sentence]
    lines = [text(sentence) for sentence in sentences]
    lines += [text(line) for line in wording.left_out_lines(result, wording.MOST_SENTENCES)]
    return "  \n".join(lines)


def _runs(result: CheckResult) -> str:
    """Every judged run, folded away."""
    rows = [(side.label, run) for side in (result.base, result.head) for run in side.runs]
    if not rows:
        return ""
    rows.sort(key=lambda row: (row[1].pair is None, row[1].pair or 0))
    header = ("Pair", "Side", "Run", "Step p10", "Mean", "Throughput", "Steps", "Commit")
    lines = ["<details><summary>Runs and pairs</summary>", ""]
    lines.append(_table(header, (_run_row(label, run) for label, run in rows[:MOST_RUNS]), "rllrrrrl"))
    if len(rows) > MOST_RUNS:
        lines.append(f"\n{len(rows) - MOST_RUNS:,} more")
    return "\n".join([*lines, "", "</details>"])


def _run_row(label: str, run: RunFigures) -> tuple[str, ...]:
    commit = run.surroundings.commit
    dirty = " + changes" if run.surroundings.dirty and commit else ""
    return (
        "" if run.pair is None else str(run.pair),
        code(label),
        code(run.name),
        wording.figure(MetricUnit.NS, run.metrics.get("step_p10")),
        wording.figure(MetricUnit.NS, run.metrics.get("step_mean")),
        wording.figure(MetricUnit.PER_S, run.metrics.get("throughput")),
        f"{run.num_steps:,}",
        f"{code(commit[:12])}{dirty}" if commit else "",
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], sides: str) -> str:
    """`sides`: l or r for each column."""
    rule = " | ".join("---:" if side == "r" else "---" for side in sides)
    lines = [" | ".join(header), rule]
    for row in rows:
        # A figure stays with its unit.
        kept = (c.replace(" ", "\u00a0") if side == "r" else c for c, side in zip(row, sides, strict=True))
        lines.append(" | ".join(kept))
    return "\n".join(f"| {line} |" for line in lines)
