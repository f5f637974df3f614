"""Two runs by axis of the mesh: which axes the difference of their steps comes from, in whole nanoseconds."""

from __future__ import annotations

from perfscope.analysis.intervals import rounded_to
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.study.figures import Composition
from perfscope.analysis.study.results import PARTS

EXPOSED = "exposed_comm"


def is_hybrid(*analyses: RunAnalysis) -> bool:
    """Whether one of them exposes communication along several axes, and all know theirs."""
    communications = [analysis.communication for analysis in analyses]
    return all(known is not None for known in communications) and any(
        known is not None and sum(bool(entry.exposed_ns) for entry in known.by_axis) > 1
        for known in communications
    )


def whole_parts(
    composition: Composition, analysis: RunAnalysis, *, by_axis: bool
) -> dict[tuple[str, str | None], int]:
    """(part, axis) -> ns of the mean traced step; they add up to the step. The axis is None of other parts.

    Args:
        composition: of the run.
        analysis: of the run.
        by_axis: divide the exposed communication; it stays whole where the axes are not all of it.
    """
    step = round(composition.step)
    whole = dict(zip(PARTS, rounded_to([getattr(composition, part) for part in PARTS], step), strict=True))
    parts: dict[tuple[str, str | None], int] = {(part, None): value for part, value in whole.items()}
    entries = analysis.communication.by_axis if analysis.communication is not None else ()
    exposed = whole[EXPOSED]
    if by_axis and abs(sum(entry.exposed_ns for entry in entries) - exposed) <= len(entries):
        del parts[EXPOSED, None]
        values = rounded_to([entry.exposed_ns for entry in entries], exposed)
        parts |= {(EXPOSED, entry.axis): value for entry, value in zip(entries, values, strict=True)}
    return parts


def axis_changes(
    before: tuple[Composition, RunAnalysis], after: tuple[Composition, RunAnalysis]
) -> dict[str, int]:
    """Axis -> what its exposed communication changed by, ns."""
    sides = [whole_parts(composition, analysis, by_axis=True) for composition, analysis in (before, after)]
    axes = {axis: None for side in sides for _, axis in side if axis is not None}
    first, second = ({axis: side.get((EXPOSED, axis), 0) for axis in axes} for side in sides)
    return {axis: second[axis] - first[axis] for axis in axes}
