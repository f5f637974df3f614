"""The report in at most thirty lines: the verdict, the step, what would help, and where the rest is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from perfscope import units
from perfscope.reports.model import FindingCard, FindingList, KeyFigure, Report, Section, Table, Value
from perfscope.reports.terminal import Style, cells, head, pad, wrapped
from perfscope.reports.text import FILL, bar_columns

NARROWEST, WIDEST = 60, 120
MOST_LINES = 30
MOST_HELP = 4
_HEADLINE, _ACTION, _GAIN, _CONFIDENCE, _SYMPTOMS, _NOTICE, _MISSING = 3, 3, 1, 2, 2, 2, 2  # lines at most
_MOST_NOTICES = 2
_LEAST_HELP = 0.01  # of the step that a what-if must save
_LONGEST_NAME = 48  # of something that was not collected
_DETAIL = re.compile(r" \([^()]*\)$")  # of a name, which the whole text has
_BESIDE_STEP = ("throughput", "tokens")  # key figures on the line of the step
_SHOWN = ("state", "memory", "machine", "overhead")  # key figures on the line below the bar


def render_summary(report: Report, *, width: int = 80, color: bool = False) -> str:
    """The report in at most MOST_LINES lines of at most `width` columns, with a newline at the end.

    Args:
        report: of a run.
        width: kept between 60 and 120.
        color: with terminal styling.
    """
    width = max(NARROWEST, min(width, WIDEST))
    style = Style(color)
    lines = [*_top(report, width, style), *_step(report, width, style), *_help(report, width, style)]
    ends = [*_missing(report, width, style), *_more(report, width, style)]
    room = MOST_LINES - len(ends)
    if len(lines) > room:
        lines = [*lines[: room - 1], style.quiet("  … the whole text: --full")]
    return "\n".join([*lines, *ends]) + "\n"


def _top(report: Report, width: int, style: Style) -> Iterator[str]:
    """Who, where and when; the verdict, how sure it is, its symptoms, and what to do."""
    verdict = report.verdict
    context = wrapped(" · ".join((report.title, *report.context)), width, "  ", "")
    yield from (style.quiet(line) for line in _at_most(2, context))
    yield ""
    yield from (style.bold(line) for line in _at_most(_HEADLINE, wrapped(verdict.headline, width, "")))
    if verdict.action:
        yield from _at_most(_ACTION, wrapped(verdict.action, width, "    ", "  → "))
    card = _verdict_card(report)
    if verdict.saving:
        yield from _at_most(_GAIN, wrapped(verdict.saving, width))
    if verdict.confidence:
        yield from _at_most(_CONFIDENCE, wrapped(verdict.confidence, width))
    symptoms = [symptom.heading or symptom.title for symptom in card.symptoms]
    if symptoms:
        text = f"Symptoms that may go with it: {'; '.join(symptoms)}"
        yield from (style.quiet(line) for line in _at_most(_SYMPTOMS, wrapped(text, width)))
    for notice in report.notices[:_MOST_NOTICES]:
        yield from (
            style.bold(line) for line in _at_most(_NOTICE, wrapped(notice.text, width, "    ", "  ! "))
        )
    yield ""


def _step(report: Report, width: int, style: Style) -> Iterator[str]:
    figures = {figure.id: figure for figure in report.figures}
    step = figures.get("step")
    if step is not None:
        beside = [figures[name].value for name in _BESIDE_STEP if name in figures]
        beside += [f"{figure.title} {figure.value}" for name, figure in figures.items() if name == "mfu"]
        parts = [f"Step   {step.value}", f"({step.note})" if step.note else "", *beside]
        yield from (style.bold(line) for line in _at_most(2, _filled(parts, width)))
    yield from _bar(report, width, style)
    available = [figures[name] for name in _SHOWN if name in figures and figures[name].value != units.MISSING]
    texts = [_short(figure) for figure in available]
    if texts:
        yield from (style.quiet(line) for line in _at_most(2, wrapped("; ".join(texts), width)))
    yield ""


def _filled(parts: Sequence[str], width: int) -> list[str]:
    """Parts two columns apart, on further lines where they do not fit; none is divided."""
    lines: list[str] = []
    for part in filter(None, parts):
        if lines and cells(lines[-1]) + 2 + cells(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(f"       {part}" if lines else part)
    return [head(line, width) for line in lines]


def _short(figure: KeyFigure) -> str:
    """Such as "peak memory 1.2 GiB"."""
    title = figure.title if figure.title.isupper() else figure.title[:1].lower() + figure.title[1:]
    return f"{title} {figure.value}"


def _bar(report: Report, width: int, style: Style) -> Iterator[str]:
    """The mean step as a bar, and its parts with their shares."""
    chart = report.overview
    if chart is None or not chart.bars or not all(part.key in FILL for part in chart.parts):
        return
    (bar, *_), room = chart.bars, width - 2
    columns = bar_columns(bar.values, bar.total, room)
    pairs = list(zip(chart.parts, bar.values, columns, strict=True))
    yield "  " + "".join(style.part(part.key, FILL[part.key] * n) for part, _, n in pairs)
    line = f"  {chart.title}"
    used = cells(line)
    for part, value, _ in sorted(pairs, key=lambda item: -item[1]):
        share = value / bar.total if bar.total else 0.0
        text = f" {part.title} {units.format_ratio(share, 0)}"
        if share < 0.005:
            continue
        if used and used + cells(text) + 4 > room:
            yield line
            line, used = "", 0
        line += ("   " if used else "  ") + style.part(part.key, FILL[part.key]) + text
        used += cells(text) + 4
    yield line


def _help(report: Report, width: int, style: Style) -> Iterator[str]:
    """What would help besides the verdict: findings with a gain, then what-ifs."""
    cards = [card for card in _cards(report) if card.gain and not card.is_verdict]
    helps = [(card.gain_ratio or 0.0, card.heading or card.title, card.gain) for card in cards]
    helps += _what_ifs(report)[: max(0, MOST_HELP - len(helps))]
    helps = sorted(helps[:MOST_HELP], key=lambda each: -each[0])
    rows = [(what, gain, units.format_ratio(ratio)) for ratio, what, gain in helps]
    if not rows:
        return
    what = "What else" if _verdict_card(report).gain else "What"
    yield style.bold(f"{what} would help (upper bounds that overlap)")
    gains = max(cells(gain) for _, gain, _ in rows)
    shares = max(cells(share) for _, _, share in rows)
    room = width - gains - shares - 10
    for number, (what, gain, share) in enumerate(rows, 1):
        saved = f"{pad(gain, gains, right=True)}  {pad(share, shares, right=True)}"
        yield f"  {number}. {pad(head(what.rstrip('.'), room), room)}  {saved}".rstrip()
    yield ""


def _what_ifs(report: Report) -> list[tuple[float, str, str]]:
    """Share of the step, what, and gain."""
    section = _section(report, "what-if")
    tables = [block for block in section.blocks if isinstance(block, Table)] if section is not None else []
    return [
        (_share_of(table, row), f"What if: {cell['what']}", cell["gain"])
        for table in tables[:1]
        for row in table.rows
        for cell in [{c.key: c.text(v) for c, v in zip(table.columns, row, strict=True)}]
        if _share_of(table, row) >= _LEAST_HELP
    ]


def _share_of(table: Table, row: Sequence[Value]) -> float:
    share = next(v for c, v in zip(table.columns, row, strict=True) if c.key == "share")
    return float(share) if isinstance(share, (int, float)) else 0.0


def _missing(report: Report, width: int, style: Style) -> Iterator[str]:
    """Names of what was not collected, without reasons."""
    section = _section(report, "missing")
    tables = [block for block in section.blocks if isinstance(block, Table)] if section is not None else []
    names = [head(_DETAIL.sub("", str(row[0])), _LONGEST_NAME) for table in tables for row in table.rows]
    if names:
        text = f"Not collected: {', '.join(dict.fromkeys(names))}"
        yield from (style.quiet(line) for line in _at_most(_MISSING, wrapped(text, width, "  ", "")))


def _more(report: Report, width: int, style: Style) -> Iterator[str]:
    text = "More: --full, --section NAME (such as layers, timeline, machine), --json"
    yield style.quiet(head(text, width))


def _cards(report: Report) -> tuple[FindingCard, ...]:
    section = _section(report, "findings")
    blocks = section.blocks if section is not None else ()
    return next((block.cards for block in blocks if isinstance(block, FindingList)), ())


_NO_CARD = FindingCard(
    slug="", title="", detail="", action="", gain="", share="", gain_ratio=None, where=""
)  # fmt: skip


def _verdict_card(report: Report) -> FindingCard:
    return next((card for card in _cards(report) if card.is_verdict), _NO_CARD)


def _section(report: Report, section_id: str) -> Section | None:
    return next((section for section in report.sections if section.id == section_id), None)


def _at_most(most: int, lines: Sequence[str]) -> list[str]:
    """The first lines; an ellipsis where there are more."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"{lines[most - 1].rstrip('.,;')} …"]
