"""A check for a terminal or a CI log: the verdict, what moved and what to do; only then figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from perfscope.gate.metrics import MetricUnit
from perfscope.gate.results import CheckResult, MetricVerdict, Moved, Outcome
from perfscope.messages.sentences import capital
from perfscope.reports.gate import wording
from perfscope.reports.terminal import cells, fit, pad

NARROWEST, WIDEST, PROSE = 60, 200, 112
MOST_MOVED = {"part": 4, "layer": 5, "collective": 3}
MOST_LEFT_OUT, MOST_DIFFERENCES = 6, 8
GAP = "  "

# Spaces that a line must not end at: "26.5 ms", "p = 0.004". Shown text never holds the mark.
_GLUE = "\x00"
_GLUED = re.compile(
    r"(?<=\d) (?=(?:[nµm]?s|[KMGT]?i?B|m?J|GHz)\b|%)|(?<=\bp) (?=[=<])|(?<=[=<]) (?=\d)|(?<=\(fingerprint) "
)

# Orange against blue: distinct with every common color blindness, and on dark and light ground.
_BAD, _GOOD, _CARE = "38;5;166", "38;5;33", "38;5;136"
_OUTCOME = {
    Outcome.PASS: _GOOD,
    Outcome.REGRESSION: _BAD,
    Outcome.INCONCLUSIVE: _CARE,
    Outcome.NO_BASELINE: _CARE,
    Outcome.FAILED: _BAD,
}


class _Pen:
    """Styles text, or leaves it as it is."""

    def __init__(self, on: bool) -> None:
        self._on = on

    def __call__(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._on and code and text.strip() else text

    def quiet(self, text: str) -> str:
        return self("2", text)

    def bold(self, text: str) -> str:
        return self("1", text)


def render_check(result: CheckResult, *, width: int, color: bool) -> str:
    """The check in at most `width` columns (kept between 60 and 200), with a newline at the end.

    States are words; `color` adds to them and never carries anything alone.
    """
    width = max(NARROWEST, min(width, WIDEST))
    pen = _Pen(color)
    blocks = (
        _verdict(result, width, pen),
        _cause(result, width, pen),
        _warnings(result, width, pen),
        _table(result, width, pen),
        _evidence(result, width, pen),
        _differed(result, width, pen),
    )
    drawn = ["\n".join(block) for block in map(list, blocks) if block]
    return "\n\n".join(drawn) + "\n"


def _verdict(result: CheckResult, width: int, pen: _Pen) -> Iterator[str]:
    prose = min(width, PROSE)
    for line in fold(wording.verdict_line(result), prose, ""):
        yield pen(f"1;{_CARE if wording.is_doubtful(result) else _OUTCOME[result.outcome]}", line)
    yield from (pen.quiet(line) for line in fold(wording.subtitle(result), prose, ""))
    for reason in wording.reasons_of(result):
        yield from fold(reason, prose, "  ")


def _cause(result: CheckResult, width: int, pen: _Pen) -> Iterator[str]:
    """What moved, what may be to blame besides the code, and what to do."""
    explanation = wording.tells(result)
    if explanation is None:
        return
    prose = min(width, PROSE)
    if explanation.headline:
        headline = capital(wording.sentence(explanation.headline))
        yield from (pen.bold(line) for line in fold(headline, prose, ""))
    for text in wording.weighty(result):
        yield from (pen(_CARE, line) for line in fold(text, prose, "    ", "  ! "))
    if explanation.action:
        yield from fold(wording.sentence(explanation.action), prose, "    ", "  → ")
    groups = (
        ("part", "Part of the step", explanation.parts),
        ("layer", "Layer", explanation.layers),
        ("collective", "Collective", explanation.collectives),
    )
    rows: list[tuple[str, ...]] = []
    notes: dict[int, str] = {}
    heads: set[int] = set()
    for kind, title, moved in groups:
        moves = wording.certain(moved, MOST_MOVED[kind])
        if not moves:
            continue
        heads.add(len(rows))
        rows.append((title, "base", "head", "change", "95 % interval"))
        for move in moves:
            notes[len(rows)] = wording.sentence(move.note)
            rows.append(_moved(move))
    if rows:
        yield ""
        yield from _moved_lines(rows, notes, heads, width, pen)
    for note in explanation.notes[: wording.MOST_SENTENCES]:
        yield from (pen.quiet(line) for line in fold(wording.sentence(note), prose, "  "))


def _moved(move: Moved) -> tuple[str, ...]:
    return (
        wording.moved_name(move),
        wording.figure(MetricUnit.NS, move.base_ns),
        wording.figure(MetricUnit.NS, move.head_ns),
        wording.change_ns(move.change_ns),
        f"{wording.change_ns(move.low_ns)} … {wording.change_ns(move.high_ns)}",
    )


def _moved_lines(
    rows: Sequence[tuple[str, ...]], notes: dict[int, str], heads: set[int], width: int, pen: _Pen
) -> Iterator[str]:
    columns = 5 if width >= 76 else 4
    cut = [row[:columns] for row in rows]
    for index, line in enumerate(align(cut, width)):
        yield pen.quiet(line) if index in heads else line
        if notes.get(index):
            yield from (pen.quiet(part) for part in fold(notes[index], min(width, PROSE), "      "))


def _warnings(result: CheckResult, width: int, pen: _Pen) -> Iterator[str]:
    for text in wording.warnings_of(result):
        for line in fold(f"Warning: {text}", min(width, PROSE), "  ", ""):
            yield pen(_CARE, line)


def _table(result: CheckResult, width: int, pen: _Pen) -> Iterator[str]:
    """One row a metric; narrow terminals keep the head's figure, the change and the state."""
    verdicts = wording.judged(result)
    if not verdicts:
        return
    has_step = False
    rows: list[tuple[str, ...]] = [
        ("Metric", "base", "head", "worse by", "95 % interval", "limit", "state"),
    ]
    for verdict in verdicts:
        mark = "*" if verdict.metric.scale == "step" and wording.finite(verdict.worse) is not None else ""
        has_step = has_step or bool(mark)
        rows.append(_metric_row(verdict, mark))
    is_compared = any(wording.finite(verdict.worse) is not None for verdict in verdicts)
    keep: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6) if is_compared else (0, 1, 2, 6)
    for fewer in ((0, 1, 2, 3, 4, 6), (0, 1, 2, 3, 6), (0, 2, 3, 6)):
        if _natural(rows, keep) <= width:
            break
        keep = fewer
    lines = align([tuple(row[at] for at in keep) for row in rows], width, last_left=True)
    yield pen.quiet(lines[0])
    for verdict, line in zip(verdicts, lines[1:], strict=True):
        yield _painted(verdict, line, pen)
    if has_step:
        yield from (
            pen.quiet(line)
            for line in fold("* as a share of the step, not of itself", min(width, PROSE), "  ")
        )
    for remark in wording.remarks_of(result):
        yield from (pen.quiet(line) for line in fold(remark, min(width, PROSE), "    ", "  "))
    missing = wording.unmeasured_sentence(result)
    if missing:
        yield from (pen.quiet(line) for line in fold(missing, min(width, PROSE), "    ", "  "))


def _metric_row(verdict: MetricVerdict, mark: str) -> tuple[str, ...]:
    return (
        wording.shown(verdict.metric.title, 40),
        wording.figure(verdict.metric.unit, verdict.base),
        wording.figure(verdict.metric.unit, verdict.head),
        wording.share(verdict.worse) + mark,
        wording.interval(verdict.low, verdict.high),
        wording.limit(verdict.metric),
        wording.state_words(verdict),
    )


def _natural(rows: Sequence[tuple[str, ...]], keep: Sequence[int]) -> int:
    return 2 + sum(max(cells(row[at]) for row in rows) + len(GAP) for at in keep) - len(GAP)


def _painted(verdict: MetricVerdict, line: str, pen: _Pen) -> str:
    state = wording.state_words(verdict)
    code = {
        "worse": _BAD if verdict.metric.severity == "error" else _CARE,
        "better": _GOOD,
        "unproven": _CARE,
    }.get(verdict.state, "")
    return f"{line.removesuffix(state)}{pen(code, state)}" if line.endswith(state) else line


def _evidence(result: CheckResult, width: int, pen: _Pen) -> Iterator[str]:
    """Pairs, noise, the rule, and what was left out."""
    prose = min(width, PROSE)
    if result.pairs:
        each = ", ".join(wording.pairs_words(result))
        share = f"{wording.slower(result)} of {len(result.pairs)} slower"
        yield from fold(f"{each} % ({share})", prose, "  ", "Pairs: ")
    for text in (wording.noise_sentence(result), wording.rule_sentence(result)):
        if text:
            yield from fold(text, prose, "  ", "")
    machine = wording.machine_sentence(result)
    if machine:
        yield from (pen.quiet(line) for line in fold(machine, prose, "  ", ""))
    for line in wording.left_out_lines(result, MOST_LEFT_OUT):
        yield from fold(line, prose, "  ", "")


def _differed(result: CheckResult, width: int, pen: _Pen) -> Iterator[str]:
    """Everything around the runs that is not the same; what weighs was named above where there is a cause."""
    is_explained = wording.tells(result) is not None
    differences = [*([] if is_explained else wording.weighty(result)), *wording.other_differences(result)]
    if not differences:
        return
    yield pen.quiet("Also different" if is_explained and wording.weighty(result) else "What differed")
    for text in differences[:MOST_DIFFERENCES]:
        yield from fold(text, min(width, PROSE), "    ", "  ")
    if len(differences) > MOST_DIFFERENCES:
        yield f"  and {len(differences) - MOST_DIFFERENCES} more"


def align(rows: Sequence[tuple[str, ...]], width: int, *, last_left: bool = False) -> list[str]:
    """Rows under one another: the first column left, figures right; without room the first is cut."""
    num = len(rows[0])
    sizes = [max(cells(row[at]) for row in rows) for at in range(num)]
    fixed_width = sum(sizes[1:]) + len(GAP) * (num - 1) + 2
    sizes[0] = max(min(sizes[0], width - fixed_width), 8)
    lines = []
    for row in rows:
        parts = [pad(fit(row[0], sizes[0]), sizes[0])]
        for at in range(1, num):
            is_text = last_left and at == num - 1
            parts.append(row[at] if is_text else pad(row[at], sizes[at], right=True))
        lines.append(_cut(wording.inert(f"  {GAP.join(parts)}".rstrip()), width))
    return lines


def fold(text: str, width: int, indent: str, first: str | None = None) -> list[str]:
    """`text` wrapped at spaces to `width` columns (not characters), never between a figure and its unit."""
    lines: list[str] = []
    line = indent if first is None else first
    is_empty = True
    for word in filter(None, _GLUED.sub(_GLUE, text).split(" ")):
        remaining = word.replace(_GLUE, " ")
        while remaining:
            room = width - cells(line) - (0 if is_empty else 1)
            if cells(remaining) <= room:
                line += remaining if is_empty else f" {remaining}"
                is_empty, remaining = False, ""
            elif is_empty:
                piece = _cut(remaining, room, "")
                lines.append(line + piece)
                line, remaining = indent, remaining[len(piece) :]
            else:
                lines.append(line)
                line, is_empty = indent, True
    all_lines = lines if is_empty else [*lines, line]
    return [_cut(wording.inert(line_), width) for line_ in all_lines]


def _cut(text: str, width: int, end: str = "…") -> str:
    if cells(text) <= width:
        return text
    used, kept = cells(end), ""
    for character in text:
        used += cells(character)
        if used > width and kept:
            break
        kept += character
    return kept + end
