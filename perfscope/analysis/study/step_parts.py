"""The mean traced step of a run or setting in whole nanoseconds, and where two of them differ.

Exposed communication is divided by axis of the mesh and by layer; every other part stays whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from perfscope.analysis.intervals import rounded_to
from perfscope.analysis.results import Communication
from perfscope.analysis.study.figures import Composition
from perfscope.analysis.study.results import PARTS
from perfscope.analysis.study.step_results import PartChange, StepDifference, StepPart

EXPOSED = "exposed_comm"
_Key = tuple[str, str | None, str | None, object]


def step_parts(composition: Composition | None, communication: Communication | None) -> tuple[StepPart, ...]:
    """The parts of a run's mean step, which add up to it.

    Exposed communication stays whole where its axes are not known, or are not all of it.
    """
    if composition is None:
        return ()
    step = round(composition.step)
    values = rounded_to([getattr(composition, part) for part in PARTS], step)
    by_part = {part: StepPart(part=part, ns=value) for part, value in zip(PARTS, values, strict=True)}
    divided = _divided(communication) if communication is not None else []
    if not divided or abs(sum(part.ns for part in divided) - by_part[EXPOSED].ns) > len(PARTS):
        return tuple(by_part.values())
    exact = rounded_to([part.ns for part in divided], by_part.pop(EXPOSED).ns)
    parts = (replace(part, ns=value) for part, value in zip(divided, exact, strict=True))
    return (*by_part.values(), *parts)


def _divided(communication: Communication) -> list[StepPart]:
    of_layers = [
        StepPart(part=EXPOSED, axis=axis, layer=row.layer, ns=exposed)
        for row in communication.by_layer
        for axis, exposed in row.axes.items()
    ]
    unattributed = [
        StepPart(part=EXPOSED, axis=axis, reason=row.reason, ns=exposed)
        for row in communication.unattributed
        for axis, exposed in row.axes.items()
    ]
    return [part for part in (*of_layers, *unattributed) if part.ns]


def mean_parts(runs: Sequence[tuple[StepPart, ...]]) -> tuple[StepPart, ...]:
    """Mean over the repeats of a setting that have parts; they add up to the mean step, rounded.

    Exposed communication is divided only if all repeats have it divided.
    """
    recorded = [parts for parts in runs if parts]
    if not recorded:
        return ()
    if not all(map(has_axes, recorded)):
        recorded = [_whole(parts) for parts in recorded]
    sums: dict[_Key, int] = defaultdict(int)
    first: dict[_Key, StepPart] = {}
    for part in (part for parts in recorded for part in parts):
        sums[part.key] += part.ns
        first.setdefault(part.key, part)
    means = [value / len(recorded) for value in sums.values()]
    exact = rounded_to(means, round(sum(sums.values()) / len(recorded)))
    return tuple(replace(first[key], ns=value) for key, value in zip(sums, exact, strict=True))


def has_axes(parts: Sequence[StepPart]) -> bool:
    """Whether the axes of all exposed communication are known; so they are where there is none."""
    return all(part.axis is not None for part in parts if part.part == EXPOSED and part.ns)


def axes_of(steps: Collection[Sequence[StepPart]]) -> list[str]:
    """Axes along which any of these steps has exposed communication, the one with most first."""
    sums: dict[str, int] = defaultdict(int)
    for part in (part for parts in steps for part in parts):
        if part.axis is not None:
            sums[part.axis] += part.ns
    return sorted(sums, key=lambda axis: (-sums[axis], axis))


def by_axis(parts: Sequence[StepPart]) -> Mapping[str, int]:
    """Axis -> its exposed communication, ns."""
    sums: dict[str, int] = defaultdict(int)
    for part in parts:
        if part.axis is not None:
            sums[part.axis] += part.ns
    return sums


def _whole(parts: Sequence[StepPart]) -> tuple[StepPart, ...]:
    """The same step with its exposed communication undivided."""
    unexposed = [part for part in parts if part.part != EXPOSED]
    exposed = sum(part.ns for part in parts if part.part == EXPOSED)
    return (*unexposed, StepPart(part=EXPOSED, ns=exposed))


def difference(
    before: tuple[str, Sequence[StepPart]], after: tuple[str, Sequence[StepPart]]
) -> StepDifference | None:
    """What the second step takes longer or shorter than the first, and where; None: one has no parts.

    Args:
        before, after: label, parts of the step.
    """
    (first_label, first), (second_label, second) = before, after
    if not first or not second:
        return None
    are_divided = has_axes(first) and has_axes(second)
    if not are_divided:
        first, second = _whole(first), _whole(second)
    sides = [{part.key: part for part in parts} for parts in (first, second)]
    changes = []
    for key in dict.fromkeys((*sides[0], *sides[1])):
        before_ns, after_ns = (side[key].ns if key in side else 0 for side in sides)
        part, axis, layer, reason = key
        changes.append(
            PartChange(
                part=part,
                axis=axis,
                layer=layer,
                reason=reason,
                before_ns=before_ns,
                after_ns=after_ns,
                change_ns=after_ns - before_ns,
            )
        )
    axes: dict[str, int] = defaultdict(int)
    for change in changes:
        if change.axis is not None:
            axes[change.axis] += change.change_ns
    steps = [sum(part.ns for part in parts) for parts in (first, second)]
    return StepDifference(
        before=first_label,
        after=second_label,
        before_ns=steps[0],
        after_ns=steps[1],
        change_ns=steps[1] - steps[0],
        by_axis=dict(sorted(axes.items(), key=lambda item: (-abs(item[1]), item[0]))),
        changes=tuple(
            sorted(
                (change for change in changes if change.change_ns), key=lambda change: -abs(change.change_ns)
            )
        ),
    )
