"""The mean traced step in parts that add up exactly, and what two such steps differ by."""

from __future__ import annotations

from msgspec import Struct

from perfscope.vocabulary.communication import Unattributed


class StepPart(Struct, frozen=True, kw_only=True):
    """One part of the mean traced step of a setting; the parts of a step add up to it in whole ns.

    Attributes:
        part: of PARTS.
        axis: of exposed communication whose axes are known; None: any other part.
        layer: that needs the calls, or the boundary of two stages; "" is the model itself; None: of no layer.
        reason: why exposed communication along an axis is of no layer.
    """

    part: str
    axis: str | None = None
    layer: str | None = None
    reason: Unattributed | None = None
    ns: int

    @property
    def key(self) -> tuple[str, str | None, str | None, Unattributed | None]:
        """What it is a part of, without how long it takes."""
        return self.part, self.axis, self.layer, self.reason


class PartChange(Struct, frozen=True, kw_only=True):
    """A part in both steps; 0 where a step has no such part. `change_ns` = after - before."""

    part: str
    axis: str | None
    layer: str | None
    reason: Unattributed | None
    before_ns: int
    after_ns: int
    change_ns: int


class StepDifference(Struct, frozen=True, kw_only=True):
    """What the mean traced steps of two runs or settings differ by; the changes add up to `change_ns`.

    Attributes:
        before, after: labels of the runs, or titles of the settings.
        by_axis: axis -> what its exposed communication changed by; {}: the axes of one side are not known.
        changes: the largest first; parts that take as long in both are left out.
    """

    before: str
    after: str
    before_ns: int
    after_ns: int
    change_ns: int
    by_axis: dict[str, int]
    changes: tuple[PartChange, ...]
