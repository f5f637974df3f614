"""The verdict on several frameworks: do they learn the same, which is how fast, what do more ranks bring."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analysis.study.framework_results import FrameworkPoint, FrameworkRow, FrameworkStudy
from perfscope.analysis.study.parity import EARLY_STEPS, EARLY_TOLERANCE, TOLERANCE
from perfscope.messages.comparison import frameworks as words
from perfscope.messages.comparison.doubt import REPEAT_QUIETLY
from perfscope.vocabulary.comparison import SINGLE_RUNS_APART

LEVEL = 0.05  # speeds nearer than that are not ranked: runs of one and the same framework differ by as much
_MOST_MODELS = 3  # in the headline


def fastest(rows: Sequence[FrameworkRow], size: int) -> list[FrameworkRow]:
    """Those on so many ranks that are known to learn the same and have a speed, fastest first."""
    frameworks = [row for row in rows if row.agrees(size) and row.speed(size)]
    return sorted(frameworks, key=lambda row: (-(row.speed(size) or 0.0), row.name))


def level_with(best: FrameworkRow, rows: Sequence[FrameworkRow], size: int) -> list[FrameworkRow]:
    """Of `others` those as fast as the best as far as is known: too near, or within the repeats."""
    return [framework for framework in rows if not _apart(best.point(size), framework.point(size))]


def in_doubt(leading: Sequence[FrameworkRow], size: int) -> bool:
    """Whether all runs of the fastest or of the second of `leading` were disturbed."""
    points = [point for row in leading[:2] if (point := row.point(size)) is not None]
    return any(point.num_disturbed == len(point.runs) for point in points)


def _apart(best: FrameworkPoint | None, other: FrameworkPoint | None) -> bool:
    """With repeats: every one of the best's is faster than every one of the other's.

    Without: by more than runs of one setting may be apart.
    """
    if best is None or other is None or not best.samples_per_s or not other.samples_per_s:
        return False
    is_single = min(len(best.speeds), len(other.speeds)) < 2
    if best.samples_per_s < other.samples_per_s * (SINGLE_RUNS_APART if is_single else 1 + LEVEL):
        return False
    return is_single or best.speeds[0] > other.speeds[-1]


def headline_of(rows: Sequence[FrameworkRow], sizes: Sequence[int]) -> str:
    """Who is how much faster, for each number of ranks."""
    return words.speeds([text for size in sizes if (text := _speed_on(rows, size))])


def _speed_on(rows: Sequence[FrameworkRow], size: int) -> str:
    frameworks = fastest(rows, size)
    if len(frameworks) < 2:
        return ""
    text = _measured_on(frameworks, size)
    return words.in_disturbed_runs(text) if in_doubt(frameworks, size) else text


def _measured_on(frameworks: Sequence[FrameworkRow], size: int) -> str:
    best, framework_rows = frameworks[0], frameworks[1:]
    level = level_with(best, framework_rows, size)
    if level:
        names = sorted([best.name, *(framework_row.name for framework_row in level)])
        near = all((row.speed(size) or 0.0) * (1 + LEVEL) > (best.speed(size) or 0.0) for row in level)
        points = [point for row in (best, *level) if (point := row.point(size)) is not None]
        behind = [row.name for row in framework_rows if row not in level]
        return words.level(
            names,
            size,
            within=LEVEL if near else None,
            is_single=any(len(point.speeds) < 2 for point in points),
            behind=behind,
        )
    first, last = (
        (best.speed(size) or 0.0) / (framework.speed(size) or 1.0)
        for framework in (framework_rows[0], framework_rows[-1])
    )
    return words.fastest(best.name, size, [row.name for row in framework_rows], (first, last))


def agreement_of(rows: Sequence[FrameworkRow], reference: str) -> str:
    """What the losses say, in a few sentences."""
    compared = [(row, size, parity) for row in rows for size, parity in sorted(row.parity.items())]
    astray: dict[str, list[str]] = {}
    for row, size, parity in compared:
        if parity.agrees is False:
            whose = words.losses_of(row.name, size, is_reference=row.is_reference)
            astray.setdefault(parity.reason, []).append(whose)
    sentences = [words.losses_differ(names, reason) for reason, names in astray.items()]
    good = [(row.name, parity) for row, _, parity in compared if parity.agrees]
    if good:
        early = max(parity.early_difference or 0.0 for _, parity in good)
        largest = max(parity.max_difference or 0.0 for _, parity in good)
        steps = max(parity.num_steps for _, parity in good)
        sentences.append(
            words.losses_agree(
                sorted({name for name, _ in good}),
                reference,
                are_all=not astray,
                early=(early, min(EARLY_STEPS, steps), EARLY_TOLERANCE),
                over_all=(largest, steps, TOLERANCE) if steps > EARLY_STEPS else None,
            )
        )
    return " ".join(sentences)


def scaling_of(rows: Sequence[FrameworkRow], sizes: Sequence[int]) -> str:
    """What the most ranks bring, best and worst; "" where no framework ran on several numbers."""
    if len(sizes) < 2:
        return ""
    most = sizes[-1]
    ratios = [
        (point.speedup, point.efficiency or 0.0, row.name, row.points[0].world_size)
        for row in rows
        if (point := row.point(most)) is not None
        and point.speedup is not None
        and row.points[0].world_size < most
    ]
    if not ratios:
        return ""
    ratios.sort(reverse=True)
    speedup, share, name, fewest = ratios[0]
    slower = sorted(entry[2] for entry in ratios if entry[0] < 1)
    if slower and len(slower) == len(ratios):
        return words.all_lose(name, (fewest, most), speedup)
    return words.gains(name, (fewest, most), speedup, share, slower)


def action_of(rows: Sequence[FrameworkRow], sizes: Sequence[int]) -> str:
    """What to do about curves that differ, or about runs that do not tell the order."""
    if astray := _astray(rows):
        return words.find_out_why(astray)
    return REPEAT_QUIETLY if any(in_doubt(fastest(rows, size), size) for size in sizes) else ""


def _astray(rows: Sequence[FrameworkRow]) -> list[str]:
    """Frameworks whose losses differ from the reference's."""
    return sorted({row.name for row in rows if any(parity.agrees is False for parity in row.parity.values())})


def verdict_of(studies: Sequence[FrameworkStudy]) -> tuple[str, str]:
    """(one sentence over all models: what is learned, then who is fastest; what to do)."""
    rows = [row for study in studies for row in study.rows]
    action = next((study.action for study in studies if study.action), "")
    winners = [text for framework_study in studies[:_MOST_MODELS] if (text := _winner(framework_study))]
    return words.study_verdict(_learned(rows), winners), action


def _learned(rows: Sequence[FrameworkRow]) -> str:
    names = sorted({row.name for row in rows})
    silent = sorted({row.name for row in rows if not row.is_reference and not row.parity})
    if astray := _astray(rows):
        return words.learn_otherwise(astray)
    if len(names) < 2:
        return words.only_one(names)
    if silent or not any(row.parity for row in rows):
        return words.learning_not_known(silent or names)
    return words.learn_the_same(len(names))


def _winner(study: FrameworkStudy) -> str:
    """Fastest on the fewest ranks; "" where no two can be compared."""
    size = study.world_sizes[0] if study.world_sizes else 0
    fastest_rows = fastest(study.rows, size)
    if len(fastest_rows) < 2:
        return ""
    if in_doubt(fastest_rows, size):
        return words.winner_not_known(study.title, size)
    level = level_with(fastest_rows[0], fastest_rows[1:], size)
    return words.winner(sorted([fastest_rows[0].name, *(row.name for row in level)]), study.title, size)
