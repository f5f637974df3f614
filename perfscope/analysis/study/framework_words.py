"""Sentences of a comparison of frameworks: do they learn the same, which is how fast, what do ranks bring."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analysis.study.framework_results import FrameworkPoint, FrameworkRow, FrameworkStudy
from perfscope.analysis.study.parity import EARLY_STEPS, EARLY_TOLERANCE, TOLERANCE
from perfscope.messages.study import named, percent, ranks
from perfscope.messages.study import times as times_words

LEVEL = 0.05  # speeds nearer than that are not ranked: runs of one and the same framework differ by as much
_MOST_MODELS = 3  # in the headline


def fastest(rows: Sequence[FrameworkRow], size: int) -> list[FrameworkRow]:
    """Those on so many ranks that are known to learn the same and have a speed, fastest first."""
    known = [row for row in rows if row.agrees(size) and row.speed(size)]
    return sorted(known, key=lambda row: (-(row.speed(size) or 0.0), row.name))


def level_with(best: FrameworkRow, others: Sequence[FrameworkRow], size: int) -> list[FrameworkRow]:
    """Of `others` those whose speed cannot be told from the best's: too near, or within the repeats."""
    return [one for one in others if not _apart(best.point(size), one.point(size))]


def _apart(best: FrameworkPoint | None, other: FrameworkPoint | None) -> bool:
    """With repeats: every one of the best's is faster than every one of the other's."""
    if best is None or other is None or not best.samples_per_s or not other.samples_per_s:
        return False
    if best.samples_per_s < other.samples_per_s * (1 + LEVEL):
        return False
    return min(len(best.speeds), len(other.speeds)) < 2 or best.speeds[0] > other.speeds[-1]


def headline_of(rows: Sequence[FrameworkRow], sizes: Sequence[int]) -> str:
    """Who is how much faster, for each number of ranks."""
    told = [text for size in sizes if (text := _speed_on(rows, size))]
    return f"{'; '.join(told)}." if told else "no two frameworks can be compared."


def _speed_on(rows: Sequence[FrameworkRow], size: int) -> str:
    known = fastest(rows, size)
    if len(known) < 2:
        return ""
    best, others = known[0], known[1:]
    level = level_with(best, others, size)
    behind = [one for one in others if one not in level]
    if level:
        names = named(sorted([best.name, *(one.name for one in level)]))
        near = all((one.speed(size) or 0.0) * (1 + LEVEL) > (best.speed(size) or 0.0) for one in level)
        how = f"are within {percent(LEVEL)} of each other" if near else "are level, for their repeats overlap"
        rest = f", ahead of {named([one.name for one in behind])}" if behind else ""
        return f"on {ranks(size)} {names} {how}{rest}"
    ratios = [(best.speed(size) or 0.0) / (one.speed(size) or 1.0) for one in (others[0], others[-1])]
    span = times_words(ratios[0])
    if len(others) > 1:
        span = f"{ratios[0]:.2f} to {times_words(ratios[1])}"
    whom = f"as {others[0].name}" if len(others) == 1 else "as the others"
    return f"on {ranks(size)} {best.name} trains {span} as many samples/s {whom}"


def agreement_of(rows: Sequence[FrameworkRow], reference: str) -> str:
    """What the losses say, in a few sentences."""
    found = [(row, size, one) for row in rows for size, one in sorted(row.parity.items())]
    astray: dict[str, list[str]] = {}
    for row, size, one in found:
        if one.agrees is False:
            what = f"those of {row.name}'s repeats" if row.is_reference else f"those of {row.name}"
            astray.setdefault(one.reason, []).append(f"{what} on {ranks(size)}")
    sentences = [f"Losses differ, {named(who)}: {reason}." for reason, who in astray.items()]
    good = [(row.name, one) for row, _, one in found if one.agrees]
    if good:
        names = sorted({name for name, _ in good})
        whose = named(names) if len(names) <= 2 or astray else f"the other {len(names)} frameworks"
        early = max(one.early_difference or 0.0 for _, one in good)
        largest = max(one.max_difference or 0.0 for _, one in good)
        steps = max(one.num_steps for _, one in good)
        text = (
            f"The losses of {whose} agree with those of {reference}: at most {early:.1e} apart over the "
            f"first {min(EARLY_STEPS, steps)} steps ({EARLY_TOLERANCE:.0e} allowed)"
        )
        if steps > EARLY_STEPS:
            text += f", {largest:.1e} over the first {steps} ({TOLERANCE:g} allowed)"
        sentences.append(f"{text}.")
    return " ".join(sentences)


def scaling_of(rows: Sequence[FrameworkRow], sizes: Sequence[int]) -> str:
    """What the most ranks bring, best and worst; "" where no framework ran on several numbers."""
    if len(sizes) < 2:
        return ""
    most = sizes[-1]
    known = [
        (point.speedup, point.efficiency or 0.0, row.name, row.points[0].world_size)
        for row in rows
        if (point := row.point(most)) is not None
        and point.speedup is not None
        and row.points[0].world_size < most
    ]
    if not known:
        return ""
    known.sort(reverse=True)
    speedup, share, name, fewest = known[0]
    text = (
        f"From {fewest} to {ranks(most)} {name} gains most, {times_words(speedup)} the samples/s "
        f"({percent(share)} efficiency)"
    )
    slower = sorted(one[2] for one in known if one[0] < 1)
    if slower and len(slower) == len(known):
        worse = f"On {ranks(most)} every framework is slower than on {fewest}"
        return f"{worse}; {name} loses least, {times_words(speedup)} the samples/s."
    train = "trains" if len(slower) == 1 else "train"
    return f"{text}; {named(slower)} {train} fewer." if slower else f"{text}."


def action_of(rows: Sequence[FrameworkRow]) -> str:
    """What to do about curves that differ."""
    astray = sorted({row.name for row in rows if any(one.agrees is False for one in row.parity.values())})
    if not astray:
        return ""
    verb = "does" if len(astray) == 1 else "do"
    return f"Find out why {named(astray)} {verb} not learn as the reference does, before speeds are compared."


def verdict_of(studies: Sequence[FrameworkStudy]) -> tuple[str, str]:
    """(one sentence over all models: what is learned, then who is fastest; what to do)."""
    rows = [row for one in studies for row in one.rows]
    verdicts = [one.agrees for row in rows for one in row.parity.values()]
    astray = sorted({row.name for row in rows if any(one.agrees is False for one in row.parity.values())})
    names = {row.name for row in rows}
    silent = sorted({row.name for row in rows if not row.is_reference and not row.parity})
    if astray:
        learned = (
            f"{named(astray)} {'does' if len(astray) == 1 else 'do'} not learn what the reference learns"
        )
    elif len(names) < 2:
        learned = f"Only {named(sorted(names))} was run"
    elif silent or not verdicts:
        learned = f"Whether {named(silent or sorted(names))} learn the same is not known"
    else:
        learned = f"{'Both' if len(names) == 2 else f'All {len(names)}'} frameworks learn the same"
    action = next((one.action for one in studies if one.action), "")
    winners = [text for one in studies[:_MOST_MODELS] if (text := _winner(one))]
    if not winners:
        return f"{learned}: no two frameworks can be compared.", action
    return f"{learned}: {'; '.join(winners)}.", action


def _winner(one: FrameworkStudy) -> str:
    """Fastest on the fewest ranks."""
    size = one.world_sizes[0] if one.world_sizes else 0
    known = fastest(one.rows, size)
    if len(known) < 2:
        return ""
    level = level_with(known[0], known[1:], size)
    names = named(sorted([known[0].name, *(row.name for row in level)]))
    if level:
        return f"{names} are fastest on {one.title} ({ranks(size)}), level with each other"
    return f"{names} is fastest on {one.title} ({ranks(size)})"
