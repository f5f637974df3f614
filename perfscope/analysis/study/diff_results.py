"""What the difference of two runs is made of."""

from __future__ import annotations

from msgspec import Struct

from perfscope.analysis.study.step_results import StepDifference
from perfscope.vocabulary.comparison import CannotTell


class DiffRow(Struct, frozen=True, kw_only=True):
    """One thing before and after. Figures: base units of `unit`; else text.

    `unit`: time, bytes, count, ratio, rate (per second), text. `change` = after - before; `ratio` = after /
    before; None where one side is missing or no number. `weight` orders rows:
    |change|, in a section of several units |change| / before (of shares |change|), for text 1; in
    `collectives` what the time in the calls of that collective changed by.
    `share`: of the change of the traced step, in `parts` and `exposed`; negative: it goes the other way.
    `only`: "before" or "after" where the other side has nothing of the kind.
    """

    what: str
    unit: str
    before: float | str | None
    after: float | str | None
    change: float | None
    ratio: float | None
    weight: float
    share: float | None = None
    only: str = ""


class DiffSection(Struct, frozen=True, kw_only=True):
    """`id`: step, parts, exposed, layers, collectives, machine, packages, environment, options, command, or
    scheme.
    """

    id: str
    title: str
    rows: tuple[DiffRow, ...]  # changed ones, largest change first
    num_same: int  # rows left out because nothing changed
    reason: str = ""  # why there is nothing to compare; "" = there is


class RunDiff(Struct, frozen=True, kw_only=True):
    """Exactly two runs. `before` is the first given, or the reference."""

    before: str  # label
    after: str
    headline: str  # how much slower or faster, and the part that moved most
    sections: tuple[DiffSection, ...]
    cannot_tell: CannotTell | None = None  # why the difference says nothing
    difference: StepDifference | None = None  # of the traced steps, exact; None: one has none
    moved: str = ""  # the headline without the speed
    action: str = ""
    refused: str = ""  # why they may not be compared; then no row has a ratio. "" = they may
