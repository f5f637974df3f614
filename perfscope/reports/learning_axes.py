"""What curves of learning are drawn over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from perfscope.analysis.learning import LearningPoint
from perfscope.reports.curves import Curve
from perfscope.reports.values import Unit


class LearningAxis(NamedTuple):
    """An x axis.

    Attributes:
        name: in titles of charts: "against time".
        title: of the axis.
        of: a point's place on it; None: it is not known.
    """

    name: str
    title: str
    unit: Unit
    of: Callable[[LearningPoint], float | None]


STEPS = LearningAxis("steps", "steps", Unit.COUNT, attrgetter("step"))
TIME = LearningAxis("time", "training time, without evaluations", Unit.TIME, attrgetter("train_ns"))
SENT = LearningAxis("bytes", "bytes sent by all ranks", Unit.BYTES, attrgetter("bytes"))


def learning_curve(
    label: str, points: Sequence[LearningPoint], axis: LearningAxis, figure: str
) -> Curve | None:
    """A figure of the points ("accuracy") over an axis; None where fewer than two points have both."""
    pairs = [
        (float(x), float(y))
        for point in points
        if (x := axis.of(point)) is not None and (y := getattr(point, figure)) is not None
    ]
    if len(pairs) < 2:
        return None
    return Curve(label=label, x=tuple(x for x, _ in pairs), y=tuple(y for _, y in pairs))
