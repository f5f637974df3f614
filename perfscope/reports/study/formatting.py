"""What several sections of a comparison share: tones of heat tables, intervals in words, compositions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from perfscope import units
from perfscope.analysis.study.results import Composition, Interval
from perfscope.messages import lists
from perfscope.reports.display import visible
from perfscope.reports.model import Bar, StackedBars, Unit, Value, format_value
from perfscope.reports.sections.steps import BREAKDOWN_PARTS
from perfscope.vocabulary.efficiency import ACCEPTABLE, IMPOSSIBLE

MARK = "✓"
# Bars of which one is so many times as long as another are drawn as shares: the short ones would vanish.
MOST_RATIO = 6.0
_EFFICIENCY_TONES = ((0.95, "good3"), (0.9, "good2"), (ACCEPTABLE, "good1"), (0.6, "bad1"), (0.4, "bad2"))
LONGEST = 600
TYPICAL = "Typical step: of a bench run the slowest rank's, else the median over all ranks."


def efficiency_tone(value: Value) -> str:
    """The heat of an efficiency; "" where there is none, and for one above what ranks can bring."""
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value > IMPOSSIBLE:
        return ""
    return next((tone for least, tone in _EFFICIENCY_TONES if value >= least), "bad3")


def ratio_tone(ratio: float | None, *, less_is_good: bool = False) -> str:
    """The heat of one figure over another: the farther from 1, the darker. "" at 1 and for None."""
    if ratio is None or not math.isfinite(ratio) or ratio <= 0 or abs(ratio - 1) < 0.005:
        return ""
    far = max(ratio, 1 / ratio)
    strength = 3 if far >= 2 else 2 if far >= 1.2 else 1
    return f"{'good' if (ratio < 1) == less_is_good else 'bad'}{strength}"


def interval_text(unit: Unit, interval: Interval | None) -> str | None:
    """``58.9 to 61.2``; None where there is none."""
    if interval is None:
        return None
    return f"{format_value(unit, interval.low)} to {format_value(unit, interval.high)}"


def times(ratio: float) -> str:
    """``1.32 ×``; of a ratio near 0 the figures that count, ``0.0032 ×``."""
    if 0 < ratio < 0.1:
        return f"{ratio:.2g} ×"
    return f"{format_value(Unit.FACTOR, ratio)} ×"


def listed(names: Sequence[str], most: int = 4) -> str:
    """As `messages.lists.listed`, of names that were recorded."""
    return lists.listed([visible(name, 80) for name in names], most)


def compositions(
    identity: str, title: str, labelled: Iterable[tuple[str, Composition | None]], caption: str = ""
) -> StackedBars | None:
    """Where the mean traced step goes, a bar each; shares where steps differ much. None: nothing traced."""
    compositions_given = [
        (visible(label, 80), composition)
        for label, composition in labelled
        if composition is not None and composition.step > 0
    ]
    if not compositions_given:
        return None
    steps = [composition.step for _, composition in compositions_given]
    shares = max(steps) > MOST_RATIO * min(steps)
    bars = tuple(
        Bar(
            label=label,
            values=tuple(
                getattr(composition, p.key) / (composition.step if shares else 1) for p in BREAKDOWN_PARTS
            ),
            note=f"{composition.num_steps} traced steps",
            end=units.format_ns(composition.step),
        )
        for label, composition in compositions_given
    )
    caption_start = "Shares of the mean traced step; its length is at the end of the bar. " if shares else ""
    return StackedBars(
        id=identity,
        title=title,
        parts=BREAKDOWN_PARTS,
        bars=bars,
        caption=f"{caption_start}{caption}".strip(),
        unit=Unit.RATIO if shares else Unit.TIME,
    )
